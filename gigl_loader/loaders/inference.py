"""Inference over all nodes of a graph, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from typing_extensions import Unpack

from gigl_loader.loaders.neighbor import DistNeighborLoader

if TYPE_CHECKING:
    from gigl_loader.loaders.arguments import LoaderOptions
    from gigl_loader.loaders.dataset import Dataset

_FIXED = frozenset(
    {"drop_last", "even_batches", "in_order", "seed_weights", "sharding", "shuffle", "transform"}
)
"""Options of loaders on which the rows of the result depend."""


@torch.no_grad()
def inference(
    model: Any,
    dataset: Dataset,
    *,
    output_device: torch.device | str = "cpu",
    progress_bar: bool = False,
    **options: Unpack[LoaderOptions],
) -> torch.Tensor:
    """Return the output of ``model`` for every node, [num_nodes, out_channels], by ascending node id.

    The same as ``model(x, edge_index)`` on the whole graph, up to the order of sums, unless its norms look at
    all nodes of a batch at once. Each layer is computed for all nodes, from all their neighbours, before the
    next, as ``inference`` of PyG's models does with PyG's own loader. The outputs of a layer are kept on
    ``output_device``.

    ``model``
        A model of ``torch_geometric.nn.models`` (``GraphSAGE``, ``GCN``, ``GAT``, ...) on the target device
        of the loader, in ``eval()`` mode, without jumping knowledge or with ``jk="last"``.
    ``dataset``
        A homogeneous graph of any kind of dataset, whose nodes have ``x``.
    ``progress_bar``
        Show one.
    ``options``
        Those of :class:`LoaderOptions`, such as ``batch_size`` (default 1,024) and ``num_workers``. Every
        rank computes all nodes.

    ``ValueError`` for a model or a graph of another kind, ``TypeError`` for options on which the rows depend.
    """
    _check(model, dataset)
    fixed = sorted(_FIXED.intersection(options))
    if fixed:
        raise TypeError(f"inference() has no argument {fixed[0]!r}: it takes every node once, in order")
    settings: LoaderOptions = {"batch_size": 1024, "sharding": "none", "even_batches": False, **options}
    # A convolution that normalises by degrees needs those of the neighbours, too: another hop.
    hops = 2 if any(getattr(each, "normalize", False) for each in model.modules()) else 1
    with DistNeighborLoader(dataset, [-1] * hops, None, **settings) as loader:
        rows = _RowOfNode(dataset)
        outputs: torch.Tensor | None = None
        bar = _progress(model.num_layers * len(loader), shown=progress_bar)
        for layer in range(model.num_layers):
            pieces = []
            for batch in loader:
                x = batch.x if outputs is None else outputs[rows.of(batch.n_id).to(outputs.device)]
                x = x.to(batch.edge_index.device)
                out = model.inference_per_layer(layer, x, batch.edge_index, batch.batch_size)
                pieces.append(out.to(output_device))
                bar.update(1)
            outputs = torch.cat(pieces)
        bar.close()
    assert outputs is not None
    return outputs


def _check(model: Any, dataset: Dataset) -> None:
    if not hasattr(model, "inference_per_layer"):
        raise ValueError(
            f"inference needs a model of torch_geometric.nn.models, not a {type(model).__name__}: for "
            "another, compute each layer for all nodes with a loader of [-1] neighbours"
        )
    if getattr(model, "jk_mode", None) not in (None, "last"):
        raise ValueError(f"inference cannot compute jk={model.jk_mode!r}, only jk=None and jk='last'")
    if any(getattr(each, "cached", False) for each in model.modules()):
        raise ValueError("inference cannot compute convolutions with cached=True, which keep the first batch")
    if model.training:
        raise ValueError("inference of a model in training mode: call model.eval() first")
    if not dataset.schema.homogeneous:
        raise ValueError("inference needs a homogeneous graph, and this one has several types")
    if "x" not in dataset.schema.nodes[dataset.node_types[0]].columns:
        raise ValueError("inference needs nodes with a column 'x'")


class _RowOfNode:
    """Row of the outputs of a node: its rank by ascending node id."""

    def __init__(self, dataset: Dataset) -> None:
        [node_type] = dataset.node_types
        self._ids: torch.Tensor | None = None
        if dataset.schema.nodes[node_type].ids == "sparse":
            ids = dataset.node_ids(node_type, dataset.all_positions(node_type))
            self._ids = torch.from_numpy(ids.copy())

    def of(self, n_id: torch.Tensor) -> torch.Tensor:
        """Return the rows of nodes, int64 [N]."""
        return n_id if self._ids is None else torch.searchsorted(self._ids, n_id.to(self._ids.device))


def _progress(total: int, *, shown: bool) -> Any:
    from tqdm import tqdm  # type: ignore[import-untyped]  # torch_geometric has it.

    return tqdm(total=total, desc="inference", disable=not shown)
