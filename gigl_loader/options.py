"""Options of sampling, workers and graph store: frozen values that are checked when they are made.

A ``SamplingPlan`` says which subgraph a batch is; ``WorkerOptions`` say how sampling processes are
run, ``StoreOptions`` how storage servers are asked. Only the first can change a batch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gigl_loader.sizes import whole_number

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MAX_KEY",
    "START_METHODS",
    "VERIFY_MODES",
    "EdgeType",
    "NodeType",
    "SamplingPlan",
    "StoreOptions",
    "Verify",
    "WorkerOptions",
    "check_verify",
]

NodeType = str
EdgeType = tuple[str, str, str]
Verify: TypeAlias = Literal["full", "lazy", "none"]
"""``"full"``: opening reads every byte. ``"lazy"``: topology, ids and splits are read before their first use,
features in the background. ``"none"``: only headers are checked."""

VERIFY_MODES: tuple[Verify, ...] = ("full", "lazy", "none")

START_METHODS = ("spawn", "forkserver", "fork")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingPlan:
    """Which subgraph belongs to a batch of seeds. Equal plans and seeds give equal batches."""

    seed_type: NodeType
    """Node type of the seeds."""
    num_neighbors: Mapping[EdgeType, tuple[int, ...]]
    """Fanout per hop for every edge type: -1 takes all neighbours, 0 skips the type at that hop."""
    run_seed: int
    """Every draw of the run is a function of it, the epoch and the seeds of the batch."""
    replace: bool = False
    """Draw with replacement: every node with neighbours then gets exactly ``fanout`` draws."""
    with_edge: bool = False
    """Return the ids of sampled edges. Costs one more random read per edge."""
    node_columns: Mapping[NodeType, tuple[str, ...]]
    """Columns to gather for the sampled nodes of each type."""
    edge_columns: Mapping[EdgeType, tuple[str, ...]]
    """Columns to gather for the sampled edges of each type."""

    def __post_init__(self) -> None:
        hops = {len(fanouts) for fanouts in self.num_neighbors.values()}
        if len(hops) > 1:
            raise ValueError(f"all edge types need the same number of hops, got {sorted(hops)}")
        for edge_type, fanouts in self.num_neighbors.items():
            for fanout in fanouts:
                if fanout < -1:
                    raise ValueError(
                        f"fanout {fanout} of {edge_type}: must be -1 (all), 0 (skip) or positive"
                    )
        if not 0 <= self.run_seed < 2**64:
            raise ValueError(f"the run seed must lie in [0, 2**64), got {self.run_seed}")

    @property
    def num_hops(self) -> int:
        return len(next(iter(self.num_neighbors.values()), ()))

    def to_json(self) -> str:
        """Return the plan as JSON, for a sampling process or a digest. Equal plans give equal text."""
        document = asdict(self)
        document["num_neighbors"] = sorted((key, value) for key, value in self.num_neighbors.items())
        document["edge_columns"] = sorted((key, value) for key, value in self.edge_columns.items())
        return json.dumps(document, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> SamplingPlan:
        """Undo ``to_json``."""
        document: dict[str, Any] = json.loads(text)
        by_edge_type: dict[str, Any] = {
            field: {tuple(key): tuple(value) for key, value in document.pop(field)}
            for field in ("num_neighbors", "edge_columns")
        }
        node_columns = {key: tuple(value) for key, value in document.pop("node_columns").items()}
        return cls(**document, **by_edge_type, node_columns=node_columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How sampling processes beside the trainer are run. None of it changes a batch."""

    num_workers: int = 1
    """Sampling processes. One saturates about one core."""
    worker_concurrency: int = 4
    """Batches in flight per worker. From 2 on, one is sampled while one waits to be used; where partitions
    lie on other hosts, all are sampled at the same time, so that one waits while another is drawn."""
    channel_bytes: int = 4 << 30
    """Address space for batches in flight, over all workers. Memory is committed only when touched."""
    in_order: bool = True
    """Deliver batches in their order. False delivers each when it is ready."""
    max_worker_restarts: int = 2
    """How often, over the life of the loader, a dead worker is replaced before ``WorkerDied``."""
    start_method: str = "spawn"
    """``spawn`` starts a fresh interpreter, ``forkserver`` and ``fork`` are as in multiprocessing."""

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ValueError(f"num_workers must be at least 1 for sampling processes, got {self.num_workers}")
        if self.worker_concurrency < 1:
            raise ValueError(f"worker_concurrency must be at least 1, got {self.worker_concurrency}")
        if self.channel_bytes < self.num_workers << 20:
            raise ValueError(f"channel_size must be at least 1 MiB a worker, got {self.channel_bytes} bytes")
        if self.max_worker_restarts < 0:
            raise ValueError(f"max_worker_restarts must not be negative, got {self.max_worker_restarts}")
        if self.start_method not in START_METHODS:
            raise ValueError(
                f"multiprocessing_context is one of {', '.join(START_METHODS)}, got {self.start_method!r}"
            )


_MAX_PREFETCHED = 64
MAX_KEY = 200
"""Characters. Servers take 256, of which some tell loaders apart that were given one name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a graph store is asked for batches. None of it changes a batch; beside it, none has a meaning."""

    prefetch_size: int | None = None
    """Batches in flight per storage server."""
    worker_key: str | None = None
    """Loaders of a job with equal keys share one producer. By default, a loader's is its own."""
    max_producer_inits: int | None = None
    """Leaders that create producers at the same time, over all ranks. By default, as many as there are."""

    def __post_init__(self) -> None:
        if self.prefetch_size is not None:
            whole_number("prefetch_size", self.prefetch_size, minimum=1)
            if self.prefetch_size > _MAX_PREFETCHED:
                raise ValueError(f"prefetch_size must be at most {_MAX_PREFETCHED}, got {self.prefetch_size}")
        key = self.worker_key
        if key is not None and (not isinstance(key, str) or not 0 < len(key) <= MAX_KEY):
            raise ValueError(f"worker_key must be a text of 1 to {MAX_KEY} characters, got {key!r}")
        if self.max_producer_inits is not None:
            whole_number("max_concurrent_producer_inits", self.max_producer_inits, minimum=1)

    def given(self) -> dict[str, Any]:
        """Return those that were given, by the names that loaders have for them."""
        named = {
            "prefetch_size": self.prefetch_size,
            "worker_key": self.worker_key,
            "max_concurrent_producer_inits": self.max_producer_inits,
        }
        return {name: value for name, value in named.items() if value is not None}


def check_verify(verify: object) -> Verify:
    """Return ``verify``, if it is one of the modes. ``ValueError`` lists them."""
    for mode in VERIFY_MODES:
        if verify == mode:
            return mode
    raise ValueError(f"verify must be one of {', '.join(map(repr, VERIFY_MODES))}, got {verify!r}")
