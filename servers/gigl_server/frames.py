"""Frames that lie ready to be fetched from the data port."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_loader.channel.slots import Bytes

__all__ = ["FrameShelf"]

_HANDLE_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ready:
    memory: Bytes
    nbytes: int
    job: bytes
    channel: bytes
    fence: int
    since: float


class FrameShelf:
    """Keeps each frame until it is fetched, once, by the job that it is for. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames: dict[bytes, _Ready] = {}
        self._channels: dict[bytes, OrderedDict[bytes, _Ready]] = {}
        self._nbytes = 0

    def put(self, memory: Bytes, nbytes: int, *, job: bytes, channel: bytes, fence: int, now: float) -> bytes:
        """Keep the first ``nbytes`` of ``memory`` and return the handle: 16 random bytes."""
        handle = secrets.token_bytes(_HANDLE_BYTES)
        ready = _Ready(memory=memory, nbytes=nbytes, job=job, channel=channel, fence=fence, since=now)
        with self._lock:
            self._frames[handle] = ready
            self._channels.setdefault(channel, OrderedDict())[handle] = ready
            self._nbytes += nbytes
        return handle

    def take(self, handle: bytes, job: bytes) -> tuple[Bytes, int] | None:
        """Hand a frame out, once. ``None`` if it is not there, or not this job's: which, is not told."""
        with self._lock:
            ready = self._frames.get(handle)
            if ready is None or ready.job != job:
                return None
            self._remove(handle, ready)
        return ready.memory, ready.nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of all frames here."""
        with self._lock:
            return self._nbytes

    def __len__(self) -> int:
        with self._lock:
            return len(self._frames)

    def held_by(self, channel: bytes) -> int:
        """Return how many frames of a channel are here."""
        with self._lock:
            return len(self._channels.get(channel, ()))

    def drop(self, handle: bytes) -> None:
        """Forget a frame, if it is here."""
        with self._lock:
            ready = self._frames.get(handle)
            if ready is not None:
                self._remove(handle, ready)

    def drop_channel(self, channel: bytes, *, before_fence: int | None = None) -> None:
        """Forget the frames of a channel, or those of epochs that were left."""
        with self._lock:
            for handle, ready in list(self._channels.get(channel, {}).items()):
                if before_fence is None or ready.fence < before_fence:
                    self._remove(handle, ready)

    def drop_older(self, than: float) -> int:
        """Forget the frames that were put here before a time. Return how many."""
        with self._lock:
            old = [(handle, ready) for handle, ready in self._frames.items() if ready.since < than]
            for handle, ready in old:
                self._remove(handle, ready)
        return len(old)

    def drop_one(self) -> bytes | None:
        """Forget the oldest frame of the channel that has most bytes here, and return that channel."""
        with self._lock:
            if not self._channels:
                return None
            channel = max(self._channels, key=self._bytes_of)
            handle, ready = next(iter(self._channels[channel].items()))
            self._remove(handle, ready)
        return channel

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._frames.clear()
            self._channels.clear()
            self._nbytes = 0

    def _bytes_of(self, channel: bytes) -> int:
        return sum(ready.nbytes for ready in self._channels[channel].values())

    def _remove(self, handle: bytes, ready: _Ready) -> None:
        del self._frames[handle]
        del self._channels[ready.channel][handle]
        if not self._channels[ready.channel]:
            del self._channels[ready.channel]
        self._nbytes -= ready.nbytes
