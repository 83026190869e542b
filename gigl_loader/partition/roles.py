"""Roles of columns by their names: the conventions of file formats, databases and published data sets.

Names are compared without case and punctuation: ``FromNodeId``, ``from_node_id`` and ``~from`` are ``from``
with or without one of the endings below. Of Neo4j's ``name:ID(Group)``, the part after the colon counts.

======================  ==================================================================================
role                    names
======================  ==================================================================================
``src``, ``dst``        a pair of ``_ENDS``; the types of both ends (``user_id,item_id``), with 1 and 2
                        where they are one type (``txId1,txId2``); ``:START_ID(T)``, ``:END_ID(T)``
relation                of a table with a type such as ``a,@COLUMN,b``: one of ``_RELATIONS``, ``:TYPE``
``id`` of nodes         ``id``, ``node_id``, ``~id``, ``:ID(T)``, the name of the type: ``user``, ``userId``
``id`` of edges         ``id``; where the ends have another name than ``src``, also ``edge_id``, ``~id``
``label``, ``y``        ``label`` and the like of ``_USUAL``; ``~label``, ``:LABEL`` and ``:TYPE``
left out                ``:IGNORE``
any other               ``name:type`` and ``name:type[]`` of ``_TYPES`` are ``name``
======================  ==================================================================================

Exact names of ``_USUAL`` come first. Of the others, a role is given where one column (or pair) fits alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from gigl_loader.graph.schema import EdgeType, NodeType
from gigl_loader.partition.readers import NewColumn

Role = Literal["nodes", "edges", "ids", "owners"]

ID_ROLES = frozenset({"src", "dst", "id"})
_USUAL: Mapping[Role, Mapping[str, str]] = {
    "nodes": {"label": "y", "labels": "y", "feat": "x", "feature": "x", "features": "x", "node_id": "id"},
    "edges": {"source": "src", "target": "dst", "destination": "dst", "feat": "edge_attr", "edge_id": "id"},
    "ids": {"node_id": "id"},
    "owners": {"node_id": "id", "partition": "part", "owner": "part"},
}
_ID_ENDINGS = ("id", "node", "nodeid", "index", "idx")
_ENDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("src", "dst", ("", *_ID_ENDINGS)),  # DGL, GraphBolt, JODIE
    ("source", "target", ("", *_ID_ENDINGS)),  # Gephi, networkx
    ("source", "destination", ("", *_ID_ENDINGS)),
    ("from", "to", ("", *_ID_ENDINGS)),  # SNAP, Neptune, igraph
    ("head", "tail", ("", *_ID_ENDINGS)),  # knowledge graphs
    ("h", "t", ("", "id")),
    ("subject", "object", ("", *_ID_ENDINGS)),  # RDF, KGX
    ("start", "end", ("", *_ID_ENDINGS)),  # Neo4j
    ("u", "v", ("", "id")),
    ("x", "y", ("id", "index", "idx")),  # PrimeKG; without an ending these are coordinates.
    ("node1", "node2", ("",)),
    ("id1", "id2", ("",)),
)
"""Names of both ends, and what may follow both of them."""
_TYPE_ENDINGS = ("type", "category")
"""Endings of columns that name the type of an end: ``head_type``."""
_RELATIONS = frozenset({"relation", "rel", "predicate", "r", "relationtype", "reltype", "edgetype", "type"})
_TYPES: Mapping[str, str | None] = {
    **dict.fromkeys(("byte", "short", "int", "integer", "long"), "I64"),
    "float": "F32",
    "double": "F64",
    **dict.fromkeys(("bool", "boolean"), "BOOL"),
    **dict.fromkeys(("string", "char"), "TEXT"),
    **dict.fromkeys(("date", "datetime", "localdatetime", "time", "localtime"), None),
}
"""Types that Neo4j and Neptune write after a name, and their dtype. ``None``: that of the values."""
_MARKS = frozenset({"id", "start_id", "end_id", "label", "type", "ignore"})
_TYPED = re.compile(r"(?P<name>.*):(?P<type>\w+)(\{.*\})?(\(.*\))?(?P<many>\[\])?")


def relation_column(edge_type: EdgeType) -> str | None:
    """Return the column whose texts name the relations of a table of several edge types.

    Such a table has a type like ``("gene", "@action", "drug")``. The relation may begin otherwise:
    ``rev_@action``.
    """
    found = re.fullmatch(r"(?:.*_)?@([^#]+)(?:#held)?", edge_type[1])
    return None if found is None else found[1]


def by_convention(
    names: Sequence[str],
    role: Role,
    kind: NodeType | EdgeType | None = None,
    *,
    renamed: Mapping[str, str] | None = None,
    keep: Collection[str] = (),
    row_ids: bool = False,
) -> dict[str, NewColumn]:
    """Return the columns of a table of type ``kind`` that get another name or a dtype, by name in the file.

    ``renamed`` columns have their names from options. Those of ``keep`` have no role by convention. With
    ``row_ids``, no column becomes the ids.
    """
    renamed = renamed or {}
    free = [name for name in names if name not in renamed]
    usual = {name: new for name, new in _USUAL[role].items() if name in free and new not in names}
    free = [name for name in free if name not in usual and name not in keep]
    taken = {*names, *usual.values(), *renamed.values()} - usual.keys() - renamed.keys()
    found = dict(usual)
    if role == "edges":
        edge_type = kind if isinstance(kind, tuple) else None
        found |= _of_edges(free, edge_type, taken)
    else:
        only = role == "ids" and len(names) == 1
        candidates = free if only else id_names(free, kind if isinstance(kind, str) else None)
        if role != "owners" and "id" not in taken and len(candidates) == 1 and not row_ids:
            found[candidates[0]] = "id"
        if role == "nodes" and "y" not in taken:
            found |= _only([name for name in free if _is_label(name)], "y")
    columns = {old: NewColumn(new, _type_of(old)) for old, new in found.items()}
    taken |= {*found.values()}
    for name in free:
        if name not in found and (plain := _without_type(name)):
            plain = _USUAL[role].get(plain, plain)
            columns[name] = NewColumn(name if plain in taken else plain, _type_of(name))
            taken.add(plain)
    return columns


def end_names(names: Iterable[str], edge_type: EdgeType | None) -> list[tuple[str, str]]:
    """Return the pairs of columns that are the ends by some convention."""
    by_form: dict[str, list[str]] = {}
    for name in names:
        by_form.setdefault(_form(name), []).append(name)
    pairs = [(first + end, second + end) for first, second, endings in _ENDS for end in endings]
    if edge_type is not None and edge_type[0] == edge_type[2]:
        pairs += [(f"{own}1", f"{own}2") for own in own_names(edge_type[0])]
    elif edge_type is not None:
        pairs += [(a, b) for a in own_names(edge_type[0]) for b in own_names(edge_type[2])]
    found = [(x, y) for a, b in pairs for x in by_form.get(a, ()) for y in by_form.get(b, ()) if x != y]
    return list(dict.fromkeys(found))


def id_names(names: Iterable[str], node_type: NodeType | None) -> list[str]:
    """Return the columns that are the ids of nodes by some convention."""
    forms = {"id", "nodeid"} | (own_names(node_type) if node_type is not None else set())
    return [name for name in names if _form(name) in forms]


def type_names(names: Iterable[str]) -> list[str]:
    """Return the columns that name the type of an end in each row."""
    forms = {end + what for pair in _ENDS for end in pair[:2] for what in _TYPE_ENDINGS}
    return [name for name in names if _form(name) in forms]


def relation_names(names: Iterable[str]) -> list[str]:
    """Return the columns that name the relation in each row."""
    return [name for name in names if _form(name) in _RELATIONS or _is_label(name)]


def has_type(name: str) -> bool:
    """Return whether a name ends with a type or a mark, as those of Neo4j and Neptune."""
    return _mark(name) is not None or _without_type(name) is not None


def is_ignored(name: str) -> bool:
    """Return whether a file says of a column that it is to be left out."""
    return _mark(name) == "ignore"


def own_names(node_type: NodeType) -> set[str]:
    """Return the names of ids of a type, without case and punctuation. A type that rows name has none."""
    if node_type.startswith("@"):
        return set()
    own = squeezed(node_type)
    return {each for name in {own, own.removesuffix("s")} for each in (name, f"{name}id", f"id{name}")}


def squeezed(name: str) -> str:
    """Return a name without case and punctuation."""
    return re.sub(r"[\W_]+", "", name.lower())


def _of_edges(free: Sequence[str], edge_type: EdgeType | None, taken: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    relation = None if edge_type is None else relation_column(edge_type)
    if relation is not None and relation not in taken:
        found |= _only(relation_names(free), relation)
    readings = [] if {"src", "dst"} & {*taken} else end_names(free, edge_type)
    if len(readings) == 1:
        found |= dict(zip(readings[0], ("src", "dst"), strict=True))
        if "id" not in taken:
            found |= _only([name for name in free if _form(name) in ("id", "edgeid")], "id")
    if "label" not in taken:
        found |= _only([name for name in free if _is_label(name) and name not in found], "label")
    return found


def _only(names: Sequence[str], role: str) -> dict[str, str]:
    return {names[0]: role} if len(names) == 1 else {}


def _form(name: str) -> str:
    """Return what is compared with the names of conventions."""
    return squeezed(_mark(name) or _without_type(name) or name)


def _mark(name: str) -> str | None:
    """Return Neo4j's mark of a column, such as ``start_id``."""
    found = _TYPED.fullmatch(name.strip())
    return found["type"].lower() if found and found["type"].lower() in _MARKS else None


def _is_label(name: str) -> bool:
    return _mark(name) in ("label", "type") or name.strip() == "~label"


def _without_type(name: str) -> str | None:
    """Return the name before a type. ``None``: it has none."""
    found = _TYPED.fullmatch(name.strip())
    return (found["name"].strip() or None) if found and found["type"].lower() in _TYPES else None


def _type_of(name: str) -> str | None:
    """Return the dtype that stands after a name. Lists have that of their values."""
    found = _TYPED.fullmatch(name.strip())
    return _TYPES.get(found["type"].lower()) if found and not found["many"] else None
