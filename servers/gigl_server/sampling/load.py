"""Load of a sampling service, in numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gigl_server.sessions.channel import Channel

__all__ = ["ChannelLoad", "ServiceLoad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLoad:
    """One channel. Seconds and bytes are sums since it was opened."""

    job: bytes
    """Its key, which opens nothing."""
    key: str
    name: str
    transport: str
    """``ring`` or ``flight``."""
    batches: int
    nbytes: int
    queued: int
    """Asks that nobody began."""
    ready: int
    sampling_s: float
    waiting_s: float
    idle_s: float
    """Since its last ask."""

    @classmethod
    def of(cls, channel: Channel, *, ready: int, now: float) -> ChannelLoad:
        """Read a channel, under its lock. ``ready`` frames of it are to be fetched."""
        return cls(
            job=channel.job,
            key=channel.producer.key,
            name=channel.name,
            transport="flight" if channel.ring is None else "ring",
            batches=channel.tally.batches,
            nbytes=channel.tally.nbytes,
            queued=len(channel.queue),
            ready=ready,
            sampling_s=channel.tally.sampling_s,
            waiting_s=channel.tally.waiting_s,
            idle_s=now - channel.last_request,
        )

    @property
    def short_job(self) -> str:
        """Tells jobs apart."""
        return self.job.hex()[:8]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLoad:
    """The service. Sums are since it started, over channels open and closed."""

    workers: int
    """Sampling threads."""
    busy: int
    jobs: int
    producers: int
    ready_bytes: int
    """Of frames that lie ready to be fetched."""
    frame_bytes: int
    """Memory of frames that are written, ready or being sent."""
    ring_bytes: int
    """Memory of rings that was written to."""
    batches: int
    nbytes: int
    sampling_s: float
    waiting_s: float
    channels: tuple[ChannelLoad, ...]
