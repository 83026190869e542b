"""Distributed sampler: hop by hop over a graph whose partitions lie on several hosts.

Same bytes as the fused sampler: draws are addressed, so it does not matter who makes them, and the
answers are put together in the order of the frontier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError
from gigl_loader.native import BatchBuilder
from gigl_loader.native import BatchTooLarge as NativeTooLarge
from gigl_loader.sampling.bounds import BatchBounds
from gigl_loader.sampling.costs import CostCounter
from gigl_loader.sampling.deferred_features import StoredPlaces
from gigl_loader.sampling.frame_writer import FrameWriter, Sampled
from gigl_loader.sampling.partitioned import FrontierRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.options import SamplingPlan
    from gigl_loader.sampling.features import FeatureSource
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.schedule import BatchRequest
    from gigl_loader.sampling.store import Neighbors

__all__ = ["DistributedSampler"]


class DistributedSampler:
    """Samples one batch after the other. Not thread-safe, but several may share a ``PartitionedStore``."""

    def __init__(
        self,
        graph: Graph,
        plan: SamplingPlan,
        store: PartitionedStore,
        costs: CostCounter | None = None,
        *,
        without_rows: bool = False,
        bounds: BatchBounds | None = None,
    ) -> None:
        """Of ``graph``, only schema and node ids are used. What sampling costs is added to ``costs``.

        With ``without_rows``, frames are skeletons, and no row is asked for. ``bounds`` of a batch are by
        default those of the machine.
        """
        self.bounds = bounds or BatchBounds.of_machine()
        self.costs = CostCounter(store.wire) if costs is None else costs
        self._form = FrameWriter(graph, plan, without_rows=without_rows)
        self._columns: FeatureSource = StoredPlaces() if without_rows else store
        self._plan = plan
        self._store = store
        self._builder = BatchBuilder(
            target_types=self._form.target_types,
            neighbor_types=self._form.neighbor_types,
            node_ids=self._form.node_ids,
            num_nodes=self._form.num_nodes,
            bounds=[store.bounds(node_type) for node_type in self._form.node_types],
            with_edge_ids=plan.with_edge,
            with_slots=self._form.with_slots,
        )

    @property
    def scratch_bytes(self) -> int:
        """Memory that is kept for the next batch."""
        return self._builder.scratch_bytes + self._form.scratch_bytes

    def sample(self, request: BatchRequest) -> Sampled:
        """Sample the batch; its nodes and edges are then known, its columns not yet gathered.

        The result is valid until the next call. ``FormatError`` if the graph turns out damaged,
        ``StorageUnavailable`` if the owner of nodes does not answer, ``BatchTooLarge`` for a batch beyond
        the bounds.
        """
        with self.costs.sampling():
            key = self._form.key(request)
            self._builder.begin(self._form.seed_type, request.seeds, max_edges=self.bounds.edges)
            try:
                for hop in range(self._plan.num_hops):
                    self._expand(hop, key)
            except NativeTooLarge:
                raise self.bounds.too_many_edges(len(request.seeds)) from None
            sampled = Sampled(
                form=self._form,
                batch=self._builder,
                request=request,
                columns=self._columns,
                costs=self.costs,
            )
        self.bounds.check_frame(sampled.layout.nbytes, len(request.seeds))
        return sampled

    def _expand(self, hop: int, key: int) -> None:
        """Add one hop. The frontier is fixed, so all edge types are asked about at once."""
        fanouts = [self._plan.num_neighbors[edge_type][hop] for edge_type in self._form.edge_types]
        wanted = [index for index, fanout in enumerate(fanouts) if fanout != 0]
        shares = {each: self._builder.split(each) for each in {self._form.target_types[i] for i in wanted}}
        asks = [
            FrontierRequest(
                edge_type=self._form.edge_types[index],
                targets=shares[self._form.target_types[index]],
                key=key,
                hop=hop,
                fanout=fanouts[index],
                replace=self._plan.replace,
                with_edge_ids=self._plan.with_edge,
                with_slots=self._form.with_slots,
                max_edges=self._builder.room,
            )
            for index in wanted
        ]
        answers = dict(zip(wanted, self._store.sample(asks), strict=True))
        for index in range(len(fanouts)):
            self._append(index, answers.get(index))
        self._builder.end_hop()

    def _append(self, index: int, answers: Sequence[Neighbors] | None) -> None:
        if answers is None:
            return self._builder.skip(index)
        parts = [(each.counts, each.positions, each.edge_ids, each.slots) for each in answers]
        try:
            return self._builder.append(index, parts)
        except RuntimeError as error:
            edge_type = self._form.edge_types[index]
            raise FormatError(f"edge type {edge_type}: {error}") from None
