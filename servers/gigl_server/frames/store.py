"""Store of frames that are ready to be fetched from the data port, or being sent, and their memory."""

from __future__ import annotations

import secrets
import threading
import time
import weakref
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.rpc.graph_requests import HANDLE_BYTES, encode_frame_request
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.admission import LOCAL, Identity, has_quota
from gigl_server.counters import Counters

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.arrays import Bytes

_SMALLEST = 1 << 16
_STEPS = 8  # Sizes between two powers of 2. Frames of one plan differ by a few percent, and so share a size.
_MAX_WASTE = 2  # A buffer up to so many times as large as needed is used instead of a new one.
_REQUEST_BYTES = len(encode_frame_request(bytes(HANDLE_BYTES)))
_MAX_SENT = 256
_MAX_SENT_TO_A_JOB = 64
_SENT_SHARE = 4  # A quarter of the memory for one job's frames in transit: a stalled reader holds them.


class BufferPool:
    """Lends buffers of about the requested size. Thread-safe.

    A buffer is idle again when the last array made from it is collected. Each page costs a fault when first
    touched, several times the price of writing it: so idle buffers are kept, up to a limit.
    """

    def __init__(self, nbytes: int) -> None:
        """Keep idle buffers while idle and lent buffers together have at most ``nbytes``."""
        self.nbytes = nbytes
        self._lock = threading.Lock()
        self._idle: list[Bytes] = []  # Oldest first.
        # A queue without the lock: garbage collection may run a finalizer in the thread that holds the lock.
        self._returned: deque[Bytes] = deque()
        self._lent = 0
        self._held = 0

    @property
    def lent(self) -> int:
        """Bytes of lent buffers."""
        with self._lock:
            self._take_back()
            return self._lent

    @property
    def held(self) -> int:
        """Bytes of all buffers, idle ones included."""
        with self._lock:
            self._take_back()
            return self._held

    @property
    def full(self) -> bool:
        return self.lent >= self.nbytes

    def take(self, nbytes: int) -> Bytes:
        """Return memory, uint8 [nbytes]. Every array made from it keeps the buffer lent."""
        with self._lock:
            self._take_back()
            memory = self._fitting(nbytes)
            if memory is None:
                size = buffer_bytes(nbytes)
                self._make_room(size)
                memory = np.empty(size, np.uint8)
                self._held += size
            self._lent += len(memory)
        lease = _Lease(memory, nbytes)
        weakref.finalize(lease, self._returned.append, memory).atexit = False
        return np.asarray(lease)

    def trim(self) -> None:
        """Free the idle buffer that was used least recently."""
        with self._lock:
            self._take_back()
            if self._idle:
                self._held -= len(self._idle.pop(0))

    def _take_back(self) -> None:
        while self._returned:
            memory = self._returned.popleft()
            self._lent -= len(memory)
            self._idle.append(memory)
        self._make_room(0)

    def _fitting(self, nbytes: int) -> Bytes | None:
        """Take the smallest idle buffer that is large enough, within ``_MAX_WASTE``."""
        fit = [each for each in self._idle if nbytes <= len(each) <= max(_MAX_WASTE * nbytes, _SMALLEST)]
        if not fit:
            return None
        best = min(fit, key=len)
        self._idle = [each for each in self._idle if each is not best]
        return best

    def _make_room(self, nbytes: int) -> None:
        while self._idle and self._held + nbytes > self.nbytes:
            self._held -= len(self._idle.pop(0))


class _Lease:
    """Base object of every array of some memory. NumPy keeps it alive: its finalizer runs after the last."""

    __slots__ = ("__array_interface__", "__weakref__", "memory")

    def __init__(self, memory: Bytes, nbytes: int) -> None:
        self.memory = memory
        self.__array_interface__: dict[str, Any] = memory[:nbytes].__array_interface__


def buffer_bytes(nbytes: int) -> int:
    """Return the size of a buffer for so many bytes: rounded up to an eighth of a power of 2."""
    step = max(1 << max(nbytes - 1, 1).bit_length() - 1, _SMALLEST) // _STEPS
    return max(-(-nbytes // step) * step, _SMALLEST)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Ready:
    memory: Bytes
    job: bytes
    channel: bytes
    fence: int
    since: float

    @property
    def nbytes(self) -> int:
        return len(self.memory)


class FrameStore:
    """Keeps each frame until its job fetches it, once. Thread-safe.

    A fetched frame counts for its job until it was sent, that is, until nothing refers to its memory.
    """

    def __init__(
        self, nbytes: int, clock: Callable[[], float] = time.monotonic, counters: Counters | None = None
    ) -> None:
        """``nbytes`` is the memory of all frames. Frames in transit may take a quarter of it for one job, and
        the quota of one owner. ``counters`` count frames that are fetched, and that are dropped before."""
        self._nbytes = nbytes
        self._most_bytes_to_a_job = nbytes // _SENT_SHARE
        self._clock = clock
        self._counters = counters or Counters()
        self._lock = threading.Lock()
        self._frames: dict[bytes, _Ready] = {}  # Oldest first.
        self._channels: dict[bytes, OrderedDict[bytes, _Ready]] = {}
        self._fetched: dict[bytes, float] = {}  # Time of the last fetch, by channel with frames.
        self._ready_bytes: Counter[bytes] = Counter()
        self._sent_bytes: Counter[bytes] = Counter()
        self._sent: Counter[bytes] = Counter()
        self._owners: dict[bytes, Identity] = {}  # Owners of the jobs that have frames here.
        # A queue without the lock: garbage collection may run a finalizer in the thread that holds the lock.
        self._ended: deque[tuple[bytes, int]] = deque()

    def put(self, memory: Bytes, *, job: bytes, channel: bytes, fence: int, owner: Identity = LOCAL) -> bytes:
        """Keep a frame, uint8 [nbytes], and return its handle: 16 random bytes."""
        handle = secrets.token_bytes(HANDLE_BYTES)
        ready = _Ready(memory=memory, job=job, channel=channel, fence=fence, since=self._clock())
        with self._lock:
            self._frames[handle] = ready
            self._owners[job] = owner
            self._channels.setdefault(channel, OrderedDict())[handle] = ready
            self._ready_bytes[job] += ready.nbytes
        return handle

    def take(self, handle: bytes, job: bytes) -> Bytes | None:
        """Return a frame, once. ``None`` both for an unknown handle and for a frame of another job.

        The frame counts as being sent until nothing refers to the array. ``Refusal`` where the job or its
        owner has too much in transit: the frame then stays here.
        """
        with self._lock:
            ready = self._frames.get(handle)
            if ready is None or ready.job != job:
                return None
            self._check_sent(job, ready.nbytes)
            self._sent[job] += 1  # Before ``_remove``, which forgets a job without frames.
            self._sent_bytes[job] += ready.nbytes
            self._remove(handle, ready)
            if ready.channel in self._channels:
                self._fetched[ready.channel] = self._clock()
        self._counters.add_call("data", "frame", bytes_in=_REQUEST_BYTES, bytes_out=ready.nbytes)
        return self._in_transit(ready.memory, job)

    def send(self, memory: Bytes, *, job: bytes, owner: Identity = LOCAL) -> Bytes | None:
        """Return a frame, uint8 [nbytes], that is sent at once. It counts as being sent, as after ``take``.

        ``None`` where the job or its owner has too much in transit.
        """
        with self._lock:
            self._owners[job] = owner
            try:
                self._check_sent(job, len(memory))
            except Refusal:
                self._forget_owner(job)
                return None
            self._sent[job] += 1
            self._sent_bytes[job] += len(memory)
        return self._in_transit(memory, job)

    def _in_transit(self, memory: Bytes, job: bytes) -> Bytes:
        sending = _Lease(memory, len(memory))
        weakref.finalize(sending, self._ended.append, (job, len(memory))).atexit = False
        return np.asarray(sending)

    @property
    def nbytes(self) -> int:
        """Bytes of all ready frames."""
        with self._lock:
            return self._ready_bytes.total()

    @property
    def held(self) -> int:
        """Bytes of all jobs, ready and in transit. A frame of several jobs counts for each."""
        with self._lock:
            self._settle()
            return self._ready_bytes.total() + self._sent_bytes.total()

    @property
    def sent(self) -> int:
        """Number of frames in transit."""
        with self._lock:
            self._settle()
            return self._sent.total()

    def held_bytes(self) -> Counter[bytes]:
        """Return the bytes of each job, ready and in transit."""
        with self._lock:
            self._settle()
            return self._ready_bytes + self._sent_bytes

    def held_by_owner(self) -> Counter[tuple[Identity, bytes]]:
        """Return the bytes of each job by owner and job, ready and in transit."""
        held = self.held_bytes()
        with self._lock:
            return Counter({(self._owners.get(job, LOCAL), job): nbytes for job, nbytes in held.items()})

    def __len__(self) -> int:
        with self._lock:
            return len(self._frames)

    def held_by(self, channel: bytes) -> int:
        """Return the number of ready frames of a channel."""
        with self._lock:
            return len(self._channels.get(channel, ()))

    def drop(self, handle: bytes) -> None:
        """Drop a frame, if it is here."""
        with self._lock:
            ready = self._frames.get(handle)
            if ready is not None:
                self._remove(handle, ready)

    def drop_channel(self, channel: bytes, *, before_fence: int | None = None) -> None:
        """Drop the frames of a channel, or only those from before a fence."""
        with self._lock:
            for handle, ready in list(self._channels.get(channel, {}).items()):
                if before_fence is None or ready.fence < before_fence:
                    self._remove(handle, ready)

    def drop_forgotten(self, than: float) -> int:
        """Drop frames from before ``than`` of channels that have fetched none since. Return their number.

        A channel that still fetches is slow, not gone: its frames would have to be sampled again.
        """
        with self._lock:
            old = [
                (handle, ready)
                for handle, ready in self._frames.items()
                if max(ready.since, self._fetched.get(ready.channel, 0.0)) < than
            ]
            for handle, ready in old:
                self._remove(handle, ready)
        self._counters.add(dropped_frames=len(old))
        return len(old)

    def drop_one(self, job: bytes, than: float) -> bool:
        """Drop a job's oldest frame, if it is from before ``than``. Return whether it was."""
        with self._lock:
            oldest = next(((handle, each) for handle, each in self._frames.items() if each.job == job), None)
            if oldest is None or oldest[1].since >= than:
                return False
            self._remove(*oldest)
        self._counters.add(dropped_frames=1)
        return True

    def clear(self) -> None:
        """Drop all ready frames."""
        with self._lock:
            for handle, ready in list(self._frames.items()):
                self._remove(handle, ready)

    def _check_sent(self, job: bytes, nbytes: int) -> None:
        self._settle()
        if self._sent.total() >= _MAX_SENT:
            raise Refusal(RefusalKind.BUSY, f"{_MAX_SENT} frames are on their way")
        if self._sent[job] >= _MAX_SENT_TO_A_JOB:
            raise Refusal(RefusalKind.BUSY, f"{_MAX_SENT_TO_A_JOB} frames of this job are on their way")
        under_way = self._sent_bytes[job]
        if under_way and under_way + nbytes > self._most_bytes_to_a_job:
            raise Refusal(RefusalKind.BUSY, f"{under_way / 1e6:.1f} MB of this job are on their way")
        self._check_owner(self._owners.get(job, LOCAL), nbytes)

    def _check_owner(self, owner: Identity, nbytes: int) -> None:
        sent = {job: count for job, count in self._sent.items() if self._owners.get(job, LOCAL) == owner}
        if owner == LOCAL or not sent:
            return
        under_way = sum(self._sent_bytes[job] for job in sent)
        count = sum(sent.values())
        if not has_quota(owner, own=count, used=self._sent.total(), limit=_MAX_SENT):
            raise Refusal(RefusalKind.BUSY, f"{count} frames of {owner} are on their way")
        used = self._sent_bytes.total()
        if not has_quota(owner, own=under_way, used=used, limit=self._nbytes, more=nbytes):
            raise Refusal(RefusalKind.BUSY, f"{under_way / 1e6:.1f} MB of {owner} are on their way")

    def _settle(self) -> None:
        while self._ended:
            job, nbytes = self._ended.popleft()
            self._sent[job] -= 1
            self._sent_bytes[job] -= nbytes
            if not self._sent[job]:
                del self._sent[job], self._sent_bytes[job]
                self._forget_owner(job)

    def _forget_owner(self, job: bytes) -> None:
        if not self._sent[job] and not self._ready_bytes[job]:
            self._owners.pop(job, None)

    def _remove(self, handle: bytes, ready: _Ready) -> None:
        del self._frames[handle]
        del self._channels[ready.channel][handle]
        if not self._channels[ready.channel]:
            del self._channels[ready.channel]
            self._fetched.pop(ready.channel, None)
        self._ready_bytes[ready.job] -= ready.nbytes
        if not self._ready_bytes[ready.job]:
            del self._ready_bytes[ready.job]
            self._forget_owner(ready.job)
