"""Stores of a storage server: its own partitions, and those of the other servers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from gigl_loader.errors import StorageUnavailable
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
        self, graph: Graph, members: Sequence[Endpoint], caller: Caller, *, own: Endpoint, concurrency: int
    ) -> None:
        """``members`` are all servers by rank, ``own`` is this one. ``graph`` holds its partitions."""
        self.graph = graph
        """Graph of the next store, which may be replaced by one with other partitions."""
        self._members = members
        self._own = own.control_address
        self._caller = caller
        self._concurrency = concurrency
        self._remote: list[tuple[int, RemoteStore]] = []

    def open(self) -> PartitionedStore:
        """Return a store, which connects at the first request. The caller closes it.

        ``StorageUnavailable`` where no server is known that holds a partition.
        """
        with ExitStack() as undo:
            own = self.graph.parts
            local = {part: LocalStore(self.graph, part) for part in own}
            for store in local.values():
                undo.callback(store.close)
            owners = {
                part: rank
                for rank, member in enumerate(self._members)
                for part in member.partitions
                if part not in own and member.control_address != self._own
            }
            if missing := set(range(self.graph.schema.num_partitions)).difference(own, owners):
                raise StorageUnavailable(f"no other server of partitions {sorted(missing)} is known")
            remote = open_remote_stores(
                {part: self._members[rank] for part, rank in owners.items()},
                self._caller,
                schema=self.graph.schema,
                digest=self.graph.manifest.digest,
                timeout_s=_TIMEOUT_S,
                attempt_s=_TIMEOUT_S,
            )
            for part, far in remote.items():
                undo.callback(far.close)
                self._remote.append((owners[part], far))
            store_of_all = PartitionedStore(
                self.graph.schema, local=local, remote=remote, concurrency=self._concurrency
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
