"""Control call under way: its caller, its headers, its message, and its one response."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from grpc import _server

from gigl_loader.rpc.checksums import CHECKSUM_HEADER, HEAD_CHECKSUM_HEADER, checksum_text
from gigl_loader.rpc.control import MEMBERSHIP_HEADER
from gigl_loader.rpc.control_errors import REFUSAL_HEADER, refusal_mark, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gigl_loader.rpc.refusals import Refusal
    from gigl_server.identity import Identity

__all__ = ["ControlCall", "Stream", "handler", "header_values"]

_LOGGER = logging.getLogger(__name__)


class Stream(NamedTuple):
    """A call as gRPC passes it to a non-blocking handler."""

    requests: Iterator[bytes]
    context: Any
    send: Callable[[bytes | None], None]


class ControlCall:
    """One call, which gets one response, from any thread. A waiting call holds no thread."""

    def __init__(
        self,
        method: str,
        caller: Identity,
        stream: Stream,
        refused: Callable[[ControlCall, Refusal], None],
        *,
        replied: Callable[[ControlCall, int], None] = lambda call, nbytes: None,
        trusted: bool = True,
    ) -> None:
        """``refused`` is called with each refusal, ``replied`` with the size of each reply."""
        self.method = method
        self.caller = caller
        self.trusted = trusted
        """The caller sent a valid token, or the service has none."""
        self.connection = str(stream.context.peer())
        """Address and port of the caller."""
        self.membership: Callable[[], int] = int
        """Returns the version of the membership that the response carries. 0: none."""
        self._trailers: tuple[tuple[str, str], ...] = ()
        self._requests, self._context, self._send = stream
        self._refused, self._replied = refused, replied
        self._lock = threading.Lock()
        self._responded = False
        self._ended = False
        self._gone: Callable[[], None] | None = None
        self._kept: object = None

    @property
    def responded(self) -> bool:
        """Whether a reply or a refusal was sent, or the call has ended."""
        return self._responded or self._ended

    @property
    def metadata(self) -> Sequence[Any]:
        """Headers of the call, as pairs."""
        return tuple(self._context.invocation_metadata() or ())

    def headers(self, name: str) -> list[str | bytes]:
        """Return all values of a header."""
        return header_values(self.metadata, name)

    def set_trailers(self, trailers: Sequence[tuple[str, str]]) -> None:
        """Send these pairs after the reply."""
        self._trailers = tuple(trailers)

    def read(self) -> bytes | None:
        """Wait for the next message. ``None``: the call ended or has a response. ``b""``: no more come."""
        try:
            data = next(self._requests, b"")
        except grpc.RpcError:
            return None
        return None if self.responded else bytes(data)

    def reply(self, message: Any) -> None:
        """Send the reply, a protobuf message. Does nothing after a response."""
        self.reply_bytes(message.SerializeToString(deterministic=True))

    def reply_bytes(self, data: bytes, *, keep: object = None) -> None:
        """Send the reply, a serialized message, with its checksum, and ``keep`` an object until it was sent.

        Does nothing after a response.
        """
        with self._lock:
            self._kept = None if self._ended or self._responded else keep
        if self._claim():
            self._tell_trailers((CHECKSUM_HEADER, checksum_text(data)))
            self._replied(self, len(data))
            self._finish(data)

    def stream(self, messages: Iterable[Any]) -> None:
        """Send messages and end the call. Waits until the caller has received each message."""
        for message in messages:
            if self.responded:
                return
            self._send(message.SerializeToString())
        if self._claim():
            self._finish(None)

    def refuse(self, refusal: Refusal) -> None:
        """End the call with the status and the mark of a refusal. Does nothing after a response."""
        if self._claim():
            text = _header_text(refusal.message)
            checked = bool(self.headers(HEAD_CHECKSUM_HEADER))
            self._tell_trailers((REFUSAL_HEADER, refusal_mark(refusal.kind, text, checked=checked)))
            self._context.set_code(status_of(refusal.kind))
            self._context.set_details(text)
            self._finish(None)
            self._refused(self, refusal)

    def cancel(self) -> None:
        """End the call at once. A status would wait for a caller that does not read."""
        self._context.cancel()

    def watch_end(self, callback: Callable[[], None]) -> bool:
        """Call ``callback`` on gRPC's thread when the call ends. Return ``False`` if it has ended."""
        return bool(self._context.add_callback(callback))

    def on_gone(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once if the call ends without a response; at once if it has ended."""
        with self._lock:
            if not self._ended:
                self._gone = callback
                return
        callback()

    def end(self) -> Callable[[], None] | None:
        """Record that gRPC ended the call. Return the callback of ``on_gone`` if there was no response."""
        with self._lock:
            self._ended = True
            gone, self._gone, self._kept = self._gone, None, None
        return None if self._responded else gone

    def _tell_trailers(self, *more: tuple[str, str]) -> None:
        version = self.membership()
        told = ((MEMBERSHIP_HEADER, str(version)),) if version else ()
        self._context.set_trailing_metadata((*self._trailers, *told, *more))

    def _claim(self) -> bool:
        """Claim the right to respond. Return ``False`` if a thread has claimed it before."""
        with self._lock:
            if self._responded:
                return False
            self._responded = True
            self._gone = None
            return True

    def _finish(self, data: bytes | None) -> None:
        try:
            _finish(self._context, self._send, data)
        except Exception:  # It must not end a sampling thread.
            _LOGGER.exception("an answer could not be sent")


def handler(begin: Callable[[Stream], None]) -> Any:
    """Return gRPC's handler of a call, which may return before the call has a response.

    The handler is that of streams: for a unary call, gRPC would read the message before it calls the handler,
    and hold a thread until the response. Callers see no difference.
    """

    def behavior(requests: Any, context: Any, send: Any) -> None:
        begin(Stream(requests, context, send))

    behavior.experimental_non_blocking = True  # type: ignore[attr-defined]
    return grpc.stream_stream_rpc_method_handler(behavior)


def header_values(metadata: Any, name: str) -> list[str | bytes]:
    """Return all values of a header."""
    return [value for key, value in metadata or () if key == name]


def _finish(context: Any, send: Callable[[bytes | None], None], data: bytes | None) -> None:
    """Send reply and status in one step, without waiting for the caller to read them.

    The public callback of a stream waits until a message is written: a caller with a flow-control window of 0
    would hold a sampling thread. gRPC itself ends unary calls by ``_status``, which does not wait.
    """
    finish = getattr(_server, "_status", None)
    if finish is not None:
        finish(context._rpc_event, context._state, data)
        return
    if data is not None:
        send(data)
    send(None)


def _header_text(message: str) -> str:
    """Return a message cut to fit HTTP/2 headers, which hold 8 KiB in total."""
    return message[:1_000].encode("ascii", "backslashreplace").decode()[:4_000]
