"""Reader of the messages of control calls: a few at once, with turns among callers."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gigl_server.identity import Identity
    from gigl_server.ports.control_call import ControlCall

__all__ = ["MessageReader", "Patience"]

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
        self._watcher: threading.Thread | None = None
        self._watching = False

    @property
    def idle(self) -> bool:
        """Whether no message is being read or waits to be read."""
        return not self._callers

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Threads that live until ``close``."""
        return () if self._watcher is None else (self._watcher,)

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
        if self._watcher is not None:
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
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="late messages", daemon=True)
            self._watcher.start()
        elif not self._watching:
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
