"""Protocol of a dataset, as loaders see it. It hides the mode from the loader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gigl_loader.loaders.seeds import NodeDirectory

if TYPE_CHECKING:
    from gigl_loader.options import StoreOptions
    from gigl_loader.sampling.source import BatchSource, SourceRequest

__all__ = ["Dataset", "check_dataset"]


class Dataset(NodeDirectory, Protocol):
    """A graph, and where batches of it come from."""

    @property
    def graph_digest(self) -> str:
        """Equal for equal graphs."""

    def check_options(self, store: StoreOptions) -> None:
        """Raise ``ValueError`` for what only another kind of dataset understands."""

    def open_source(self, request: SourceRequest) -> BatchSource:
        """Return where the batches of a loader come from."""


def check_dataset(value: Any) -> None:
    """Raise ``TypeError`` for what a user may take for a dataset, with what to pass instead."""
    if not hasattr(value, "open_source"):
        raise TypeError(
            "dataset must be a DistDataset: pass DistDataset.open(path) or DistDataset.from_pyg(data), or "
            "gigl_client.RemoteDistDataset.connect(address) for a graph store, not a "
            f"{type(value).__name__}"
        )
