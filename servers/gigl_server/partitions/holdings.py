"""Partitions that a running server holds: one opened graph, which is replaced as a whole."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from gigl_loader.graph.manifest import files_of
from gigl_loader.graph.verifier import SCRUB_EVERY_S

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gigl_loader.graph.graph import Graph


class Users(Protocol):
    """Parts of a server that use the graph."""

    def use(self, graph: Graph, withdrawn: Collection[int]) -> None:
        """Use ``graph`` and its partitions from the next request and batch on. Waits for nothing.

        ``withdrawn`` are partitions on this disk that are not served for now. ``StorageUnavailable``
        where no server is known that serves them: then nothing has changed.
        """

    def announce(self, partitions: Sequence[int], *, repairing: Sequence[int] = ()) -> None:
        """Tell trainers and other servers that these partitions are served here. Waits for nothing.

        Partitions of ``repairing`` are on this disk, not served: other servers may copy sound bytes of them.
        """


class Holdings:
    """The graph in use, and the operations that replace it. Thread-safe.

    A graph is never changed: requests and batches under way end on the one that they began with.
    """

    def __init__(
        self, graph: Graph, users: Users, *, scrub_rate: float, scrub_every_s: float = SCRUB_EVERY_S
    ) -> None:
        """``scrub_rate`` in bytes per second: files are read again each ``scrub_every_s``; 0: not."""
        self._graph = graph
        self._users = users
        self._scrub_rate, self._scrub_every_s = scrub_rate, scrub_every_s
        self._withdrawn: frozenset[int] = frozenset()
        self._lock = threading.Lock()
        self._changing = threading.Lock()

    @property
    def graph(self) -> Graph:
        with self._lock:
            return self._graph

    @property
    def withdrawn(self) -> frozenset[int]:
        """Partitions on this disk that are not served for now."""
        with self._lock:
            return self._withdrawn

    @property
    def fault(self) -> str:
        """Why nothing is served, in one line. Empty: something is."""
        with self._lock:
            graph, withdrawn = self._graph, sorted(self._withdrawn)
        for text in graph.verifier.damage.values():
            return f"damage was found: {text}"
        return "" if graph.parts else f"partitions {withdrawn} are being repaired"

    def verify(self) -> None:
        """Verify what batches are drawn from, and begin with the other files. ``FormatError`` for damage."""
        graph = self.graph
        graph.verifier.check()
        self._scrub(graph)

    def gain(
        self, parts: Collection[int], *, lists_of: Collection[int] = (), reopen: Collection[str] = ()
    ) -> None:
        """Open partitions, verify every byte of their files, and serve them; of ``lists_of``, no features.

        Files named by ``reopen`` are mapped anew and verified, too. ``FormatError`` for damage, and then
        nothing has changed.
        """
        with self._changing:
            lists = [*self._graph.topology_parts, *lists_of]
            graph = self._graph.holding([*self._graph.parts, *parts], lists_of=lists, reopen=reopen)
            new = set(files_of(graph.schema, [*parts, *lists_of], features_of=parts))
            for name in sorted({*reopen, *new}):
                graph.verifier.require(name)
            self._replace(graph, self._withdrawn - set(parts))

    def withdraw(self, parts: Collection[int]) -> None:
        """Neither serve these partitions nor draw from them until they are gained. Raises as ``use``."""
        with self._changing:
            before = self._graph
            kept, lists = (
                [part for part in each if part not in parts] for each in (before.parts, before.topology_parts)
            )
            withdrawn = self._withdrawn.union(part for part in before.parts if part in parts)
            self._replace(before.holding(kept, lists_of=lists), withdrawn)

    def _replace(self, graph: Graph, withdrawn: Collection[int]) -> None:
        before = self._graph
        self._users.use(graph, withdrawn)
        with self._lock:
            self._graph, self._withdrawn = graph, frozenset(withdrawn)
        self._scrub(graph)
        before.verifier.close()
        self._users.announce(graph.parts, repairing=sorted(withdrawn))

    def _scrub(self, graph: Graph) -> None:
        if self._scrub_rate:
            graph.verifier.scrub(self._scrub_rate, every_s=self._scrub_every_s)
