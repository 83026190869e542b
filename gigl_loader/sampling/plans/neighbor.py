"""Plan of k-hop neighbourhoods of seed nodes, as in GraphSAGE (Hamilton et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from gigl_loader.options import whole_number
from gigl_loader.sampling.frame_schema import FrameSchema
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.neighbor_sampler import open_sampler
from gigl_loader.sampling.request import SEED, InputColumn
from gigl_loader.sampling.seeds import EntryTimes, NodeSeeder, check_entry_times, time_inputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import NodeType
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.plan import PlanFields, PlanSampler, SamplerArguments, SamplerContext


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighborPlan(KHop):
    """The sampled neighbourhood of seed nodes of one type, hop by hop."""

    kind: ClassVar[str] = "neighbor"

    seed_type: NodeType
    """Node type of the seeds."""
    with_times: bool = False
    """Each seed comes with a time, that of its tree. Without, trees have the times of their seeds."""

    @property
    def inputs(self) -> tuple[InputColumn, ...]:
        return (InputColumn(SEED, "I64", self.seed_type), *time_inputs(self, given=self.with_times))

    def frame(self, schema: GraphSchema, columns: ColumnPlan) -> FrameSchema:
        return self.around_seeds(schema, columns, seed_type=self.seed_type)

    def open(self, context: SamplerContext) -> PlanSampler:
        times = EntryTimes(context, self.seed_type, self, given=self.with_times)
        seeder = NodeSeeder(context, self.seed_type, disjoint=self.disjoint, times=times)
        return open_sampler(context, self, seeder)

    def check_here(self) -> None:
        """Do nothing: the library has all that it takes."""

    def to_json(self) -> dict[str, Any]:
        with_times = {"with_times": True} if self.with_times else {}
        return {"seed_type": self.seed_type, **KHop.to_json(self), **with_times}

    @classmethod
    def from_json(cls, fields: PlanFields) -> NeighborPlan:
        seed_type, with_times = fields.node_type("seed_type"), fields.flag("with_times", False)
        plan = cls.read(fields, seed_type=seed_type, with_times=with_times)
        check_entry_times(fields.schema, seed_type, plan, given=with_times)
        return plan

    @classmethod
    def around(cls, schema: GraphSchema, seed_type: NodeType, arguments: SamplerArguments) -> NeighborPlan:
        """Read the arguments of a loader. ``ValueError`` names what does not fit the graph."""
        plan = cls.of(schema, arguments, seed_type=seed_type, with_times=arguments.with_times)
        check_entry_times(schema, seed_type, plan, given=plan.with_times)
        return plan


@dataclass(frozen=True, slots=True)
class KHopNeighborSamplerOptions:
    """K-hop neighbourhoods, sampled with the loader's ``num_neighbors``, ``replace``, ``weight_attr``, ..."""

    @property
    def draw(self) -> Mapping[str, Any]:
        """Fields of ``KHop`` that say how neighbours are drawn."""
        return {}

    def plan(self, schema: GraphSchema, seed_type: NodeType, arguments: SamplerArguments) -> NeighborPlan:
        return NeighborPlan.around(schema, seed_type, replace(arguments, draw=self.draw))

    def around(
        self, schema: GraphSchema, seed_types: Sequence[NodeType], arguments: SamplerArguments
    ) -> KHop:
        return KHop.of(schema, replace(arguments, draw=self.draw))


@dataclass(frozen=True, slots=True)
class LaborSamplerOptions(KHopNeighborSamplerOptions):
    """LABOR-0 (Balin and Catalyurek, "Layer-Neighbor Sampling", NeurIPS 2023): fewer nodes for a fanout.

    A neighbour ``t`` of a node with ``d`` neighbours is taken where ``r_t <= k / d``, with one random number
    ``r_t`` for all nodes of a hop (and edge type), so that they take the same neighbours. A node gets its
    fanout ``k`` of neighbours on average, and all where it has no more than ``k``. Not together with
    ``replace``, ``weight_attr``, ``time_attr`` or ``disjoint``.
    """

    batch_dependency: int = 1
    """Batches of an epoch, counted over all ranks, for which a node keeps its random number ``r_t``, after
    Balin et al., "Cooperative Minibatching in Graph Neural Networks", 2023. Each batch renews the numbers of
    one in so many nodes, so that batches near each other share nodes, which a cache of features then has.
    Each batch by itself has the chances of LABOR-0; a run of batches has fewer different neighbours."""

    def __post_init__(self) -> None:
        whole_number("batch_dependency", self.batch_dependency, minimum=1)

    @property
    def draw(self) -> Mapping[str, Any]:
        return {"labor": True, "batch_dependency": self.batch_dependency}
