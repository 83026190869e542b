"""Batches that never end: they neither keep a thread from other owners, nor work for nobody."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.channel.frame import Failure
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.tokens import EVERYTHING, Grant
from gigl_loader.sampling.plans.custom import CustomPlan, UserCode
from gigl_server.admission import Identity
from gigl_server.sampling.fair_queue import QUANTUM_S, FairQueue
from gigl_server.sampling.time_slices import TimeSlices, places
from gigl_server.sessions.channel import StopCause
from tests.support.leftovers import wait_until
from tests.support.sources import PLAN
from tests.support.store_service import Clock, Trainer, service_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gigl_server.sampling.service import SamplingService

ENDLESS = "tests.support.user_samplers:Endless"
PLAN_WITHOUT_END = replace(PLAN, sampler=CustomPlan(seed_type="node", code=UserCode(ENDLESS)))
HONEST = Identity(address="10.0.0.1")
SOON_S = 60.0


def hostile(number: int) -> Identity:
    return Identity(address=f"10.0.1.{number}")


def endless(service: SamplingService, number: int = 0, **more: Any) -> Trainer:
    """Return a trainer whose batches have no end, under a job and an owner of its own."""
    job = bytes([number]) * 32
    return Trainer(service, job=job, plan=PLAN_WITHOUT_END, caller=hostile(number), **more)


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[SamplingService]:
    """A service with one sampling thread."""
    with service_of(allowed_samplers=[ENDLESS], **getattr(request, "param", {})) as lent:
        yield lent


def is_busy(service: SamplingService) -> bool:
    return service.load().busy > 0


def failure_of(outcome: Any) -> str:
    return str(Failure.parse(np.frombuffer(outcome.failure, np.uint8)).error())


# --- turns


def test_a_batch_without_end_is_set_aside_for_another_owner(service: SamplingService) -> None:
    bomb = endless(service)
    for batch in range(4):
        bomb.ask(batch)
    assert wait_until(lambda: is_busy(service), seconds=SOON_S)
    honest = Trainer(service, caller=HONEST)
    for batch in range(12):
        honest.ask(batch)
        assert honest.answers.next()[1].frame is not None
    assert not len(bomb.answers)


def test_owners_with_batches_without_end_have_equal_time(service: SamplingService) -> None:
    bombs = [endless(service, number) for number in range(3)]
    tasks = [bomb.ask(0) for bomb in bombs]
    assert wait_until(lambda: min(each.ran_s for each in tasks) > 6 * QUANTUM_S, seconds=SOON_S)
    ran = [each.ran_s for each in tasks]
    assert max(ran) - min(ran) < 0.5 * max(ran)


@pytest.mark.slow
@pytest.mark.parametrize("owners", [places(1), 2 * places(1)])
def test_more_owners_than_places_leave_one_for_another(service: SamplingService, owners: int) -> None:
    """A batch is stopped for its place, and is sampled again: it gets no result."""
    bombs = [endless(service, number) for number in range(owners)]
    for bomb in bombs:
        bomb.ask(0)
    assert wait_until(lambda: is_busy(service), seconds=SOON_S)
    honest = Trainer(service, caller=HONEST)
    for batch in range(3):
        honest.ask(batch)
        assert honest.answers.next()[1].frame is not None
    assert not any(len(bomb.answers) for bomb in bombs)


def test_one_owner_alone_is_not_interrupted(service: SamplingService) -> None:
    tasks = [endless(service).ask(0)]
    assert wait_until(lambda: tasks[0].ran_s > 4 * QUANTUM_S, seconds=SOON_S)
    assert not tasks[0].aside_s


# --- batches on request


def test_batches_on_request_run_beside_one_that_has_the_only_thread(service: SamplingService) -> None:
    trainer = Trainer(service, job=b"t" * 32, plan=PLAN_WITHOUT_END, caller=HONEST)
    task = trainer.ask(0)
    assert wait_until(lambda: is_busy(service), seconds=SOON_S)
    caller = Trainer(service, caller=HONEST, interactive=True)
    for batch in range(6):
        caller.ask(2 * batch)
        caller.ask(2 * batch + 1)
        assert all(caller.answers.next()[1].frame is not None for _ in range(2))
    assert is_busy(service)
    assert not task.aside_s


@pytest.mark.parametrize("service", [{"interactive_share": 0.0}, {"workers": 3}], indirect=True)
def test_batches_on_request_find_threads_that_are_idle(service: SamplingService) -> None:
    caller = Trainer(service, caller=HONEST, interactive=True)
    for batch in range(12):
        caller.ask(batch)
    assert all(caller.answers.next()[1].frame is not None for _ in range(12))


# --- ends


@pytest.mark.some(3)
@pytest.mark.parametrize(
    "leave",
    [
        lambda service, trainer, task: service.abandon(task),
        lambda service, trainer, task: service.close_channel(trainer.job, trainer.channel.id),
        lambda service, trainer, task: service.destroy_producer(trainer.job, "train"),
        lambda service, trainer, task: trainer.ask(1, fence=1) and service.abandon(task),
    ],
    ids=["cancelled", "closed", "destroyed", "epoch left"],
)
@pytest.mark.parametrize("aside", [False, True])
def test_a_batch_that_nobody_waits_for_ends(
    service: SamplingService, leave: Callable[[Any, Any, Any], Any], *, aside: bool
) -> None:
    trainer = endless(service)
    task = trainer.ask(0)
    if aside:
        other = endless(service, 1)
        others = other.ask(0)
        assert wait_until(lambda: task.aside_since is not None, seconds=SOON_S)
    assert wait_until(lambda: task.ran_s > 0, seconds=SOON_S)
    leave(service, trainer, task)
    assert wait_until(lambda: task not in task.channel.running, seconds=SOON_S)
    if aside:
        assert others in others.channel.running
        service.abandon(others)
    honest = Trainer(service, caller=HONEST)
    honest.ask(0)
    assert honest.answers.next()[1].frame is not None


def test_a_batch_whose_lease_is_over_ends() -> None:
    clock = Clock()
    with service_of(allowed_samplers=[ENDLESS], clock=clock, lease_s=10.0) as service:
        trainer = endless(service)
        trainer.ask(0)
        assert wait_until(lambda: is_busy(service), seconds=SOON_S)
        clock.now += 11.0
        service.sweep()
        assert "closed" in str(trainer.answers.next()[1].refusal)
        assert wait_until(lambda: not is_busy(service), seconds=SOON_S)


def test_batches_can_be_stopped_after_a_drain(service: SamplingService) -> None:
    trainers = [endless(service, number) for number in range(3)]
    for trainer in trainers:
        trainer.ask(0)
    assert wait_until(lambda: is_busy(service), seconds=SOON_S)
    assert not service.drain(0.2)
    service.stop_batches("the server ends")
    for trainer in trainers:
        refusal = trainer.answers.next()[1].refusal
        assert refusal is not None
        assert refusal.kind is RefusalKind.UNAVAILABLE
    assert service.drain(SOON_S)


def test_closing_ends_batches_without_end(service: SamplingService) -> None:
    trainer = endless(service)
    trainer.ask(0)
    assert wait_until(lambda: is_busy(service), seconds=SOON_S)
    threads = service.threads
    service.close()
    assert isinstance(trainer.answers.next()[1].refusal, Refusal)
    assert not any(each.is_alive() for each in threads)


# --- time


@pytest.mark.parametrize("service", [{"batch_s": 0.3}], indirect=True)
def test_a_batch_that_takes_too_long_fails_in_one_line(service: SamplingService) -> None:
    trainer = endless(service)
    trainer.ask(3)
    text = failure_of(trainer.answers.next()[1])
    found = re.search(r"batch 3: TooLong: a batch of 50 seeds took ([0-9.]+) s of a sampling thread", text)
    assert found is not None, text
    assert float(found[1]) >= 0.3
    assert "--max-batch-seconds" in text
    assert "\n" not in text
    honest = Trainer(service, caller=HONEST)
    honest.ask(0)
    assert honest.answers.next()[1].frame is not None


@pytest.mark.parametrize(("server_s", "token_s", "ends"), [(3600.0, 0.2, True), (0.2, 3600.0, False)])
def test_a_token_may_have_another_limit(server_s: float, token_s: float, *, ends: bool) -> None:
    grants = {hostile(0): Grant(seconds=token_s)}
    with service_of(
        allowed_samplers=[ENDLESS],
        batch_s=server_s,
        grant_of=lambda owner: grants.get(owner, EVERYTHING),
    ) as service:
        trainer = endless(service)
        task = trainer.ask(0)
        assert wait_until(lambda: task.ran_s > 0.5 or len(trainer.answers) > 0, seconds=SOON_S)
        assert (len(trainer.answers) > 0) is ends


# --- without threads


class Flag:
    """A flag that is parked when told."""

    def __init__(self) -> None:
        self.parked = self.paused = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.parked = self.paused = False


class Task(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]
    shared = None

    def stop(self, cause: StopCause) -> None:
        self.cause = cause


def slices(clock: Clock, *, limit_s: float = 60.0, threads: int = 1) -> tuple[FairQueue, TimeSlices]:
    turns = FairQueue(clock)
    made = TimeSlices(turns, clock, lambda _: limit_s)
    made.threads = threads
    return turns, made


def begun(turns: FairQueue, made: TimeSlices, owner: Identity) -> Any:
    """Queue a request of an owner, and begin what is next."""
    queued(turns, owner)
    return began(turns, made)


def queued(turns: FairQueue, owner: Identity) -> None:
    channel: Any = SimpleNamespace(
        owner=owner,
        in_round=False,
        interactive=False,
        queue=deque(),
        share=1,
        producer=SimpleNamespace(digest=b""),
    )
    fields = {"charged_s": 0.0, "ran_s": 0.0, "safe_s": 1.0, "aside_since": None, "aside_s": 0.0}
    channel.queue.append(
        Task(channel=channel, flag=Flag(), cause=None, needs_frame_memory=True, yielding_s=None, **fields)
    )
    turns.enter(channel)


def began(turns: FairQueue, made: TimeSlices) -> Any:
    task: Any = turns.next(lambda _: True)
    made.run(task)
    return task


def look(made: TimeSlices, clock: Clock, seconds: float) -> None:
    clock.now += seconds
    made.look(lambda _: True)


def test_a_process_that_stood_still_charges_nobody() -> None:
    clock = Clock()
    turns, made = slices(clock)
    task = begun(turns, made, HONEST)
    look(made, clock, 3600.0)
    assert task.ran_s <= 1.0
    assert task.cause is None


def test_a_batch_that_does_not_look_at_its_flag_leaves_its_place_all_the_same() -> None:
    clock = Clock()
    turns, made = slices(clock)
    task = begun(turns, made, hostile(0))
    queued(turns, HONEST)
    for _ in range(30):
        look(made, clock, 0.02)
    assert task.flag.paused
    assert task.aside_since is not None
    assert made.has_thread
    ran = task.ran_s
    look(made, clock, 0.5)
    assert task.ran_s == pytest.approx(ran + 0.5)  # It runs on, and is charged for it.


def test_a_batch_that_does_not_look_at_its_flag_keeps_no_other_one_from_being_set_aside() -> None:
    clock = Clock()
    turns, made = slices(clock)
    begun(turns, made, hostile(0))
    queued(turns, hostile(1))
    for _ in range(30):
        look(made, clock, 0.02)
    other = began(turns, made)
    assert other.channel.owner == hostile(1)
    queued(turns, HONEST)
    for _ in range(30):
        look(made, clock, 0.02)
    assert other.flag.paused


def test_a_paused_batch_is_not_charged_and_goes_on_where_it_was() -> None:
    clock = Clock()
    turns, made = slices(clock)
    task = begun(turns, made, hostile(0))
    queued(turns, HONEST)
    for _ in range(10):
        look(made, clock, 0.02)
    task.flag.parked = True
    look(made, clock, 0.02)
    ran = task.ran_s
    other = began(turns, made)
    assert other.channel.owner == HONEST
    look(made, clock, 0.05)
    made.end(other, 0.05, busy_s=0.05)
    clock.now += 1.0
    assert (task.ran_s, made.busy) == (ran, 0)
    assert began(turns, made) is task
    assert (task.flag.paused, task.aside_since, made.busy) == (False, None, 1)
    made.end(task, 2.0, busy_s=2.0)
    assert not made.begun
