"""Batches of induced subgraphs around nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from gigl_loader.loaders.arguments import ColumnByType, Fanouts, LoaderOptions
from gigl_loader.loaders.neighbor import DistNeighborLoader, InputNodes
from gigl_loader.sampling.plan import SamplerOptions
from gigl_loader.sampling.plans.neighbor import KHopNeighborSamplerOptions

if TYPE_CHECKING:
    from gigl_loader.loaders.dataset import Dataset
    from gigl_loader.loaders.transfer import FrameTensors


class DistSubgraphLoader(DistNeighborLoader):
    """Subgraphs that the nodes of k-hop neighbourhoods induce, as PyG ``Data`` or ``HeteroData``.

    Batches are those of :class:`DistNeighborLoader` with ``subgraph_type="induced"``: every edge of the
    graph among the nodes of the batch, once. In addition, the seed type has ``mapping``, int64 [B]: the
    local node of each entry of ``input_id`` (equal to ``seed_index``). The name is GLT's. Samplers of
    subgraphs are an old idea: Cluster-GCN (Chiang et al. 2019), GraphSAINT (Zeng et al. 2020).
    """

    def __init__(
        self,
        dataset: Dataset,
        num_neighbors: Fanouts | None = None,
        input_nodes: InputNodes = None,
        *,
        replace: bool = False,
        with_edge: bool | None = None,
        weight_attr: ColumnByType = None,
        sampler_options: SamplerOptions = KHopNeighborSamplerOptions(),  # noqa: B008 - a frozen value
        **options: Unpack[LoaderOptions],
    ) -> None:
        """Check the arguments, then start the sampling processes.

        ``num_neighbors``
            As for :class:`DistNeighborLoader`. ``None`` adds no neighbours: the nodes are the seeds alone.
        ``weight_attr``
            As for :class:`DistNeighborLoader`. Not without ``num_neighbors``, as no neighbour is drawn.
        ``input_nodes``, ``replace``, ``with_edge``, ``sampler_options``, ``options``
            As for :class:`DistNeighborLoader`.
        """
        super().__init__(
            dataset,
            num_neighbors,
            input_nodes,
            replace=replace,
            with_edge=with_edge,
            weight_attr=weight_attr,
            subgraph_type="induced",
            sampler_options=sampler_options,
            **options,
        )

    def collate(self, tensors: FrameTensors) -> Any:
        """Return ``Data`` or ``HeteroData``. A subclass may extend it."""
        batch = super().collate(tensors)
        kind = self._seeds.kind
        kinds = kind if isinstance(kind, frozenset) else [kind]
        for store in [batch] if self.dataset.schema.homogeneous else [batch[each] for each in kinds]:
            store.mapping = store.seed_index
        return batch
