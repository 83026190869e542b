"""Plan of personalised PageRank: the neighbours of the highest scores around seed nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from gigl_loader.graph.schema import Column, type_name
from gigl_loader.graph.type_columns import TypeColumns, column_of, from_json, read_weights, to_json
from gigl_loader.native import PPRRule
from gigl_loader.options import EdgeType, flag, real_number, whole_number
from gigl_loader.sampling.frame_schema import FrameArray, FrameSchema
from gigl_loader.sampling.ppr_sampler import PPRSampler, PPRStates, ppr_arrays
from gigl_loader.sampling.request import SEED, InputColumn
from gigl_loader.sampling.seeds import NodeSeeder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Self

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import NodeType
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.plan import PlanFields, PlanSampler, SamplerArguments, SamplerContext

_LOCAL = Column("I32")
_MIN_EPS = 1e-9
_MAX_COUNT = 2**31
_MAX_CHANNELS, _MAX_STEPS = 64, 64
_COUNTS = ("max_ppr_nodes", "num_neighbors_per_hop", "max_fetch_iterations")
_REFUSED = ("num_neighbors", "replace", "disjoint", "time_attr")


@dataclass(frozen=True, slots=True)
class PPRMetaPath:
    """Channel of ``typed_channel_ratios`` whose walks follow edge types in a given order.

    Its neighbours are the nodes at which the path ends, and the seed. The path begins at a seed, along
    adjacency lists: each step leads on from where the one before ended.

    ``steps``
        Edge types in order; for a step, a tuple of edge types are alternatives.
    ``repeat_from``
        Step (from 0) with which the walk goes on when the path has ended: 0 repeats the whole path, and
        ``len(steps) - 1`` the last step. Nodes are then neighbours after any number of repetitions, also none
        of the repeated part. ``None``: the walk ends with the path.
    """

    steps: tuple[EdgeType | tuple[EdgeType, ...], ...]
    repeat_from: int | None = None

    def __post_init__(self) -> None:
        """``ValueError`` and ``TypeError`` name the rule that is broken."""
        steps = tuple(_edge_types(each, "a step of a PPRMetaPath") for each in self.steps)
        if not 1 <= len(steps) <= _MAX_STEPS:
            raise ValueError(f"a PPRMetaPath has 1 to {_MAX_STEPS} steps, got {len(steps)}")
        if self.repeat_from is not None and not (
            whole_number("repeat_from", self.repeat_from, minimum=0) < len(steps)
        ):
            raise ValueError(f"repeat_from must be a step, 0 to {len(steps) - 1}, got {self.repeat_from}")
        object.__setattr__(self, "steps", steps)

    @property
    def alternatives(self) -> tuple[tuple[EdgeType, ...], ...]:
        """The edge types of each step."""
        return self.steps  # type: ignore[return-value]


PPRChannelKey: TypeAlias = EdgeType | tuple[EdgeType, ...] | PPRMetaPath
"""The edge types of a channel: one, several that are followed in any order, or a path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PPRChannel:
    """One traversal of a plan of several: the edge types that it follows, and its share of the neighbours."""

    share: int
    """Of ``max_ppr_nodes``."""
    steps: tuple[tuple[EdgeType, ...], ...]
    repeat_from: int | None = 0
    """Step after the last one. Edge types that are followed in any order are one step, repeated."""

    @classmethod
    def from_json(cls, value: Any, fields: PlanFields) -> PPRChannel:
        """Read one channel. ``ValueError`` names the rule that is broken."""
        if not (isinstance(value, list) and len(value) == 3 and isinstance(value[2], list)):
            raise ValueError("a channel is a list of its share, its repetition and its steps")
        share, repeat_from, steps = value
        if type(share) is not int or share < 0 or not (repeat_from is None or type(repeat_from) is int):
            raise ValueError("the share of a channel is a number from 0 on, its repetition a step or null")
        path = PPRMetaPath(tuple(fields.listed_edge_types(each, "steps") for each in steps), repeat_from)
        return cls(share=share, steps=path.alternatives, repeat_from=repeat_from)

    def to_json(self) -> list[Any]:
        return [self.share, self.repeat_from, [[list(each) for each in step] for step in self.steps]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PPR:
    """Personalised PageRank around the seeds of a batch. See ``PPRSamplerOptions`` for the fields."""

    kind: ClassVar[str] = "ppr"
    disjoint: ClassVar[bool] = False
    time_attr: ClassVar[str | None] = None
    time_window: ClassVar[None] = None
    with_starts: ClassVar[bool] = False

    alpha: float
    eps: float
    max_ppr_nodes: int
    enable_residual_topup: bool
    num_neighbors_per_hop: int
    max_fetch_iterations: int | None
    channels: tuple[PPRChannel, ...] = ()
    """None: one traversal over all edge types."""
    weight_attr: TypeColumns = None
    include_sampled_edges: bool = False
    with_edge: bool = False
    """Return the ids of the sampled edges."""

    def __post_init__(self) -> None:
        _check_values(self)
        if len(self.channels) > _MAX_CHANNELS:
            raise ValueError(f"there are at most {_MAX_CHANNELS} channels, got {len(self.channels)}")
        if self.channels and sum(each.share for each in self.channels) != self.max_ppr_nodes:
            raise ValueError("the shares of channels add up to max_ppr_nodes")

    def states(self, schema: GraphSchema, seed_types: Sequence[NodeType]) -> PPRStates:
        """Return where pushes from seeds of some types lead, channel by channel."""
        whole = PPRChannel(share=self.max_ppr_nodes, steps=(tuple(schema.edges),))
        paths = [(each.steps, each.repeat_from) for each in self.channels or (whole,)]
        return PPRStates.of(schema, seed_types, paths)

    def weight(self, schema: GraphSchema, edge_type: EdgeType) -> str | None:
        """Return the weight column of an edge type: the transition probabilities of its lists."""
        return column_of(self.weight_attr, edge_type, schema.edges[edge_type].weights)

    def rule(self, schema: GraphSchema, states: PPRStates) -> PPRRule:
        """Return the rule as kernels take it. Node and edge types have their numbers in the schema."""
        nodes = {kind: number for number, kind in enumerate(schema.nodes)}
        edges = {kind: number for number, kind in enumerate(schema.edges)}
        rounds = self.max_fetch_iterations
        return PPRRule(
            alpha=self.alpha,
            eps=self.eps,
            max_nodes=self.max_ppr_nodes,
            top_up=self.enable_residual_topup,
            max_neighbors=self.num_neighbors_per_hop,
            max_rounds=_MAX_COUNT if rounds is None else rounds,
            weighted=self.weight_attr is not None,
            states=[(nodes[kind], kept) for kind, kept in states.states],
            edges=[(state, after, edges[kind]) for state, after, kind in states.edges],
            starts=[[each.get(kind, -1) for kind in schema.nodes] for each in states.starts],
            shares=[each.share for each in self.channels] or [self.max_ppr_nodes],
        )

    def around_seeds(
        self,
        schema: GraphSchema,
        columns: ColumnPlan,
        *,
        seed_types: Sequence[NodeType],
        computed: tuple[FrameArray, ...] = (),
        **of_plan: Any,
    ) -> FrameSchema:
        """Return the frames of a plan that samples so. ``of_plan``: what else ``FrameSchema`` is to know."""
        arrays = (
            array
            for seed_type in seed_types
            for node_type in self.reached_types(schema, seed_type)
            for array in self._arrays(seed_type, node_type)
        )
        return FrameSchema.around_seeds(
            schema,
            columns,
            num_hops=1,
            edge_types=list(schema.edges) if self.include_sampled_edges else [],
            with_edge=self.with_edge,
            edges_by_hop=False,
            computed=(*computed, *arrays),
            **of_plan,
        )

    def reached_types(self, schema: GraphSchema, seed_type: NodeType) -> list[NodeType]:
        """Return the node types of the neighbours that seeds of a type may have, in their order."""
        kept = {kind for kind, kept in self.states(schema, [seed_type]).states if kept}
        return [each for each in schema.nodes if each in kept]

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values, without defaults of fields that version 0.1 did not have."""
        given = {each.name: getattr(self, each.name) for each in fields(PPR)}
        defaults = {"channels": (), "weight_attr": None, "include_sampled_edges": False, "with_edge": False}
        found = {name: to_json(value) for name, value in given.items() if defaults.get(name, ...) != value}
        if self.channels:
            found["channels"] = [each.to_json() for each in self.channels]
        return found

    @classmethod
    def read(cls, fields: PlanFields, **of_plan: Any) -> Self:
        """Read the fields of a plan from outside. ``ValueError`` names the rule that is broken."""
        rounds, alpha, eps = (fields.take(name) for name in ("max_fetch_iterations", "alpha", "eps"))
        channels = fields.take("channels", [])
        if rounds is not None and type(rounds) is not int:
            raise ValueError("max_fetch_iterations is a whole number or null")
        if type(alpha) is not float or type(eps) is not float:
            raise ValueError("alpha and eps are numbers with a fraction")
        if not isinstance(channels, list):
            raise ValueError("channels are a list")
        return cls(
            alpha=alpha,
            eps=eps,
            max_ppr_nodes=fields.whole("max_ppr_nodes"),
            enable_residual_topup=fields.flag("enable_residual_topup"),
            num_neighbors_per_hop=fields.whole("num_neighbors_per_hop"),
            max_fetch_iterations=rounds,
            channels=tuple(PPRChannel.from_json(each, fields) for each in channels),
            weight_attr=_check_weights(fields.schema, from_json(fields.take("weight_attr", None))),
            include_sampled_edges=fields.flag("include_sampled_edges", False),
            with_edge=fields.flag("with_edge", False),
            **of_plan,
        )

    def _arrays(self, seed_type: NodeType, node_type: NodeType) -> Iterator[FrameArray]:
        names = ppr_arrays(seed_type, node_type, max(len(self.channels), 1))
        yield FrameArray(names.seed, _LOCAL, "computed", indexes=type_name(seed_type))
        nodes = (type_name(node_type),)
        yield FrameArray(names.node, _LOCAL, "computed", nodes=nodes, as_long_as=names.seed)
        for score, hop in zip(names.scores, names.hops, strict=True):
            yield FrameArray(score, Column("F32"), "computed", as_long_as=names.seed)
            yield FrameArray(hop, _LOCAL, "computed", as_long_as=names.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class PPRPlan(PPR):
    """Personalised PageRank of seed nodes of one type."""

    seed_type: NodeType

    @property
    def inputs(self) -> tuple[InputColumn, ...]:
        return (InputColumn(SEED, "I64", self.seed_type),)

    def frame(self, schema: GraphSchema, columns: ColumnPlan) -> FrameSchema:
        return self.around_seeds(schema, columns, seed_types=[self.seed_type], seed_type=self.seed_type)

    def open(self, context: SamplerContext) -> PlanSampler:
        return PPRSampler(context, self, [self.seed_type], NodeSeeder(context, self.seed_type))

    def check_here(self) -> None:
        """Do nothing: the library has all that it takes."""

    def to_json(self) -> dict[str, Any]:
        return {"seed_type": self.seed_type, **PPR.to_json(self)}

    @classmethod
    def from_json(cls, fields: PlanFields) -> PPRPlan:
        return cls.read(fields, seed_type=fields.node_type("seed_type"))


@dataclass(frozen=True, slots=True)
class PPRSamplerOptions:
    """Neighbours by personalised PageRank, computed by forward push (Andersen, Chung, Lang, FOCS 2006).

    Each distinct seed gets the nodes of its highest scores, over all edge types and hops, in place of a
    sampled neighbourhood. Batches have ``edge_index``, int64 [2, N]: row 0 the local seed, row 1 the local
    neighbour, the neighbours of a seed together, by descending score, ties by ascending node id; and
    ``edge_attr``, float32 [N, 2]: the score, and ``1 / (1 + hop)``, where hop is the round of the push that
    first reached the node. A seed is its own neighbour, at hop 0. In a heterogeneous batch, each node type
    that edges lead to has them as the edge type (seed type, "ppr", node type). Nothing is drawn: scores
    depend on the graph and the seed alone. Names and defaults are GiGL's.

    ``alpha``
        Probability that a walk along adjacency lists returns to the seed at each step. Near 1, scores stay
        near the seed.
    ``eps``
        Precision: a residual is pushed on where it exceeds ``eps`` times the number of neighbours. A push
        passes at most ``1 / (alpha * eps)`` edges besides those of the seed. Scores are never above the exact
        ones. On undirected graphs whose lists are taken whole, they are at most ``eps * degree`` below them.
    ``max_ppr_nodes``
        Nodes of each type that are kept of each seed.
    ``enable_residual_topup``
        Fill free places with the nodes of the largest residuals, which were reached and not pushed. Their
        residual is their score.
    ``num_neighbors_per_hop``
        Neighbours that are taken of one list, always the same ones. They count as its degree.
    ``max_fetch_iterations``
        Rounds of a push, at most. ``None``: until no residual is large enough.
    ``typed_channel_ratios``
        Channels, each with its share of ``max_ppr_nodes`` (positive, 1 in all): an edge type, a tuple of edge
        types that are followed in any order, or a :class:`PPRMetaPath`. Each channel has a push of its own
        over its edge types. A node belongs to the channel that gives it the highest score; places that a
        channel cannot fill go to the best of the other nodes. ``edge_attr`` is [N, 2 + 3 * channels]: the
        highest score and closeness of any channel, then score, closeness and presence (1 or 0) in each, in
        the order of the mapping; all 0 where a channel does not have the node among its first
        ``max_ppr_nodes``.
    ``include_sampled_edges``
        Return all edges of the graph among the nodes of the batch, too, of every edge type, with their ids
        and columns: heterogeneous graphs only.

    ``weight_attr`` of the loader makes the weights of edges the transition probabilities: an edge of weight 0
    is none, and edges of types without the column have the weight 1. ``num_neighbors`` is ``None``;
    ``replace``, ``time_attr``, ``disjoint`` and ``subgraph_type`` are refused.
    """

    alpha: float = 0.5
    eps: float = 1e-4
    max_ppr_nodes: int = 50
    enable_residual_topup: bool = True
    num_neighbors_per_hop: int = 1000
    max_fetch_iterations: int | None = None
    typed_channel_ratios: Mapping[PPRChannelKey, float] | None = None
    include_sampled_edges: bool = False

    def __post_init__(self) -> None:
        for name in ("alpha", "eps"):
            real_number(name, getattr(self, name))
        for name in _COUNTS:
            if getattr(self, name) is not None or name != "max_fetch_iterations":
                whole_number(name, getattr(self, name), minimum=1)
        for name in ("enable_residual_topup", "include_sampled_edges"):
            flag(name, getattr(self, name))
        _check_values(self)
        _check_ratios(self.typed_channel_ratios)

    def plan(self, schema: GraphSchema, seed_type: NodeType, arguments: SamplerArguments) -> PPRPlan:
        return PPRPlan(seed_type=seed_type, **self._fields(schema, [seed_type], arguments))

    def around(self, schema: GraphSchema, seed_types: Sequence[NodeType], arguments: SamplerArguments) -> PPR:
        return PPR(**self._fields(schema, seed_types, arguments))

    def _fields(
        self, schema: GraphSchema, seed_types: Sequence[NodeType], arguments: SamplerArguments
    ) -> dict[str, Any]:
        for name in _REFUSED:
            if getattr(arguments, name):
                raise ValueError(
                    f"{name} has no meaning for personalised PageRank: leave it out (num_neighbors: None)"
                )
        if arguments.subgraph_type != "directional":
            raise ValueError("subgraph_type has no meaning for personalised PageRank: leave it out")
        if self.include_sampled_edges and schema.homogeneous:
            raise ValueError(
                "include_sampled_edges is for heterogeneous graphs: edge_index of a homogeneous batch joins "
                "seeds with their neighbours"
            )
        rounds = self.max_fetch_iterations
        return {
            "alpha": float(self.alpha),
            "eps": float(self.eps),
            "max_ppr_nodes": int(self.max_ppr_nodes),
            "enable_residual_topup": bool(self.enable_residual_topup),
            "num_neighbors_per_hop": int(self.num_neighbors_per_hop),
            "max_fetch_iterations": None if rounds is None else int(rounds),
            "channels": _channels(
                schema, seed_types, self.typed_channel_ratios or {}, int(self.max_ppr_nodes)
            ),
            "weight_attr": _check_weights(schema, arguments.weight_attr),
            "include_sampled_edges": bool(self.include_sampled_edges),
            "with_edge": bool(self.include_sampled_edges) and arguments.with_edge,
        }


def _channels(
    schema: GraphSchema, seed_types: Sequence[NodeType], ratios: Mapping[PPRChannelKey, float], count: int
) -> tuple[PPRChannel, ...]:
    """Return the channels, whose shares are whole numbers: the largest remainders are rounded up."""
    exact = [ratio * count for ratio in ratios.values()]
    shares = [math.floor(each) for each in exact]
    by_remainder = sorted(range(len(exact)), key=lambda number: (shares[number] - exact[number], number))
    for number in by_remainder[: count - sum(shares)]:
        shares[number] += 1
    channels = []
    for key, share in zip(ratios, shares, strict=True):
        types = _types_of(key)
        unknown = [each for each in types if each not in schema.edges]
        if unknown:
            known = ", ".join(map(str, schema.edges))
            raise ValueError(f"typed_channel_ratios: unknown edge type {unknown[0]}; known: {known}")
        if isinstance(key, PPRMetaPath):
            _check_path(schema, seed_types, key)
            steps, repeat_from = key.alternatives, key.repeat_from
            channels.append(PPRChannel(share=share, steps=steps, repeat_from=repeat_from))
        else:
            channels.append(PPRChannel(share=share, steps=(types,)))
    return tuple(channels)


def _check_path(schema: GraphSchema, seed_types: Sequence[NodeType], path: PPRMetaPath) -> None:
    """Raise ``ValueError`` unless each step leads on from where the one before ends."""
    steps = path.alternatives
    ends = [{schema.neighbor_type(each) for each in step} for step in steps]
    begins = [set(seed_types), *ends]
    for number, step in enumerate(steps):
        for each in step:
            if schema.target_type(each) not in begins[number]:
                here = ", ".join(map(repr, sorted(begins[number])))
                raise ValueError(
                    f"step {number} of a PPRMetaPath follows lists of {each} from nodes of type "
                    f"{schema.target_type(each)!r}, and would be at {here}"
                )
    if path.repeat_from is not None:
        again = {schema.target_type(each) for each in steps[path.repeat_from]}
        if not again & ends[-1]:
            raise ValueError(
                f"a PPRMetaPath cannot go on with step {path.repeat_from}: it ends at other types"
            )


def _check_weights(schema: GraphSchema, weight_attr: Any) -> TypeColumns:
    """Return declared weights, whose values are columns."""
    named = read_weights(schema, weight_attr)
    for edge_type, edges in schema.edges.items():
        weight = column_of(named, edge_type, edges.weights)
        if weight is not None and weight not in edges.columns:
            raise ValueError(f"the weights of {edge_type} are no column, which personalised PageRank reads")
    return named


def _check_ratios(ratios: Any) -> None:
    """Raise ``TypeError`` or ``ValueError`` for channels that cannot be."""
    if ratios is None:
        return
    if not isinstance(ratios, Mapping):
        raise TypeError(f"typed_channel_ratios must map channels to ratios, got {ratios!r:.200}")
    for key, ratio in ratios.items():
        _types_of(key)
        if not 0 < real_number("the ratio of a channel", ratio) <= 1:
            raise ValueError(f"the ratio of a channel must lie in (0, 1], got {ratio!r} for {key}")
    if ratios and not math.isclose(sum(ratios.values()), 1, rel_tol=1e-9):
        raise ValueError(f"typed_channel_ratios must add up to 1, got {sum(ratios.values())}")
    if len(ratios) > _MAX_CHANNELS:
        raise ValueError(f"there are at most {_MAX_CHANNELS} channels, got {len(ratios)}")


def _types_of(key: PPRChannelKey) -> tuple[EdgeType, ...]:
    if isinstance(key, PPRMetaPath):
        return tuple(each for step in key.alternatives for each in step)
    return _edge_types(key, "a channel of typed_channel_ratios")


def _edge_types(value: Any, what: str) -> tuple[EdgeType, ...]:
    """Return one edge type, or several, as a tuple."""
    several = (value,) if isinstance(value, tuple) and value and isinstance(value[0], str) else value
    if (
        not isinstance(several, (tuple, list))
        or not several
        or not all(
            isinstance(each, tuple) and len(each) == 3 and all(isinstance(part, str) for part in each)
            for each in several
        )
    ):
        raise ValueError(
            f"{what} must be an edge type (source, relation, destination) or a tuple of edge types, got "
            f"{value!r:.200}"
        )
    return tuple(several)


def _check_values(options: PPR | PPRSamplerOptions) -> None:
    """Raise ``ValueError`` for a value that no push has."""
    if not 0 < options.alpha < 1:
        raise ValueError(f"alpha must lie in (0, 1), got {options.alpha}")
    if not _MIN_EPS <= options.eps < 1:
        raise ValueError(f"eps must lie in [{_MIN_EPS:g}, 1), got {options.eps}")
    for name in _COUNTS:
        count = getattr(options, name)
        if count is not None and not 1 <= count < _MAX_COUNT:
            raise ValueError(f"{name} must lie in [1, 2**31), got {count}")
