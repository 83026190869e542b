"""What each training job holds on this server, and for how long."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gigl_server.channels import Channel, ChannelOrder, Producer
from gigl_server.plans import differences
from gigl_server.refusal import Refusal, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gigl_loader.options import SamplingPlan
    from gigl_server.frame_ring import FrameRing
    from gigl_server.limits import Limits

__all__ = ["Job", "Jobs"]

_CHANNEL_BYTES = 16


@dataclass(slots=True, eq=False)
class Job:
    """Producers and channels of a job, and when it was last heard of."""

    key: bytes
    seen: float
    producers: dict[str, Producer] = field(default_factory=dict)
    channels: dict[bytes, Channel] = field(default_factory=dict)


class Jobs:
    """All jobs. Whatever is looked up is looked up under its job. Not thread-safe."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._jobs: dict[bytes, Job] = {}
        self._channels: dict[bytes, Channel] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def num_producers(self) -> int:
        return sum(len(job.producers) for job in self._jobs.values())

    @property
    def channels(self) -> dict[bytes, Channel]:
        """Of all jobs, by id."""
        return self._channels

    def renew(self, key: bytes) -> Job | None:
        """Note that a job is alive. ``None`` if it holds nothing."""
        job = self._jobs.get(key)
        if job is not None:
            job.seen = self._clock()
        return job

    def create_producer(self, key: bytes, name: str, plan: SamplingPlan) -> bool:
        """Make a producer, or find that the same is there: then return False. Else ``Refusal``."""
        job = self.renew(key)
        there = job.producers.get(name) if job else None
        if there is not None:
            if there.plan != plan:
                raise Refusal(
                    Status.CONFLICT,
                    f"a producer {name!r} of other options exists: {differences(there.plan, plan)}; "
                    "give another worker_key",
                )
            return False
        if job is None:
            _check(len(self._jobs), self._limits.jobs, "jobs on this server")
        else:
            _check(len(job.producers), self._limits.producers_per_job, "producers of one job")
        _check(self.num_producers, self._limits.producers, "producers on this server")
        job = job or self._jobs.setdefault(key, Job(key, self._clock()))
        job.producers[name] = Producer(key=name, plan=plan, plan_text=plan.to_json())
        return True

    def check_room(self, key: bytes, producer: str) -> None:
        """``Refusal`` unless the job may open one more channel of the producer."""
        job = self.renew(key)
        if job is None or producer not in job.producers:
            raise Refusal(Status.NOT_FOUND, f"this job has no producer {producer!r} here: create it again")
        _check(len(job.channels), self._limits.channels_per_job, "channels of one job")
        _check(len(self._channels), self._limits.channels, "channels on this server")

    def open_channel(self, key: bytes, order: ChannelOrder, ring: FrameRing | None) -> Channel:
        """Open a channel. ``Refusal`` as ``check_room``."""
        self.check_room(key, order.key)
        job = self._jobs[key]
        channel = Channel(
            id=secrets.token_bytes(_CHANNEL_BYTES),
            job=key,
            name=order.name,
            producer=job.producers[order.key],
            credit=order.credit,
            share=order.share,
            without_rows=order.without_rows,
            ring=ring,
            last_ask=self._clock(),
        )
        job.channels[channel.id] = self._channels[channel.id] = channel
        channel.producer.channels.add(channel.id)
        return channel

    def channel(self, key: bytes, channel: bytes) -> Channel:
        """Return a channel of a job, or raise ``Refusal``: also for one that is another job's."""
        job = self.renew(key)
        found = job.channels.get(channel) if job else None
        if found is None:
            raise Refusal(Status.NOT_FOUND, "this job has no such channel here: open it again")
        return found

    def close_channel(self, key: bytes, channel: bytes) -> list[Channel]:
        """Take a channel out, and its producer with the last one. Return what is to be ended."""
        job = self.renew(key)
        found = job.channels.get(channel) if job else None
        if job is None or found is None:
            return []
        self._remove(job, found)
        if not found.producer.channels:
            job.producers.pop(found.producer.key, None)
        self._forget_if_empty(job)
        return [found]

    def destroy_producer(self, key: bytes, name: str) -> list[Channel]:
        """Take a producer out, and its channels. Return what is to be ended."""
        job = self.renew(key)
        producer = job.producers.pop(name, None) if job else None
        if job is None or producer is None:
            return []
        ended = [job.channels[each] for each in producer.channels]
        for channel in ended:
            self._remove(job, channel)
        self._forget_if_empty(job)
        return ended

    def take_expired(self) -> Iterator[tuple[Job, list[Channel]]]:
        """Take out the jobs whose lease is over, with their channels."""
        now = self._clock()
        for job in [each for each in self._jobs.values() if now - each.seen > self._limits.lease_s]:
            yield job, self._take_out(job)

    def take_all(self) -> list[Channel]:
        """Take out every job. Return what is to be ended."""
        return [channel for job in list(self._jobs.values()) for channel in self._take_out(job)]

    def _take_out(self, job: Job) -> list[Channel]:
        ended = list(job.channels.values())
        for channel in ended:
            self._remove(job, channel)
        del self._jobs[job.key]
        return ended

    def _remove(self, job: Job, channel: Channel) -> None:
        del job.channels[channel.id], self._channels[channel.id]
        channel.producer.channels.discard(channel.id)

    def _forget_if_empty(self, job: Job) -> None:
        if not job.producers and not job.channels:
            del self._jobs[job.key]


def _check(count: int, limit: int, what: str) -> None:
    if count >= limit:
        raise Refusal(Status.BEYOND_LIMIT, f"{limit} {what} are as many as there may be: close some")
