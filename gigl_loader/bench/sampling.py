"""The sampler alone, and the row gather alone beside torch and memcpy. All on one thread."""

from __future__ import annotations

import mmap
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gigl_loader import native
from gigl_loader.bench.rounds import Case, CpuMeter, Figures
from gigl_loader.bench.workload import Workload
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, type_name
from gigl_loader.sampling.plan import BatchPlan, PlanSampler
from gigl_loader.sampling.plans.neighbor import NeighborPlan
from gigl_loader.sampling.request import SEED, BatchRequest
from gigl_loader.sampling.schedule import Schedule
from gigl_loader.tensors import Layout

_GATHERED_BATCHES = 10
_NODE_IDS = f"node/{type_name(HOMOGENEOUS_NODE)}/n_id"
_EDGE_ROWS = f"edge/{type_name(HOMOGENEOUS_EDGE)}/rows"

_Positions = npt.NDArray[np.int64]


class BatchWriter:
    """Samples batches into memory that is used again, as a worker's ring does."""

    def __init__(self, sampler: PlanSampler) -> None:
        self._sampler = sampler
        self.buffer = np.empty(0, dtype=np.uint8)

    def write(self, request: BatchRequest) -> Layout:
        """Sample one batch and write its frame to ``buffer``. Returns its layout."""
        sampled = self._sampler.sample(request)
        if len(self.buffer) < sampled.layout.nbytes:
            self.buffer = np.empty(sampled.layout.nbytes * 5 // 4, dtype=np.uint8)
        sampled.write(self.buffer)
        return sampled.layout


def sampler_case(graph: Graph, workload: Workload, seeds: _Positions) -> Case:
    """Sample an epoch with edge ids and without features, after one that warms the caches."""
    writer, schedule = _writer(graph, workload, seeds)

    def epoch() -> tuple[int, int]:
        nodes = edges = 0
        for batch in range(schedule.num_batches):
            specs = writer.write(schedule.request(0, batch)).specs
            nodes += specs[_NODE_IDS].shape[0]
            edges += specs[_EDGE_ROWS].shape[0]
        return nodes, edges

    def case() -> dict[str, Figures]:
        epoch()
        cpu, start = CpuMeter(), time.perf_counter()
        nodes, edges = epoch()
        seconds = time.perf_counter() - start
        return {
            "sampler": {
                "seeds_per_s": workload.num_seeds / seconds,
                "edges_per_s": edges / seconds,
                "cpu_s_per_kseed": cpu.read()[0] / workload.num_seeds * 1e3,
                "nodes_per_batch": nodes / workload.batches,
                "edges_per_batch": edges / workload.batches,
            }
        }

    return case


def _writer(graph: Graph, workload: Workload, seeds: _Positions) -> tuple[BatchWriter, Schedule]:
    plan = NeighborPlan(
        seed_type=HOMOGENEOUS_NODE, num_neighbors={HOMOGENEOUS_EDGE: workload.fanout}, with_edge=True
    )
    positions = graph.positions(HOMOGENEOUS_NODE, seeds)
    schedule = Schedule(
        {SEED: positions}, batch_size=workload.batch_size, shuffle=False, drop_last=True, run_seed=1
    )
    return BatchWriter(BatchPlan(sampler=plan, run_seed=1).open(graph)), schedule


def gather_case(graph: Graph, workload: Workload, seeds: _Positions) -> Case:
    """Gather the feature rows of real batches: with our kernel, with torch, and by copying as many bytes."""
    batches = _node_positions(graph, workload, seeds)
    rows = graph.node_column(HOMOGENEOUS_NODE, "x", 0)
    reused = np.ones((max(map(len, batches)), rows.shape[1]), dtype=rows.dtype)
    straight = torch.ones(reused.shape)
    bounds = graph.bounds(HOMOGENEOUS_NODE)
    as_bytes, reused_bytes = rows.view(np.uint8), reused.view(np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of read-only memory; nothing here writes to it
        table = torch.from_numpy(rows)
    into = torch.from_numpy(reused)
    ways: dict[str, Callable[[_Positions], Any]] = {
        "gather": lambda at: native.gather([[as_bytes]], bounds, at, [reused_bytes[: len(at)]]),
        "index_select, fresh": lambda at: torch.index_select(
            table, 0, torch.from_numpy(at), out=_fresh(len(at), table)
        ),
        "index_select, out=": lambda at: torch.index_select(
            table, 0, torch.from_numpy(at), out=into[: len(at)]
        ),
        "memcpy, warm": lambda at: into[: len(at)].copy_(straight[: len(at)]),
        "memcpy, fresh": lambda at: _fresh(len(at), straight).copy_(straight[: len(at)]),
    }

    def case() -> dict[str, Figures]:
        return {
            name: {"gb_per_s": _bytes_per_second(way, batches, rows.strides[0]) / 1e9}
            for name, way in ways.items()
        }

    return case


def _fresh(count: int, like: torch.Tensor) -> torch.Tensor:
    """Return untouched memory for ``count`` rows, which the system takes back when it is dropped.

    A new tensor of 100 MB gets such memory; a small one gets warm memory from the heap.
    """
    nbytes = max(count, 1) * like.stride(0) * like.element_size()
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=like.dtype)[: count * like.stride(0)].view(count, like.shape[1])


def _bytes_per_second(way: Callable[[_Positions], Any], batches: list[_Positions], row_bytes: int) -> float:
    for at in batches:  # Also what the gather needs to find the faster order.
        way(at)
    start = time.perf_counter()
    for at in batches:
        way(at)
    return sum(map(len, batches)) * row_bytes / (time.perf_counter() - start)


def _node_positions(graph: Graph, workload: Workload, seeds: _Positions) -> list[_Positions]:
    """Return the positions of the nodes of some batches, in the order of each batch."""
    writer, schedule = _writer(graph, workload, seeds)
    batches = []
    for batch in range(min(_GATHERED_BATCHES, schedule.num_batches)):
        layout = writer.write(schedule.request(0, batch))
        batches.append(graph.positions(HOMOGENEOUS_NODE, layout.view(writer.buffer, _NODE_IDS).copy()))
    return batches
