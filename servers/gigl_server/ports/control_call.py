"""Control call under way: its caller, headers, message (read in turns among callers) and one response."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
from grpc import _server

from gigl_loader.rpc.checksums import CHECKSUM_HEADER, HEAD_CHECKSUM_HEADER, checksum_text
from gigl_loader.rpc.control import MEMBERSHIP_HEADER, REFUSAL_HEADER, refusal_mark, status_of
from gigl_loader.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from gigl_loader.rpc.refusals import Refusal
    from gigl_server.admission import Identity

_LOGGER = logging.getLogger(__name__)


class Stream(NamedTuple):
    """A call as gRPC passes it to a non-blocking handler."""

    requests: Iterator[bytes]
    context: Any
    send: Callable[[bytes | None], None]


class ControlCall:
    """One call, which gets one response, from any thread. Until its message is read, it holds no thread."""

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
        """Send the reply, a protobuf message, with its checksum. Does nothing after a response."""
        if self._claim():
            data = message.SerializeToString(deterministic=True)
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

    def end(self) -> None:
        """Record that gRPC ended the call."""
        self._ended = True

    def _tell_trailers(self, *more: tuple[str, str]) -> None:
        version = self.membership()
        told = ((MEMBERSHIP_HEADER, str(version)),) if version else ()
        self._context.set_trailing_metadata((*self._trailers, *told, *more))

    def _claim(self) -> bool:
        """Take the right to respond. Return ``False`` if another thread has it."""
        with self._lock:
            if self._responded:
                return False
            self._responded = True
            return True

    def _finish(self, data: bytes | None) -> None:
        try:
            _finish(self._context, self._send, data)
        except Exception:  # It must not end a thread of the pool.
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
    would hold a thread of the pool. gRPC itself ends unary calls by ``_status``, which does not wait.
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


_TICK_S = 0.05
_IDLE_TICKS = 40
_UNREAD_S = 1.0
_SLOW_S = 30.0
_MAX_SLOW = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that a message may take, and turns that one caller may have."""

    alone_s: float = 20.0
    """Seconds for a message while no other call waits for a turn."""
    others_wait_s: float = 2.0
    """Seconds while another call waits."""
    prompt_s: float = 0.5
    """Seconds while another call waits, for turns of a caller beyond half of its share. Messages arrive with
    the headers of their calls, except those of megabytes."""
    turns_per_caller: int = 8


@dataclass(slots=True, eq=False)
class _Read:
    """A call that has a turn."""

    call: ControlCall
    then: Callable[[bytes], None]
    began: float = 0.0
    refused: float = 0.0
    """When the call was refused as late; 0: it was not."""


@dataclass(slots=True, eq=False)
class _Caller:
    """Calls of one caller. Its connections take turns."""

    queues: OrderedDict[str, deque[_Read]] = field(default_factory=OrderedDict)
    reads: dict[_Read, None] = field(default_factory=dict)
    """Messages that are being read, oldest first."""
    turns: int = 0
    """Turns taken: messages that are being read or handled."""


class MessageReader:
    """Reads the message of each call and handles it, on the threads that bring calls.

    Callers take turns, and so do the connections of a caller. A connection whose messages were late waits
    behind the other connections of its caller. A call that waits for its turn holds no thread.
    """

    def __init__(
        self, turns: int, refuse_late: Callable[[ControlCall, bool], None], patience: Patience | None = None
    ) -> None:
        """At most ``turns`` messages are in memory. ``refuse_late(call, others_wait)`` ends a call whose
        message is late."""
        self._num_turns = turns
        self._refuse_late = refuse_late
        self._patience = patience or Patience()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._callers: OrderedDict[Identity, _Caller] = OrderedDict()
        self._free = turns
        self._queued = 0
        self._slow: OrderedDict[str, float] = OrderedDict()
        self._closed = False
        self._watching = False
        self._watcher = start_thread(threading.Thread(target=self._watch, name="late messages", daemon=True))

    @property
    def idle(self) -> bool:
        """Whether no message is being read or waits to be read."""
        return not self._callers

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that live until ``close``."""
        return (self._watcher,)

    def read(self, call: ControlCall, then: Callable[[bytes], None]) -> None:
        """Read the message of ``call`` and pass it to ``then``: here, or later on another thread.

        ``then`` is not called if the call ends first.
        """
        with self._lock:
            caller = self._callers.setdefault(call.caller, _Caller())
            caller.queues.setdefault(call.connection, deque()).append(_Read(call, then))
            self._queued += 1
        while (read := self._next()) is not None:
            try:
                self._take(read)
            finally:
                self._give_back(read)
            del read  # Frees the call: the next message may be long in coming.

    def close(self) -> None:
        """End the thread that watches for late messages. Closing twice is fine."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        self._watcher.join(_UNREAD_S)

    def _take(self, read: _Read) -> None:
        try:
            data = read.call.read()
        finally:
            with self._lock:
                self._callers[read.call.caller].reads.pop(read, None)
        if data is not None:
            read.then(data)

    def _next(self) -> _Read | None:
        """Take a turn for the next call. ``None`` where no call may have one now."""
        with self._lock:
            if not (self._free and self._queued):
                return None
            share = self._share()
            for identity, caller in self._callers.items():
                if caller.queues and caller.turns < share:
                    read = self._begin(caller)
                    self._callers.move_to_end(identity)
                    return read
            return None

    def _begin(self, caller: _Caller) -> _Read:
        now = time.monotonic()
        self._forget(now)
        name = next((each for each in caller.queues if each not in self._slow), next(iter(caller.queues)))
        queue = caller.queues.pop(name)
        read = queue.popleft()
        if queue:
            caller.queues[name] = queue  # Behind the caller's other connections.
        self._queued -= 1
        self._free -= 1
        caller.turns += 1
        read.began = now
        caller.reads[read] = None
        self._watch_on()
        return read

    def _give_back(self, read: _Read) -> None:
        with self._lock:
            self._free += 1
            caller = self._callers[read.call.caller]
            caller.turns -= 1
            if not caller.turns and not caller.queues:
                del self._callers[read.call.caller]

    def _share(self) -> int:
        """Return the number of turns of a caller: one share stays free for a new caller."""
        return max(min(self._patience.turns_per_caller, self._num_turns // (len(self._callers) + 1)), 1)

    def _watch_on(self) -> None:
        if not self._watching:
            self._changed.notify_all()

    def _watch(self) -> None:
        idle_ticks = 0
        while True:
            with self._lock:
                idle_ticks = 0 if self._callers else idle_ticks + 1
                self._watching = idle_ticks < _IDLE_TICKS  # Else each call would wake this thread.
                self._changed.wait(_TICK_S if self._watching else None)
                if self._closed:
                    return
                late = list(self._late(time.monotonic()))
            for end in late:
                end()

    def _late(self, now: float) -> Iterator[Callable[[], None]]:
        """Yield a function that ends a call, for each call whose time is over."""
        share = self._share()
        for caller in self._callers.values():
            waits = bool(caller.queues) or (not self._free and self._queued > 0)
            for number, read in enumerate(caller.reads):
                if read.refused:
                    if now - read.refused >= _UNREAD_S:
                        read.refused = now
                        yield read.call.cancel
                elif now - read.began >= self._time_s(waits, number, share):
                    read.refused = now
                    self._mark(read.call.connection, now)
                    yield partial(self._refuse_late, read.call, waits)

    def _time_s(self, waits: bool, number: int, share: int) -> float:
        """Return the seconds for a caller's message number ``number``, by age."""
        if not waits:
            return self._patience.alone_s
        return self._patience.others_wait_s if number < share // 2 else self._patience.prompt_s

    def _mark(self, connection: str, now: float) -> None:
        self._slow.pop(connection, None)
        self._slow[connection] = now + _SLOW_S
        if len(self._slow) > _MAX_SLOW:
            self._slow.popitem(last=False)

    def _forget(self, now: float) -> None:
        while self._slow and next(iter(self._slow.values())) < now:
            self._slow.popitem(last=False)
