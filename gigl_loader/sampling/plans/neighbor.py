"""Plan of k-hop neighbourhoods of seed nodes, as in GraphSAGE (Hamilton et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from gigl_loader.sampling.frame_schema import FrameSchema
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.neighbor_sampler import DistributedSampler, LocalSampler
from gigl_loader.sampling.request import SEED, InputColumn
from gigl_loader.sampling.seeds import EntryTimes, NodeSeeder, check_entry_times, time_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.plan import ColumnPlan, PlanFields, SamplerArguments, SamplerContext
    from gigl_loader.sampling.source import PlanSampler


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborPlan:
    """The sampled neighbourhood of seed nodes of one type, hop by hop. Fields are those of ``KHop``."""

    kind: ClassVar[str] = "neighbor"

    seed_type: NodeType
    """Node type of the seeds."""
    num_neighbors: Mapping[EdgeType, tuple[int, ...]]
    replace: bool = False
    with_edge: bool = False
    weight_attr: str | None = None
    disjoint: bool = False
    time_attr: str | None = None
    last: bool = False
    with_times: bool = False
    """Each seed comes with a time, that of its tree. Without, trees have the times of their seeds."""
    labor: bool = False
    subgraph_type: str = "directional"

    def __post_init__(self) -> None:
        _ = self.hops  # checks the fields

    @property
    def hops(self) -> KHop:
        """How the neighbourhood is drawn."""
        return KHop(
            num_neighbors=self.num_neighbors,
            replace=self.replace,
            with_edge=self.with_edge,
            weight_attr=self.weight_attr,
            disjoint=self.disjoint,
            time_attr=self.time_attr,
            last=self.last,
            labor=self.labor,
            subgraph_type=self.subgraph_type,
        )

    @property
    def inputs(self) -> tuple[InputColumn, ...]:
        return (InputColumn(SEED, "I64", self.seed_type), *time_inputs(given=self.with_times))

    def frame(self, schema: GraphSchema, columns: ColumnPlan) -> FrameSchema:
        return self.hops.frame(schema, columns, seed_type=self.seed_type)

    def open(self, context: SamplerContext) -> PlanSampler:
        times = EntryTimes(context, self.seed_type, self.hops, given=self.with_times)
        seeder = NodeSeeder(context, self.seed_type, disjoint=self.disjoint, times=times)
        if context.store is None:
            return LocalSampler(context, self.hops, seeder)
        return DistributedSampler(context, self.hops, seeder, context.store)

    def check_here(self) -> None:
        """Do nothing: the library has all that it takes."""

    def to_json(self) -> dict[str, Any]:
        with_times = {"with_times": True} if self.with_times else {}
        return {"seed_type": self.seed_type, **self.hops.to_json(), **with_times}

    @classmethod
    def from_json(cls, fields: PlanFields) -> NeighborPlan:
        seed_type, hops = fields.node_type("seed_type"), KHop.from_json(fields)
        return cls._of(fields.schema, seed_type, hops, with_times=fields.flag("with_times", False))

    @classmethod
    def _of(cls, schema: GraphSchema, seed_type: NodeType, hops: KHop, *, with_times: bool) -> NeighborPlan:
        check_entry_times(schema, seed_type, hops, given=with_times)
        return cls(
            seed_type=seed_type,
            num_neighbors=hops.num_neighbors,
            replace=hops.replace,
            with_edge=hops.with_edge,
            weight_attr=hops.weight_attr,
            disjoint=hops.disjoint,
            time_attr=hops.time_attr,
            last=hops.last,
            with_times=with_times,
            labor=hops.labor,
            subgraph_type=hops.subgraph_type,
        )


@dataclass(frozen=True, slots=True)
class KHopNeighborSamplerOptions:
    """K-hop neighbourhoods, sampled with the loader's ``num_neighbors``, ``replace``, ``weight_attr``, ..."""

    def plan(self, schema: GraphSchema, seed_type: NodeType, arguments: SamplerArguments) -> NeighborPlan:
        hops = KHop.of(schema, arguments)
        return NeighborPlan._of(schema, seed_type, hops, with_times=arguments.with_times)


@dataclass(frozen=True, slots=True)
class LaborSamplerOptions:
    """LABOR-0 (Balin and Catalyurek, "Layer-Neighbor Sampling", NeurIPS 2023): fewer nodes for a fanout.

    A neighbour ``t`` of a node with ``d`` neighbours is taken where ``r_t <= k / d``, with one random number
    ``r_t`` for all nodes of a hop (and edge type), so that they take the same neighbours. A node gets its
    fanout ``k`` of neighbours on average, and all where it has no more than ``k``. Not together with
    ``replace``, ``weight_attr``, ``time_attr`` or ``disjoint``.
    """

    def plan(self, schema: GraphSchema, seed_type: NodeType, arguments: SamplerArguments) -> NeighborPlan:
        hops = KHop.of(schema, replace(arguments, labor=True))
        return NeighborPlan._of(schema, seed_type, hops, with_times=arguments.with_times)
