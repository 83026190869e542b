"""One fixed workload for every system: a power-law graph, its features and its seeds.

The arrays are ``.npy`` files, so that other systems can read them. The graph built from them lies beside
them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gigl_loader.graph.quantization import Quantization
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE, EdgeType, NodeType
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph

_ARRAYS = ("src", "dst", "feat", "label", "train")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Sizes of the graph, and what is sampled from it."""

    nodes: int
    edges: int
    dim: int
    fanout: tuple[int, ...]
    batch_size: int
    batches: int
    """Batches per epoch."""
    seed: int = 7

    def __post_init__(self) -> None:
        if self.batches * self.batch_size > self.nodes // 10:
            raise ValueError(
                f"{self.batches} batches of {self.batch_size} seeds exceed the {self.nodes // 10} "
                "training seeds (a tenth of the nodes)"
            )

    @property
    def row_bytes(self) -> int:
        """Features and label of a node."""
        return 4 * self.dim + 8

    @property
    def num_seeds(self) -> int:
        return self.batches * self.batch_size


FULL = Workload(nodes=1_000_000, edges=30_000_000, dim=128, fanout=(15, 10, 5), batch_size=1024, batches=60)
QUICK = Workload(nodes=20_000, edges=300_000, dim=32, fanout=(15, 10, 5), batch_size=128, batches=12)


def prepare(workload: Workload, folder: Path, *, partitions: int = 1) -> Path:
    """Make what is missing in ``folder``: the arrays, and the graph built from them. Return the graph's path.

    Several partitions are assigned by hash: of P, a node's neighbour lies in another one in (P - 1) / P of
    cases. Raises ``ValueError`` where the folder holds the arrays of another workload.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not all((folder / f"{name}.npy").exists() for name in _ARRAYS):
        _generate(workload, folder)
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    _check(workload, folder, arrays)
    graph = folder / ("graph" if partitions == 1 else f"graph-{partitions}")
    if not graph.exists():
        _build(arrays, graph, partitions)
    return graph


def training_seeds(workload: Workload, folder: Path) -> npt.NDArray[np.int64]:
    """Return the seeds of an epoch, int64 ids, from a folder that was prepared."""
    seeds: npt.NDArray[np.int64] = np.load(folder / "train.npy")[: workload.num_seeds]
    return seeds


def _generate(workload: Workload, folder: Path) -> None:
    """Draw sources by popularity (Pareto 1.6), and destinations by the popularity of a shuffled order."""
    rng = np.random.default_rng(workload.seed)
    popularity = np.cumsum(rng.pareto(1.6, workload.nodes) + 0.2)
    popularity /= popularity[-1]
    source = np.searchsorted(popularity, rng.random(workload.edges)).astype(np.int64)
    shuffled = rng.permutation(workload.nodes)
    target = shuffled[np.searchsorted(popularity, rng.random(workload.edges))].astype(np.int64)
    _save(folder, "src", source)
    _save(folder, "dst", target)
    del source, target
    _save(folder, "feat", rng.standard_normal((workload.nodes, workload.dim), dtype=np.float32))
    _save(folder, "label", rng.integers(0, 47, workload.nodes))
    _save(folder, "train", rng.permutation(workload.nodes)[: workload.nodes // 10].astype(np.int64))


def _save(folder: Path, name: str, array: npt.NDArray[Any]) -> None:
    """Write a file that appears complete or not at all."""
    part = folder / f"{name}.npy.part"
    with part.open("wb") as file:
        np.save(file, array)
    os.replace(part, folder / f"{name}.npy")


def _check(workload: Workload, folder: Path, arrays: dict[str, npt.NDArray[Any]]) -> None:
    found = (len(arrays["label"]), len(arrays["src"]), arrays["feat"].shape[1])
    wanted = (workload.nodes, workload.edges, workload.dim)
    if found != wanted:
        raise ValueError(
            f"{folder} holds a workload of {found[0]} nodes, {found[1]} edges and {found[2]} features, "
            f"not {wanted[0]}, {wanted[1]} and {wanted[2]}: choose another --data"
        )


def graph_tables(
    source: npt.NDArray[Any],
    target: npt.NDArray[Any],
    features: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    train: npt.NDArray[Any],
    *,
    quantize: str | None = None,
) -> GraphTables:
    """Return the tables of a workload's arrays, with features quantised as ``quantize`` says (``int8``)."""
    nodes = NodeTable(
        ArrayTable("nodes", {"x": features, "y": labels}),
        splits={"train": ArrayTable("train", {"id": train})},
    )
    how: dict[NodeType | EdgeType, dict[str, Quantization]] = {}
    if quantize is not None:
        how = {HOMOGENEOUS_NODE: {"x": Quantization.parse(quantize)}}
    edges = ArrayTable("edges", {"src": source, "dst": target})
    return GraphTables({HOMOGENEOUS_EDGE: edges}, {HOMOGENEOUS_NODE: nodes}, quantize=how)


def _build(arrays: dict[str, npt.NDArray[Any]], graph: Path, partitions: int) -> None:
    tables = graph_tables(*(arrays[name] for name in _ARRAYS))
    build_graph(tables, graph, num_partitions=partitions, assigner="range" if partitions == 1 else "hash")
