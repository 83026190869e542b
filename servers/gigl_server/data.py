"""The data port: neighbours, rows and frames over Arrow Flight, one request and its reply at a time."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from pyarrow import flight

from gigl_loader.native import crc32c
from gigl_loader.rpc.checksums import CHECKSUM_HEADER, checksum_text, checksum_trailer
from gigl_loader.rpc.inquiries import frame_handle
from gigl_loader.rpc.job import JOB_HEADER, job_key
from gigl_loader.rpc.refusals import Kind, Refused
from gigl_loader.rpc.replies import CHUNK_BYTES
from gigl_loader.sampling.store import RowAsk

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt

    from gigl_loader.rpc.address import Address
    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.inquiries import Inquiry
    from gigl_loader.rpc.requests import Request
    from gigl_server.answers import Answers
    from gigl_server.ledger import Ledger

    Bytes = npt.NDArray[np.uint8]

__all__ = ["DataService", "FrameSource", "open_data_service", "shut_down"]

_LOGGER = logging.getLogger(__name__)
_SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])
_MOST_CALLS = 64
_WAIT_FOR_A_TURN_S = 0.5
_SHUTDOWN_S = 5.0


class FrameSource(Protocol):
    """Where frames lie until they are fetched."""

    def take(self, handle: bytes, job: bytes) -> Bytes | None:
        """Return the frame behind a handle, for one caller only.

        ``None`` if there is none, or if it is not that of this job (``rpc.job.job_key``); ``Refused`` where
        enough is on its way. The array is kept until the frame was sent, or cannot be any more.
        """


class DataService(flight.FlightServerBase):  # type: ignore[misc]
    """Answers ``do_get``; the request is the ticket. Serves from its construction to ``shutdown``."""

    def __init__(
        self,
        location: str,
        answers: Answers,
        ledger: Ledger,
        credentials: Credentials,
        *,
        frames: FrameSource | None = None,
        **options: Any,
    ) -> None:
        self._answers = answers
        self._ledger = ledger
        self._frames = frames
        self._turns = threading.BoundedSemaphore(_MOST_CALLS)
        super().__init__(location, middleware={"guard": _Guard(credentials, ledger)}, **options)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Return the reply to a request, as a stream."""
        request = ticket.ticket
        self._ledger.add(calls=1, bytes_in=len(request))
        visit = context.get_middleware("guard")
        with self._refusals():
            if visit is not None and visit.checksum not in (None, checksum_text(request)):
                raise Refused(Kind.DAMAGED, "the request does not match its checksum")
            handle = frame_handle(request)
            if handle is not None:
                return self._frame(visit, handle)
            with self._turn():
                partition, asked = self._answers.read(request)
                if partition is not None and isinstance(asked, RowAsk):
                    return self._sent(*self._answers.rows(partition, asked))
            return flight.GeneratorStream(_SCHEMA, self._stream(partition, asked, len(request)))

    def _stream(self, partition: int | None, asked: Request | Inquiry, ticket_bytes: int) -> Iterator[Any]:
        with self._refusals(), self._turn():
            first = True
            crc = 0
            for chunk in self._answers.chunks(partition, asked, ticket_bytes):
                self._ledger.add(bytes_out=chunk.nbytes)
                crc = crc32c(chunk.memory[: chunk.nbytes], crc)
                batch = _batch(pa.py_buffer(chunk.memory).slice(0, chunk.nbytes))
                yield (batch, chunk.total.to_bytes(8, "little")) if first else batch
                first = False
            yield _batch(pa.py_buffer(checksum_trailer(crc)))

    def _frame(self, visit: _Visit | None, handle: bytes) -> Any:
        """Return a frame as a stream."""
        if visit is None or visit.job is None:
            raise Refused(Kind.INVALID, f"a frame is fetched with the secret of its job in {JOB_HEADER!r}")
        frame = None if self._frames is None else self._frames.take(handle, visit.job)
        if frame is None:
            raise Refused(Kind.GONE, "no such frame: it was fetched before, dropped, or is another job's")
        size = len(frame)
        return self._sent(
            frame, [range(at, min(at + CHUNK_BYTES, size)) for at in range(0, size, CHUNK_BYTES)]
        )

    def _sent(self, memory: Bytes, chunks: Sequence[range]) -> Any:
        """Return memory as a stream that runs without Python: nothing here waits for who reads it."""
        self._ledger.add(bytes_out=len(memory))
        whole = pa.py_buffer(memory)
        batches = [_batch(whole.slice(each.start, len(each))) for each in chunks]
        batches.append(_batch(pa.py_buffer(checksum_trailer(crc32c(memory)))))
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(_SCHEMA, batches))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._turns.acquire(timeout=_WAIT_FOR_A_TURN_S):
            raise Refused(Kind.BUSY, f"{_MOST_CALLS} calls are under way")
        try:
            yield
        finally:
            self._turns.release()

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Let refusals through as records, and nothing else: texts of other exceptions stay in the log."""
        try:
            yield
        except Refused as refused:
            self._ledger.add(refused=refused.kind not in (Kind.BUSY, Kind.GONE))
            raise flight.FlightServerError(refused.message, refused.to_record()) from None
        except Exception:
            _LOGGER.exception("a request failed")
            failed = Refused(Kind.FAILED, "the service failed to answer; its log says why")
            raise flight.FlightServerError(failed.message, failed.to_record()) from None


class _Visit(flight.ServerMiddleware):  # type: ignore[misc]
    """What is known of the caller of one call."""

    def __init__(self, job: bytes | None, checksum: str | None) -> None:
        super().__init__()
        self.job = job
        self.checksum = checksum
        """Of the ticket, where the caller sent one."""


class _Guard(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets no call pass without the token."""

    def __init__(self, credentials: Credentials, ledger: Ledger) -> None:
        super().__init__()
        self._credentials = credentials
        self._ledger = ledger

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> _Visit | None:
        if not self._credentials.accepts(headers.get("authorization", [])):
            self._ledger.add(refused=1)
            refused = Refused(Kind.UNAUTHENTICATED, "wrong token: all hosts must use the same one")
            raise flight.FlightUnauthenticatedError(refused.message, refused.to_record())
        job = headers.get(JOB_HEADER)
        checksum = headers.get(CHECKSUM_HEADER)
        if not job and not checksum:
            return None
        return _Visit(job_key(job) if job else None, str(checksum[0]) if checksum else None)


def open_data_service(
    address: Address,
    answers: Answers,
    ledger: Ledger,
    credentials: Credentials,
    *,
    frames: FrameSource | None = None,
) -> DataService:
    """Serve at ``address``; port 0 takes a free one. ``OSError`` naming it where that cannot be."""
    location = f"grpc+{'tls' if credentials.certificate else 'tcp'}://{address}"
    try:
        return DataService(
            location, answers, ledger, credentials, frames=frames, **credentials.flight_options()
        )
    except Exception as error:  # pyarrow has no class of its own for this.
        raise OSError(f"cannot listen on {address}: {error}") from None


def shut_down(data: DataService, timeout_s: float = _SHUTDOWN_S) -> None:
    """End the data port. It waits for calls under way, which a stalled caller can hold for long."""
    ender = threading.Thread(target=data.shutdown, name="data shutdown", daemon=True)
    ender.start()
    ender.join(timeout_s)


def _batch(buffer: Any) -> Any:
    column = pa.Array.from_buffers(pa.uint8(), buffer.size, [None, buffer], null_count=0)
    return pa.RecordBatch.from_arrays([column], schema=_SCHEMA)
