"""K-hop neighbourhoods, as in GraphSAGE (Hamilton et al. 2017), for every plan that samples hop by hop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from gigl_loader.arrays import plain_values
from gigl_loader.graph.reverses import reverse_name, reverse_names, reverses_of
from gigl_loader.graph.schema import Column, type_name
from gigl_loader.graph.times import TimeWindow, check_window, read_window
from gigl_loader.graph.type_columns import (
    TypeColumns,
    column_of,
    from_json,
    read_times,
    read_weights,
    to_json,
)
from gigl_loader.options import by_edge_type, whole_number
from gigl_loader.sampling.frame_schema import FrameArray, FrameSchema
from gigl_loader.sampling.store import DrawRule, check_batch_dependency

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.plan import PlanFields, SamplerArguments

SUBGRAPH_TYPES = ("directional", "bidirectional", "induced")
"""Names and meanings are PyG's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KHop:
    """How the neighbourhood of seeds is drawn, hop by hop. A frozen value, checked at birth."""

    num_neighbors: Mapping[EdgeType, tuple[int, ...]]
    """Fanout per hop for every edge type: -1 takes all neighbours, 0 skips the type at that hop. Without any
    hop, an induced subgraph has the seeds alone."""
    replace: bool = False
    """Draw with replacement: every node with neighbours then gets exactly ``fanout`` draws."""
    with_edge: bool = False
    """Return the ids of sampled edges. Costs one more random read per edge."""
    weight_attr: TypeColumns = None
    """Declared weight column, or columns by edge type: edges of the types that have one are drawn in
    proportion to it, and never where it is 0. Other types draw uniformly."""
    disjoint: bool = False
    """Every entry of the input has a tree of its own: a node that two trees reach is there twice."""
    time_attr: TypeColumns = None
    """Declared time of edges or nodes, or times by type: no tree has an edge, or a neighbour, that is later
    than the tree. Types without one are not bound."""
    last: bool = False
    """Take the latest neighbours in place of random ones."""
    monotone: bool = False
    """No edge, or neighbour, is later than the edge, or neighbour, that led to its target."""
    strictly_earlier: bool = False
    """No edge, or neighbour, has the very time that it must not be later than."""
    time_window: TimeWindow = None
    """No edge, or neighbour, is earlier than the window of its tree."""
    with_starts: bool = False
    """Each entry comes with the time at which the window of its tree begins."""
    labor: bool = False
    """LABOR-0 (Balin and Catalyurek 2023): all nodes of a hop have the same chances of their neighbours."""
    batch_dependency: int = 1
    """Of LABOR: batches of an epoch for which a node keeps its random number."""
    subgraph_type: str = "directional"
    """``"induced"``: all edges among the nodes in place of the drawn ones. ``"bidirectional"``: the drawn
    edges and their reverses, one edge for each pair of nodes."""

    def __post_init__(self) -> None:
        if self.subgraph_type not in SUBGRAPH_TYPES:
            raise ValueError(
                f"subgraph_type must be one of {', '.join(SUBGRAPH_TYPES)}, got {self.subgraph_type!r:.200}"
            )
        for name in ("time_attr", "disjoint"):
            if self.induced and getattr(self, name):
                raise ValueError(f"induced subgraphs join nodes of all trees: leave {name} out")
        if self.num_neighbors and not self.num_hops and self.induced and self.weight_attr is not None:
            raise ValueError("num_neighbors=None adds no neighbours: leave weight_attr out")
        for name in ("replace", "weight_attr", "time_attr", "disjoint"):
            if self.labor and getattr(self, name):
                raise ValueError(f"LABOR draws neighbours for all nodes together: leave {name} out")
        check_batch_dependency(self.batch_dependency, labor=self.labor)
        self._check_times()
        hops = {len(fanouts) for fanouts in self.num_neighbors.values()}
        if len(hops) > 1:
            raise ValueError(
                f"num_neighbors: hops must be the same across all edge types, got {sorted(hops)}"
            )
        for edge_type, fanouts in self.num_neighbors.items():
            for fanout in fanouts:
                if fanout < -1:
                    raise ValueError(
                        f"fanout {fanout} of {edge_type}: must be -1 (all), 0 (skip) or positive"
                    )

    def _check_times(self) -> None:
        if self.time_attr is not None and not self.disjoint:
            raise ValueError("time_attr needs disjoint trees")
        if self.last and (self.replace or self.time_attr is None):
            raise ValueError(
                'temporal_strategy "last" takes the latest neighbours: it needs time_attr, and no replace'
            )
        if self.time_attr is None and (
            self.monotone or self.strictly_earlier or self.time_window is not None or self.with_starts
        ):
            raise ValueError("windows of time, monotone draws, and temporal_comparison '<', need time_attr")
        if self.monotone and self.last:
            raise ValueError('temporal_strategy is "last" or "monotone", not both')
        if self.time_window is not None and self.with_starts:
            raise ValueError(
                "time_window has no meaning with input_time_start, which gives each seed its own"
            )
        window = self.time_window
        if self.strictly_earlier and (window == 0 or (isinstance(window, tuple) and window[0] == window[1])):
            raise ValueError(
                f"time_window {window!r} is empty with temporal_comparison '<', which leaves its end out"
            )

    @classmethod
    def of(cls, schema: GraphSchema, arguments: SamplerArguments, **of_plan: Any) -> Self:
        """Read the arguments of a loader. ``ValueError`` names what does not fit the graph.

        ``of_plan``: the fields of a subclass.
        """
        fanouts = arguments.num_neighbors
        if fanouts is None and arguments.subgraph_type != "induced":
            raise ValueError("num_neighbors is needed for k-hop neighbourhoods: a fanout for each hop")
        return cls(
            num_neighbors=dict.fromkeys(schema.edges, ())
            if fanouts is None
            else read_num_neighbors(schema, fanouts),
            replace=arguments.replace,
            with_edge=arguments.with_edge,
            weight_attr=read_weights(schema, arguments.weight_attr),
            disjoint=arguments.disjoint or arguments.time_attr is not None,
            time_attr=read_times(schema, arguments.time_attr),
            last=arguments.last,
            monotone=arguments.monotone,
            strictly_earlier=arguments.strictly_earlier,
            time_window=read_window(arguments.time_window, arguments.time_unit(schema)),
            with_starts=arguments.with_starts,
            subgraph_type=arguments.subgraph_type,
            **arguments.draw,
            **of_plan,
        )._checked(schema)

    @classmethod
    def read(cls, fields: PlanFields, **of_plan: Any) -> Self:
        """Read the fields of a plan from outside. ``ValueError`` names the rule that is broken."""
        return cls(
            num_neighbors=fields.fanouts("num_neighbors"),
            replace=fields.flag("replace"),
            with_edge=fields.flag("with_edge"),
            weight_attr=read_weights(fields.schema, from_json(fields.take("weight_attr", None))),
            time_attr=read_times(fields.schema, from_json(fields.take("time_attr", None))),
            **{name: fields.flag(name, False) for name in _ADDED if _DEFAULTS[name] is False},
            time_window=None
            if (window := fields.take("time_window", None)) is None
            else check_window(window),
            batch_dependency=fields.whole("batch_dependency", 1),
            subgraph_type=fields.text("subgraph_type", "directional"),
            **of_plan,
        )._checked(fields.schema)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, without defaults of fields that version 0.1 did not have."""
        return {
            "num_neighbors": sorted((list(kind), list(hops)) for kind, hops in self.num_neighbors.items()),
            "replace": self.replace,
            "with_edge": self.with_edge,
            **{name: to_json(value) for name in _ADDED if (value := getattr(self, name)) != _DEFAULTS[name]},
        }

    @property
    def num_hops(self) -> int:
        return len(next(iter(self.num_neighbors.values()), ()))

    @property
    def induced(self) -> bool:
        return self.subgraph_type == "induced"

    def draws(self, edge_type: EdgeType) -> bool:
        """Return whether batches have edges of a type: those that a hop follows, or all among the seeds."""
        fanouts = self.num_neighbors.get(edge_type)
        return fanouts == () or any(fanouts or ())

    def weight(self, schema: GraphSchema, edge_type: EdgeType) -> str | None:
        """Return the weight column by which edges of a type are drawn."""
        return column_of(self.weight_attr, edge_type, schema.edges[edge_type].weights)

    def time(self, schema: GraphSchema, edge_type: EdgeType) -> str | None:
        """Return the time by which edges of a type are bound: their own, or that of their neighbours."""
        own = column_of(self.time_attr, edge_type, schema.edges[edge_type].times)
        neighbor = schema.neighbor_type(edge_type)
        return own or column_of(self.time_attr, neighbor, schema.nodes[neighbor].times)

    def around_seeds(
        self,
        schema: GraphSchema,
        columns: ColumnPlan,
        *,
        computed: tuple[FrameArray, ...] = (),
        **of_plan: Any,
    ) -> FrameSchema:
        """Return the frames of a plan that samples so. ``of_plan``: what else ``around_seeds`` is to know."""
        merged: tuple[FrameArray, ...] = ()
        if self.subgraph_type == "bidirectional":
            pairs = [pair for pair in reverse_types(schema).items() if any(map(self.draws, pair))]
            merged = tuple(_merged_array(*pair) for pair in pairs)
            columns = replace(columns, edges={**columns.edges, **_shared_columns(schema, columns, pairs)})
        return FrameSchema.around_seeds(
            schema,
            columns,
            num_hops=self.num_hops,
            edge_types=[each for each in schema.edges if each in self.num_neighbors],
            with_edge=self.with_edge,
            distinct_edges=self.induced or not self.replace,
            disjoint=self.disjoint,
            timed=self.time_attr is not None,
            edges_by_hop=self.subgraph_type == "directional",
            computed=(*computed, *merged),
            **of_plan,
        )

    def _checked(self, schema: GraphSchema) -> Self:
        """Return this value. ``ValueError`` names the reverse edge type that a graph lacks."""
        if self.subgraph_type == "bidirectional":
            reverses = reverse_types(schema)
            for edge_type in filter(self.draws, self.num_neighbors):
                if reverses.get(edge_type) not in self.num_neighbors:
                    raise ValueError(
                        f"bidirectional subgraphs need the edge type {reverse_names(edge_type)[0]}, the "
                        f"reverse of {edge_type}: add it to the graph, or give {edge_type} fanouts [0, ...]"
                    )
        return self

    def rule(self, schema: GraphSchema, edge_type: EdgeType, hop: int) -> DrawRule:
        """Return how the neighbours of one hop over one edge type are drawn."""
        return DrawRule(
            fanout=self.num_neighbors[edge_type][hop],
            replace=self.replace,
            weight=self.weight(schema, edge_type),
            labor=self.labor,
            time=(time := self.time(schema, edge_type)),
            last=self.last and time is not None,
            window=(self.time_window is not None or self.with_starts) and time is not None,
            monotone=self.monotone and time is not None,
            strictly_earlier=self.strictly_earlier and time is not None,
            batch_dependency=self.batch_dependency,
        )


_FANOUTS_END = 1 << 31
_DEFAULTS = {each.name: each.default for each in fields(KHop)}
_ADDED = tuple(name for name in _DEFAULTS if name not in ("num_neighbors", "replace", "with_edge"))
"""Fields that version 0.1 did not have."""


def reversed_edge_types(edge_types: Iterable[EdgeType]) -> dict[EdgeType, EdgeType]:
    """Return the type of each edge type's messages when they flow from destination to source.

    ``(a, r, b)`` becomes ``(b, rev_r, a)``, PyG's name for it; where the graph has both, they change
    places. No two types become one.
    """
    result: dict[EdgeType, EdgeType] = {}
    known = set(edge_types)
    # Shortest first: a reverse is longer than what it reverses, so each finds its partner still free.
    for edge_type in sorted(known, key=lambda kind: (len(kind[1]), kind)):
        if edge_type in result:
            continue
        result[edge_type] = reverse = reverse_name(edge_type)
        if reverse in known and reverse not in result:
            result[reverse] = edge_type
    return result


def reverse_types(schema: GraphSchema) -> dict[EdgeType, EdgeType]:
    """Return the reverse of each edge type that has one in the graph.

    A type between equal node types that has no other is its own, as in PyG.
    """
    found: dict[EdgeType, EdgeType] = {}
    for each in schema.edges:
        own = (each,) if each[0] == each[2] else ()
        for reverse in (reverses_of(each, schema.edges, schema.reverses) or own)[:1]:
            found[each] = reverse
    return found


def _merged_array(edge_type: EdgeType, reverse: EdgeType) -> FrameArray:
    """Return the array that says which edges a type has at last, in a bidirectional batch."""
    names = (type_name(edge_type), type_name(reverse))
    return FrameArray(f"merged/{names[0]}", Column("I32"), "computed", edges=names)


def _shared_columns(
    schema: GraphSchema, columns: ColumnPlan, pairs: Sequence[tuple[EdgeType, EdgeType]]
) -> dict[EdgeType, tuple[str, ...]]:
    """Return the columns that an edge type and its reverse both have: only they have a row for each edge."""
    shared = {}
    for pair in pairs:
        own, other = (
            {name: _as_batches_have(schema.edges[each].columns[name]) for name in columns.edges.get(each, ())}
            for each in pair
        )
        shared[pair[0]] = tuple(name for name, form in own.items() if other.get(name) == form)
    return shared


def _as_batches_have(column: Column) -> Column:
    """Return the column without its stored form."""
    return replace(column, quantized=None)


def read_num_neighbors(schema: GraphSchema, num_neighbors: Any) -> dict[EdgeType, tuple[int, ...]]:
    """Return the fanouts of every edge type. ``ValueError`` names what is unknown or negative.

    A list is for all types. A mapping may leave types out: no hop follows them. PyG's ``NumNeighbors`` is one
    of these, and may have fanouts for the types that are left out.
    """
    given, default = num_neighbors, None
    if not isinstance(given, Mapping) and hasattr(given, "default"):
        given, default = given.values, given.default
    if not isinstance(given, Mapping):
        is_needless = not schema.edges and hasattr(given, "__len__") and not len(given)
        return {} if is_needless else dict.fromkeys(schema.edges, _fanouts(given, "num_neighbors"))
    found = {
        kind: _fanouts(fanouts, f"num_neighbors of {kind}")
        for kind, fanouts in by_edge_type(schema.edges, given, "num_neighbors").items()
    }
    if not found and default is None and schema.edges:
        raise ValueError("num_neighbors is empty: it needs the fanouts of at least one edge type")
    skipped = (0,) * len(next(iter(found.values()), ()))
    of_rest = skipped if default is None else _fanouts(default, "the default of num_neighbors")
    return {kind: found.get(kind, of_rest) for kind in schema.edges}


def _fanouts(values: Any, what: str) -> tuple[int, ...]:
    values = plain_values(what, values)
    if isinstance(values, str) or not hasattr(values, "__len__"):
        raise TypeError(f"{what} must be a list of whole numbers, one per hop, got {values!r}")
    fanouts = tuple(
        whole_number(f"{what} at hop {hop}", fanout, minimum=-1) for hop, fanout in enumerate(values)
    )
    if not fanouts:
        raise ValueError(f"{what} needs at least one hop: [0] has the seeds alone")
    if max(fanouts) >= _FANOUTS_END:
        raise ValueError(f"{what} must be below 2**31, got {max(fanouts)}: -1 takes all neighbours")
    return fanouts
