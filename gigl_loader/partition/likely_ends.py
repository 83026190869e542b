"""Columns that look like the ends of edges where none is called ``src`` or ``dst``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, EdgeType
from gigl_loader.partition.likely_ids import words_in
from gigl_loader.partition.readers import TEXT, Kind, Table, are_integers
from gigl_loader.partition.table import edge_roles

END_WORDS: Mapping[str, frozenset[str]] = {
    "src": frozenset({"src", "source", "from", "head", "subject", "start"}),
    "dst": frozenset({"dst", "target", "destination", "to", "tail", "object", "end"}),
}
"""Words in the names of columns that are likely to be the ends."""
RELATION = "relation"
"""Name for the relations of triples without a header."""
RELATION_WORDS = frozenset({"relation", "rel", "predicate", "type", "kind", "edge", "action"})
_FIRST_ROWS = 1000
"""Rows whose texts may be lists of numbers, or names of categories."""


def two_types(kind: EdgeType, likely: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the types that the columns of the ends are named after, such as ``userId`` and ``movieId``."""
    by_end = {end: name for name, end in likely.items()}
    if kind != HOMOGENEOUS_EDGE or by_end.keys() != {"src", "dst"}:
        return None
    words = [words_in(by_end[end]) for end in ("src", "dst")]
    names = ["_".join(each - {"id", "idx", "index", "key"}) for each in words]
    named = all("id" in each for each in words) and all(name.isidentifier() for name in names)
    by_convention = any(each & END_WORDS[end] for each, end in zip(words, ("src", "dst"), strict=True))
    return (names[0], names[1]) if named and names[0] != names[1] and not by_convention else None


def edge_columns(roles: Sequence[str], reader: Table) -> list[dict[str, Kind]]:
    """Return names for the columns of edges without a header.

    Of three texts, the second or the third is the relation: the one that has no value of the first, if the
    other has some; else both are possible. Of three integers, the third may be an end only if it has some.
    """
    kinds = list(reader.columns.values())
    orders = [list(roles)]
    if kinds[:3] == [TEXT] * 3:
        relation = roles[1] if len(roles) == 3 else RELATION
        shares = _shares_values(reader, 2), _shares_values(reader, 1)
        orders = [["src", relation, "dst"], ["src", "dst", relation]]
        orders = [orders[at] for at in (0, 1) if shares[0] == shares[1] or shares[at]]
    elif len(roles) == 2 and len(kinds) == 3 and all(map(are_integers, kinds)) and _shares_values(reader, 2):
        others = [orders[0]] if _shares_values(reader, 1) else []
        orders = [*others, ["src", "column2", "dst"]]
    named = [[*order, *(f"column{at + 1}" for at in range(len(order), len(kinds)))] for order in orders]
    return [dict(zip(names, kinds, strict=False)) for names in named]


def _shares_values(reader: Table, at: int) -> bool:
    """Return whether a column has a value of the first among the first rows, of which the header is one."""
    names = list(reader.columns)
    chunk = next(iter(reader.read([names[0], names[at]], _FIRST_ROWS)), {})
    first, other = ({name, *chunk.get(name, ())} for name in (names[0], names[at]))
    return not first.isdisjoint(other)


def likely_ends(kind: EdgeType, table: Table, missing: Sequence[str]) -> dict[str, str]:
    """Return which columns may be the missing ends or relation, by their names, else by their order."""
    roles = edge_roles(kind)
    free = [
        name
        for name, each in table.columns.items()
        if name not in roles and (each == TEXT or are_integers(each))
    ]
    found: dict[str, str] = {}
    for by_name in (True, False):
        for end in missing:
            if end in END_WORDS:
                words = {*END_WORDS[end]} | (
                    {kind[0 if end == "src" else 2].lower()} if kind[0] != kind[2] else set()
                )
                fitting = [name for name in free if not by_name or words & words_in(name)]
            else:
                words = {*RELATION_WORDS, *words_in(end)}
                texts = [name for name in free if table.columns[name] == TEXT]
                fitting = [name for name in texts if not by_name or words & words_in(name)]
            if fitting and end not in found.values():
                found[fitting[0]] = end
                free.remove(fitting[0])
    return found if len(found) == len(missing) else {}
