"""Partitions and datasets of which samplers of graphlearn-torch (GLT) draw the neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gigl_loader.arrays import Array, BoolArray, Bytes, Int64Array
from gigl_loader.dataset import DistDataset
from gigl_loader.native import BatchTooLarge
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.source import InlineSource
from gigl_loader.sampling.store import POSITION_MASK, DrawRule, Neighbors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.options import EdgeType
    from gigl_loader.sampling.source import BatchSource, SourceRequest
    from gigl_loader.sampling.store import EdgeRequest, FeatureRequest, InducedRequest, NeighborRequest


class GltStore:
    """A ``NeighborStore`` over GLT's samplers, on the CPU.

    The draws are GLT's own: they come from its generators and not from the address of a draw, so that the
    same request draws other neighbours the next time. A list that is longer than the fanout is drawn from
    with replacement; edges that come twice are left out, so that such a target may get fewer neighbours.
    Lists no longer than the fanout come whole, and all lists with fanout -1.

    Features, edge tests, induced edges, label sets and out-edges of a graph of in-edges are read where the
    graph lies.
    """

    def __init__(self, graph: Graph, part: int) -> None:
        """``graph`` has ``part`` among its opened partitions.

        GLT copies the lists: 16 bytes an edge and 8 a node, in memory that processes share. ``ImportError``
        where graphlearn-torch cannot be imported.
        """
        glt = import_glt_library()
        self._local = LocalStore(graph, part)
        self._graph = graph
        self._part = part
        self._samplers = {kind: self._open(glt, kind) for kind in graph.schema.edges}

    def sample(self, ask: NeighborRequest) -> Neighbors:
        if ask.edge_type not in self._graph.schema.edges or ask.outward:
            return self._local.sample(ask)
        check_rule(ask.rule)
        if not self._samplers:
            raise ValueError("the store is closed")
        targets = self._rows(ask)
        degrees = self._local.degrees(ask)
        most = degrees if ask.rule.fanout < 0 else np.minimum(degrees, ask.rule.fanout)
        if int(most.sum()) > ask.max_edges:
            raise BatchTooLarge(f"more than {ask.max_edges} edges")
        drawn = self._samplers[ask.edge_type].sample_one_hop(torch.from_numpy(targets), ask.rule.fanout)
        slots, counts = distinct_edges(drawn.edge.numpy(), drawn.nbr_num.numpy())
        lists = self._graph.topology(ask.edge_type, self._part)
        return Neighbors(
            counts.astype(np.int32),
            lists["indices"][slots],
            lists["edge_ids"][slots] if ask.with_edge_ids else None,
            slots if ask.with_slots else None,
        )

    def induced(self, ask: InducedRequest) -> Neighbors:
        return self._local.induced(ask)

    def gather(self, ask: FeatureRequest, places: Int64Array, out: Sequence[Bytes]) -> None:
        self._local.gather(ask, places, out)

    def contains(self, ask: EdgeRequest) -> BoolArray:
        return self._local.contains(ask)

    def close(self) -> None:
        """Let go of GLT's copies of the lists. Closing twice is fine."""
        self._samplers = {}
        self._local.close()

    def _open(self, glt: Any, edge_type: EdgeType) -> Any:
        """Return GLT's sampler, from rows of the partition to positions. Its edge ids are slots."""
        lists = self._graph.topology(edge_type, self._part)
        slots = torch.arange(len(lists["indices"]))
        rows, positions = _tensor(lists["indptr"]), _tensor(lists["indices"])
        topology = glt.data.Topology((rows, positions), slots, input_layout="CSR", layout="CSR")
        graph = glt.data.Graph(topology, "CPU")
        return glt.sampler.NeighborSampler(graph, device=torch.device("cpu"), with_edge=True)

    def _rows(self, ask: NeighborRequest) -> Int64Array:
        """Return the targets as rows of this partition. To GLT, other targets have no neighbours."""
        low, high = self._graph.bounds(self._graph.schema.target_type(ask.edge_type))[
            self._part : self._part + 2
        ]
        rows = (ask.targets & POSITION_MASK) - low
        wrong = np.flatnonzero((rows < 0) | (rows >= high - low))
        if len(wrong):
            raise ValueError(f"target {rows[wrong[0]] + low} is not in partition {self._part}")
        return np.asarray(rows)


def check_rule(rule: DrawRule) -> None:
    """Raise ``ValueError`` for draws that GLT does not make as this library defines them."""
    if rule != DrawRule(fanout=rule.fanout):
        raise ValueError(
            f"GLT's samplers draw uniformly, by a fanout alone: not with {_options(rule)}; "
            "DistDataset makes such draws"
        )


def import_glt_library() -> Any:
    """Return the package ``graphlearn_torch``. ``ImportError`` says what to install."""
    try:
        import graphlearn_torch
    except (ImportError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ImportError(
            f"graphlearn-torch cannot be imported ({reason}): it needs Python 3.10 or 3.11, torch 2.4 and "
            "torch-sparse: pip install 'gigl-loader[glt]', then torch-sparse for that torch"
        ) from error
    return graphlearn_torch


def _options(rule: DrawRule) -> str:
    plain = DrawRule(fanout=rule.fanout)
    named = {name: getattr(rule, name) for name in DrawRule.__slots__}
    return ", ".join(f"{name}={value!r}" for name, value in named.items() if value != getattr(plain, name))


def distinct_edges(slots: Int64Array, counts: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Drop the slots that a target has a second time; return the remaining slots, by target and slot."""
    targets = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((slots, targets))
    slots, targets = slots[order], targets[order]
    first = np.ones(len(slots), np.bool_)
    first[1:] = (slots[1:] != slots[:-1]) | (targets[1:] != targets[:-1])
    return slots[first], np.bincount(targets[first], minlength=len(counts))


def _tensor(array: Array) -> torch.Tensor:
    """Return a copy as int64: what is mapped for reading alone cannot become a tensor."""
    return torch.from_numpy(array.astype(np.int64))


class GltDataset(DistDataset):
    """A graph that lies wholly on this host, of which GLT draws the neighbours.

    Every loader takes it, with ``num_workers=0``. Its batches are no function of the loader's seed: they are
    other ones in every run, and after a resume the batches that are left have the same seeds and other
    neighbours. See ``GltStore`` for what GLT draws. Kinds of batches that need other draws (by weight or
    time, with replacement, LABOR, walks) raise ``ValueError`` or ``SamplingError`` that names them.
    """

    def __init__(self, dataset: DistDataset, *, seed: int | None = None) -> None:
        """``dataset`` is that of ``DistDataset.open`` or ``from_pyg``; it stays usable.

        ``seed`` is GLT's own, of the whole process. Without one, GLT asks the system for entropy for every
        node, which is many times slower. ``ImportError`` where graphlearn-torch cannot be imported,
        ``ValueError`` where the graph does not lie wholly on this host.
        """
        if not dataset._is_on_this_host:
            raise ValueError("GLT's samplers need the whole graph on this host: open all of its partitions")
        glt = import_glt_library()
        if seed is not None:
            glt.py_graphlearn_torch.RandomSeedManager.getInstance().setSeed(seed)
        super().__init__(dataset._graph)
        parts = range(self.schema.num_partitions)
        self._glt = {part: GltStore(self._graph, part) for part in parts}

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a GltDataset cannot be pickled: make it in each process")

    def _worker_source(self, request: SourceRequest) -> BatchSource:
        raise ValueError(
            f"num_workers={request.num_workers}: GLT's samplers draw in the trainer's process: num_workers=0"
        )

    def _inline_source(self, request: SourceRequest) -> InlineSource:
        hops = getattr(request.plan.sampler, "hops", None)
        if hops is not None:
            for edge_type in hops.num_neighbors:
                check_rule(hops.rule(self.schema, edge_type, 0))
        store = PartitionedStore(self.schema, local=self._glt, remote={})
        return InlineSource(
            request.plan.open(self._graph, store, shared=request.shared),
            request.schedule,
            channel_bytes=request.workers.frame_bytes(),
            check=self._graph.verifier.check,
        )
