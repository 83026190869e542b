"""Protocols of a dataset, as loaders see it. They hide the mode from the loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from gigl_loader.arrays import plain_values

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType, StoreOptions
    from gigl_loader.sampling.source import BatchSource, SourceRequest


class NodeDirectory(Protocol):
    """Queries of a dataset about its nodes."""

    @property
    def schema(self) -> GraphSchema: ...
    @property
    def num_servers(self) -> int:
        """Storage servers, by whose ranks an input may be given; 0 where there are none."""

    def all_positions(self, node_type: NodeType) -> Int64Array: ...
    def split_positions(self, node_type: NodeType, split: str) -> Int64Array: ...
    def positions(self, node_type: NodeType, node_ids: Int64Array) -> Int64Array: ...
    def node_ids(self, node_type: NodeType, positions: Int64Array) -> Int64Array: ...
    def node_ids_of(self, original_ids: Iterable[str], node_type: NodeType | None = None) -> torch.Tensor: ...


class LinkDirectory(NodeDirectory, Protocol):
    """Queries of a dataset about its nodes and edges."""

    def all_edges(self, edge_type: EdgeType, split: str | None = None) -> tuple[Int64Array, Int64Array]: ...


class Dataset(NodeDirectory, Protocol):
    """A graph, and where batches of it come from: ``DistDataset`` and ``RemoteDistDataset`` are such.

    Positions and node ids are int64 [N]. ``GraphQueries`` says what each member promises.
    """

    @property
    def graph_digest(self) -> str:
        """Equal for equal graphs."""

    @property
    def node_types(self) -> list[NodeType]: ...
    @property
    def edge_types(self) -> list[EdgeType]: ...
    @property
    def edge_dir(self) -> Literal["in", "out"]: ...
    @property
    def num_nodes(self) -> int: ...
    @property
    def num_edges(self) -> int: ...
    @property
    def splits(self) -> dict[NodeType, dict[str, int]]: ...
    def fetch_node_ids(
        self,
        split: str | None = None,
        node_type: NodeType | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        balance: Literal["servers", "seeds"] = "servers",
    ) -> dict[int, torch.Tensor]: ...
    def partition_of(self, ids: torch.Tensor, node_type: NodeType | None = None) -> torch.Tensor: ...

    def original_ids(
        self, node_ids: torch.Tensor, node_type: NodeType | None = None
    ) -> list[str] | list[int]: ...

    def check_options(self, store: StoreOptions) -> None:
        """Raise ``ValueError`` for what only another kind of dataset understands."""

    def open_source(self, request: SourceRequest) -> BatchSource:
        """Return where the batches of a loader come from."""

    def close(self) -> None:
        """Let go of what the dataset holds. Closing twice is fine."""


class SizedDataset(Dataset, Protocol):
    """The dataset of a loader, with the number of entries of the loader's input as its length."""

    def __len__(self) -> int: ...


class DatasetOfLoader:
    """A dataset as ``SizedDataset``, as PyG's loaders have theirs."""

    def __init__(self, dataset: Dataset, num_entries: int) -> None:
        self._dataset, self._num_entries = dataset, num_entries

    def __len__(self) -> int:
        """Number of entries of the input."""
        return self._num_entries

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._dataset, self._num_entries)

    def __repr__(self) -> str:
        return repr(self._dataset)


def entry_numbers(value: Any, *, count: int) -> Int64Array:
    """Return numbers of entries of an input of ``count``, int64 [B], from a tensor, an array or a list."""
    value = plain_values("places in the input", value)
    array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise ValueError(
            f"places in the input must be 1-D whole numbers, at least one of them, got {value!r:.200}"
        )
    wrong = array[(array < 0) | (array >= count)]
    if len(wrong):
        raise ValueError(
            f"{wrong[0]} is no place in an input of {count} entries, which count from 0; loader.sample(ids) "
            "takes ids"
        )
    return array.astype(np.int64)


def check_dataset(value: Any) -> None:
    """Raise ``TypeError`` for what a user may take for a dataset, with what to pass instead."""
    if not hasattr(value, "open_source"):
        raise TypeError(
            "dataset must be a DistDataset: pass DistDataset.open(path) or DistDataset.from_pyg(data), or "
            "gigl_client.RemoteDistDataset.connect(address) for a graph store, not a "
            f"{type(value).__name__}"
        )
