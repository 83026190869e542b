"""Plan of a batch: the seam through which every kind of batch enters the library.

A kind of batch is one ``SamplerPlan`` class in ``sampling/plans/``. It says which columns an input has, what
a frame holds, and which sampler makes it. Schedules, workers, servers, both wires, validation and resume
know nothing else of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from gigl_loader.graph.times import time_unit
from gigl_loader.graph.type_columns import read_times
from gigl_loader.options import EdgeType, NodeType
from gigl_loader.sampling.columns import ColumnPlan
from gigl_loader.sampling.new_nodes import SamplerWithNewNodes

if TYPE_CHECKING:
    from collections.abc import Collection

    from typing_extensions import Self

    from gigl_loader.arrays import Bytes
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.sampling.costs import BatchBounds, CostCounter
    from gigl_loader.sampling.frame_schema import FrameSchema
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.request import BatchRequest, InputColumn
    from gigl_loader.shared import SharedTensors
    from gigl_loader.tensors import Layout

MAX_HOPS = 254  # The address of a draw has 8 bits for it, and two values that are no hop.
MAX_FANOUT = 2**31 - 1

_SHOWN = 200
_REQUIRED = object()


class PlanFields:
    """The JSON object of a plan. Each field is read once, by the class of its kind; none may be left over.

    All methods raise ``ValueError`` with the rule that is broken.
    """

    def __init__(
        self, text: str, schema: GraphSchema, allowed_samplers: Collection[str] | None = None
    ) -> None:
        """``allowed_samplers`` are the users' classes that may be imported; ``None``: any."""
        try:
            document = json.loads(text, object_pairs_hook=_without_repetition)
        except RecursionError:
            raise ValueError("the plan is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"the plan is not JSON: {error}") from None
        if not isinstance(document, dict):
            raise ValueError(f"a plan is a JSON object, not {type(document).__name__}")
        self._document: dict[str, Any] = document
        self.schema = schema
        self.allowed_samplers = allowed_samplers

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """Return a field as it is. Without a ``default`` it has to be there."""
        value = self._document.pop(name, default)
        if value is _REQUIRED:
            raise ValueError(f"the plan lacks {name}: are the versions equal?")
        return value

    def whole(self, name: str, default: Any = _REQUIRED) -> int:
        """Return a whole number."""
        return _whole(self.take(name, default), name)

    def flag(self, name: str, default: Any = _REQUIRED) -> bool:
        """Return true or false."""
        value = self.take(name, default)
        if type(value) is not bool:
            raise ValueError(f"{name} is true or false, got {_shown(value)}")
        return value

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        """Return a text."""
        value = self.take(name, default)
        if not isinstance(value, str):
            raise ValueError(f"{name} is a text, got {_shown(value)}")
        return value

    def node_type(self, name: str) -> NodeType:
        """Return a node type of the graph."""
        return _node_type(self.take(name), self.schema)

    def node_types(self, name: str) -> tuple[NodeType, ...]:
        """Return a list of node types of the graph."""
        value = self.take(name)
        if not isinstance(value, list):
            raise ValueError(f"{name} is a list of node types, got {_shown(value)}")
        return tuple(_node_type(each, self.schema) for each in value)

    def link_type(self, name: str) -> EdgeType:
        """Return a type of links between node types of the graph, which need not be an edge type of it."""
        value = self.take(name)
        return _edge_type(value, self.schema, [tuple(value)] if _joins_nodes(value, self.schema) else None)

    def edge_types(
        self, name: str, known: Collection[EdgeType] | None = None, default: Any = _REQUIRED
    ) -> tuple[EdgeType, ...]:
        """Return a list of edge types of the graph, or of ``known`` ones."""
        return self.listed_edge_types(self.take(name, default), name, known)

    def listed_edge_types(
        self, value: Any, name: str, known: Collection[EdgeType] | None = None
    ) -> tuple[EdgeType, ...]:
        """Return the edge types in ``value``, a part of a field."""
        if not isinstance(value, list):
            raise ValueError(f"{name} is a list of edge types, got {_shown(value)}")
        return tuple(_edge_type(each, self.schema, known) for each in value)

    def fanouts(self, name: str) -> dict[EdgeType, tuple[int, ...]]:
        """Return fanouts per hop by edge type."""
        fanouts = {}
        for edge_type, hops in self._entries(name).items():
            if not isinstance(hops, list) or len(hops) > MAX_HOPS:
                raise ValueError(f"fanouts of {edge_type} are a list of at most {MAX_HOPS} numbers")
            fanouts[edge_type] = tuple(_whole(hop, f"a fanout of {edge_type}") for hop in hops)
            if any(hop > MAX_FANOUT for hop in fanouts[edge_type]):
                raise ValueError(f"a fanout of {edge_type} is {MAX_FANOUT + 1} or more")
        return fanouts

    def columns(self) -> ColumnPlan:
        """Return the columns that batches carry."""
        by_node_type = self.take("node_columns")
        if not isinstance(by_node_type, dict):
            raise ValueError("node_columns is an object of lists")
        known = {_node_type(kind, self.schema): self.schema.nodes[kind].columns for kind in by_node_type}
        edges = self._entries("edge_columns")
        return ColumnPlan(
            nodes={kind: _columns(names, known[kind], kind) for kind, names in by_node_type.items()},
            edges={
                kind: _columns(names, self.schema.edges[kind].columns, kind) for kind, names in edges.items()
            },
        )

    def check_all_read(self) -> None:
        """Raise for a field that no class has read."""
        if self._document:
            raise ValueError(
                f"unknown field {min(self._document)[:_SHOWN]!r} of the plan: are the versions equal?"
            )

    def _entries(self, name: str) -> dict[EdgeType, Any]:
        """Read a list of pairs, the first of which is an edge type."""
        value = self.take(name)
        if not isinstance(value, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in value
        ):
            raise ValueError(f"{name} is a list of pairs")
        entries = {_edge_type(key, self.schema): entry for key, entry in value}
        if len(entries) != len(value):
            raise ValueError(f"{name} has an edge type twice")
        return entries


def differences(here: str, asked: str) -> str:
    """Return in which fields two plans (as JSON) differ, with both values."""
    ours, theirs = json.loads(here), json.loads(asked)
    return ", ".join(
        f"{name} is {_shown(ours.get(name))} there and {_shown(theirs.get(name))} here"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("a name comes twice")
    return document


def _node_type(value: object, schema: GraphSchema) -> NodeType:
    if not isinstance(value, str) or value not in schema.nodes:
        raise ValueError(f"no node type {_shown(value)}; known: {_listed(schema.nodes)}")
    return value


def _edge_type(value: object, schema: GraphSchema, known: Collection[EdgeType] | None = None) -> EdgeType:
    if not (isinstance(value, list) and len(value) == 3 and all(isinstance(part, str) for part in value)):
        raise ValueError(f"an edge type is a list of three names, got {_shown(value)}")
    edge_type = (value[0], value[1], value[2])
    if edge_type not in (schema.edges if known is None else known):
        raise ValueError(f"no edge type {_shown(edge_type)}; known: {_listed(schema.edges)}")
    return edge_type


def _joins_nodes(value: object, schema: GraphSchema) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 3
        and all(isinstance(end, str) and end in schema.nodes for end in value[::2])
    )


def _columns(value: object, known: Mapping[str, object], kind: NodeType | EdgeType) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"columns of {kind!r} are a list of names")
    if len(set(value)) != len(value):
        raise ValueError(f"a column of {kind!r} comes twice")
    for name in value:
        if name not in known:
            raise ValueError(f"{kind!r} has no column {_shown(name)}; known: {_listed(known)}")
    return tuple(value)


def _whole(value: object, what: str) -> int:
    if type(value) is not int:
        raise ValueError(f"{what} is a whole number, got {_shown(value)}")
    return value


def _listed(names: Mapping[Any, object]) -> str:
    return _shown(list(names)) if names else "none"


DEFAULT_KIND = "neighbor"
"""The kind of a plan that names none: the only one that version 0.1 knew."""


class SampledBatch(Protocol):
    """A sampled batch whose columns are not gathered yet. Valid until the next call of its sampler."""

    @property
    def layout(self) -> Layout:
        """The complete layout of its frame."""

    def write(self, buffer: Bytes) -> None:
        """Write the frame into the first ``layout.nbytes`` bytes of ``buffer``."""


class BatchSampler(Protocol):
    """Makes the batch of a request. The same request gives the same bytes, always and everywhere."""

    @property
    def costs(self) -> CostCounter:
        """Cost so far. Samplers of a process may share one counter."""

    def sample(self, request: BatchRequest) -> SampledBatch:
        """Sample, and size the frame."""


class PlanSampler(BatchSampler, Protocol):
    """A sampler that a plan opens. Its memory is bounded, and measured."""

    bounds: BatchBounds
    """Of the next batches."""

    @property
    def scratch_bytes(self) -> int:
        """Memory that is kept for the next batch."""


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
    with_edge: bool = True
    weight_attr: Any = None
    disjoint: bool = False
    time_attr: Any = None
    last: bool = False
    """``temporal_strategy`` is ``"last"``."""
    monotone: bool = False
    """``temporal_strategy`` is ``"monotone"``."""
    strictly_earlier: bool = False
    """``temporal_comparison`` is ``"<"``."""
    time_window: Any = None
    with_times: bool = False
    """The input has a time for each entry."""
    with_starts: bool = False
    """The input has, for each entry, the time at which its window begins."""
    draw: Mapping[str, Any] = field(default_factory=dict)
    """Fields of ``KHop`` that the sampler options set."""
    subgraph_type: str = "directional"

    def time_unit(self, schema: GraphSchema) -> str | None:
        """Return the unit of the times that ``time_attr`` names; ``None`` where the plan will refuse them."""
        with suppress(ValueError, TypeError):
            return time_unit(schema, read_times(schema, self.time_attr))
        return None


class SamplerOptions(Protocol):
    """Options of a kind of sampler, the ``sampler_options`` of loaders. A frozen value, checked at birth.

    Kinds that sample around seeds of several types, such as anchors and their labels, have a method
    ``around``, with the node types of all seeds, those of anchors first.
    """

    def plan(self, schema: GraphSchema, seed_type: NodeType, arguments: SamplerArguments) -> SamplerPlan:
        """Return the plan around seeds of a type. ``ValueError`` names an argument that does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """Which subgraph belongs to a batch, and which of its features the batch carries."""

    sampler: SamplerPlan
    run_seed: int
    """Every draw of the run is a function of it, the epoch and the inputs of the batch."""
    columns: ColumnPlan = field(default_factory=ColumnPlan)

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
        values: bool = False,
        shared: SharedTensors | None = None,
        new_nodes: bool = False,
    ) -> PlanSampler:
        """Return a sampler for this plan: see ``SamplerContext``. ``new_nodes``: requests may bring some."""
        context = SamplerContext(
            graph=graph,
            plan=self,
            store=store,
            costs=costs,
            bounds=bounds,
            deferred=deferred,
            values=values,
            shared=shared,
        )
        return SamplerWithNewNodes(context) if new_nodes else self.sampler.open(context)

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
    """Graph, plan and limits that a sampler is opened with."""

    graph: Graph
    """Its schema and node ids; without a ``store``, all of its partitions."""
    plan: BatchPlan
    store: PartitionedStore | None = None
    """Answers for the partitions, wherever they lie. ``None``: the graph lies wholly on this host."""
    costs: CostCounter | None = None
    """Counter of what sampling costs."""
    bounds: BatchBounds | None = None
    """Bounds of a batch. By default, what fits the machine."""
    deferred: bool = False
    """Frames have the places of features instead of the features."""
    values: bool = False
    """Frames that have features have the values of quantised ones, too, beside the codes."""
    shared: SharedTensors | None = None
    """Those of the loader, for code of the user."""

    @property
    def frame(self) -> FrameSchema:
        """What the frames hold."""
        whole = self.plan.frame(self.graph.schema)
        if self.deferred:
            return whole.with_deferred_features()
        return whole.with_values() if self.values else whole


def plan_digest(text: str) -> bytes:
    """Return the digest, 16 bytes, of a plan as ``to_json`` writes it: equal plans have equal ones."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
