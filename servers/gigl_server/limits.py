"""What clients may take of a storage server."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Beyond each of them a call is refused. The server stays as it was and goes on with others."""

    lease_s: float = 60.0
    """Seconds without a call that names a channel after which it is reclaimed.

    So is a producer without channels."""
    jobs: int = 1024
    producers: int = 4096
    producers_per_job: int = 256
    channels: int = 4096
    """Of all jobs. An idle one costs about 3 kB, and its ring a file descriptor."""
    channels_per_job: int = 1024
    credit: int = 64
    """Asks that one channel may have open, and frames that it has not fetched."""
    share: int = 64
    """Turns that one channel may have in a round."""
    batch_seeds: int = 1 << 20
    ask_bytes: int = 1 << 30
    """Memory for the seeds of all asks that wait or are worked on."""
    ring_bytes: int = 16 << 40
    """Address space of all rings, of 128 TiB that a process has; a loader takes 4 GB. Memory is committed
    when a slot is written for the first time."""
    frame_bytes: int = 4 << 30
    """Memory for frames that go over the network: written, ready and being sent. A batch that was begun
    is finished, so that each sampling thread may exceed it by one frame."""
    frame_s: float = 30.0
    """Seconds after which a frame that nobody fetched is dropped."""
    samplers: int = 32
    """Idle samplers that are kept with their scratch memory: about 30 MB each at a million edges a batch."""
    calls: int = 8192
    """Control calls under way at once."""
    message_bytes: int = 32 << 20
    plan_bytes: int = 1 << 20
    name_length: int = 256

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name} must be positive, got {getattr(self, field.name)}")
