"""Owners share a sampling service: what one may have of jobs, channels, seeds, frames, rings and time."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from gigl_loader.channel.frame import Failure
from gigl_loader.memfile import map_memory
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.sampling.negatives import MAX_AMOUNT, Negatives
from gigl_server.admission import LOCAL, Identity, has_quota
from gigl_server.frames.memory import Holder, SentFrames
from gigl_server.sampling.sampler_pool import SamplerPool
from tests.support.leftovers import wait_until
from tests.support.made import record_made
from tests.support.plans import with_sampler
from tests.support.sources import PLAN, PLANS, small_graph
from tests.support.store_service import JOB, OTHER_JOB, Clock, Gate, Trainer, sample_request, service_of

if TYPE_CHECKING:
    from gigl_server.sampling.service import SamplingService
    from gigl_server.sessions.channel import Result

HOSTILE, HONEST = Identity(address="10.0.0.1"), Identity(address="10.0.0.2", token="train")
DIGEST = small_graph().manifest.digest
EDGE_TYPE = next(iter(cast("Any", PLAN.sampler).num_neighbors))


def refused(message: str, call: Any, *args: Any, **more: Any) -> None:
    with pytest.raises(Refusal, match=message) as raised:
        call(*args, **more)
    assert raised.value.kind is RefusalKind.BUSY


def failure_of(outcome: Result) -> str:
    failure = Failure.parse(np.frombuffer(outcome.failure, np.uint8))
    with pytest.raises(Exception, match="epoch") as raised:
        raise failure.error()
    return str(raised.value)


# --- quotas


@pytest.mark.parametrize("owners", [1, 2, 8, 50])
def test_any_number_of_owners_leave_room_for_another(owners: int) -> None:
    limit, have = 1024, dict.fromkeys((Identity(address=str(number)) for number in range(owners)), 0)
    grew = True
    while grew:
        grew = False
        for owner, own in have.items():
            if has_quota(owner, own=own, used=sum(have.values()), limit=limit):
                have[owner] += 1
                grew = True
    assert sum(have.values()) >= 0.88 * limit
    assert max(have.values()) - min(have.values()) <= 8
    assert has_quota(HONEST, own=0, used=sum(have.values()), limit=limit)


def test_made_up_jobs_do_not_lock_newcomers_out() -> None:
    given: dict[str, Any] = {"key": "train", "plan": PLAN.to_json(), "graph": DIGEST}
    with service_of(jobs=100) as service:
        for number in range(200):
            with suppress(Refusal):
                service.create_producer(number.to_bytes(32, "big"), caller=HOSTILE, **given)
        made = service.load().jobs
        assert 80 <= made < 95
        refused(
            r"10\.0\.0\.1 has \d+ jobs on this server, and the rest of 100 is for others",
            service.create_producer,
            b"x" * 32,
            caller=HOSTILE,
            **given,
        )
        assert service.create_producer(JOB, caller=HONEST, **given)
        service.destroy_producer((0).to_bytes(32, "big"), "train")
        assert service.load().jobs == made


def test_a_job_stays_its_owners_whoever_joins_it() -> None:
    given: dict[str, Any] = {"plan": PLAN.to_json(), "graph": DIGEST}
    with service_of(producers=20, channels=20) as service:
        service.create_producer(JOB, key="0", caller=HONEST, **given)
        for number in range(40):  # Other ranks come from other hosts.
            with suppress(Refusal):
                service.create_producer(JOB, key=str(number), caller=HOSTILE, **given)
        assert service.load().producers < 20
        refused("10.0.0.2, token train has", service.create_producer, JOB, key="x", caller=HOSTILE, **given)
        service.create_producer(OTHER_JOB, key="x", caller=HOSTILE, **given)


def test_channels_and_waiting_seeds_go_by_owner() -> None:
    gate = Gate()
    with service_of(gate=gate, channels=30, request_bytes=30_000) as service:
        greedy = [Trainer(service, caller=HOSTILE) for _ in range(26)]
        refused("has 26 channels", Trainer, service, caller=HOSTILE)
        honest = Trainer(service, job=OTHER_JOB, caller=HONEST)
        asked = 0
        for trainer in greedy:
            for batch in range(4):
                with suppress(Refusal):
                    trainer.ask(batch)
                    asked += 1
        assert 20 <= asked < 37  # An ask has 800 bytes.
        refused("10.0.0.1 has as many seeds waiting", greedy[-1].ask, 1)
        honest.ask(0)
        gate.opened.set()
        assert honest.answers.next()[1].frame is not None


def test_frame_memory_goes_by_owner_however_many_jobs_one_makes_up() -> None:
    gate = Gate()  # Until both want memory: alone, an owner may have all of it.
    with service_of(workers=2, frame_bytes=600_000, gate=gate) as service:
        greedy = [Trainer(service, job=bytes([number]) * 32, caller=HOSTILE) for number in range(12)]
        honest = Trainer(service, job=OTHER_JOB, caller=HONEST)
        for batch in range(8):
            for trainer in (*greedy, honest):
                trainer.ask(batch % 4)
        gate.opened.set()
        frames = [honest.answers.next()[1] for _ in range(3)]
        held = service.frames.held()
        assert sum(nbytes for (owner, _), nbytes in held.items() if owner == HOSTILE) < 300_000 + 2 * 65_536
        for frame in frames:
            assert honest.fetch(frame) is not None
        for _ in range(5):
            assert honest.fetch(honest.answers.next()[1]) is not None


def hostile_owners(service: SamplingService) -> list[Trainer]:
    """Return trainers of eight owners, which read nothing."""
    owners = [Identity(address=f"10.0.1.{host}") for host in range(8)]
    return [Trainer(service, job=bytes([number]) * 32, caller=owner) for number, owner in enumerate(owners)]


def test_owners_that_read_nothing_leave_memory_to_one_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call has to be cut for it, which would take seconds."""
    cut: list[Holder] = []

    def cut_oldest(_: SentFrames, holder: Holder, than: float, reason: str) -> bool:
        cut.append(holder)
        return False

    monkeypatch.setattr(SentFrames, "cut_oldest", cut_oldest)
    with service_of(workers=2, frame_bytes=20 * 65_536) as service:
        for batch, trainer in product(range(4), hostile_owners(service)):
            trainer.ask(batch)
        assert wait_until(lambda: service.load().batches >= 10)
        honest = Trainer(service, job=OTHER_JOB, caller=HONEST)
        for batch in range(30):
            honest.ask(batch % 4)
            assert honest.fetch(honest.answers.next()[1]) is not None
    assert not cut


def test_calls_that_nobody_reads_are_cut_for_one_as_large() -> None:
    """Memory holds three frames beside the part that stays free."""
    clock = Clock()
    with service_of(workers=2, frame_bytes=4 * 65_536, clock=clock) as service:
        for batch, trainer in product(range(4), hostile_owners(service)):
            trainer.ask(batch)
        assert wait_until(lambda: service.load().batches >= 2)
        honest = Trainer(service, job=OTHER_JOB, caller=HONEST)
        for batch in range(4):
            honest.ask(batch)
            for _ in range(20):  # Owners that have had none yet are served before it.
                clock.now += 6.0
                service.sweep()
                if wait_until(lambda: len(honest.answers) > 0, seconds=0.2):
                    break
            assert honest.fetch(honest.answers.next()[1]) is not None


# --- time


def test_an_honest_trainer_beside_eight_hostile_ones_keeps_its_part() -> None:
    """Hostile: batches of many times the work, four jobs each, frames of all of them fetched."""
    heavy = with_sampler(PLAN, num_neighbors={EDGE_TYPE: (300, 300)}, replace=True)
    everyone = np.arange(600)
    seeds = {"inputs": everyone.tobytes(), "index": everyone.tobytes()}
    counts = {HONEST: 0, HOSTILE: 0}
    enough = threading.Event()
    with service_of(workers=2, memory=1 << 30) as service:

        def ask(trainer: Trainer, owner: Identity, more: dict[str, Any]) -> None:
            def done(outcome: Result) -> None:
                counts[HONEST if owner == HONEST else HOSTILE] += 1
                if not enough.is_set():
                    ask(trainer, owner, more)

            with suppress(Refusal):  # The service is closed.
                service.submit(trainer.job, sample_request(trainer.channel.id, 0, **more), done)

        for host in range(8):
            owner = Identity(address=f"10.0.1.{host}")
            for number in range(4):
                job = bytes([host, number]) * 16
                trainer = Trainer(service, job=job, caller=owner, plan=heavy, share=16)
                for _ in range(4):
                    ask(trainer, owner, seeds)
        honest = Trainer(service, caller=HONEST)
        for _ in range(4):
            ask(honest, HONEST, {})
        assert wait_until(lambda: counts[HONEST] >= 200, seconds=60)
        load = service.load()
        enough.set()
    spent = {HONEST: 0.0, HOSTILE: 0.0}
    for each in load.channels:
        spent[HONEST if each.job == JOB else HOSTILE] += each.sampling_s
    assert counts[HOSTILE] > 0
    assert spent[HONEST] >= 0.7 * spent[HOSTILE] / 8


# --- bounds of a batch


def test_a_plan_that_wants_gigabytes_fails_in_one_line_and_takes_none() -> None:
    plan = with_sampler(PLAN, num_neighbors={EDGE_TYPE: (60_000_000,)}, replace=True)
    with service_of(memory=1 << 30) as service:
        trainer, other = Trainer(service, plan=plan), Trainer(service, key="other")
        before = resident_bytes()
        for _ in range(3):
            trainer.ask(0, inputs=np.array([7]).tobytes(), index=np.array([7]).tobytes())
            text = failure_of(trainer.answers.next()[1])
            assert "a batch of 1 seeds has more than" in text
            assert "the limit of this server" in text
            assert "ask for fewer seeds a batch or smaller num_neighbors" in text
        assert resident_bytes() - before < 256 << 20
        other.ask(0)
        assert other.answers.next()[1].frame is not None


@pytest.mark.parametrize("name", ["negatives", "random negatives"])
def test_negatives_that_want_gigabytes_fail_in_one_line_and_take_none(name: str) -> None:
    negatives = Negatives(mode="binary", amount=MAX_AMOUNT, strict=True)
    plan = {
        "negatives": with_sampler(PLANS["links"], negatives=negatives),
        "random negatives": with_sampler(PLANS["anchors"], random_negatives=2**24 - 1),
    }[name]
    count = 50
    inputs = np.arange(count * len(plan.sampler.inputs)).tobytes()
    with service_of(memory=1 << 30) as service:
        trainer, other = Trainer(service, plan=plan), Trainer(service, key="other")
        before = resident_bytes()
        for _ in range(3):
            trainer.ask(0, inputs=inputs, index=np.arange(count).tobytes())
            text = failure_of(trainer.answers.next()[1])
            assert f"a batch of {count} " in text
            assert "the limit of this server" in text
        assert resident_bytes() - before < 256 << 20
        other.ask(0)
        assert other.answers.next()[1].frame is not None


def test_a_batch_larger_than_most_is_sampled_with_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers = record_made(monkeypatch, SamplerPool)
    plan = with_sampler(PLAN, num_neighbors={EDGE_TYPE: (500, 500)}, replace=True)
    everyone = np.arange(600)
    with service_of(memory=1 << 30, workers=4) as service:  # 87,381 edges for each place, or 1,048,576.
        trainer = Trainer(service, plan=plan)
        trainer.ask(0, inputs=everyone.tobytes(), index=everyone.tobytes())
        outcome = trainer.answers.next()[1]
        assert outcome.frame is not None, failure_of(outcome)
        assert trainer.channel.allowance == 4 * 87_381
        assert samplers[0].idle_bytes <= 128 << 20


def test_a_frame_beyond_its_bound_fails_before_it_is_gathered() -> None:
    with service_of(batch_bytes=20_000) as service:
        trainer = Trainer(service)
        trainer.ask(0)
        assert "the frame of a batch of 50 seeds has" in failure_of(trainer.answers.next()[1])


# --- rings


def test_rings_that_nobody_comes_for_commit_nothing() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with service_of(frame_bytes=2 << 20) as service:
        service.ring_door = "somewhere"
        trainers = [Trainer(service, comes=False, ring_slots=8, ring_slot_bytes=1 << 20) for _ in range(20)]
        assert len(os.listdir("/proc/self/fd")) - before < 10
        for trainer in trainers:
            trainer.ask(0, slot=1)
            outcome = trainer.answers.next()[1]
            assert not outcome.in_slot
            assert trainer.fetch(outcome) is not None  # Over the network.
        assert service.rings.held == 0


def test_committed_slots_count_until_the_ring_is_closed_and_are_bounded() -> None:
    with service_of(memory=4 << 20, frame_bytes=1 << 20) as service:  # 2 MB for rings; a frame has 60 kB.
        service.ring_door = "somewhere"
        trainer = Trainer(service, comes=False, credit=64, ring_slots=64, ring_slot_bytes=1 << 20)
        fd = service.ring_of(trainer.channel.id)
        assert fd is not None
        in_slots = 0
        for slot in range(1, 65):
            trainer.ask(0, slot=slot)
            outcome = trainer.answers.next()[1]
            in_slots += outcome.in_slot
            assert outcome.in_slot or trainer.fetch(outcome) is not None
        assert 20 < in_slots < 40
        committed = os.fstat(fd).st_blocks * 512
        assert committed <= service.rings.held <= 2 << 20
        map_memory(fd, 64 << 20)
        os.close(fd)
        trainer.ask(0, slot=1)  # What is committed can be written to again.
        assert trainer.answers.next()[1].in_slot
        service.close_channel(JOB, trainer.channel.id)
        assert service.rings.held == 0


def test_the_service_itself_is_no_owner_with_a_quota() -> None:
    assert has_quota(LOCAL, own=1023, used=1023, limit=1024)
    assert not has_quota(LOCAL, own=1024, used=1024, limit=1024)


def resident_bytes() -> int:
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
