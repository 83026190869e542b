"""Control call under way: its caller, headers, message and reply, and the time that it may take."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from gigl_loader.rpc.checksums import CHECKSUM_HEADER, HEAD_CHECKSUM_HEADER, checksum_text
from gigl_loader.rpc.control import MEMBERSHIP_HEADER, REFUSAL_HEADER, refusal_mark, status_of
from gigl_loader.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_loader.rpc.refusals import Refusal
    from gigl_server.admission import Identity

_TICK_S = 0.25
_JOIN_S = 1.0


class ControlCall:
    """One call, on a thread of the server's pool."""

    def __init__(self, method: str, caller: Identity, requests: Iterator[bytes], context: Any) -> None:
        """``requests`` and ``context`` are what gRPC passes to a handler of a stream of messages."""
        self.method = method
        self.caller = caller
        self.context: grpc.ServicerContext = context
        self.connection = str(context.peer())
        """Address and port of the caller."""
        self.membership: Callable[[], int] = int
        """Returns the version of the membership that the response carries. 0: none."""
        self._requests = requests
        self._trailers: tuple[tuple[str, str], ...] = ()

    @property
    def metadata(self) -> Sequence[Any]:
        """Headers of the call, as pairs."""
        return tuple(self.context.invocation_metadata() or ())

    def headers(self, name: str) -> list[str | bytes]:
        """Return all values of a header."""
        return [value for key, value in self.metadata if key == name]

    def set_trailers(self, trailers: Sequence[tuple[str, str]]) -> None:
        """Send these pairs after the reply."""
        self._trailers = tuple(trailers)

    def read(self) -> bytes:
        """Wait for the next message. Empty: no more come. ``grpc.RpcError``: the call ended."""
        return bytes(next(self._requests, b""))

    def reply(self, message: Any) -> bytes:
        """Return the bytes of the reply, a protobuf message. Their checksum follows in the trailers."""
        data = bytes(message.SerializeToString(deterministic=True))
        self._tell_trailers((CHECKSUM_HEADER, checksum_text(data)))
        return data

    def refuse(self, refusal: Refusal) -> NoReturn:
        """End the call with the status and the mark of a refusal. Raises what ends gRPC's handler."""
        text = _header_text(refusal.message)
        checked = bool(self.headers(HEAD_CHECKSUM_HEADER))
        self._tell_trailers((REFUSAL_HEADER, refusal_mark(refusal.kind, text, checked=checked)))
        self.context.abort(status_of(refusal.kind), text)
        raise AssertionError

    def _tell_trailers(self, *more: tuple[str, str]) -> None:
        version = self.membership()
        told = ((MEMBERSHIP_HEADER, str(version)),) if version else ()
        self.context.set_trailing_metadata((*self._trailers, *told, *more))


def _header_text(message: str) -> str:
    """Return a message cut to fit HTTP/2 headers, which hold 8 KiB in total."""
    return message[:1_000].encode("ascii", "backslashreplace").decode()[:4_000]


class CallTimes:
    """Cancels calls that have not ended in their time: gRPC's server has no limit of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ends: dict[grpc.ServicerContext, float] = {}
        self._closed = threading.Event()
        self.thread = start_thread(threading.Thread(target=self._watch, name="control times", daemon=True))

    def limit(self, call: ControlCall, seconds: float, then: Callable[[], object]) -> None:
        """Cancel a call whose reply was not read in ``seconds``. ``then`` runs at its end."""
        context = call.context

        def end() -> None:
            with self._lock:
                self._ends.pop(context, None)
            then()

        with self._lock:
            self._ends[context] = time.monotonic() + seconds
        if not context.add_callback(end):
            end()

    def close(self) -> None:
        """End the thread. Closing twice is fine."""
        self._closed.set()
        self.thread.join(_JOIN_S)

    def _watch(self) -> None:
        while not self._closed.wait(_TICK_S):
            now = time.monotonic()
            with self._lock:
                late = [context for context, end in self._ends.items() if end <= now]
            for context in late:
                context.cancel()
