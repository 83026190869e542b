"""Plan of a batch: the seam through which every kind of batch enters the library.

A kind of batch is one ``SamplerPlan`` class in ``sampling/plans/``. It says which columns an input has, what
a frame holds, and which sampler makes it. Schedules, workers, servers, both wires, validation and resume
know nothing else of it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.bounds import BatchBounds
    from gigl_loader.sampling.costs import CostCounter
    from gigl_loader.sampling.frame_schema import FrameSchema
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.plan_fields import PlanFields
    from gigl_loader.sampling.request import InputColumn
    from gigl_loader.sampling.source import PlanSampler

__all__ = [
    "DEFAULT_KIND",
    "BatchPlan",
    "ColumnPlan",
    "SamplerArguments",
    "SamplerContext",
    "SamplerOptions",
    "SamplerPlan",
    "plan_digest",
]

DEFAULT_KIND = "neighbor"
"""The kind of a plan that names none: the only one that version 0.1 knew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnPlan:
    """Which features a batch carries. Types that are left out carry none."""

    nodes: Mapping[NodeType, tuple[str, ...]] = field(default_factory=dict)
    edges: Mapping[EdgeType, tuple[str, ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether there is any."""
        return any(self.nodes.values()) or any(self.edges.values())


class SamplerPlan(Protocol):
    """What belongs to a batch of one kind. Equal plans and requests give equal batches. A frozen value."""

    kind: ClassVar[str]

    @property
    def inputs(self) -> tuple[InputColumn, ...]:
        """The columns of a request, in the order in which they travel."""

    def frame(self, schema: GraphSchema, columns: ColumnPlan) -> FrameSchema:
        """Return what the frames hold."""

    def open(self, context: SamplerContext) -> PlanSampler:
        """Return a sampler. It is used by one thread at a time."""

    def check_here(self) -> None:
        """Raise ``ValueError`` where this process, and its children, could not open a sampler."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values. Defaults of fields that version 0.1 did not have are left out."""

    @classmethod
    def from_json(cls, fields: PlanFields) -> Self:
        """Read the fields of a plan from outside. ``ValueError`` names the rule that is broken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerArguments:
    """Arguments of a loader that say what is sampled, as the user gave them. Options read and check them."""

    num_neighbors: Any = None
    replace: bool = False
    with_edge: bool | None = None
    """``None``: where the edges have columns."""
    weight_attr: Any = None
    disjoint: bool = False
    time_attr: Any = None
    last: bool = False
    """``temporal_strategy`` is ``"last"``."""
    with_times: bool = False
    """The input has a time for each entry."""
    labor: bool = False
    """The sampler options ask for LABOR."""
    subgraph_type: str = "directional"

    def returns_edge_ids(self, schema: GraphSchema) -> bool:
        """Return whether batches have the ids of edges."""
        if self.with_edge is None:
            return any(edges.columns for edges in schema.edges.values())
        return self.with_edge


class SamplerOptions(Protocol):
    """Options of a kind of sampler, the ``sampler_options`` of loaders. A frozen value, checked at birth."""

    def plan(self, schema: GraphSchema, seed_type: NodeType, arguments: SamplerArguments) -> SamplerPlan:
        """Return the plan around seeds of a type. ``ValueError`` names an argument that does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Which subgraph belongs to a batch, and which of its features the batch carries."""

    sampler: SamplerPlan
    run_seed: int
    """Every draw of the run is a function of it, the epoch and the inputs of the batch."""
    columns: ColumnPlan = ColumnPlan()

    def __post_init__(self) -> None:
        if not 0 <= self.run_seed < 2**64:
            raise ValueError(f"the run seed must lie in [0, 2**64), got {self.run_seed}")

    @property
    def inputs(self) -> tuple[InputColumn, ...]:
        """The columns of a request."""
        return self.sampler.inputs

    def frame(self, schema: GraphSchema) -> FrameSchema:
        """Return what the frames of this plan hold."""
        return self.sampler.frame(schema, self.columns)

    def open(
        self,
        graph: Graph,
        store: PartitionedStore | None = None,
        *,
        costs: CostCounter | None = None,
        bounds: BatchBounds | None = None,
        deferred: bool = False,
    ) -> PlanSampler:
        """Return a sampler for this plan: see ``SamplerContext``."""
        context = SamplerContext(
            graph=graph, plan=self, store=store, costs=costs, bounds=bounds, deferred=deferred
        )
        return self.sampler.open(context)

    def to_json(self) -> str:
        """Return the plan as JSON, for workers, servers and states. Equal plans give equal text."""
        document = {
            **self.sampler.to_json(),
            "run_seed": self.run_seed,
            "node_columns": {kind: list(names) for kind, names in self.columns.nodes.items()},
            "edge_columns": sorted((list(kind), list(names)) for kind, names in self.columns.edges.items()),
        }
        if self.sampler.kind != DEFAULT_KIND:
            document["kind"] = self.sampler.kind
        return json.dumps(document, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerContext:
    """What a sampler works with."""

    graph: Graph
    """Its schema and node ids; without a ``store``, all of its partitions."""
    plan: BatchPlan
    store: PartitionedStore | None = None
    """Answers for the partitions, wherever they lie. ``None``: the graph lies wholly on this host."""
    costs: CostCounter | None = None
    """What sampling costs is added to it."""
    bounds: BatchBounds | None = None
    """Of a batch. By default those of the machine."""
    deferred: bool = False
    """Frames tell where features lie instead of holding them."""

    @property
    def frame(self) -> FrameSchema:
        """What the frames hold."""
        whole = self.plan.frame(self.graph.schema)
        return whole.with_deferred_features() if self.deferred else whole


def plan_digest(text: str) -> bytes:
    """Return the digest, 16 bytes, of a plan as ``to_json`` writes it: equal plans have equal ones."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
