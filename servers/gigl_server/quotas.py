"""Quotas: the part of a shared resource that one owner may have, and the limits of all.

``Quota`` counts things up to fixed numbers. ``has_quota`` has dynamic thresholds (Choudhury and Hahne,
IEEE/ACM Transactions on Networking 6(2), 1998): an owner may take more while it has at most 8 times what is
free. A single owner gets up to 8/9 of a limit, two get 8/17 each, n get 8/(8 n + 1) each: something always
stays free for a new owner. Owners are identities, which cannot be forged as jobs and channels can.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from gigl_loader.resources import memory_bytes
from gigl_server.access import LOCAL

if TYPE_CHECKING:
    from gigl_server.access import Identity

_FACTOR = 8


def has_quota(owner: Identity, *, own: int, used: int, limit: int, more: int = 1) -> bool:
    """Return whether ``owner``, which has ``own`` of the ``used``, may take ``more`` of ``limit``.

    A call that did not come through a port (``LOCAL``) is bounded by the limit alone.
    """
    free = limit - used - more
    return free >= 0 and (owner == LOCAL or own <= _FACTOR * free)


class Quota:
    """Counter of what each caller holds, with limits. Thread-safe."""

    def __init__(self, what: str, most: int, most_per_caller: int) -> None:
        """``what`` is the plural of the thing counted, for messages."""
        self._what = what
        self._most, self._most_per_caller = most, most_per_caller
        self._lock = threading.Lock()
        self._callers: Counter[Identity] = Counter()
        self._all = 0

    @property
    def reason(self) -> str:
        """Reason of a refusal, as text."""
        return f"too many {self._what}: {self._most} in all, {self._most_per_caller} of one caller"

    def enter(self, caller: Identity) -> bool:
        """Count one more. Return ``False``, without counting, where that would exceed a limit."""
        with self._lock:
            if self._all >= self._most or self._callers[caller] >= self._most_per_caller:
                return False
            self._all += 1
            self._callers[caller] += 1
            return True

    def leave(self, caller: Identity) -> None:
        """Count one less for a caller."""
        with self._lock:
            self._all -= 1
            self._callers[caller] -= 1
            if not self._callers[caller]:
                del self._callers[caller]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits beyond which a call is refused. A refusal changes nothing for other callers."""

    lease_s: float = 60.0
    """Seconds without a call that names a channel, after which the channel is reclaimed.

    The same applies to a producer without channels."""
    jobs: int = 1024
    producers: int = 4096
    producers_per_job: int = 256
    channels: int = 4096
    """Channels of all jobs. An idle one costs about 3 kB, and its ring a file descriptor."""
    channels_per_job: int = 1024
    credit: int = 64
    """Open requests of one channel plus frames that it has not fetched."""
    share: int = 64
    """Batches of one channel in a round."""
    batch_seeds: int = 1 << 20
    batch_edges: int = 1 << 26
    """Edges of a batch over all hops and types. Less where ``memory`` is small: see ``scratch.py``.

    As many candidates may its random walks be expected to draw."""
    batch_bytes: int = 2 << 30
    """Size of the frame of one batch."""
    batch_s: float = 60.0
    """Seconds of a sampling thread that a batch may take. The grant of a token may have another number."""
    request_bytes: int = 1 << 30
    """Memory for the seeds of all open requests."""
    ring_bytes: int = 16 << 40
    """Address space of all rings, of the 128 TiB of a process; a loader takes 4 GB. Memory is committed, and
    counts in ``memory``, when a slot is written for the first time."""
    memory: int = field(default_factory=lambda: memory_bytes() * 3 // 4)
    """Bytes of everything that sampling takes: a quarter for the scratch of samplers, at most half for
    ``frame_bytes``, the rest for slots of rings. By default three quarters of the machine's memory."""
    frame_bytes: int = 4 << 30
    """Memory for frames that go over the network: written, ready and being sent. At most half of ``memory``.
    A begun batch is always finished, so that each sampling thread may exceed the limit by one frame."""
    frame_s: float = 30.0
    """Seconds after which an unfetched frame is dropped."""
    calls: int = 8192
    """Control calls under way at once."""
    message_bytes: int = 32 << 20
    plan_bytes: int = 4 << 20
    """Of which the weights of negatives take most: 5.4 bytes a node."""
    name_length: int = 256

    def __post_init__(self) -> None:
        for each in fields(self):
            if not getattr(self, each.name) > 0:
                raise ValueError(f"{each.name} must be positive, got {getattr(self, each.name)}")

    @property
    def scratch_memory(self) -> int:
        """Memory of samplers: half for those in use, half for idle ones."""
        return self.memory // 4

    @property
    def frame_memory(self) -> int:
        """Memory of frames that go over the network."""
        return min(self.frame_bytes, self.memory // 2)

    @property
    def ring_memory(self) -> int:
        """Memory of written slots of rings."""
        return self.memory - self.scratch_memory - self.frame_memory
