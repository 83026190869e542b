"""One cache of remote rows for all processes of a host."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError
from gigl_loader.sampling.row_cache import RowCache

if TYPE_CHECKING:
    from gigl_loader.graph.graph import Graph
    from gigl_loader.hosts.peers import Peers

__all__ = ["SharedCache", "open_cache"]

logger = logging.getLogger(__name__)


class SharedCache:
    """Memory file of a host's cache, kept open by the process that filled it."""

    def __init__(self, graph: Graph, peers: Peers, nbytes: int, *, timeout_s: float) -> None:
        """Fetch up to ``nbytes`` of rows of other hosts. ``StorageUnavailable`` if one does not respond."""
        with closing(peers.open_store(graph, timeout_s=timeout_s)) as store:
            self._fd = RowCache.create(graph, graph.parts, store.remote, nbytes)
        logger.info("%.1f MB of rows of other hosts are kept here", os.fstat(self._fd).st_size / 1e6)

    @property
    def path(self) -> str:
        """Path at which processes of this host and user can open the file. It vanishes with this process."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def close(self) -> None:
        """Close the file. Processes that have mapped it keep their map. Closing twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def open_cache(path: str, graph: Graph) -> RowCache | None:
    """Map the cache at ``path``. ``None`` if it is gone with its process: rows then cross the network."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        logger.warning("no cache of remote rows: %s", error)
        return None
    try:
        return RowCache.open(fd, graph)
    except FormatError as error:  # Another process may have that process id by now.
        logger.warning("no cache of remote rows: %s", error)
        return None
    finally:
        os.close(fd)
