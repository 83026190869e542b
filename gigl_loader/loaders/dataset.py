"""What a loader asks of a dataset. Which kind it has, it neither knows nor asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from gigl_loader.loaders.seeds import NodeDirectory

if TYPE_CHECKING:
    from gigl_loader.options import SamplingPlan, WorkerOptions
    from gigl_loader.sampling.schedule import Schedule
    from gigl_loader.sampling.source import BatchSource

__all__ = ["Dataset", "check_dataset"]


class Dataset(NodeDirectory, Protocol):
    """A graph, and where batches of it come from."""

    @property
    def graph_digest(self) -> str:
        """Equal for equal graphs."""

    def open_source(
        self,
        plan: SamplingPlan,
        schedule: Schedule,
        options: WorkerOptions | None,
        *,
        timeout: float,
        channel_bytes: int,
    ) -> BatchSource:
        """Return where batches come from: sampling processes, or inline without ``options``.

        ``timeout`` is how long the loader will wait for a batch, in seconds.
        """


def check_dataset(value: Any) -> None:
    """Raise ``TypeError`` for what a user may take for a dataset, with what to pass instead."""
    if not hasattr(value, "open_source"):
        raise TypeError(
            "dataset must be a DistDataset: pass DistDataset.open(path) or DistDataset.from_pyg(data), "
            f"not a {type(value).__name__}"
        )
