"""Protocol of a dataset, as loaders see it. It hides the mode from the loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

from gigl_loader.loaders.inputs import NodeDirectory

if TYPE_CHECKING:
    import torch

    from gigl_loader.options import EdgeType, NodeType, StoreOptions
    from gigl_loader.sampling.source import BatchSource, SourceRequest


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


def check_dataset(value: Any) -> None:
    """Raise ``TypeError`` for what a user may take for a dataset, with what to pass instead."""
    if not hasattr(value, "open_source"):
        raise TypeError(
            "dataset must be a DistDataset: pass DistDataset.open(path) or DistDataset.from_pyg(data), or "
            "gigl_client.RemoteDistDataset.connect(address) for a graph store, not a "
            f"{type(value).__name__}"
        )
