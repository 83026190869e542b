"""Requests within every limit that take a server as long as their kind can, for ``hostile.py``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.native import check_stop
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.sampling.columns import ColumnPlan
from gigl_loader.sampling.custom import Subgraph
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.negatives import Negatives
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans.ablp import ABLPPlan
from gigl_loader.sampling.plans.custom import CustomPlan, UserCode
from gigl_loader.sampling.plans.link import LinkPlan
from gigl_loader.sampling.plans.neighbor import NeighborPlan
from gigl_loader.sampling.plans.ppr import PPRPlan
from gigl_loader.sampling.plans.walks import WalkPlan

if TYPE_CHECKING:
    from gigl_loader.sampling.custom import SamplingGraph, SeedBatch
    from gigl_loader.sampling.plan import SamplerPlan

ENDLESS = "hostile_bombs:Endless"
_NODE, _EDGE = HOMOGENEOUS_NODE, HOMOGENEOUS_EDGE
_ALL = {_EDGE: (-1, -1, -1)}


@dataclass(frozen=True, slots=True)
class Bomb:
    """A plan, and a batch of it."""

    sampler: SamplerPlan
    seeds: int
    """Entries of the batch, drawn among all nodes."""

    @property
    def plan(self) -> BatchPlan:
        return BatchPlan(sampler=self.sampler, run_seed=1, columns=ColumnPlan())

    def request(self, number: int, nodes: int) -> tuple[bytes, bytes]:
        """Return index and inputs of a batch over a graph of ``nodes`` nodes, as messages have them."""
        index = np.arange(self.seeds, dtype="<i8")
        drawn = np.random.default_rng(number).integers(nodes, size=(len(self.sampler.inputs), self.seeds))
        return index.tobytes(), drawn.astype("<i8").tobytes()


class Endless:
    """Custom sampler that draws the neighbours of the seeds again and again."""

    def __init__(self, graph: SamplingGraph) -> None:
        self._graph = graph

    def sample(self, batch: SeedBatch) -> Subgraph:
        """Draw until the batch is stopped."""
        while True:
            self._graph.neighbors(_EDGE, batch.seeds, batch=batch)
            check_stop()


def build_bombed(folder: Path, *, nodes: int, edges: int) -> None:
    """Build a graph on which every bomb works: hubs, dense lists, and very unequal weights."""
    random = np.random.default_rng(3)
    src, dst = (random.pareto(1.2, (2, edges)) * nodes / 50).astype(np.int64) % nodes
    weight = np.where(random.random(edges) < 0.01, 1e30, 1e-6).astype(np.float32)
    table = ArrayTable("edges", {"src": src, "dst": dst, "w": weight})
    columns = {"x": random.standard_normal((nodes, 32), dtype=np.float32), "y": np.arange(nodes) % 7}
    train = ArrayTable("train", {"id": np.arange(0, nodes, 10)})
    build_graph(
        GraphTables(
            {_EDGE: table},
            {_NODE: NodeTable(ArrayTable("nodes", columns), splits={"train": train})},
            weights={_EDGE: ("w",)},
        ),
        folder,
        num_partitions=1,
    )


BOMBS: Mapping[str, Bomb] = {
    "biased_walks": Bomb(
        WalkPlan(seed_type=_NODE, path=(_EDGE,) * 100, walks_per_seed=2, p=1e-6, q=1e6), seeds=2500
    ),
    "plain_walks": Bomb(WalkPlan(seed_type=_NODE, path=(_EDGE,) * 250, walks_per_seed=1), seeds=5000),
    "ppr": Bomb(
        PPRPlan(
            seed_type=_NODE,
            alpha=0.01,
            eps=1e-9,
            max_ppr_nodes=50,
            enable_residual_topup=True,
            num_neighbors_per_hop=20,
            max_fetch_iterations=None,
        ),
        seeds=100,
    ),
    "induced": Bomb(
        NeighborPlan(seed_type=_NODE, num_neighbors=_ALL, subgraph_type="induced"), seeds=100_000
    ),
    "labor": Bomb(
        NeighborPlan(seed_type=_NODE, num_neighbors={_EDGE: (1000,) * 50}, labor=True), seeds=100_000
    ),
    "weighted": Bomb(
        NeighborPlan(seed_type=_NODE, num_neighbors={_EDGE: (2000, 20)}, weight_attr="w", disjoint=True),
        seeds=5000,
    ),
    "replaced": Bomb(
        NeighborPlan(seed_type=_NODE, num_neighbors={_EDGE: (100, 100, 10)}, replace=True, disjoint=True),
        seeds=40,
    ),
    "strict_negatives": Bomb(
        LinkPlan(
            edge_type=_EDGE,
            hops=KHop(num_neighbors={_EDGE: (20,)}),
            negatives=Negatives(mode="binary", amount=100, strict=True),
            excluded=(_EDGE,),
        ),
        seeds=5000,
    ),
    "ablp": Bomb(
        ABLPPlan(
            supervision=(_EDGE,),
            hops=KHop(num_neighbors={_EDGE: (1000, 1000)}),
            random_negatives=100,
            exclude=True,
        ),
        seeds=5000,
    ),
    "custom": Bomb(CustomPlan(seed_type=_NODE, code=UserCode(ENDLESS)), seeds=5000),
}
"""By kind of plan."""
