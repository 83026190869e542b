"""Other storage servers of the cluster: queries, checks, and a watch over them."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.retry import Deadline
from gigl_loader.rpc.certificates import tls_fault
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.peer import check_peer
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.versions import BuildVersions

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from gigl_loader.rpc.control import ClusterView
    from gigl_loader.rpc.credentials import Caller
    from gigl_server.cluster.membership import Membership

_LOGGER = logging.getLogger(__name__)

_WHAT = "storage server"
_OWN_S = 2.0
_WATCH_S = 2.0
_LEAVE_S = 60.0
_WATCHED = 8
_MISSES = 2
"""A server is lost after so many queries in a row without a response: one slow response means nothing."""


class JoinRefused(GiglError):
    """This server and another cannot be in one cluster. The message says why, with the values of both."""


class PeerResponse(NamedTuple):
    """Response of a server to a query."""

    itself: Endpoint
    view: ClusterView

    @property
    def others(self) -> tuple[str, ...]:
        """Control addresses of the other servers that it knows."""
        return tuple(each.control_address for each in self.view.servers if each != self.itself)


class PeerClient:
    """Queries servers for themselves and for the servers that they know. Each query opens a connection.

    A lasting connection would wait out gRPC's backoff after a failure; a new one takes milliseconds.
    """

    def __init__(self, own: Endpoint, caller: Caller, *, graph: str, cluster_key: str = "") -> None:
        """With ``cluster_key``, servers that do not prove it are refused."""
        self._own = own
        self._caller = caller
        self._graph = graph
        self._cluster_key = cluster_key
        self.version: Callable[[], int] = int
        """Returns the version of this server's membership."""

    def renew(self, caller: Caller) -> None:
        """Use the token and certificate of ``caller`` from the next query on."""
        self._caller = caller

    def query(self, address: str, timeout_s: float) -> PeerResponse:
        """Return the response of a server.

        Raises ``StorageUnavailable`` where no server responds, ``SamplingError`` or ``ValueError`` for a
        wrong response, ``JoinRefused`` for a server that does not prove the cluster key.
        """
        endpoint = Endpoint.of_address(Address.parse(address), what=_WHAT, certificate=self._own.certificate)
        with closing(StoreClient(endpoint, self._caller)) as client:
            view = self._proven_view(client, address, Deadline.after(timeout_s))
        if view.itself is None:
            raise StorageUnavailable(f"{endpoint}: {view.reason or 'it is starting'}")
        return PeerResponse(view.itself, view)

    def _proven_view(self, client: StoreClient, address: str, deadline: Deadline) -> ClusterView:
        """Return the view of a server, and announce this one to it where it lacks what this one knows.

        With a cluster key, the other server must prove the key first: its response has the challenge that an
        announcement responds to.
        """
        own = self._own.control_address
        if not self._cluster_key:
            view = client.cluster(deadline.left_s(), by_server=True)
            if self._has_news_for(view):
                client.cluster(deadline.left_s(), by_server=True, announce=own)
            if view.challenge:
                raise JoinRefused(
                    f"{_WHAT} at {address} has a cluster key, and this one has none: give all servers the "
                    "same cluster_key_file"
                )
            return view
        view = client.cluster(deadline.left_s(), cluster_key=self._cluster_key)
        if not view.proven:
            raise JoinRefused(
                f"{_WHAT} at {address} does not prove that it has the cluster key of this one: give all "
                "servers the same cluster_key_file"
            )
        if self._has_news_for(view):
            client.cluster(
                deadline.left_s(), announce=own, cluster_key=self._cluster_key, challenge=view.challenge
            )
        return view

    def _has_news_for(self, view: ClusterView) -> bool:
        known = {server.control_address for server in view.servers}
        return self._own.control_address not in known or view.membership < self.version()

    def own_fault(self) -> str | None:
        """Return why other servers will not trust this one, found by connecting to it as they do."""
        return tls_fault(self._own, self._caller, self._own.control_port, _OWN_S)

    def check(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Check that both ports of a server respond. Raises as ``query``."""
        deadline = Deadline.after(timeout_s)
        endpoint = replace(endpoint, numbered=False)  # Its rank is not known yet.
        try:
            check_peer(endpoint, self._caller, digest=self._graph, timeout_s=timeout_s)
        except ValueError:
            now = self.query(endpoint.control_address, deadline.left_s()).itself
            if now.partitions != endpoint.partitions:  # It took over a partition, or repairs one.
                raise StorageUnavailable(f"{endpoint} holds other partitions since just now") from None
            raise


def check_fit(address: str, view: ClusterView, *, graph: str) -> int:
    """Return the wire version to use with the server at ``address``.

    Raises ``JoinRefused`` where there is none, where it draws otherwise, and where it has another graph.
    """
    try:
        wire = BuildVersions.of(view).agree(f"{_WHAT} at {address}")
    except ValueError as error:
        raise JoinRefused(str(error)) from None
    if view.graph != graph:
        raise JoinRefused(
            f"storage server at {address} has another graph: digest {view.graph[:12]} vs {graph[:12]} "
            "here: give all servers parts of one and the same partitioned graph"
        )
    return wire


def listed(partitions: Sequence[int]) -> str:
    """Return ``[0, 1, 2, ... 61 more]``: a message stays one line."""
    shown = list(map(str, partitions[:10]))
    more = len(partitions) - len(shown)
    return f"[{', '.join(shown)}{f', ... {more} more' if more else ''}]"


def watched_by(own: Endpoint, members: Sequence[Endpoint]) -> list[Endpoint]:
    """Return the servers that one of ``members`` watches: the next eight by rank.

    Each server is watched by eight others, and calls grow with the servers, not with their square.
    """
    place = [member.control_address for member in members].index(own.control_address)
    return [*members[place + 1 :], *members[:place]][:_WATCHED]


class PeerWatch:
    """Watch over the other servers: a silent server is away, and leaves after a while."""

    def __init__(
        self,
        membership: Membership,
        graph: str,
        query: Callable[[str, float], PeerResponse],
        *,
        leave_s: float = _LEAVE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """A server that is away for ``leave_s`` leaves ``membership`` where others hold its partitions."""
        self._membership = membership
        self._graph = graph
        self._query = query
        self._leave_s = leave_s
        self._clock = clock
        self._misses: dict[str, int] = {}
        self._away_since: dict[str, float] = {}
        self._suspects: set[str] = set()
        """Servers that another server misses. This one queries them, too, until they respond."""

    @property
    def lost(self) -> list[Endpoint]:
        """Servers that did not respond to the last queries."""
        return [each for each in self._membership.others if each.control_address in self._away_since]

    def look(self, until: threading.Event) -> None:
        """Query servers once, or until ``until`` is set: a silent server takes its whole timeout.

        Each server watches the next eight by rank, and the servers that one of them misses: all learn of a
        server that is gone, while calls grow with the servers and not with their square.
        """
        membership = self._membership
        watched = watched_by(membership.own, membership.members)
        suspects = [each for each in membership.others if each.control_address in self._suspects]
        for member in dict.fromkeys([*watched, *suspects]):
            if until.is_set():
                return
            address = member.control_address
            try:
                response = self._query(address, _WATCH_S)
                wire = check_fit(address, response.view, graph=self._graph)
            except (GiglError, ValueError) as error:
                self._missed(member, error)
            else:
                self._answered(member, response, wire)
            self._membership.set_away(self._away_since)

    def _missed(self, member: Endpoint, error: Exception) -> None:
        address = member.control_address
        misses = self._misses[address] = self._misses.get(address, 0) + 1
        if misses == _MISSES:
            silent = isinstance(error, StorageUnavailable)
            _LOGGER.warning("%s is lost%s", member, "" if silent else f": {error}")
        if misses >= _MISSES:
            since = self._away_since.setdefault(address, self._clock())
            if self._clock() - since >= self._leave_s and self._membership.others_hold(member):
                _LOGGER.warning("%s has left: others hold its partitions", member)
                self._membership.remove(address)
                self._forget(address)

    def _answered(self, member: Endpoint, response: PeerResponse, wire: int) -> None:
        itself = response.itself
        if member.control_address in self._away_since:
            _LOGGER.info("%s is back", member)
        self._forget(member.control_address)
        if itself.control_address == member.control_address:
            if itself.partitions != member.partitions:
                _LOGGER.info("%s holds partitions %s now", member, listed(itself.partitions))
            self._membership.put(replace(itself, wire_version=wire))
        self._membership.merge(response.view.membership, response.view.servers)
        self._suspect(response.view)

    def _suspect(self, view: ClusterView) -> None:
        """Query the servers that another one misses, or that have left its newer membership."""
        newer = view.membership > self._membership.version
        known = {each.control_address for each in view.servers}
        for member in self._membership.others:
            address = member.control_address
            if address in view.away or (newer and address not in known):
                self._suspects.add(address)

    def _forget(self, address: str) -> None:
        self._suspects.discard(address)
        self._misses.pop(address, None)
        self._away_since.pop(address, None)
