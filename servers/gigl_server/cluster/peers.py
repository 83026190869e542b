"""Other storage servers of the cluster: queries, checks, and a watch over them."""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.rpc.address import Address
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.peer import check_peer
from gigl_loader.rpc.requests import WIRE_VERSION
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.tls import tls_fault

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.rpc.store_client import ClusterView

__all__ = [
    "JoinRefused",
    "PeerClient",
    "PeerResponse",
    "PeerWatch",
    "check_fit",
    "check_partitions",
    "listed",
]

_LOGGER = logging.getLogger(__name__)

_WHAT = "storage server"
_OWN_S = 2.0
_WATCH_S = 2.0
_MISSES = 2
"""A server is lost after so many queries in a row without a response: one slow response means nothing."""


class JoinRefused(GiglError):
    """This server and another cannot be in one cluster. The message says why, with the values of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerResponse:
    """Response of a server to a query: itself, and the servers that it knows."""

    version: str
    wire_version: int
    graph: str
    """Digest."""
    itself: Endpoint
    others: tuple[str, ...]
    """Control addresses of the other servers that it knows."""


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

    def renew(self, caller: Caller) -> None:
        """Use the token and certificate of ``caller`` from the next query on."""
        self._caller = caller

    def query(self, address: str, timeout_s: float) -> PeerResponse:
        """Return the response of a server.

        Raises ``StorageUnavailable`` where no server responds, ``SamplingError`` or ``ValueError`` for a
        wrong response, ``JoinRefused`` for a server that does not prove the cluster key.
        """
        endpoint = self._endpoint(address)
        with _without_rank(endpoint), closing(StoreClient(endpoint, self._caller)) as client:
            view = self._proven_view(client, address, timeout_s)
        itself = [server for server in view.servers if server.partitions == view.partitions]
        if not itself:
            raise StorageUnavailable(f"storage server at {address}: {view.reason or 'it is starting'}")
        return PeerResponse(
            version=view.version,
            wire_version=view.wire_version,
            graph=view.graph,
            itself=itself[0],
            others=tuple(server.control_address for server in view.servers if server is not itself[0]),
        )

    def _proven_view(self, client: StoreClient, address: str, timeout_s: float) -> ClusterView:
        """Return the view of a server, and announce this one to it.

        With a cluster key, the other server must prove the key first: its response has the challenge that an
        announcement responds to.
        """
        own = self._own.control_address
        if not self._cluster_key:
            view = client.cluster(timeout_s, announce=own)
            if view.challenge:
                raise JoinRefused(
                    f"{_WHAT} at {address} has a cluster key, and this one has none: give all servers the "
                    "same cluster_key_file"
                )
            return view
        view = client.cluster(timeout_s, cluster_key=self._cluster_key)
        if not view.proven:
            raise JoinRefused(
                f"{_WHAT} at {address} does not prove that it has the cluster key of this one: give all "
                "servers the same cluster_key_file"
            )
        if not view.ready and own not in {server.control_address for server in view.servers}:
            client.cluster(timeout_s, announce=own, cluster_key=self._cluster_key, challenge=view.challenge)
        return view

    def own_fault(self) -> str | None:
        """Return why other servers will not trust this one, found by connecting to it as they do."""
        return tls_fault(self._own, self._caller, self._own.control_port, _OWN_S)

    def check(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Check that both ports of a server respond. Raises as ``query``."""
        with _without_rank(endpoint):
            check_peer(endpoint, self._caller, digest=self._graph, timeout_s=timeout_s)

    def _endpoint(self, address: str) -> Endpoint:
        where = Address.parse(address)
        return Endpoint(
            host_index=0,
            host=where.host,
            control_port=where.port,
            data_port=where.port,  # Not known yet, and not used.
            partitions=(),
            certificate=self._own.certificate,
            what=_WHAT,
        )


def check_fit(address: str, response: PeerResponse, *, graph: str) -> None:
    """Raise ``JoinRefused`` unless the server at ``address`` has this wire version and this graph."""
    if response.wire_version != WIRE_VERSION:
        raise JoinRefused(
            f"storage server at {address} runs gigl-loader {response.version}, whose wire version is "
            f"{response.wire_version}; here it is {WIRE_VERSION}: install the same version on all servers"
        )
    if response.graph != graph:
        raise JoinRefused(
            f"storage server at {address} has another graph: digest {response.graph[:12]} vs {graph[:12]} "
            "here: give all servers parts of one and the same partitioned graph"
        )


def check_partitions(address: str, itself: Endpoint, *, own: Endpoint, members: Iterable[Endpoint]) -> None:
    """Raise ``JoinRefused`` if the server at ``address`` serves a partition of one of ``members``."""
    for member in members:
        twice = sorted(set(member.partitions) & set(itself.partitions))
        if twice and member.control_address != itself.control_address:
            other = "this one" if member is own else f"that at {member.control_address}"
            raise JoinRefused(
                f"storage server at {address} serves partitions {listed(twice)}, and so does {other}: "
                "give each partition to one server"
            )


def listed(partitions: Sequence[int]) -> str:
    """Return ``[0, 1, 2, ... 61 more]``: a message stays one line."""
    shown = list(map(str, partitions[:10]))
    more = len(partitions) - len(shown)
    return f"[{', '.join(shown)}{f', ... {more} more' if more else ''}]"


@contextmanager
def _without_rank(endpoint: Endpoint) -> Iterator[None]:
    """Leave the rank out of error messages, because it is not known yet."""
    try:
        yield
    except (GiglError, ValueError) as error:
        text = str(error).replace(str(endpoint), f"{_WHAT} at {endpoint.control_address}")
        raise type(error)(text) from None


class PeerWatch:
    """Watch over the other servers, for the log. Sampling does not depend on it."""

    def __init__(
        self, members: Sequence[Endpoint], graph: str, query: Callable[[str, float], PeerResponse]
    ) -> None:
        """``members`` are the other servers."""
        self._members = members
        self._graph = graph
        self._query = query
        self._misses = dict.fromkeys(members, 0)

    @property
    def lost(self) -> list[Endpoint]:
        """Servers that did not respond to the last queries."""
        return [member for member, misses in self._misses.items() if misses >= _MISSES]

    def look(self, until: threading.Event) -> None:
        """Query each server once, or until ``until`` is set: a silent server takes its whole timeout."""
        for member in self._members:
            if until.is_set():
                return
            try:
                response = self._query(member.control_address, _WATCH_S)
                check_fit(member.control_address, response, graph=self._graph)
                if not set(member.partitions) <= set(
                    response.itself.partitions
                ):  # It may have taken over some.
                    raise ValueError(f"it came back with partitions {listed(response.itself.partitions)}")
            except (GiglError, ValueError) as error:
                self._misses[member] += 1
                if self._misses[member] == _MISSES:
                    silent = isinstance(error, StorageUnavailable)
                    _LOGGER.warning("%s is lost%s", member, "" if silent else f": {error}")
                continue
            if self._misses[member] >= _MISSES:
                _LOGGER.info("%s is back", member)
            self._misses[member] = 0
