"""Data port by hand: requests that no caller of ours would send, and replies that no server of ours would."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.native import DataClient, StreamError, TlsContext, crc32c
from gigl_loader.rpc.graph_store_pb2 import SampleReply
from gigl_loader.rpc.tokens import authorization

if TYPE_CHECKING:
    from typing_extensions import Self

_REQUEST = struct.Struct("<4sHHIIQI")
_REPLY = struct.Struct("<4sHBBQQI")
_CALL_S = 20.0


class Refused(Exception):
    """The port sent a refusal."""

    def __init__(self, record: dict[str, str]) -> None:
        super().__init__(record["message"])
        assert "Traceback" not in record["message"]
        self.kind = record["kind"]


def header_of(token: str = "", *more: tuple[str, str]) -> bytes:
    """Return the header text with a token and more entries."""
    entries = [("authorization", authorization(token)), *more] if token else list(more)
    return "".join(f"{name}: {value}\n" for name, value in entries).encode()


def request_bytes(body: bytes = b"", header: bytes = b"", **changes: Any) -> bytes:
    """Return a request. ``changes`` are fields of its head that are not as they should be."""
    head: dict[str, Any] = {
        "magic": b"GIGL",
        "version": 4,
        "flags": 0,
        "header_bytes": len(header),
        "body_crc": _crc(body),
        "body_bytes": len(body),
        "reserved": 0,
    }
    start = _REQUEST.pack(*(head | {name: changes[name] for name in changes if name != "crc"}).values())
    return start + struct.pack("<I", changes.get("crc", _crc(start + header))) + header + body


def reply_bytes(payload: bytes = b"", **changes: Any) -> bytes:
    """Return a reply, with its trailer. ``changes`` are fields of its head, ``crc`` or ``trailer``."""
    head: dict[str, Any] = {
        "magic": b"GIGL",
        "version": 4,
        "status": 0,
        "flags": 0,
        "payload_bytes": len(payload),
        "membership": 0,
        "reserved": 0,
    }
    fields = {name: changes[name] for name in changes if name not in ("crc", "trailer")}
    start = _REPLY.pack(*(head | fields).values())
    trailer = struct.pack("<I", changes.get("trailer", _crc(payload)))
    return start + struct.pack("<I", changes.get("crc", _crc(start))) + payload + trailer


class RawCaller:
    """Calls of one caller, over a connection that is made anew where the port ended it."""

    def __init__(self, address: str, *, token: str = "", trust: str = "") -> None:
        host, _, port = address.rpartition(":")
        self._place = host.strip("[]"), int(port)
        self._token = token
        self._tls = TlsContext.client(trust.encode()) if trust else None
        self._client: DataClient | None = None

    def begin(
        self, body: bytes, header: bytes | None = None, timeout_s: float = _CALL_S, *, sample: bool = False
    ) -> int:
        """Send a request, and return the size of its reply, of which nothing is read. Raises ``Refused``."""
        if self._client is None or not self._client.reusable or self._client.is_stale():
            self._client = DataClient(*self._place, self._tls)
            self._client.connect(timeout_s)
        given = header_of(self._token) if header is None else header
        refused, nbytes, _ = self._client.call(given, body, timeout_s, sample)
        if refused:
            raise Refused(json.loads(self._rest(nbytes)))
        return nbytes

    def ask(
        self, body: bytes, header: bytes | None = None, timeout_s: float = _CALL_S, *, sample: bool = False
    ) -> bytes:
        """Send a request, and return the reply. Raises ``Refused``, ``StreamError``."""
        return self._rest(self.begin(body, header, timeout_s, sample=sample))

    def kind(self, body: bytes, header: bytes | None = None, *, sample: bool = False) -> str:
        """Return the kind of the refusal; empty for a reply."""
        try:
            self.ask(body, header, sample=sample)
        except Refused as refused:
            return refused.kind
        return ""

    def close(self) -> None:
        self._client = None

    def _rest(self, nbytes: int) -> bytes:
        assert self._client is not None
        payload = np.empty(nbytes, np.uint8)
        self._client.read(payload)
        if not self._client.finish():
            raise StreamError("the checksum does not match")
        return payload.tobytes()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


SAMPLE_FLAG = 2
"""Of requests for batches."""


class RawSample:
    """Request for a batch, over a connection of its own, that waits for its reply without a thread."""

    def __init__(self, address: str, body: bytes, header: bytes) -> None:
        self._socket = connected_socket(address, request_bytes(body, header, flags=SAMPLE_FLAG))
        self.reply: SampleReply | None = None
        self.frame = b""
        """Frame that came with the reply."""

    def done(self) -> bool:
        """Return whether a reply or a refusal has come, or the connection has ended."""
        if self.reply is not None:
            return True
        ready = select.poll()
        ready.register(self._socket, select.POLLIN)
        return bool(ready.poll(0))

    def cancel(self) -> None:
        """End the call, also where a thread waits for its reply: it holds a closed socket open."""
        with suppress(OSError):  # The other end was faster.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def result(self, timeout_s: float = _CALL_S) -> SampleReply:
        """Wait for the reply. Raises ``Refused``, ``ConnectionError`` and ``TimeoutError``."""
        if self.reply is None:
            with self._socket:
                self._socket.settimeout(timeout_s)
                head = self._read(_REPLY.size + 4)
                _, _, refused, _, nbytes, _, _ = _REPLY.unpack(head[: _REPLY.size])
                payload = self._read(nbytes)
                assert struct.unpack("<I", self._read(4))[0] == _crc(payload)
            if refused:
                raise Refused(json.loads(payload))
            (size,) = struct.unpack_from("<I", payload)
            self.frame = payload[4 + size :]
            self.reply = SampleReply.FromString(payload[4 : 4 + size])
        return self.reply

    def kind(self) -> str:
        """Wait for the reply, and return its outcome, or the kind of its refusal."""
        try:
            return str(self.result().WhichOneof("outcome"))
        except Refused as refused:
            return refused.kind

    def _read(self, nbytes: int) -> bytes:
        found = bytearray()
        while len(found) < nbytes:
            data = self._socket.recv(nbytes - len(found))
            if not data:
                raise ConnectionError("the port ended the connection")
            found += data
        return bytes(found)


class Liar:
    """A port that replies to every request with the same bytes, and closes the connection."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply
        self._connection: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection = self._listener.accept()[0]
                with connection, suppress(OSError):
                    self._connection = connection
                    connection.settimeout(_CALL_S)
                    connection.recv(1 << 20)
                    connection.sendall(self._reply)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 16):
                        pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        with suppress(OSError):
            if self._connection is not None:
                self._connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(_CALL_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connected_socket(
    address: str | tuple[str, int], sent: bytes = b"", timeout_s: float = 20
) -> socket.socket:
    """Return a connection on which these bytes were sent."""
    if isinstance(address, str):
        host, _, port = address.rpartition(":")
        address = host.strip("[]"), int(port)
    connection = socket.create_connection(address, _CALL_S)
    connection.sendall(sent)
    return connection


def read_all(connection: socket.socket) -> bytes | None:
    """Return what comes until the other side ends the connection; ``None`` where it does not."""
    received: list[bytes] = []
    try:
        while data := connection.recv(1 << 16):
            received.append(data)
    except ConnectionError:
        pass
    except TimeoutError:
        return None
    return b"".join(received)


def _crc(data: bytes) -> int:
    return crc32c(np.frombuffer(data, np.uint8))
