"""Plan of random walks from seed nodes, and of the nodes that they visit most."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from gigl_loader.graph.schema import Column, type_name
from gigl_loader.options import known_edge_type, whole_number
from gigl_loader.sampling.frame_schema import FrameArray, FrameSchema
from gigl_loader.sampling.request import SEED, InputColumn
from gigl_loader.sampling.walk_sampler import MAX_STEPS, VISITS, WALKS, WalkSampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.plan import ColumnPlan, PlanFields, SamplerArguments, SamplerContext
    from gigl_loader.sampling.source import PlanSampler

_LOCAL = Column("I32")


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkPlan:
    """Random walks from seed nodes of one type."""

    kind: ClassVar[str] = "walk"

    seed_type: NodeType
    path: tuple[EdgeType, ...]
    """Edge type of each step."""
    period: int = 1
    """Steps after which the path repeats. Visits count at these steps."""
    walks_per_seed: int
    p: float = 1.0
    q: float = 1.0
    top_k: int | None = None
    """Keep the most visited nodes in place of the walks."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.path) <= MAX_STEPS:
            raise ValueError(f"walk_length must lie in [1, {MAX_STEPS}], got {len(self.path)}")
        if not 1 <= self.period <= len(self.path):
            raise ValueError(f"the path of {len(self.path)} steps cannot repeat after {self.period}")
        if not 1 <= self.walks_per_seed < 2**20:
            raise ValueError(f"walks_per_seed must lie in [1, 2**20), got {self.walks_per_seed}")
        if self.top_k is not None and not 1 <= self.top_k < 2**31:
            raise ValueError(f"top_k must lie in [1, 2**31), got {self.top_k}")
        for name, value in (("p", self.p), ("q", self.q)):
            if not (math.isfinite(value) and 1e-6 <= value <= 1e6):
                raise ValueError(f"{name} must lie in [1e-6, 1e6], got {value}")
        if not self.p == self.q == 1 and len(set(self.path)) > 1:
            raise ValueError("p and q are for walks over one edge type: leave them out with a metapath")

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
            computed=tuple(self._arrays(schema)),
        )

    def open(self, context: SamplerContext) -> PlanSampler:
        return WalkSampler(
            context,
            self.seed_type,
            self.path,
            period=self.period,
            walks_per_seed=self.walks_per_seed,
            p=self.p,
            q=self.q,
            top_k=self.top_k,
        )

    def check_here(self) -> None:
        """Do nothing: the library has all that it takes."""

    def to_json(self) -> dict[str, Any]:
        return {
            "seed_type": self.seed_type,
            "path": [list(each) for each in self.path],
            "period": self.period,
            "walks_per_seed": self.walks_per_seed,
            "p": self.p,
            "q": self.q,
            "top_k": self.top_k,
        }

    @classmethod
    def from_json(cls, fields: PlanFields) -> WalkPlan:
        top_k = fields.take("top_k")
        p, q = fields.take("p"), fields.take("q")
        if top_k is not None and type(top_k) is not int:
            raise ValueError("top_k is a whole number or null")
        if type(p) not in (int, float) or type(q) not in (int, float):
            raise ValueError("p and q are numbers")
        plan = cls(
            seed_type=fields.node_type("seed_type"),
            path=fields.edge_types("path"),
            period=fields.whole("period"),
            walks_per_seed=fields.whole("walks_per_seed"),
            p=float(p),
            q=float(q),
            top_k=top_k,
        )
        _check_path(fields.schema, plan.seed_type, plan.path)
        return plan

    def _arrays(self, schema: GraphSchema) -> list[FrameArray]:
        types = step_types(schema, self.seed_type, self.path)
        names = tuple(map(type_name, types))
        if self.top_k is None:
            per_entry = self.walks_per_seed * len(types)
            return [FrameArray(WALKS, _LOCAL, "computed", nodes=names, per_entry=per_entry)]
        seed, node, share = VISITS
        return [
            FrameArray(seed, _LOCAL, "computed", indexes=type_name(self.seed_type)),
            FrameArray(node, _LOCAL, "computed", nodes=(names[self.period],), as_long_as=seed),
            FrameArray(share, Column("F32"), "computed", as_long_as=seed),
        ]


def step_types(schema: GraphSchema, seed_type: NodeType, path: Sequence[EdgeType]) -> list[NodeType]:
    """Return the node type before each step, and after the last."""
    return [seed_type, *(schema.neighbor_type(each) for each in path)]


def _check_path(schema: GraphSchema, seed_type: NodeType, path: Sequence[EdgeType]) -> None:
    """Raise ``ValueError`` unless each step begins where the one before ended."""
    for here, edge_type in zip(step_types(schema, seed_type, path), path, strict=False):
        target = schema.target_type(edge_type)
        if target != here:
            raise ValueError(
                f"walks follow lists of {edge_type} from nodes of type {target!r} to "
                f"{schema.neighbor_type(edge_type)!r}, and would be at {here!r}"
            )


@dataclass(frozen=True, slots=True)
class RandomWalkSamplerOptions:
    """Random walks from the seeds, along adjacency lists: in-edges backwards with ``edge_dir="in"``.

    Batches have ``walks``, int64 [B * walks_per_seed, walk_length + 1]: local nodes, the seed first, -1 after
    a dead end, the rows of a seed together. In a heterogeneous batch, column i has nodes of the type at which
    step i ends.

    With ``top_k``, they have instead the nodes that the walks of a seed visit most, as PinSAGE uses them
    (Ying et al. 2018): ``edge_index`` [2, E], row 0 the node, row 1 the seed, by descending share, ties by
    ascending node id, and ``edge_attr`` [E], float32, the share of all visits of the seed's walks. The start
    counts as no visit. In a heterogeneous batch they are of the type (node type, "walk", seed type).

    ``walk_length``, ``walks_per_seed``
        Steps of a walk, at most 253; walks from each entry of the input.
    ``p``, ``q``
        Return and in-out parameters of node2vec (Grover and Leskovec 2016), for walks over one edge type.
    ``metapath``
        Edge types of the steps, in order, repeated until ``walk_length``: each leads on from where the one
        before ended. Needed where there are several edge types. With ``top_k``, only nodes at which the
        metapath ends are counted.
    ``top_k``
        How many nodes to keep of each seed.

    ``num_neighbors`` of the loader is ``None``; ``replace``, ``weight_attr``, ``time_attr`` and
    ``disjoint`` are refused.
    """

    walk_length: int
    walks_per_seed: int = 1
    p: float = 1.0
    q: float = 1.0
    metapath: Sequence[EdgeType] | None = None
    top_k: int | None = None

    def plan(self, schema: GraphSchema, seed_type: NodeType, arguments: SamplerArguments) -> WalkPlan:
        for name in ("num_neighbors", "replace", "weight_attr", "disjoint", "time_attr"):
            if getattr(arguments, name):
                raise ValueError(
                    f"{name} has no meaning for random walks: leave it out (num_neighbors: None)"
                )
        if arguments.subgraph_type != "directional":
            raise ValueError("subgraph_type has no meaning for random walks: leave it out")
        length = whole_number("walk_length", self.walk_length, minimum=1)
        metapath = _metapath(schema, self.metapath)
        path = tuple(metapath[step % len(metapath)] for step in range(min(length, MAX_STEPS + 1)))
        if length < len(metapath):
            raise ValueError(f"walk_length {length} is less than the {len(metapath)} steps of the metapath")
        _check_path(schema, seed_type, path)
        return WalkPlan(
            seed_type=seed_type,
            path=path,
            period=len(metapath),
            walks_per_seed=whole_number("walks_per_seed", self.walks_per_seed, minimum=1),
            p=float(self.p),
            q=float(self.q),
            top_k=None if self.top_k is None else whole_number("top_k", self.top_k, minimum=1),
        )


def _metapath(schema: GraphSchema, given: Sequence[EdgeType] | None) -> list[EdgeType]:
    known = ", ".join(map(str, schema.edges)) or "none"
    if given is None:
        if len(schema.edges) != 1:
            raise ValueError(f"walks need a metapath, a list of edge types, where there are several: {known}")
        return list(schema.edges)
    if not given:
        raise ValueError("metapath is empty: name at least one edge type")
    return [known_edge_type(schema.edges, each, "metapath") for each in given]
