"""Dataset whose neighbours a sampler of graphlearn-torch (GLT) draws."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gigl_loader.dataset import DistDataset
from gigl_loader.glt.store import GltStore, check_rule, import_glt_library
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.source import InlineSource

if TYPE_CHECKING:
    from gigl_loader.sampling.source import BatchSource, SourceRequest

__all__ = ["GltDataset"]


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
            request.plan.open(self._graph, store),
            request.schedule,
            channel_bytes=request.workers.channel_bytes,
            check=self._graph.verifier.check,
        )
