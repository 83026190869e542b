"""Sources over a small graph, of every kind, for the contract suite and its neighbours."""

from __future__ import annotations

import atexit
import functools
import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from gigl_loader.channel.frame import Frame
from gigl_loader.graph.folder import DiskFolder, MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.options import WorkerOptions
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.sampling.cached_columns import cached_columns
from gigl_loader.sampling.feature_cache import FeatureCache
from gigl_loader.sampling.frame_writer import Completion
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.negatives import Negatives
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans.ablp import ABLPPlan
from gigl_loader.sampling.plans.link import LinkPlan
from gigl_loader.sampling.plans.ppr import PPRPlan
from gigl_loader.sampling.request import SEED
from gigl_loader.sampling.resident import ResidentRows
from gigl_loader.sampling.row_cache import reference_counts
from gigl_loader.sampling.rows import DiskRows
from gigl_loader.sampling.schedule import Schedule
from gigl_loader.sampling.source import InlineSource
from gigl_loader.sampling.window import WindowedSource
from gigl_loader.tensors import Layout
from gigl_loader.workers.source import WorkerSource
from tests.support.faults import FAULTY_SAMPLER, FaultPlan, FaultySampler, GraphWithFaults
from tests.support.plans import neighbor_plan, with_sampler

if TYPE_CHECKING:
    from gigl_loader.loaders.device_rows import ResidentTransfer
    from gigl_loader.sampling.source import BatchSource

NUM_BATCHES = 12
_NUM_NODES = 600
_EDGE = ("node", "to", "node")

PLAN = neighbor_plan(
    seed_type="node",
    num_neighbors={_EDGE: (5, 5)},
    run_seed=7,
    with_edge=True,
    node_columns={"node": ("x", "y")},
    edge_columns={},
)
_HOPS = KHop(num_neighbors={_EDGE: (3, 2)})
PLANS: dict[str, BatchPlan] = {
    "nodes": PLAN,
    "links": replace(
        PLAN,
        sampler=LinkPlan(
            edge_type=_EDGE,
            hops=_HOPS,
            negatives=Negatives(mode="binary", amount=2, strict=True),
            excluded=(_EDGE,),
        ),
    ),
    "induced": with_sampler(PLAN, subgraph_type="induced"),
    "anchors": replace(
        PLAN,
        sampler=ABLPPlan(supervision=(_EDGE,), hops=_HOPS, max_labels=4, random_negatives=9, exclude=True),
    ),
    "ppr": replace(
        PLAN,
        sampler=PPRPlan(
            seed_type="node",
            alpha=0.25,
            eps=1e-3,
            max_ppr_nodes=20,
            enable_residual_topup=True,
            num_neighbors_per_hop=8,
            max_fetch_iterations=None,
        ),
    ),
}
"""By kind of input. Batches have their numbers, whatever the kind."""


@functools.cache
def small_graph(num_partitions: int = 1) -> Graph:
    """The graph of ``small_tables``, in memory."""
    folder = MemoryFolder()
    build_graph(small_tables(), folder, num_partitions=num_partitions)
    return Graph.open(folder)


@functools.cache
def small_graph_on_disk() -> Graph:
    """The same graph in a directory, which is removed when the process ends."""
    directory = tempfile.TemporaryDirectory()
    atexit.register(directory.cleanup)
    build_graph(small_tables(), DiskFolder(directory.name), num_partitions=1)
    return Graph.open(directory.name)


def small_tables() -> GraphTables:
    """600 nodes with features and labels, 6,000 random edges."""
    random = np.random.default_rng(0)
    nodes = ArrayTable(
        "nodes",
        {
            "id": np.arange(_NUM_NODES),
            "x": random.standard_normal((_NUM_NODES, 16), dtype=np.float32),
            "y": random.integers(0, 5, _NUM_NODES),
        },
    )
    src, dst = random.integers(0, _NUM_NODES, (2, 6_000))
    edges = ArrayTable("edges", {"src": src, "dst": dst})
    return GraphTables(edges={_EDGE: edges}, nodes={"node": NodeTable(nodes)})


def small_schedule(plan: str = "nodes") -> Schedule:
    """Twelve batches of fifty seeds, links or anchors, shuffled."""
    nodes = np.arange(_NUM_NODES)
    columns = {"src": nodes, "dst": nodes[::-1].copy()} if plan == "links" else {SEED: nodes}
    return Schedule(columns, batch_size=50, shuffle=True, drop_last=False, run_seed=PLAN.run_seed)


@functools.cache
def sampled_frames(epoch: int, plan: str = "nodes") -> list[bytes]:
    """The frames of an epoch over the small graph, straight from the sampler."""
    sampler, schedule = PLANS[plan].open(small_graph()), small_schedule(plan)
    frames = []
    for batch in range(NUM_BATCHES):
        sampled = sampler.sample(schedule.request(epoch, batch))
        buffer = np.empty(sampled.layout.nbytes, np.uint8)
        sampled.write(buffer)
        frames.append(buffer.tobytes())
    return frames


@dataclass(frozen=True)
class SourceKind:
    """A kind of source: inline, or a number of workers started in one way."""

    workers: int
    method: str = "spawn"
    plan: str = "nodes"
    windowed: bool = False
    """Features are read from a disk, in windows, into a cache of a third of them."""
    on_device: bool = False
    """A third of the rows stays on the device: frames are completed here."""

    def __str__(self) -> str:
        kind = f"{self.workers}-{self.method}" if self.workers else "inline"
        kind += "-windowed" if self.windowed else ""
        kind += "-device" if self.on_device else ""
        return kind if self.plan == "nodes" else f"{kind}-{self.plan}"

    @property
    def factors(self) -> dict[str, str]:
        """The factors of a matrix that a kind stands for."""
        return {
            "source": self.method if self.workers else "inline",
            "rows": "windowed" if self.windowed else "in the frame",
            "processes": "several" if self.workers > 1 else str(self.workers),
            "plan": self.plan,
        }

    def open(self, faults: FaultPlan | None = None, **options: Any) -> BatchSource:
        """Open a source over the small graph. ``options`` are of ``WorkerOptions``."""
        plan, schedule = PLANS[self.plan], small_schedule(self.plan)
        channel = {name: options[name] for name in ("channel_bytes",) if name in options}
        if not self.workers:
            sampler = plan.open(small_graph(), deferred=self.windowed)
            faulty = sampler if faults is None else FaultySampler(sampler, faults)
            return self._around(InlineSource(faulty, schedule, **channel), **channel)
        settings = WorkerOptions(num_workers=self.workers, start_method=self.method, **options)
        graph = small_graph()
        settings_of_faults: dict[str, Any] = {}
        if faults is not None:
            graph = cast("Graph", GraphWithFaults(small_graph(), faults))
            settings_of_faults = {"sampler": FAULTY_SAMPLER}
        inner = WorkerSource(graph, plan, schedule, settings, deferred=self.windowed, **settings_of_faults)
        return self._around(inner, **channel)

    def _around(self, inner: BatchSource, **channel: Any) -> BatchSource:
        if not self.windowed:
            return inner
        graph, plan = small_graph_on_disk(), PLANS[self.plan]
        reader = DiskRows(graph, "node", plan.columns.nodes["node"])
        columns = cached_columns(graph.schema, plan.columns, {"node": reader})
        cache = FeatureCache(columns, _NUM_NODES // 3 * 100)
        if not self.on_device:
            return WindowedSource(inner, Completion(graph.schema, plan), cache, **channel)
        # Here: PyG, which loaders import, warns, and some tests make errors of warnings.
        import torch

        from gigl_loader.loaders.device_rows import ResidentTransfer
        from gigl_loader.loaders.transfer import HostTransfer

        transfer = ResidentTransfer(HostTransfer(), torch.device("cpu"), {})
        resident = ResidentRows(
            transfer,
            plan.frame(graph.schema),
            {"node": reader},
            {"node": _NUM_NODES},
            nbytes=_NUM_NODES // 3 * 72,
            degrees={"node": reference_counts(graph, "node")},
        )
        source = WindowedSource(inner, Completion(graph.schema, plan), cache, resident=resident, **channel)
        return cast("BatchSource", _WholeFrames(source, transfer))


class _WholeFrames:
    """A source whose frames are completed with the rows on the device."""

    def __init__(self, source: WindowedSource, transfer: ResidentTransfer) -> None:
        self._source = source
        self._transfer = transfer
        self._left_out = 0
        """Bytes, of all frames."""

    def stats(self) -> dict[str, Any]:
        stats = self._source.stats()
        return {**stats, "bytes": stats["bytes"] + self._left_out}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def receive(self, timeout: float) -> Frame:
        frame = self._source.receive(timeout)
        tensors, names = self._transfer.load(frame), [name for name in frame.names if "/+" not in name]
        arrays = {name: tensors.tensor(name).numpy() for name in names}
        specs = {name: replace(frame.layout.specs[name], shape=each.shape) for name, each in arrays.items()}
        layout = Layout.plan(specs, frame.layout.metadata)
        buffer = np.empty(layout.nbytes, np.uint8)
        buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
        for name, array in arrays.items():
            layout.view(buffer, name)[:] = array
        self._left_out += layout.nbytes - frame.nbytes
        return Frame(buffer, layout)


def bytes_of(frame: Frame) -> bytes:
    return frame.buffer[: frame.nbytes].tobytes()


def drain(source: BatchSource, count: int = NUM_BATCHES) -> list[bytes]:
    """Receive batches and return their bytes."""
    return [bytes_of(source.receive(20)) for _ in range(count)]
