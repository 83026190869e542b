"""Protocol of a dataset, as PyG's interfaces see it."""

from __future__ import annotations

import atexit
import weakref
from typing import TYPE_CHECKING, Any, Protocol

from gigl_loader.loaders.dataset import Dataset

if TYPE_CHECKING:
    from gigl_loader.options import EdgeType
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.store import EdgeList

__all__ = ["PygDataset", "check_pickled", "check_process", "close_at_exit"]


class PygDataset(Dataset, Protocol):
    """A dataset with what its PyG stores read. ``GraphQueries`` says what each member promises."""

    @property
    def _is_on_this_host(self) -> bool: ...
    def _check_usable(self) -> None: ...
    def _open_store(self) -> PartitionedStore: ...
    def _edge_list(self, edge_type: EdgeType) -> EdgeList: ...


_HINT = "pass num_workers=0 (the graph's own processes and servers sample and read in parallel)"


def check_process(dataset: PygDataset, owner: int, pid: int) -> None:
    """Raise ``RuntimeError`` in a process that a fork made, where the dataset has network connections."""
    if pid != owner and not dataset._is_on_this_host:
        raise RuntimeError(
            f"network connections of process {owner} do not survive a fork: workers of a DataLoader cannot "
            f"use a graph on other hosts; {_HINT}"
        )


def check_pickled(dataset: PygDataset, what: Any) -> None:
    """Raise ``TypeError`` where the dataset cannot go to another process."""
    if not dataset._is_on_this_host:
        raise TypeError(
            f"a {type(what).__name__} of a graph on other hosts cannot be pickled: workers of a DataLoader "
            f"cannot use it; {_HINT}"
        )


def close_at_exit(user: Any) -> None:
    """Close what a worker process still has when it ends: its interpreter may not collect it."""
    alive = weakref.ref(user)

    def close() -> None:
        found = alive()
        if found is not None:
            found.close()

    atexit.register(close)
