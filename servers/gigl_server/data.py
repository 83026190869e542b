"""The data port: neighbours and rows over Arrow Flight, one request and its reply at a time."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from gigl_loader.rpc.refusals import Kind, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.answers import Answers, Chunk
    from gigl_server.ledger import Ledger

__all__ = ["DataService"]

_LOGGER = logging.getLogger(__name__)
_SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])
_MOST_CALLS = 64
_WAIT_FOR_A_TURN_S = 0.5


class DataService(flight.FlightServerBase):  # type: ignore[misc]
    """Answers ``do_get``; the request is the ticket. Serves from its construction to ``shutdown``."""

    def __init__(
        self, location: str, answers: Answers, ledger: Ledger, credentials: Credentials, **options: Any
    ) -> None:
        self._answers = answers
        self._ledger = ledger
        self._turns = threading.BoundedSemaphore(_MOST_CALLS)
        super().__init__(location, middleware={"token": _Guard(credentials, ledger)}, **options)

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Return the reply to a request, as a stream."""
        return flight.GeneratorStream(_SCHEMA, self._stream(ticket.ticket))

    def _stream(self, ticket: bytes) -> Iterator[Any]:
        self._ledger.add(calls=1, bytes_in=len(ticket))
        with self._refusals(), self._turn():
            partition, request = self._answers.parse(ticket)
            first = True
            for chunk in self._answers.chunks(partition, request):
                self._ledger.add(bytes_out=chunk.nbytes)
                batch = _batch(chunk)
                yield (batch, chunk.total.to_bytes(8, "little")) if first else batch
                first = False

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
            self._ledger.add(refused=refused.kind is not Kind.BUSY)
            raise flight.FlightServerError(refused.message, refused.to_record()) from None
        except Exception:
            _LOGGER.exception("a request failed")
            failed = Refused(Kind.FAILED, "the service failed to answer; its log says why")
            raise flight.FlightServerError(failed.message, failed.to_record()) from None


class _Guard(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Lets no call pass without the token."""

    def __init__(self, credentials: Credentials, ledger: Ledger) -> None:
        super().__init__()
        self._credentials = credentials
        self._ledger = ledger

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> None:
        if not self._credentials.accepts(headers.get("authorization", [])):
            self._ledger.add(refused=1)
            refused = Refused(Kind.UNAUTHENTICATED, "wrong token: all hosts must use the same one")
            raise flight.FlightUnauthenticatedError(refused.message, refused.to_record())


def _batch(chunk: Chunk) -> Any:
    buffer = pa.py_buffer(chunk.memory)
    column = pa.Array.from_buffers(pa.uint8(), chunk.nbytes, [None, buffer], null_count=0)
    return pa.RecordBatch.from_arrays([column], schema=_SCHEMA)
