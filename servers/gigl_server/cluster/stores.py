"""Stores of a storage server: its own partitions, and those of the other servers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from gigl_loader.rpc.remote_store import RemoteStore, open_remote_stores
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.store import WireCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["ClusterStores"]

_TIMEOUT_S = 10.0
"""Timeout of a request to another server, during which the thread samples nothing else. A server that was
killed and restarted is back by then; otherwise the batch fails as unavailable, and the trainer retries."""


class ClusterStores:
    """Opens a store over all servers, and counts its network traffic."""

    def __init__(
        self, graph: Graph, members: Sequence[Endpoint], caller: Caller, *, concurrency: int
    ) -> None:
        """``members`` are all servers by rank. ``graph`` holds the partitions of this one."""
        self._graph = graph
        self._members = members
        self._caller = caller
        self._concurrency = concurrency
        self._remote: list[tuple[int, RemoteStore]] = []

    def open(self) -> PartitionedStore:
        """Return a store, which connects at the first request. The caller closes it."""
        with ExitStack() as undo:
            own = self._graph.parts
            local = {part: LocalStore(self._graph, part) for part in own}
            for store in local.values():
                undo.callback(store.close)
            owners = {
                part: rank
                for rank, member in enumerate(self._members)
                for part in member.partitions
                if part not in own
            }
            remote = open_remote_stores(
                {part: self._members[rank] for part, rank in owners.items()},
                self._caller,
                schema=self._graph.schema,
                digest=self._graph.manifest.digest,
                timeout_s=_TIMEOUT_S,
                attempt_s=_TIMEOUT_S,
            )
            for part, far in remote.items():
                undo.callback(far.close)
                self._remote.append((owners[part], far))
            store_of_all = PartitionedStore(
                self._graph.schema, local=local, remote=remote, concurrency=self._concurrency
            )
            undo.pop_all()
            return store_of_all

    def renew(self, caller: Caller) -> None:
        """Use the token and certificate of ``caller`` for the other servers from now on."""
        self._caller = caller
        for _, store in list(self._remote):
            store.renew(caller)

    def traffic(self) -> dict[int, WireCounts]:
        """Return the traffic with each other server, by rank."""
        sums: dict[int, WireCounts] = {}
        for rank, store in self._remote:
            sums[rank] = sums.get(rank, WireCounts()) + store.wire()
        return sums
