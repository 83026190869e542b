"""Plan of personalised PageRank: the neighbours of the highest scores around seed nodes."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar

from gigl_loader.graph.schema import Column, type_name
from gigl_loader.native import PPRRule
from gigl_loader.options import whole_number
from gigl_loader.sampling.frame_schema import FrameArray, FrameSchema
from gigl_loader.sampling.ppr_sampler import PPRSampler, ppr_arrays
from gigl_loader.sampling.request import SEED, InputColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import NodeType
    from gigl_loader.sampling.plan import ColumnPlan, PlanFields, SamplerArguments, SamplerContext
    from gigl_loader.sampling.source import PlanSampler

_LOCAL = Column("I32")
_MIN_EPS = 1e-9
_MAX_COUNT = 2**31
_COUNTS = ("max_ppr_nodes", "num_neighbors_per_hop", "max_fetch_iterations")
_REFUSED = ("num_neighbors", "replace", "weight_attr", "disjoint", "time_attr")


@dataclass(frozen=True, slots=True, kw_only=True)
class PPRPlan:
    """Personalised PageRank of seed nodes of one type. See ``PPRSamplerOptions`` for the fields."""

    kind: ClassVar[str] = "ppr"

    seed_type: NodeType
    alpha: float
    eps: float
    max_ppr_nodes: int
    enable_residual_topup: bool
    num_neighbors_per_hop: int
    max_fetch_iterations: int | None

    def __post_init__(self) -> None:
        _check_values(self)

    @property
    def rule(self) -> PPRRule:
        """The rule as kernels take it."""
        rounds = self.max_fetch_iterations
        return PPRRule(
            alpha=self.alpha,
            eps=self.eps,
            max_nodes=self.max_ppr_nodes,
            top_up=self.enable_residual_topup,
            max_neighbors=self.num_neighbors_per_hop,
            max_rounds=_MAX_COUNT if rounds is None else rounds,
        )

    @property
    def inputs(self) -> tuple[InputColumn, ...]:
        return (InputColumn(SEED, "I64", self.seed_type),)

    def frame(self, schema: GraphSchema, columns: ColumnPlan) -> FrameSchema:
        return FrameSchema.around_seeds(
            schema,
            columns,
            seed_type=self.seed_type,
            num_hops=1,
            edge_types=[],
            with_edge=False,
            computed=tuple(
                array for each in reached_types(schema, self.seed_type) for array in self._arrays(each)
            ),
        )

    def open(self, context: SamplerContext) -> PlanSampler:
        reached = reached_types(context.graph.schema, self.seed_type)
        return PPRSampler(context, self.seed_type, self.rule, reached)

    def check_here(self) -> None:
        """Do nothing: the library has all that it takes."""

    def to_json(self) -> dict[str, Any]:
        return {
            "seed_type": self.seed_type,
            "alpha": self.alpha,
            "eps": self.eps,
            "max_ppr_nodes": self.max_ppr_nodes,
            "enable_residual_topup": self.enable_residual_topup,
            "num_neighbors_per_hop": self.num_neighbors_per_hop,
            "max_fetch_iterations": self.max_fetch_iterations,
        }

    @classmethod
    def from_json(cls, fields: PlanFields) -> PPRPlan:
        rounds, alpha, eps = (fields.take(name) for name in ("max_fetch_iterations", "alpha", "eps"))
        if rounds is not None and type(rounds) is not int:
            raise ValueError("max_fetch_iterations is a whole number or null")
        if type(alpha) is not float or type(eps) is not float:
            raise ValueError("alpha and eps are numbers with a fraction")
        return cls(
            seed_type=fields.node_type("seed_type"),
            alpha=alpha,
            eps=eps,
            max_ppr_nodes=fields.whole("max_ppr_nodes"),
            enable_residual_topup=fields.flag("enable_residual_topup"),
            num_neighbors_per_hop=fields.whole("num_neighbors_per_hop"),
            max_fetch_iterations=rounds,
        )

    def _arrays(self, node_type: NodeType) -> Iterator[FrameArray]:
        names = ppr_arrays(node_type)
        yield FrameArray(names.seed, _LOCAL, "computed", indexes=type_name(self.seed_type))
        nodes = (type_name(node_type),)
        yield FrameArray(names.node, _LOCAL, "computed", nodes=nodes, as_long_as=names.seed)
        yield FrameArray(names.score, Column("F32"), "computed", as_long_as=names.seed)
        yield FrameArray(names.hop, _LOCAL, "computed", as_long_as=names.seed)


def reached_types(schema: GraphSchema, seed_type: NodeType) -> list[NodeType]:
    """Return the node types that adjacency lists lead to from a type, and that type, in their order."""
    reached, before = {seed_type}, 0
    while len(reached) > before:
        before = len(reached)
        reached |= {
            schema.neighbor_type(each) for each in schema.edges if schema.target_type(each) in reached
        }
    return [each for each in schema.nodes if each in reached]


@dataclass(frozen=True, slots=True)
class PPRSamplerOptions:
    """Neighbours by personalised PageRank, computed by forward push (Andersen, Chung, Lang, FOCS 2006).

    Each distinct seed gets the nodes of its highest scores, over all edge types and hops, in place of a
    sampled neighbourhood. Batches have ``edge_index``, int64 [2, N]: row 0 the local seed, row 1 the local
    neighbour, the neighbours of a seed together, by descending score, ties by ascending node id; and
    ``edge_attr``, float32 [N, 2]: the score, and ``1 / (1 + hop)``, where hop is the round of the push that
    first reached the node. A seed is its own neighbour, at hop 0. In a heterogeneous batch, each node type
    that edges lead to has them as the edge type (seed type, "ppr", node type). Nothing is drawn: scores
    depend on the graph and the seed alone.

    ``alpha``
        Probability that a walk along adjacency lists returns to the seed at each step. Near 1, scores stay
        near the seed.
    ``eps``
        Precision: a residual is pushed on where it exceeds ``eps`` times the number of neighbours. A push
        passes at most ``1 / (alpha * eps)`` edges besides those of the seed. Scores are never above the exact
        ones. On undirected graphs whose lists are taken whole, they are at most ``eps * degree`` below them.
    ``max_ppr_nodes``
        Nodes that are kept of each seed, over all types together.
    ``enable_residual_topup``
        Fill free places with the nodes of the largest residuals, which were reached and not pushed. Their
        residual is their score.
    ``num_neighbors_per_hop``
        Neighbours that are taken of one list, always the same ones. They count as its degree.
    ``max_fetch_iterations``
        Rounds of a push, at most. ``None``: until no residual is large enough.

    ``num_neighbors`` of the loader is ``None``; ``replace``, ``weight_attr``, ``time_attr``, ``disjoint``
    and ``subgraph_type`` are refused.
    """

    alpha: float = 0.5
    eps: float = 1e-4
    max_ppr_nodes: int = 50
    enable_residual_topup: bool = True
    num_neighbors_per_hop: int = 1000
    max_fetch_iterations: int | None = None

    def __post_init__(self) -> None:
        for name in ("alpha", "eps"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise TypeError(f"{name} must be a number, got {value!r}")
        for name in _COUNTS:
            if getattr(self, name) is not None or name != "max_fetch_iterations":
                whole_number(name, getattr(self, name), minimum=1)
        if not isinstance(self.enable_residual_topup, bool):
            raise TypeError(
                f"enable_residual_topup must be True or False, got {self.enable_residual_topup!r}"
            )
        _check_values(self)

    def plan(self, schema: GraphSchema, seed_type: NodeType, arguments: SamplerArguments) -> PPRPlan:
        for name in _REFUSED:
            if getattr(arguments, name):
                raise ValueError(
                    f"{name} has no meaning for personalised PageRank: leave it out (num_neighbors: None)"
                )
        if arguments.subgraph_type != "directional":
            raise ValueError("subgraph_type has no meaning for personalised PageRank: leave it out")
        rounds = self.max_fetch_iterations
        return PPRPlan(
            seed_type=seed_type,
            alpha=float(self.alpha),
            eps=float(self.eps),
            max_ppr_nodes=int(self.max_ppr_nodes),
            enable_residual_topup=self.enable_residual_topup,
            num_neighbors_per_hop=int(self.num_neighbors_per_hop),
            max_fetch_iterations=None if rounds is None else int(rounds),
        )


def _check_values(options: PPRPlan | PPRSamplerOptions) -> None:
    """Raise ``ValueError`` for a value that no push has."""
    if not 0 < options.alpha < 1:
        raise ValueError(f"alpha must lie in (0, 1), got {options.alpha}")
    if not _MIN_EPS <= options.eps < 1:
        raise ValueError(f"eps must lie in [{_MIN_EPS:g}, 1), got {options.eps}")
    for name in _COUNTS:
        count = getattr(options, name)
        if count is not None and not 1 <= count < _MAX_COUNT:
            raise ValueError(f"{name} must lie in [1, 2**31), got {count}")
