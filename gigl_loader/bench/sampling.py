"""The sampler alone, and the row gather alone beside what torch and memcpy do. All on one thread."""

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
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans.neighbor import NeighborPlan
from gigl_loader.sampling.request import SEED
from gigl_loader.sampling.schedule import Schedule
from gigl_loader.sampling.source import PlanSampler

GATHERED_BATCHES = 10


def sampler_case(graph: Graph, workload: Workload, seeds: npt.NDArray[np.int64]) -> Case:
    """Sample an epoch with edge ids and without features, written into memory that is used again."""
    sampler, schedule = _sampler(graph, workload, seeds)
    buffer = np.empty(0, dtype=np.uint8)

    def epoch(number: int) -> tuple[int, int]:
        nonlocal buffer
        nodes = edges = 0
        for batch in range(schedule.num_batches):
            sampled = sampler.sample(schedule.request(number, batch))
            if len(buffer) < sampled.layout.nbytes:
                buffer = np.empty(sampled.layout.nbytes * 5 // 4, dtype=np.uint8)
            sampled.write(buffer)
            nodes += sampled.layout.specs[_NODE_IDS].shape[0]
            edges += sampled.layout.specs[_EDGE_ROWS].shape[0]
        return nodes, edges

    def case() -> dict[str, Figures]:
        epoch(0)
        cpu, start = CpuMeter(), time.perf_counter()
        nodes, edges = epoch(0)
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


_NODE_IDS = f"node/{type_name(HOMOGENEOUS_NODE)}/n_id"
_EDGE_ROWS = f"edge/{type_name(HOMOGENEOUS_EDGE)}/rows"


def _sampler(graph: Graph, workload: Workload, seeds: npt.NDArray[np.int64]) -> tuple[PlanSampler, Schedule]:
    sampler = NeighborPlan(
        seed_type=HOMOGENEOUS_NODE, num_neighbors={HOMOGENEOUS_EDGE: workload.fanout}, with_edge=True
    )
    positions = graph.positions(HOMOGENEOUS_NODE, seeds)
    schedule = Schedule(
        {SEED: positions}, batch_size=workload.batch_size, shuffle=False, drop_last=True, run_seed=1
    )
    return BatchPlan(sampler=sampler, run_seed=1).open(graph), schedule


def gather_case(graph: Graph, workload: Workload, seeds: npt.NDArray[np.int64]) -> Case:
    """Gather the feature rows of real batches: ours, torch's, and as many bytes copied straight."""
    batches = _node_positions(graph, workload, seeds)
    rows = graph.node_column(HOMOGENEOUS_NODE, "x", 0)
    largest = max(map(len, batches))
    reused = np.ones((largest, rows.shape[1]), dtype=rows.dtype)
    straight = torch.ones(reused.shape)
    bounds = graph.bounds(HOMOGENEOUS_NODE)
    as_bytes, reused_bytes = rows.view(np.uint8), reused.view(np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of read-only memory; nothing here writes to it
        table = torch.from_numpy(rows)
    into = torch.from_numpy(reused)
    ways: dict[str, Callable[[npt.NDArray[np.int64]], Any]] = {
        "gather": lambda at: native.gather([as_bytes], bounds, at, reused_bytes[: len(at)]),
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
    """Return memory for so many rows that no one has touched yet, which goes back when it is dropped.

    That is what a new tensor of 100 MB gets; small ones come warm out of the heap.
    """
    nbytes = max(count, 1) * like.stride(0) * like.element_size()
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=like.dtype)[: count * like.stride(0)].view(count, like.shape[1])


def _bytes_per_second(
    way: Callable[[npt.NDArray[np.int64]], Any], batches: list[npt.NDArray[np.int64]], row_bytes: int
) -> float:
    way(batches[0])
    start = time.perf_counter()
    for at in batches:
        way(at)
    return sum(map(len, batches)) * row_bytes / (time.perf_counter() - start)


def _node_positions(
    graph: Graph, workload: Workload, seeds: npt.NDArray[np.int64]
) -> list[npt.NDArray[np.int64]]:
    """Return the positions of the nodes of some batches, in the order in which a batch holds them."""
    sampler, schedule = _sampler(graph, workload, seeds)
    batches = []
    for batch in range(min(GATHERED_BATCHES, schedule.num_batches)):
        sampled = sampler.sample(schedule.request(0, batch))
        buffer = np.empty(sampled.layout.nbytes, dtype=np.uint8)
        sampled.write(buffer)
        ids = sampled.layout.view(buffer, _NODE_IDS)
        batches.append(graph.positions(HOMOGENEOUS_NODE, ids))
    return batches
