"""A sampling service over a small graph, asked without a network."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any
from unittest import mock

from gigl_loader.rpc.graph_store_pb2 import SampleRequest
from gigl_loader.sampling.plan import BatchPlan
from gigl_server.admission import LOCAL, Identity, Limits
from gigl_server.counters import Counters
from gigl_server.sampling.frame_maker import FrameMaker
from gigl_server.sampling.service import SamplingService
from gigl_server.sessions.channel import ChannelOptions
from tests.support.sources import PLAN, small_graph, small_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    from gigl_loader.rpc.tokens import Grant
    from gigl_server.sessions.channel import Result, SampleTask

__all__ = ["JOB", "OTHER_JOB", "Answers", "Clock", "Gate", "Trainer", "sample_request", "service_of"]

JOB, OTHER_JOB = b"j" * 32, b"o" * 32


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Answers:
    """Outcomes in the order in which they came."""

    def __init__(self) -> None:
        self._came = threading.Semaphore(0)
        self._outcomes: deque[tuple[Any, Result]] = deque()

    def put(self, name: Any, outcome: Result) -> None:
        self._outcomes.append((name, outcome))
        self._came.release()

    def next(self) -> tuple[Any, Result]:
        assert self._came.acquire(timeout=20), "no outcome came"
        return self._outcomes.popleft()

    def __len__(self) -> int:
        return len(self._outcomes)


def sample_request(channel: bytes, batch: int, *, epoch: int = 0, **changes: Any) -> SampleRequest:
    """Return the request for a batch of the small graph's schedule."""
    request = small_schedule().request(epoch, batch)
    given = {"inputs": request.input_bytes(), "index": request.index.tobytes(), **changes}
    return SampleRequest(channel=channel, epoch=epoch, batch=batch, **given)


class Trainer:
    """One channel of a service."""

    def __init__(
        self,
        service: SamplingService,
        *,
        job: bytes = JOB,
        key: str = "train",
        plan: BatchPlan = PLAN,
        caller: Identity = LOCAL,
        comes: bool = True,
        **order: Any,
    ) -> None:
        """Where there is a ring, it is fetched from the ring socket, unless the trainer does not come."""
        self.service = service
        self.job = job
        digest = small_graph().manifest.digest
        service.create_producer(job, key=key, plan=plan.to_json(), graph=digest, caller=caller)
        given = {"credit": 16, "name": f"{key} rank 0", **order}
        self.channel = service.open_channel(job, ChannelOptions(key=key, **given))
        if comes and (fd := service.ring_of(self.channel.id)) is not None:
            os.close(fd)
        self.answers = Answers()
        self._unread: list[Result] = []
        """Outcomes whose frames are kept, as by a connection that is not read."""

    def ask(self, batch: int, **changes: Any) -> SampleTask:
        unread: list[Result] = []

        def done(outcome: Result) -> None:
            unread.append(outcome)
            self._unread.append(outcome)
            self.answers.put(batch, outcome)

        def cut(reason: str) -> bool:
            for each in unread:
                self._forget(each)
            return bool(unread)

        request = sample_request(self.channel.id, batch, **changes)
        return self.service.submit(self.job, request, done, cut=cut)

    def fetch(self, outcome: Result) -> bytes | None:
        """Return the frame of an outcome, once: it was sent then. ``None`` where its call was cut."""
        frame = None if outcome.frame is None else outcome.frame.tobytes()
        self._forget(outcome)
        return frame

    def _forget(self, outcome: Result) -> None:
        object.__setattr__(outcome, "frame", None)
        self._unread = [each for each in self._unread if each is not outcome]


class Gate:
    """Holds up every sampling thread that begins a batch until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self) -> None:
        self.entered.release()
        assert self.opened.wait(100), "the gate stayed closed"


@contextmanager
def service_of(
    *,
    workers: int = 1,
    ready: bool = True,
    gate: Gate | None = None,
    clock: Clock | None = None,
    grant_of: Callable[[Identity], Grant] | None = None,
    allowed_samplers: Collection[str] = (),
    **limits: Any,
) -> Iterator[SamplingService]:
    """Lend a service over the small graph."""
    graph = small_graph()
    given = {"clock": clock, "grant_of": grant_of}
    more: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    service = SamplingService(
        graph,
        workers=workers,
        limits=Limits(**limits),
        counters=Counters(),
        allowed_samplers=allowed_samplers,
        **more,
    )
    with nullcontext() if gate is None else _holding_up(gate):
        try:
            if ready:
                service.make_ready(None)
            yield service
        finally:
            if gate is not None:
                gate.opened.set()
            service.close()


def _holding_up(gate: Gate) -> AbstractContextManager[Any]:
    """Hold up, while entered, whoever makes a frame in this process."""
    make = FrameMaker.make

    def held_up(maker: FrameMaker, task: SampleTask, thread: int) -> Result:
        gate()
        return make(maker, task, thread)

    return mock.patch.object(FrameMaker, "make", held_up)
