"""Probes of a server's own ports: a real call over a new connection, as a caller makes it."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import grpc

from gigl_loader.native import DataClient, StreamError, StreamTimedOut, TlsContext
from gigl_loader.rpc.endpoint import Address
from gigl_loader.rpc.requests import Envelope, encode_ping
from gigl_server.supervision import Part, PartDead, PartSilent

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_server.ports.control import ControlService
    from gigl_server.ports.data import DataPort

_CALL_S = 10.0
_CONNECT_S = 5.0
_REFUSALS, _REFUSED_S = 4, 0.5
_METHOD = "/grpc.health.v1.Health/List"
"""Needs no message, so that callers whose messages are late cannot delay it."""
_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]


class ControlProbe:
    """Calls the control port."""

    def __init__(
        self, listen: Address, port: int, credentials: Callable[[], Credentials], *, host: str
    ) -> None:
        """``credentials`` returns the current ones; ``host`` is a name in the certificate."""
        self._where = _reached(listen, port)
        self._credentials = credentials
        self._host = host

    def check(self) -> None:
        """Raise ``PartDead`` where nothing listens, ``PartSilent`` where no response arrives in time."""
        # Any other status is a response, or the end of a connection beyond the limit or with an expired
        # certificate. The port is open.
        if _accepts(self._where) and self.status() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise PartSilent(f"no answer within {_CALL_S:g} s")

    def status(self) -> grpc.StatusCode:
        """Make the call, and return its status."""
        with self._channel() as channel:
            try:
                channel.unary_unary(_METHOD)(b"", timeout=_CALL_S)
            except grpc.RpcError as error:
                return error.code()
        return grpc.StatusCode.OK

    def _channel(self) -> grpc.Channel:
        own = self._credentials()
        if not own.certificate:
            return grpc.insecure_channel(str(self._where), _OPTIONS)
        pair = (own.key, own.certificate) if own.client_authority else (None, None)
        secure = grpc.ssl_channel_credentials(own.trusted.encode(), *pair)
        named = [*_OPTIONS, ("grpc.ssl_target_name_override", self._host)]
        return grpc.secure_channel(str(self._where), secure, named)


class DataProbe:
    """Pings the data port."""

    def __init__(
        self, listen: Address, port: int, credentials: Callable[[], Credentials], *, host: str, ping: Envelope
    ) -> None:
        """As for ``ControlProbe``; ``ping`` names the graph and a served partition."""
        self._host = host
        self._ping = encode_ping(ping)
        self._where = _reached(listen, port)
        self._credentials = credentials

    def check(self) -> None:
        """Raise ``PartDead`` where nothing listens, ``PartSilent`` where no response arrives in time."""
        if not _accepts(self._where):
            return
        header = "".join(f"{name}: {value}\n" for name, value in self._credentials().caller().headers)
        try:
            client = self._client()
            client.connect(_CONNECT_S)
            client.call(header.encode(), self._ping, _CALL_S)
        except StreamTimedOut:
            raise PartSilent(f"no answer within {_CALL_S:g} s") from None
        except StreamError:
            return  # A refusal is a response, too: the port is open.

    def _client(self) -> DataClient:
        own = self._credentials()
        if not own.certificate:
            return DataClient(self._where.host, self._where.port)
        pair = (own.certificate, own.key) if own.client_authority else (b"", b"")
        tls = TlsContext.client(own.trusted.encode(), *pair)
        return DataClient(self._where.host, self._where.port, tls, self._host)


def watched_ports(
    own: Endpoint,
    control: ControlService,
    data: DataPort,
    *,
    listen: tuple[Address, Address],
    credentials: Callable[[], Credentials],
    graph: str,
) -> list[Part]:
    """Return the two ports as parts of a server. ``listen`` are their addresses, ``graph`` is the digest."""
    ping = Envelope(graph=graph, partition=own.partitions[0])
    of_control = ControlProbe(listen[0], own.control_port, credentials, host=own.host)
    of_data = DataProbe(listen[1], own.data_port, credentials, host=own.host, ping=ping)
    return [
        Part(name="the control port", threads=lambda: control.threads, check=of_control.check),
        Part(name="the data port", threads=lambda: data.threads, check=of_data.check),
    ]


def _reached(listen: Address, port: int) -> Address:
    """Return the address at which this process reaches its own port."""
    if not listen.is_wildcard:
        return Address(listen.host, port)
    return Address("::1" if ":" in listen.host else "127.0.0.1", port)


def _accepts(where: Address) -> bool:
    """Return whether a connection can be made. Raises ``PartDead`` where nothing listens.

    ``False`` says nothing about the port: this process may have no descriptor left, for example.
    """
    for _ in range(_REFUSALS):
        connected = _connected(where)
        if connected is not None:
            return connected
        time.sleep(_REFUSED_S)  # A port that is reopened is closed for a moment.
    raise PartDead(f"nothing listens at {where}")


def _connected(where: Address) -> bool | None:
    """Return whether a connection was made; ``None`` if it was refused."""
    try:
        socket.create_connection((where.host, where.port), _CONNECT_S).close()
    except ConnectionRefusedError:
        return None
    except TimeoutError:
        raise PartSilent(f"no connection within {_CONNECT_S:g} s") from None
    except OSError:
        return False
    return True
