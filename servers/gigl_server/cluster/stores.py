"""Stores of a storage server: its own partitions, and those of the other servers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc.holders import Holders
from gigl_loader.rpc.refusals import Contact
from gigl_loader.rpc.remote_store import replicated_stores
from gigl_loader.rpc.replicas import Replicas
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.store import WireCounts

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.credentials import Caller
    from gigl_server.cluster.membership import Membership

_TIMEOUT_S = 10.0
"""Timeout of a request to another server, during which the thread samples nothing else. A server that was
killed and restarted is back by then; otherwise the batch fails as unavailable, and the trainer retries."""


class ClusterStores:
    """Opens stores over all servers, follows the membership, and counts the network traffic."""

    def __init__(
        self,
        graph: Graph,
        membership: Membership,
        caller: Caller,
        *,
        concurrency: int,
        on_membership: Callable[[int], None] | None = None,
    ) -> None:
        """``graph`` holds the partitions of this server. ``on_membership`` hears of versions in replies."""
        self.graph = graph
        """Graph of the next store, which may be replaced by one with other partitions."""
        self._membership = membership
        self._caller = caller
        self._concurrency = concurrency
        self._on_membership = on_membership
        # With this server: a batch that waits for a partition goes on at once when this server takes it over.
        self._holders = Holders(membership.members, key=membership.own.control_address)
        self._opened: list[Replicas] = []
        membership.on_change(lambda: self._holders.update(membership.members))

    def open(self) -> PartitionedStore:
        """Return a store, which connects at the first request. The caller closes it.

        ``StorageUnavailable`` where no other server is known that holds a partition.
        """
        graph = self.graph
        schema, own = graph.schema, graph.parts
        elsewhere = [part for part in range(schema.num_partitions) if part not in own]
        if missing := [part for part in elsewhere if not self._holders.holding(part)]:
            raise StorageUnavailable(f"no other server of partitions {missing} is known")
        with ExitStack() as undo:
            local = {part: LocalStore(graph, part) for part in own}
            lists = {part: LocalStore(graph, part) for part in graph.topology_parts if part not in own}
            for store in (*local.values(), *lists.values()):
                undo.callback(store.close)
            replicas = Replicas(
                self._holders,
                self._caller,
                timeout_s=_TIMEOUT_S,
                attempt_s=_TIMEOUT_S,
                on_membership=self._on_membership,
                contact=Contact.ESTABLISHED,
            )
            undo.callback(replicas.close)
            self._opened.append(replicas)
            remote = replicated_stores(replicas, elsewhere, schema=schema, digest=graph.manifest.digest)
            store_of_all = PartitionedStore(
                schema, local=local, remote=remote, lists=lists, concurrency=self._concurrency
            )
            undo.pop_all()
            return store_of_all

    def renew(self, caller: Caller) -> None:
        """Use the token and certificate of ``caller`` for the other servers from now on."""
        self._caller = caller
        for replicas in list(self._opened):
            replicas.renew(caller)

    def traffic(self) -> dict[int, WireCounts]:
        """Return the traffic with each other server, by rank."""
        ranks = {each.control_address: each.host_index for each in self._membership.others}
        sums = {rank: WireCounts() for rank in ranks.values()}
        for replicas in self._opened:
            for address, counts in replicas.traffic().items():
                if address in ranks:
                    sums[ranks[address]] += counts
        return sums
