"""What a storage server asks another, while it joins and after."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.rpc.address import Address
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.peer import check_peer
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.tls import tls_fault
from gigl_server.fitness import Answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.rpc.credentials import Caller

__all__ = ["Asker"]

_WHAT = "storage server"
_OWN_S = 2.0


class Asker:
    """Asks servers who they are and whom they know. Each ask has a connection of its own.

    One that lasts would wait out gRPC's backoff after a failure; connecting anew takes milliseconds.
    """

    def __init__(self, own: Endpoint, caller: Caller, *, graph: str) -> None:
        self._own = own
        self._caller = caller
        self._graph = graph

    def ask(self, address: str, timeout_s: float) -> Answer:
        """Return what a server says.

        ``StorageUnavailable`` where nobody answers, ``SamplingError`` or ``ValueError`` for a wrong answer.
        """
        endpoint = self._endpoint(address)
        with _without_rank(endpoint), closing(StoreClient(endpoint, self._caller)) as client:
            view = client.cluster(timeout_s, announce=self._own.control_address)
        itself = [server for server in view.servers if server.partitions == view.partitions]
        if not itself:
            raise StorageUnavailable(f"storage server at {address}: {view.reason or 'it is starting'}")
        return Answer(
            version=view.version,
            wire_version=view.wire_version,
            graph=view.graph,
            itself=itself[0],
            others=tuple(server.control_address for server in view.servers if server is not itself[0]),
        )

    def own_fault(self) -> str | None:
        """Return why others will not trust this server, which it sees when it comes as they do."""
        return tls_fault(self._own, self._caller, self._own.control_port, _OWN_S)

    def check(self, endpoint: Endpoint, timeout_s: float) -> None:
        """Make sure that both ports of a server answer us. Errors are those of ``ask``."""
        with _without_rank(endpoint):
            check_peer(endpoint, self._caller, digest=self._graph, timeout_s=timeout_s)

    def _endpoint(self, address: str) -> Endpoint:
        where = Address.parse(address)
        return Endpoint(
            host_index=0,
            host=where.host,
            control_port=where.port,
            data_port=where.port,  # Not known yet, and not asked.
            partitions=(),
            certificate=self._own.certificate,
            what=_WHAT,
        )


@contextmanager
def _without_rank(endpoint: Endpoint) -> Iterator[None]:
    """Leave the number out of what is said: it is not known yet."""
    try:
        yield
    except (GiglError, ValueError) as error:
        text = str(error).replace(str(endpoint), f"{_WHAT} at {endpoint.control_address}")
        raise type(error)(text) from None
