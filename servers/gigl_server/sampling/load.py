"""Load of a sampling service, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_server.sessions.channel import Channel


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLoad:
    """Load of one channel. Seconds and bytes are sums since it was opened."""

    job: bytes
    """Key of the job. It gives no access."""
    key: str
    name: str
    transport: str
    """``ring`` or ``network``."""
    batches: int
    nbytes: int
    queued: int
    """Requests that no thread has begun."""
    ready: int
    sampling_s: float
    """Of sampling threads, batches that are under way or were stopped included."""
    waiting_s: float
    idle_s: float
    """Seconds since its last request."""

    @classmethod
    def of(cls, channel: Channel, *, ready: int, now: float) -> ChannelLoad:
        """Return the load of a channel, which has ``ready`` frames. Call under the service's lock."""
        return cls(
            job=channel.job,
            key=channel.producer.key,
            name=channel.name,
            transport="network" if channel.ring is None else "ring",
            batches=channel.totals.batches,
            nbytes=channel.totals.nbytes,
            queued=len(channel.queue),
            ready=ready,
            sampling_s=channel.totals.sampling_s + sum(each.ran_s for each in channel.running),
            waiting_s=channel.totals.waiting_s,
            idle_s=now - channel.last_request,
        )

    @property
    def short_job(self) -> str:
        """First 8 hexadecimal digits of the key."""
        return self.job.hex()[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLoad:
    """Load of the service. Sums are since its start, over open and closed channels."""

    workers: int
    """Number of sampling threads."""
    busy: int
    jobs: int
    producers: int
    ready_bytes: int
    """Bytes of frames that are ready to be fetched."""
    frame_bytes: int
    """Bytes of frames that are being written, ready or being sent."""
    ring_bytes: int
    """Committed bytes of rings."""
    batches: int
    nbytes: int
    sampling_s: float
    waiting_s: float
    channels: tuple[ChannelLoad, ...]
