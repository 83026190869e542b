"""Group of hosts that open one graph together: every host serves its partitions to the other hosts."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

from gigl_loader.group import name_ranks, wait_for
from gigl_loader.hosts.peers import PEERS, Peers, SharedCache
from gigl_loader.hosts.rendezvous import WHOLE, Holding, check_holdings
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.host_service import HostService
from gigl_loader.rpc.peer import check_peer
from gigl_loader.rpc.tokens import new_token
from gigl_loader.rpc.versions import BuildVersions
from gigl_loader.threads import ThreadPool
from gigl_loader.topology import Topology, machine_id, own_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.hosts.rendezvous import Rendezvous


logger = logging.getLogger(__name__)

_MAX_REACH_S = 20.0
"""Limit on checking all services: one that is up responds in milliseconds, behind a firewall never."""
_FIRST_NOTICE_S = 5.0
_GRACE_S = 5.0
"""Time for a late rank to arrive, before it counts as an error that it opened the graph alone."""
_SHARE_OF_START = 0.8
"""Share of the timeout, so that other ranks receive the reason why a service did not start."""
_SHARE_OF_CACHE = 0.5
"""Share of the timeout for each request to a peer, so that ranks receive which peer did not respond."""


class HostGroup:
    """One rank's membership in a group of hosts. Local rank 0 has the host's service."""

    def __init__(
        self,
        meeting: Rendezvous,
        peers: Peers,
        service: HostService | None,
        cache: SharedCache | None,
        timeout: float,
    ) -> None:
        self.peers = peers
        self._cache = cache
        self._meeting = meeting
        self._service = service
        self.timeout_s = timeout
        """Of each step that waits for other hosts."""
        self._closed = False

    @classmethod
    def join(
        cls,
        meeting: Rendezvous,
        graph: Graph,
        *,
        listen: str | None,
        advertise: str | None,
        credentials: Credentials | None,
        cache_bytes: int,
    ) -> HostGroup:
        """Meet all ranks, serve this host's partitions (on local rank 0) and check that peers respond.

        Local rank 0 then fetches up to ``cache_bytes`` of rows into a cache for all ranks of the host.

        Either every rank returns or every rank raises: in the last step, each rank waits for all other ranks.
        """
        timeout = meeting.timeout
        service = cache = None
        try:
            with meeting.telling_failures():
                topology = Topology.detect(group=meeting.group, timeout=timeout)
                holdings = _exchange_holdings(meeting, topology, graph)
            check_holdings(holdings, graph.schema.num_partitions)  # Has the same result on all ranks.
            with meeting.telling_failures():
                address = _reachable_address(topology, holdings, given=listen is not None)
                advertised = advertise or _advertised(listen, address)
                token = credentials.token if credentials else meeting.first("token", new_token())
                if topology.local_rank == 0:
                    service = HostService.start(
                        graph.reference,
                        graph.parts,
                        listen=listen or str(Address(address, 0)),
                        advertise=advertised,
                        credentials=credentials or _credentials(advertised, token),
                        host_index=topology.host_index,
                        timeout_s=_SHARE_OF_START * timeout,
                    )
                peers = _exchange_endpoints(meeting, topology, holdings, service, token)
                peers = replace(peers, insecure=credentials is not None and credentials.insecure)
                _check_reach(meeting, peers, graph, holdings, service)
                if service is not None and cache_bytes:
                    cache = _fill_cache(meeting, peers, graph, holdings, cache_bytes)
                peers = _share_cache(meeting, peers, _leaders(holdings), cache)
                meeting.tell("joined", True)
                meeting.hear("joined", what="finish opening the graph")
        except BaseException:
            if cache is not None:
                cache.close()
            if service is not None:
                service.close()
            raise
        graph.notes[PEERS] = peers.to_json()
        return cls(meeting, peers, service, cache, timeout)

    def close(self, *, wait: bool) -> None:
        """Leave the group. Local rank 0 ends the host's service; with ``wait``, after all ranks have left.

        Ranks that do not leave within the timeout are logged. Closing twice is fine.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._leave(wait=wait and self._service is not None)
        except ConnectionError:
            logger.info("the process group is gone: nobody can be waited for")
        finally:
            if self._service is not None:
                self._service.close()
            if self._cache is not None:
                self._cache.close()

    def _leave(self, *, wait: bool) -> None:
        self._meeting.tell("left", True)
        if not wait or wait_for(self._all_left, min(_FIRST_NOTICE_S, self.timeout_s)):
            return
        logger.info("serving until %s close the dataset, too", self._still_there())
        if not wait_for(self._all_left, max(self.timeout_s - _FIRST_NOTICE_S, 0)):
            logger.warning(
                "%s did not close the dataset within %g s: no longer serving them",
                self._still_there(),
                self.timeout_s,
            )

    def _all_left(self) -> bool:
        return len(self._meeting.told("left")) == self._meeting.group.world_size

    def _still_there(self) -> str:
        left = self._meeting.told("left")
        return name_ranks(rank for rank in range(self._meeting.group.world_size) if rank not in left)


def _exchange_holdings(meeting: Rendezvous, topology: Topology, graph: Graph) -> list[Holding]:
    versions = BuildVersions.own()
    mine = Holding(
        host_index=topology.host_index,
        local_rank=topology.local_rank,
        digest=graph.manifest.digest,
        partitions=graph.parts,
        address=own_address(topology.master_address),
        machine=machine_id(),
        where=str(graph.folder),
        versions=(versions.wire, versions.oldest_wire, versions.draws),
        library=versions.library,
    )
    meeting.tell("holding", asdict(mine))
    what = (
        "open the graph as one of several hosts (every rank must; a host that has all partitions says which "
        "it holds: partitions=)"
    )
    began = time.monotonic()

    def missed(ranks: list[int]) -> None:
        meeting.check_excuses(ranks)
        if time.monotonic() - began > _GRACE_S:
            _check_for_whole(meeting, graph, ranks)

    told = meeting.hear("holding", what=what, missed=missed)
    return [Holding.from_json(document) for document in told]


def _check_for_whole(meeting: Rendezvous, graph: Graph, missed: Sequence[int]) -> None:
    """Raise ``ValueError`` if a missing rank has opened the whole graph alone."""
    alone = meeting.group.published(f"{WHOLE}/{graph.manifest.digest}", ranks=missed)
    if alone:
        held = ", ".join(map(str, graph.parts))
        raise ValueError(
            f"{name_ranks(alone)} opened the whole graph at {next(iter(alone.values()))}, alone, while "
            f"this host has only partition {held}: pass partitions= there, or copy all partitions here"
        )


def _reachable_address(topology: Topology, holdings: Sequence[Holding], *, given: bool) -> str:
    """Return the address under which other hosts reach this host.

    On the host of rank 0, MASTER_ADDR often resolves to a loopback address: the address is then the one that
    faces another host. ``ValueError`` where other machines can use no address, unless one is ``given``.
    """
    address = holdings[topology.rank].address
    others = (each.address for each in holdings if not Address(each.address, 0).is_loopback)
    if Address(address, 0).is_loopback and (elsewhere := next(others, None)) is not None:
        address = own_address(elsewhere)
    several = len({each.machine for each in holdings}) > 1
    if several and not given and Address(address, 0).is_loopback:
        raise ValueError(
            f"the only address known of host {topology.host_index} is {address}, which other hosts cannot "
            "reach: set MASTER_ADDR on every host to a name or address of rank 0's host that all can reach, "
            "or pass each host its own: listen='ADDRESS:0' (and advertise= where others know it by another)"
        )
    return address


def _advertised(listen: str | None, address: str) -> str:
    """Return the host to advertise: that of ``listen``, unless it stands for all addresses."""
    listening = Address.parse(listen) if listen else Address(address, 0)
    return address if listening.is_wildcard else listening.host


def _credentials(host: str, token: str) -> Credentials:
    if Address(host, 0).is_loopback:
        return Credentials.plaintext(token=token)
    return Credentials.ephemeral([host], token=token)


def _leaders(holdings: Sequence[Holding]) -> list[int]:
    """Return the ranks that run the services, by host index."""
    leaders = [rank for rank, each in enumerate(holdings) if each.local_rank == 0]
    return sorted(leaders, key=lambda rank: holdings[rank].host_index)


def _exchange_endpoints(
    meeting: Rendezvous,
    topology: Topology,
    holdings: Sequence[Holding],
    service: HostService | None,
    token: str,
) -> Peers:
    if service is not None:
        meeting.tell("endpoint", service.endpoint.to_json())
    told = meeting.hear("endpoint", ranks=_leaders(holdings), what="serve the partitions of their hosts")
    endpoints = tuple(
        replace(Endpoint.from_json(text), wire_version=_agreed_wire(holdings[rank], rank))
        for rank, text in zip(_leaders(holdings), told, strict=True)
    )
    return Peers(endpoints=endpoints, host_index=topology.host_index, token=token)


def _agreed_wire(holding: Holding, rank: int) -> int:
    """Return the wire version for requests to the service of a rank. ``ValueError`` where there is none."""
    wire, oldest, draws = holding.versions
    found = BuildVersions(library=holding.library, wire=wire, oldest_wire=oldest, draws=draws)
    return found.agree(f"the host of rank {rank}")


def _check_reach(
    meeting: Rendezvous, peers: Peers, graph: Graph, holdings: Sequence[Holding], service: HostService | None
) -> None:
    """Let local rank 0 of every host check every service, also its own. All ranks receive the results."""
    leaders = _leaders(holdings)
    if service is not None:
        try:
            with meeting.telling_failures():
                _reach(peers, graph, min(meeting.timeout, _MAX_REACH_S))
            meeting.tell("reach", True)
        finally:
            # Wait for the checks of all hosts before this rank fails and ends its service: otherwise other
            # hosts would report that this service is gone, and not what is wrong.
            meeting.settle("reach", ranks=leaders)
    meeting.hear("reach", ranks=leaders, what="say whether they reach the other hosts")


def _fill_cache(
    meeting: Rendezvous, peers: Peers, graph: Graph, holdings: Sequence[Holding], nbytes: int
) -> SharedCache:
    try:
        with meeting.telling_failures():
            return SharedCache(graph, peers, nbytes, timeout_s=_SHARE_OF_CACHE * meeting.timeout)
    except Exception:
        # Wait before this host's service ends: other hosts may still be fetching from it.
        meeting.settle("cache", ranks=_leaders(holdings))
        raise


def _share_cache(meeting: Rendezvous, peers: Peers, leaders: list[int], cache: SharedCache | None) -> Peers:
    """Publish each host's cache to its ranks. Returns when all hosts have filled their caches."""
    if meeting.group.rank in leaders:
        meeting.tell("cache", cache.path if cache is not None else "")
    paths = meeting.hear("cache", ranks=leaders, what="fetch the rows that their hosts keep")
    return replace(peers, cache_path=paths[peers.host_index])


def _reach(peers: Peers, graph: Graph, timeout_s: float) -> None:
    """Check all services concurrently. Raises the error of the first faulty one, by host."""

    def check(endpoint: Endpoint) -> None:
        check_peer(endpoint, peers.caller, digest=graph.manifest.digest, timeout_s=timeout_s)

    with ThreadPool(min(len(peers.endpoints), 16)) as threads:
        list(threads.map(check, peers.endpoints))
