"""Samplers as users write them, for tests: good ones, and one for every mistake."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.native import check_stop, philox_words
from gigl_loader.sampling.custom import SampledEdges, Subgraph

if TYPE_CHECKING:
    from gigl_loader.sampling.custom import LinkBatch, SamplingGraph, SeedBatch


class Halved:
    """One hop over every edge type into the seeds, of which each edge is kept with probability ``keep``."""

    def __init__(self, graph: SamplingGraph, *, fanout: int = -1, keep: float = 0.5) -> None:
        self.graph, self.fanout, self.keep = graph, fanout, keep

    def sample(self, batch: SeedBatch) -> Subgraph:
        schema = self.graph.schema
        seeds = batch.seeds[np.sort(np.unique(batch.seeds, return_index=True)[1])]
        nodes = {self.seed_type: seeds}
        edges = {}
        for number, edge_type in enumerate(schema.edges):
            if schema.target_type(edge_type) != self.seed_type:
                continue
            found = self.graph.neighbors(edge_type, seeds, batch=batch, fanout=self.fanout)
            assert found.edge_ids is not None
            assert found.slots is not None
            kept = batch.uniform(number, len(found.positions)) < self.keep
            targets = np.repeat(np.arange(len(seeds)), found.counts)[kept]
            neighbor_type = schema.neighbor_type(edge_type)
            have = nodes.get(neighbor_type, np.empty(0, np.int64))
            merged = np.concatenate([have, found.positions[kept]])
            unique, first, local = np.unique(merged, return_index=True, return_inverse=True)
            order = np.argsort(first)
            place = np.empty(len(unique), np.int64)
            place[order] = np.arange(len(unique))
            nodes[neighbor_type] = unique[order]
            edges[edge_type] = SampledEdges(
                neighbors=place[local[len(have) :]],
                targets=targets,
                slots=found.slots[kept],
                edge_ids=found.edge_ids[kept],
            )
        return Subgraph(nodes=nodes, edges=edges)

    @property
    def seed_type(self) -> str:
        return "node" if self.graph.schema.homogeneous else "item"


class Counted(Halved):
    """Counts in shared tensors how often each seed was sampled, whichever process samples."""

    def sample(self, batch: SeedBatch) -> Subgraph:
        assert self.graph.shared is not None
        with self.graph.shared.lock():
            np.add.at(self.graph.shared.array("times"), self.graph.node_ids("node", batch.seeds), 1)
        return super().sample(batch)


class Endless:
    """Draws the neighbours of the seeds until the batch is stopped."""

    def __init__(self, graph: SamplingGraph) -> None:
        self.graph = graph

    def sample(self, batch: SeedBatch) -> Subgraph:
        edge_type = next(iter(self.graph.schema.edges))
        while True:
            self.graph.neighbors(edge_type, batch.seeds, batch=batch)
            check_stop()


class Wrong:
    """Breaks the rule that ``mistake`` names."""

    def __init__(self, graph: SamplingGraph, *, mistake: str) -> None:
        self.graph, self.mistake = graph, mistake

    def sample(self, batch: SeedBatch) -> Any:
        seeds = np.unique(batch.seeds)
        kind = ("node", "to", "node")
        one = np.zeros(1, np.int64)

        def edge(**changes: Any) -> Subgraph:
            arrays = {"neighbors": one, "targets": one, "slots": one, "edge_ids": one, **changes}
            return Subgraph(nodes={"node": seeds}, edges={kind: SampledEdges(**arrays)})

        mistakes: dict[str, Any] = {
            "type": lambda: {"node": seeds},
            "unknown": lambda: Subgraph(nodes={"node": seeds, "tag": one}),
            "seeds": lambda: Subgraph(nodes={"node": seeds[:-1]}),
            "twice": lambda: Subgraph(nodes={"node": np.concatenate([seeds, seeds[:1]])}),
            "outside": lambda: Subgraph(nodes={"node": np.concatenate([seeds, [10**9]])}),
            "dtype": lambda: Subgraph(nodes={"node": seeds.astype(float)}),
            "neighbor": lambda: edge(neighbors=one - 1),
            "length": lambda: edge(slots=one[:0]),
            "slot": lambda: edge(slots=one + 2**62),
            "raises": lambda: 1 // 0,
        }
        return mistakes[self.mistake]()


class NeverReturns:
    """Never returns from a batch: in native code, in Python, or waiting. Creates the file ``sign`` first."""

    def __init__(self, graph: SamplingGraph, *, how: str, sign: str) -> None:
        self.how, self.sign = how, Path(sign)

    def sample(self, batch: SeedBatch) -> Any:
        self.sign.touch()
        if self.how == "waiting":
            threading.Event().wait()
        words = np.zeros(10_000_000, np.int64)
        out = np.empty((2, len(words)), np.uint64)
        while self.how == "native":  # Almost all the time without the interpreter's lock.
            philox_words(1, words, words, out[0], out[1])
        while True:
            pass


class Hard:
    """Negatives: up to ``k`` neighbours of the source of each link, then one node by its id."""

    def __init__(self, graph: SamplingGraph, *, k: int) -> None:
        self.graph, self.k = graph, k

    def sample(self, batch: LinkBatch) -> Any:
        schema = self.graph.schema
        edge_type = next(iter(schema.edges)) if schema.homogeneous else ("item", "rev_buys", "user")
        destination = schema.neighbor_type(edge_type)
        found = self.graph.neighbors(edge_type, batch.seeds, batch=batch, fanout=self.k)
        rows = np.full((len(batch.seeds), self.k + 1), -1)
        rows[:, : self.k][np.arange(self.k) < found.counts[:, None]] = found.positions
        ids = (batch.uniform(1, len(rows)) * schema.nodes[destination].count).astype(np.int64)
        rows[:, self.k] = self.graph.positions(destination, ids)
        return rows


def hard(graph: SamplingGraph, batch: LinkBatch, *, k: int = 2) -> Any:
    """The negatives of ``Hard``, as a function."""
    return Hard(graph, k=k).sample(batch)


def wrong_negatives(graph: SamplingGraph, batch: LinkBatch, *, mistake: str) -> Any:
    """Negatives that break the rule that ``mistake`` names."""
    rows = np.zeros((len(batch.seeds), 2), np.int64)
    mistakes: dict[str, Any] = {
        "rows": lambda: rows[1:],
        "one dimension": lambda: rows[:, 0],
        "dtype": lambda: rows.astype(float),
        "outside": lambda: rows + 300,
        "below": lambda: rows - 2,
        "raises": lambda: 1 // 0,
    }
    return mistakes[mistake]()


class EachOnce:
    """Negatives of which no node comes again before all have come, whichever process samples."""

    def __init__(self, graph: SamplingGraph, *, k: int) -> None:
        assert graph.shared is not None
        self.graph, self.shared, self.k = graph, graph.shared, k

    def sample(self, batch: LinkBatch) -> Any:
        ids, missing = [], self.k * len(batch.seeds)
        with self.shared.lock():
            left = self.shared.array("left")
            while missing:
                if not left.any():
                    left[:] = 1
                pool = np.flatnonzero(left)
                drawn = pool[np.argsort(batch.uniform(missing, len(pool)))[:missing]]
                left[drawn] = 0
                ids.append(drawn)
                missing -= len(drawn)
        return self.graph.positions("node", np.concatenate(ids)).reshape(-1, self.k)


class Deadly:
    """Kills the process that samples with it."""

    def __init__(self, graph: SamplingGraph) -> None:
        pass

    def sample(self, batch: SeedBatch) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
