"""Flight connection to one peer: a deadline for each attempt, and retries until the deadline of the call.

All exceptions of pyarrow are translated here. pyarrow raises the same exceptions for a deadline, a peer that
died in mid-stream and a refusal; only a refusal has our record in ``extra_info``.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from pyarrow import flight

from gigl_loader.arrays import Bytes
from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.processes import keep_freed_memory
from gigl_loader.retry import Backoff
from gigl_loader.rpc.checksums import (
    CHECKSUM_HEADER,
    MAX_DAMAGED,
    UNREAD_HEADER,
    Crc32c,
    ReplyChunks,
    Unread,
    checksum_text,
)
from gigl_loader.rpc.job import JOB_HEADER
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.sampling.store import WireCounts
from gigl_loader.tensors import Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gigl_loader.rpc.credentials import Caller, SslParts
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["Connection"]

_LOGGER = logging.getLogger(__name__)

_LAST_ATTEMPT_S = 0.2  # Reserved for a last attempt, at most 1/4 of the call; connecting takes 10 ms.

_CHANNEL_OPTIONS = [
    # Channels with equal arguments share connections, hence the backoff of the last failure (up to 120 s).
    # With a pool of its own, a new client connects at once.
    ("grpc.use_local_subchannel_pool", 1),
    # Peers are reached directly, whatever the environment says about proxies for the web.
    ("grpc.enable_http_proxy", 0),
    # A host that is down sends nothing: by default, gRPC would wait 20 s, and a call all of its time.
    ("grpc.min_reconnect_backoff_ms", 2_000),
]

Result = TypeVar("Result")


class _AttemptFailed(Exception):
    """The attempt failed, and a retry may succeed. The message is the reason."""


class _AttemptTimedOut(_AttemptFailed):
    """The attempt reached its deadline."""


class _Busy(_AttemptFailed):
    """The peer refused a request beyond its limits. The connection stays open."""


class _Damaged(_AttemptFailed):
    """The request or the reply does not match its checksum, or breaks a rule. The connection stays open."""


class Connection:
    """Connection to one peer. Thread-safe: any number of threads share it."""

    def __init__(
        self,
        endpoint: Endpoint,
        caller: Caller,
        *,
        timeout_s: float,
        attempt_s: float = 30.0,
        job: str = "",
    ) -> None:
        """Connects at the first call. A call is retried for ``timeout_s``; each attempt has ``attempt_s``.

        ``job`` is the secret of the training job, for requests for what belongs to a job.
        """
        if timeout_s <= 0 or attempt_s <= 0:
            raise ValueError(f"timeouts must be positive, got {timeout_s} and {attempt_s} s")
        self._endpoint = endpoint
        self.wire_version = endpoint.wire_version
        """Version of requests that was agreed upon with the peer. 0: the newest of this build."""
        self._caller = caller
        self._job_header = ((JOB_HEADER, job),) if job else ()
        self._headers = self._headers_of(caller)
        self._timeout_s = timeout_s
        self._attempt_s = attempt_s
        self._lock = threading.Lock()
        self._client: Any = None
        self._encrypted = False
        self._streams: set[Any] = set()
        self._closed = threading.Event()
        self._counts = WireCounts()
        self.on_membership: Callable[[int], None] | None = None
        """Called with the version of the membership that a reply told, where replies tell one."""

    def counts(self) -> WireCounts:
        """Return what was sent and received since the connection was made."""
        with self._lock:
            return self._counts

    def count(self, **amounts: int) -> None:
        """Add ``amounts`` to the counts, by name."""
        with self._lock:
            self._counts += WireCounts(**amounts)

    def call(
        self,
        request: bytes,
        read: Callable[[ReplyChunks], Result],
        *,
        timeout_s: float | None = None,
        attempts: float = math.inf,
    ) -> Result:
        """Send a request, and return ``read(chunks)`` for the chunks of the reply.

        ``read`` consumes all chunks, and adds each to their checksum. Every attempt calls it again.
        Raises ``StorageUnavailable`` after ``timeout_s`` (default: that of the connection) or after
        ``attempts`` failures; attempts that a busy server refused do not count. Raises ``FormatError`` when
        three attempts in a row, or all, were damaged. Errors that a retry cannot resolve are raised at once.
        """
        began = time.monotonic()
        seconds = self._timeout_s if timeout_s is None else timeout_s
        backoff = Backoff()
        reserve = min(_LAST_ATTEMPT_S, seconds / 4)
        last = ""
        damaged = 0
        tokens = 0
        while True:
            left = began + seconds - time.monotonic()
            headers = self._headers
            try:
                # gRPC treats a deadline in the past as no deadline.
                return self._attempt(request, read, max(min(self._attempt_s, left), 0.001))
            except Refusal as refusal:
                if refusal.kind is not RefusalKind.UNAUTHENTICATED or not self._renewed(headers, tokens):
                    raise refusal.error(str(self._endpoint)) from None
                tokens += 1
                continue
            except _AttemptFailed as error:
                damaged = damaged + 1 if isinstance(error, _Damaged) else 0
                if damaged >= min(MAX_DAMAGED, attempts):
                    raise FormatError(f"{self._endpoint}: {error}") from None
                # The timeout of a short last attempt says less than the error before it.
                if not (last and isinstance(error, _AttemptTimedOut) and left < self._attempt_s):
                    last = str(error)
                attempts -= not isinstance(error, _Busy)
            if attempts <= 0:
                break
            left = began + seconds - time.monotonic()
            if left <= reserve or self._closed.wait(min(backoff.next_s(), left - reserve)):
                break
            _LOGGER.debug("%s: asking again after: %s", self._endpoint, last)
            self.count(retries=1)
        raise self._unavailable(time.monotonic() - began, last)

    def renew(self, caller: Caller) -> None:
        """Use the token and certificate of ``caller`` from the next call on."""
        with self._lock:
            self._use(caller)
            self._client = None

    def close(self) -> None:
        """Cancel replies under way, start no further attempt, and disconnect. Closing twice is fine.

        The last attempt under way to end takes the connection with it.

        An attempt whose reply has not begun cannot be cancelled: it ends at its own deadline.
        """
        self._closed.set()
        with self._lock:
            streams, self._streams = list(self._streams), set()
            self._client = None  # Not closed here: pyarrow crashes where another thread begins a call on it.
        for stream in streams:
            with suppress(pa.ArrowException):
                stream.cancel()

    def _attempt(self, request: bytes, read: Callable[[ReplyChunks], Result], seconds: float) -> Result:
        client, encrypted = self._connected()
        headers = [*self._headers, (CHECKSUM_HEADER.encode(), checksum_text(request).encode())]
        if encrypted:
            headers.append((UNREAD_HEADER.encode(), b"tls"))
        options = flight.FlightCallOptions(timeout=seconds, headers=headers)
        self.count(calls=1, bytes_out=len(request))
        began = time.monotonic()
        try:
            with self._errors():
                stream = client.do_get(flight.Ticket(request), options)
            chunks = ReplyChunks(self._received(stream), Unread() if encrypted else Crc32c())
            try:
                with self._watched(stream):
                    return read(chunks)
            finally:
                self.count(bytes_in=chunks.nbytes)
                if _LOGGER.isEnabledFor(logging.DEBUG):
                    self._log(request, chunks.nbytes, time.monotonic() - began)
        except FormatError as error:
            self.count(damaged=1)
            raise _Damaged(str(error)) from None
        except _Damaged:
            self.count(damaged=1)
            raise
        except _Busy:
            raise
        except _AttemptFailed:
            self._drop(client)
            raise

    def _log(self, request: bytes, nbytes: int, seconds: float) -> None:
        asked = Layout.parse(np.frombuffer(request, np.uint8)).metadata.get("ask", "?")
        _LOGGER.debug(
            "%s: %s: %d bytes sent, %d received in %.1f ms",
            self._endpoint,
            asked,
            len(request),
            nbytes,
            1e3 * seconds,
        )

    def _connected(self) -> tuple[Any, bool]:
        """Return the client, and whether it speaks TLS."""
        with self._lock:
            if self._closed.is_set():
                raise SamplingError(f"the connection to {self._endpoint} was closed")
            if self._client is None:
                keep_freed_memory()
                self._use(self._caller.latest())
                parts = self._caller.ssl_parts(self._endpoint)
                self._client, self._encrypted = self._new_client(parts), parts is not None
            return self._client, self._encrypted

    def _use(self, caller: Caller) -> None:
        """Show the token of ``caller`` from now on. Under the lock."""
        if caller is not self._caller:
            self._caller, self._headers = caller, self._headers_of(caller)

    def _renewed(self, headers: list[tuple[bytes, bytes]], tokens: int) -> bool:
        """Show another token after a call with ``headers`` was refused: that of the files now, or the next.

        Return whether there is another. ``tokens`` were refused before that.
        """
        with self._lock:
            if self._headers is headers and tokens <= len(self._caller.other_tokens):
                self._use(self._caller.after_refusal())
            return self._headers is not headers

    def _headers_of(self, caller: Caller) -> list[tuple[bytes, bytes]]:
        return [(name.encode(), text.encode()) for name, text in (*caller.headers, *self._job_header)]

    def _new_client(self, parts: SslParts | None) -> Any:
        if parts is None:
            place = f"grpc+tcp://{self._endpoint.data_address}"
            return flight.FlightClient(place, generic_options=_CHANNEL_OPTIONS)
        return flight.FlightClient(
            f"grpc+tls://{self._endpoint.data_address}",
            tls_root_certs=parts.roots,
            cert_chain=parts.certificate,
            private_key=parts.key,
            generic_options=_CHANNEL_OPTIONS,
        )

    def _drop(self, client: Any) -> None:
        """Reconnect at the next call. Calls of other threads on the old connection continue."""
        with self._lock:
            if self._client is client:
                self._client = None

    @contextmanager
    def _watched(self, stream: Any) -> Iterator[None]:
        with self._lock:
            self._streams.add(stream)
        try:
            yield
        except BaseException:
            with suppress(pa.ArrowException):
                stream.cancel()
            raise
        finally:
            with self._lock:
                self._streams.discard(stream)

    def _received(self, stream: Any) -> Iterator[tuple[Bytes, int | None]]:
        """Yield each chunk, uint8 [N], and the size that came with it. The last chunk is the trailer."""
        while True:
            with self._errors():
                try:
                    message = stream.read_chunk()
                except StopIteration:
                    return
            yield _bytes_of(message.data), _size_of(message.app_metadata)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except flight.FlightTimedOutError as error:
            raise _AttemptTimedOut(_first_line(error)) from None
        except flight.FlightError as error:
            refusal = Refusal.from_record(error.extra_info)
            if refusal is None or refusal.kind is RefusalKind.UNAVAILABLE:
                raise _AttemptFailed(_first_line(error)) from None
            if refusal.kind is RefusalKind.BUSY:
                raise _Busy(refusal.message) from None
            if refusal.kind is RefusalKind.DAMAGED:
                raise _Damaged(refusal.message) from None
            raise refusal from None
        except (pa.ArrowException, OSError) as error:  # OSError: damaged Arrow messages.
            raise _AttemptFailed(_first_line(error)) from None

    def _unavailable(self, seconds: float, last: str) -> Exception:
        if self._closed.is_set():
            return SamplingError(f"the connection to {self._endpoint} was closed")
        parts = ", ".join(map(str, self._endpoint.partitions))
        holding = f", which holds partition {parts}," if parts else ""
        return StorageUnavailable(f"{self._endpoint}{holding} did not answer within {seconds:.1f} s: {last}")


def _bytes_of(batch: Any) -> Bytes:
    """Return the bytes of a record batch, uint8 [N], without a copy. ``FormatError`` for another form."""
    if batch is None or batch.num_columns != 1 or batch.schema.field(0).type != pa.uint8():
        raise FormatError("reply: not one column of uint8")
    try:
        column = batch.column(0)
    except UnicodeDecodeError:
        raise FormatError("reply: a column whose name is not UTF-8") from None
    if column.null_count or column.offset or column.buffers()[1] is None:
        raise FormatError("reply: a column with nulls, an offset or no data")
    try:
        return np.frombuffer(column.buffers()[1], np.uint8, count=len(column))
    except ValueError:
        raise FormatError("reply: a column longer than its data") from None


def _size_of(metadata: Any) -> int | None:
    if metadata is None:
        return None
    if metadata.size != 8:
        raise FormatError(f"reply: {metadata.size} bytes of metadata, not the 8 of its size")
    return int.from_bytes(metadata.to_pybytes(), "little")


def _first_line(error: BaseException) -> str:
    """Return the informative part of pyarrow's message, which repeats itself and names internals."""
    text = str(error)
    for tail in (". gRPC client debug context", ". Detail: ", " Detail: Python exception"):
        text = text.partition(tail)[0]
    for head in ("with message: ", "failed to connect to all addresses; last error: ", "UNKNOWN: "):
        text = text.rpartition(head)[2]
    return " ".join(text.split())[:500] or type(error).__name__
