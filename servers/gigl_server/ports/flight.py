"""Data port (Arrow Flight): neighbours, rows and frames, one reply to each request."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyarrow import flight

from gigl_loader.rpc.checksums import checksum_text
from gigl_loader.rpc.graph_requests import frame_handle
from gigl_loader.rpc.job import JOB_HEADER
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.replies import CHUNK_BYTES
from gigl_server.identity import Identity
from gigl_server.ports.byte_semaphore import ByteSemaphore
from gigl_server.ports.connections import Connections, place_of
from gigl_server.ports.flight_auth import GUARD, FlightAuth, flight_error, identity_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.address import Address
    from gigl_loader.rpc.checksums import Checksum
    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.audit import AuditLog
    from gigl_server.counters import Counters
    from gigl_server.ports.connections import Place
    from gigl_server.ports.flight_auth import Call
    from gigl_server.ports.queries import Queries


__all__ = ["DataService", "FrameSource", "open_data_service", "shut_down"]

_LOGGER = logging.getLogger(__name__)
_SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])
_MAX_CALLS = 512
"""Calls from a request to the last byte of its reply. Each holds a thread of Flight."""
_MAX_TURNS = 64
"""Calls whose reply is being made. A turn is released before the reply is sent."""
_WAIT_FOR_A_TURN_S = 0.5
_FREELY_S = 1.0
_SHUTDOWN_S = 5.0
_UNREMARKABLE = (RefusalKind.BUSY, RefusalKind.GONE)


class FrameSource(Protocol):
    """Store of frames that are ready to be fetched."""

    def take(self, handle: bytes, job: bytes) -> Bytes | None:
        """Return the frame behind a handle, uint8 [nbytes], once.

        ``None`` for an unknown handle, or a frame of another job (``rpc.job.job_key``); ``Refusal`` where too
        much is in transit. The caller keeps the array until the frame was sent, or sending it failed.
        """


class DataService(flight.FlightServerBase):  # type: ignore[misc]
    """Serves ``do_get``, whose ticket is the request, from its construction to ``shut_down``.

    A reply is made before it is sent: sending needs no turn and almost no Python. Calls, turns and the memory
    of replies are shared fairly among identities.
    """

    def __init__(
        self,
        location: str,
        queries: Queries,
        counters: Counters,
        credentials: Credentials,
        *,
        audit: AuditLog,
        frames: FrameSource | None = None,
        **options: Any,
    ) -> None:
        self._queries = queries
        self._counters = counters
        self._frames = frames
        self._audit = audit
        self._guard = FlightAuth(credentials, counters, audit)
        self._calls = ByteSemaphore(_MAX_CALLS, wait_s=0.0, what="calls")
        self._turns = ByteSemaphore(_MAX_TURNS, wait_s=_WAIT_FOR_A_TURN_S, what="turns")
        self.connections = Connections(self._tell_cut, self._hoarders)
        try:
            super().__init__(location, middleware={GUARD: self._guard}, **options)  # Calls may arrive now.
        except BaseException:
            self.connections.close()
            raise
        self.connections.start(self.port)

    def renew(self, credentials: Credentials) -> None:
        """Accept the tokens of ``credentials`` from now on, and no others."""
        self._guard.credentials = credentials

    def shutdown(self) -> None:
        """Stop listening, and wait for calls under way, without a timeout: use ``shut_down`` for one."""
        self.connections.rest()
        super().shutdown()
        self.connections.close()

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Return the reply to a request, as a stream."""
        call: Call = context.get_middleware(GUARD)
        caller = identity_of(context, call)
        request = ticket.ticket
        self._counters.add(calls=1, bytes_in=len(request))
        with self._refusals(caller):
            self._begin(call, caller, context.peer())
            if call.checksum not in (None, checksum_text(request)):
                raise Refusal(RefusalKind.DAMAGED, "the request does not match its checksum")
            handle = frame_handle(request)
            if handle is not None:
                return self._frame(call, handle)
            with self._turns.lend(1, caller):
                reply = self._queries.respond(request, caller, call.reply_checksum)
            call.at_end.callback(reply.loan.release)
            return self._stream(reply.chunks, call.reply_checksum, first_tells_size=reply.size_is_told)

    def _begin(self, call: Call, caller: Identity, peer: str) -> None:
        """Count a call against the limits until its reply was sent."""
        call.at_end.callback(self._calls.take(1, caller).release)
        self.connections.begins(call, place_of(peer), caller)
        call.at_end.callback(self.connections.ends, call)

    def _frame(self, call: Call, handle: bytes) -> Any:
        """Return a frame as a stream."""
        if call.job is None:
            # Callers that send a checksum send the header, too: it came damaged.
            kind = RefusalKind.INVALID if call.checksum is None else RefusalKind.DAMAGED
            raise Refusal(kind, f"a frame is fetched with the secret of its job in {JOB_HEADER!r}")
        frame = None if self._frames is None else self._frames.take(handle, call.job)
        if frame is None:
            raise Refusal(
                RefusalKind.GONE, "no such frame: it was fetched before, dropped, or is another job's"
            )
        chunks = [frame[at : at + CHUNK_BYTES] for at in range(0, len(frame), CHUNK_BYTES)]
        for chunk in chunks:
            call.reply_checksum.add(chunk)
        return self._stream(chunks, call.reply_checksum)

    def _stream(self, chunks: list[Bytes], checksum: Checksum, *, first_tells_size: bool = False) -> Any:
        """Return chunks and their checksum as a stream that needs almost no Python and never waits."""
        total = sum(map(len, chunks))
        self._counters.add(bytes_out=total)
        batches = [_batch(pa.py_buffer(chunk)) for chunk in (*chunks, checksum.trailer())]
        if first_tells_size:  # Only a generator stream takes metadata; its batches are ready.
            first, *others = batches
            return flight.GeneratorStream(_SCHEMA, iter([(first, total.to_bytes(8, "little")), *others]))
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(_SCHEMA, batches))

    @contextmanager
    def _refusals(self, caller: Identity) -> Iterator[None]:
        """Send refusals as records. Texts of other exceptions go to the log only."""
        try:
            yield
        except Refusal as refusal:
            if refusal.kind not in _UNREMARKABLE:
                self._counters.add(refused=1)
                self._audit.refused(caller, f"data port: {refusal.kind.value}: {refusal.message}")
            raise flight_error(refusal) from None
        except Exception:
            _LOGGER.exception("a request failed")
            failed = Refusal(RefusalKind.FAILED, "the service failed to answer; its log says why")
            raise flight_error(failed) from None

    def _hoarders(self) -> tuple[Identity | None, ...]:
        return self._calls.hoarder(), self._queries.sending.hoarder()

    def _tell_cut(self, place: Place, reason: str) -> None:
        self._audit.refused(
            Identity(address=place[0]), f"data port: connection of port {place[1]} cut: {reason}"
        )


def open_data_service(
    address: Address,
    queries: Queries,
    counters: Counters,
    credentials: Credentials,
    *,
    audit: AuditLog,
    frames: FrameSource | None = None,
) -> DataService:
    """Serve at ``address``; port 0 selects a free one. ``OSError`` names an address that cannot be bound."""
    location = f"grpc+{'tls' if credentials.certificate else 'tcp'}://{address}"
    try:
        return DataService(
            location,
            queries,
            counters,
            credentials,
            audit=audit,
            frames=frames,
            **credentials.flight_options(),
        )
    except Exception as error:  # pyarrow has no specific class for this.
        raise OSError(f"cannot listen on {address}: {error}") from None


def shut_down(data: DataService, timeout_s: float = _SHUTDOWN_S) -> None:
    """End the data port: wait a second for replies under way, then cut the remaining connections.

    Flight itself waits forever for a reply that its caller does not read, here and when the process exits.
    """
    ender = threading.Thread(target=data.shutdown, name="data shutdown", daemon=True)
    ender.start()
    ender.join(min(_FREELY_S, timeout_s))
    if ender.is_alive():
        _LOGGER.warning(
            "replies that were not read: %d, their connections are cut", data.connections.cut_all()
        )
        ender.join(timeout_s)
    if ender.is_alive():
        _LOGGER.error("the data port does not end")


def _batch(buffer: Any) -> Any:
    column = pa.Array.from_buffers(pa.uint8(), buffer.size, [None, buffer], null_count=0)
    return pa.RecordBatch.from_arrays([column], schema=_SCHEMA)
