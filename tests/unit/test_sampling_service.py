"""The sampling service without a network: what it samples, for whom, in which order, and for how long."""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.channel.frame import Failure
from gigl_loader.errors import StorageUnavailable
from gigl_loader.memfile import map_memory
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.store import GatherRequest
from gigl_server.admission import LOCAL, Limits
from gigl_server.frames.memory import BufferPool
from gigl_server.sampling.frame_maker import FrameMaker
from gigl_server.sampling.sampler_pool import SamplerPool
from gigl_server.sessions.channel import ChannelOptions
from tests.support.leftovers import wait_until
from tests.support.made import record_made
from tests.support.plans import with_sampler
from tests.support.sources import NUM_BATCHES, PLAN, SourceKind, drain, small_graph
from tests.support.store_service import JOB, OTHER_JOB, Clock, Gate, Trainer, sample_request, service_of

if TYPE_CHECKING:
    from gigl_server.sessions.channel import Result

DIGEST = small_graph().manifest.digest


@pytest.fixture(scope="module")
def wanted() -> list[bytes]:
    """Epoch 0 as it is sampled beside a trainer."""
    source = SourceKind(0).open()
    source.start_epoch(0)
    return drain(source)


def refused(kind: RefusalKind, message: str, call: Any, *args: Any, **more: Any) -> None:
    with pytest.raises(Refusal, match=message) as raised:
        call(*args, **more)
    assert raised.value.kind is kind
    assert "\n" not in raised.value.message


# --- batches


@pytest.mark.parametrize("workers", [1, 3])
def test_batches_are_those_of_any_other_mode(wanted: list[bytes], workers: int) -> None:
    with service_of(workers=workers) as service:
        trainer = Trainer(service)
        for batch in range(NUM_BATCHES):
            trainer.ask(batch)
        came = dict(trainer.answers.next() for _ in range(NUM_BATCHES))
        assert [trainer.fetch(came[batch]) for batch in range(NUM_BATCHES)] == wanted
        assert all(came[batch].nbytes == len(wanted[batch]) for batch in range(NUM_BATCHES))


def test_partitions_elsewhere_are_asked_through_a_store(wanted: list[bytes]) -> None:
    graph = small_graph()
    with service_of(ready=False) as service:
        store = PartitionedStore(graph.schema, local={}, remote={0: LocalStore(graph, 0)}, concurrency=4)
        service.make_ready(lambda: store)
        trainer = Trainer(service)
        trainer.ask(3)
        assert trainer.fetch(trainer.answers.next()[1]) == wanted[3]
        assert service.load().workers == 4  # They wait most of the time.
    rows = GatherRequest(
        kind="node", columns=("x",), rows=np.arange(3), distinct=True, out=[np.zeros((3, 64), np.uint8)]
    )
    with pytest.raises(RuntimeError, match="shutdown"):
        store.gather([rows])


def test_a_repeated_ask_gives_the_same_bytes(wanted: list[bytes]) -> None:
    with service_of() as service:
        trainer = Trainer(service)
        for _ in range(2):
            trainer.ask(5)
            assert trainer.fetch(trainer.answers.next()[1]) == wanted[5]


def test_frames_without_rows_lack_columns() -> None:
    with service_of() as service:
        trainer = Trainer(service, deferred_features=True)
        trainer.ask(0)
        outcome = trainer.answers.next()[1]
        assert trainer.fetch(outcome) is not None
        whole = Trainer(service)
        whole.ask(0)
        assert outcome.nbytes < whole.answers.next()[1].nbytes


def test_a_frame_goes_into_the_slot_that_was_named(wanted: list[bytes]) -> None:
    with service_of() as service:
        service.ring_door = "somewhere"
        trainer = Trainer(service, comes=False, ring_slots=3, ring_slot_bytes=1 << 20)
        fd = service.ring_of(trainer.channel.id)
        assert fd is not None
        memory = map_memory(fd, 3 << 20)
        for batch, slot in ((0, 2), (1, 1), (2, 2)):
            trainer.ask(batch, slot=slot)
            outcome = trainer.answers.next()[1]
            assert outcome.in_slot
            start = (slot - 1) << 20
            assert memory[start : start + outcome.nbytes].tobytes() == wanted[batch]
        trainer.ask(4)  # No slot was free: it goes over the network.
        assert trainer.fetch(trainer.answers.next()[1]) == wanted[4]
        [load] = service.load().channels
        assert (load.transport, load.batches) == ("ring", 4)


def test_a_frame_larger_than_its_slot_goes_over_the_network(wanted: list[bytes]) -> None:
    with service_of() as service:
        service.ring_door = "somewhere"
        trainer = Trainer(service, ring_slots=2, ring_slot_bytes=4096)
        trainer.ask(0, slot=1)
        assert trainer.fetch(trainer.answers.next()[1]) == wanted[0]


def test_without_a_door_there_is_no_ring() -> None:
    with service_of() as service:
        trainer = Trainer(service, ring_slots=2, ring_slot_bytes=4096)
        assert trainer.channel.ring is None
        assert service.ring_of(trainer.channel.id) is None
        refused(RefusalKind.INVALID, "slot 1 of a ring of 0", trainer.ask, 0, slot=1)


def test_a_batch_that_fails_is_told_with_the_far_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with service_of() as service:
        trainer = Trainer(service)
        with monkeypatch.context() as patch:
            patch.setattr("gigl_loader.sampling.neighbor_sampler.LocalSampler.sample", lambda *_: 1 / 0)
            trainer.ask(2)
            outcome = trainer.answers.next()[1]
        assert not outcome.unavailable
        failure = Failure.parse(np.frombuffer(outcome.failure, np.uint8))
        with pytest.raises(Exception, match="epoch 0, batch 2: ZeroDivisionError") as raised:
            raise failure.error()
        assert "ZeroDivisionError" in raised.value.__notes__[0]
        trainer.ask(2)
        assert trainer.answers.next()[1].frame is not None


def test_a_mistake_of_ours_ends_the_ask_and_not_the_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with service_of() as service:
        trainer = Trainer(service)
        with monkeypatch.context() as patch:
            patch.setattr(FrameMaker, "make", lambda *_: 1 / 0)
            trainer.ask(2)
            refusal = trainer.answers.next()[1].refusal
        assert refusal is not None
        assert refusal.kind is RefusalKind.UNAVAILABLE
        assert wait_until(lambda: "ZeroDivisionError" in caplog.text)
        trainer.ask(2)
        assert trainer.answers.next()[1].frame is not None
        assert wait_until(lambda: service.load().busy == 0)


def test_an_owner_that_does_not_answer_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> None:
        raise StorageUnavailable("host 1 did not answer")

    with service_of() as service:
        trainer = Trainer(service)
        monkeypatch.setattr("gigl_loader.sampling.neighbor_sampler.LocalSampler.sample", silent)
        trainer.ask(2)
        outcome = trainer.answers.next()[1]
        assert outcome.unavailable
        assert b"host 1 did not answer" in outcome.failure


def test_a_frame_beyond_all_memory_fails_and_the_next_does_not(wanted: list[bytes]) -> None:
    with service_of(frame_bytes=20_000) as service:
        trainer = Trainer(service)
        trainer.ask(0)
        assert b"ask for fewer seeds a batch" in trainer.answers.next()[1].failure
        trainer.ask(0, inputs=np.array([7]).tobytes(), index=np.array([7]).tobytes())
        assert trainer.answers.next()[1].frame is not None


# --- fair turns, credits, fences


def test_channels_take_turns_by_their_shares() -> None:
    gate = Gate()
    with service_of(gate=gate) as service:
        names = ("a", "b", "c")
        trainers = {name: Trainer(service, key=name, share=2 if name == "a" else 1) for name in names}
        order: list[str] = []
        done = threading.Semaphore(0)

        def note(name: str) -> None:
            order.append(name)
            done.release()

        def ask(name: str, batch: int) -> None:
            channel = trainers[name].channel.id
            service.submit(JOB, sample_request(channel, batch), lambda _: note(name))

        ask("c", 0)
        assert gate.entered.acquire(timeout=20)  # The only thread is busy: the others queue.
        for name in names:
            for batch in range(4):
                ask(name, batch)
        gate.opened.set()
        for _ in range(13):
            assert done.acquire(timeout=20)
        assert "".join(order) == "c" + "aabc" * 2 + "bcbc"


def test_many_trainers_go_on_at_one_pace() -> None:
    gate = Gate()
    with service_of(workers=2, gate=gate) as service:
        trainers = [Trainer(service, key=str(number), credit=8) for number in range(24)]
        counts = dict.fromkeys(range(24), 0)
        enough = threading.Event()

        def ask(number: int) -> None:
            def done(outcome: Result) -> None:
                trainers[number].fetch(outcome)
                counts[number] += 1
                if sum(counts.values()) >= 480:
                    enough.set()
                else:
                    ask(number)

            batch = counts[number] % NUM_BATCHES
            with suppress(Refusal):  # The service is closed.
                service.submit(JOB, sample_request(trainers[number].channel.id, batch), done)

        for number in range(24):
            for _ in range(8 if number else 1):  # The first asks for one batch at a time.
                ask(number)
        gate.opened.set()  # All have asked: none is ahead.
        assert enough.wait(20)
        found = sorted(list(counts.values())[1:])
        assert found[0] >= 0.7 * sum(found) / len(found)


def test_beyond_its_credit_a_channel_is_refused_and_others_are_not() -> None:
    gate = Gate()
    with service_of(gate=gate) as service:
        trainer, other = Trainer(service, credit=2), Trainer(service, key="other")
        trainer.ask(0)
        assert gate.entered.acquire(timeout=20)
        trainer.ask(1)
        refused(RefusalKind.BUSY, "^2 batches are asked for already", trainer.ask, 2)
        other.ask(0)
        gate.opened.set()
        assert all(trainer.answers.next()[1].frame is not None for _ in range(2))
        assert other.answers.next()[1].frame is not None
        trainer.ask(2)


def test_leaving_an_epoch_ends_what_was_asked_for_it(wanted: list[bytes]) -> None:
    gate = Gate()
    with service_of(gate=gate) as service:
        trainer = Trainer(service, credit=3)
        for batch in range(3):
            trainer.ask(batch, fence=1)
        assert gate.entered.acquire(timeout=20)
        trainer.ask(7, fence=2)
        assert [trainer.answers.next()[1].skipped for _ in range(2)] == [True, True]  # At once.
        trainer.ask(8, fence=1)
        assert trainer.answers.next()[1].skipped
        gate.opened.set()
        came = dict(trainer.answers.next() for _ in range(2))
        assert came[0].skipped
        assert trainer.fetch(came[7]) == wanted[7]


def test_a_refused_ask_of_a_new_epoch_ends_the_older_ones_all_the_same() -> None:
    gate = Gate()
    with service_of(gate=gate, request_bytes=2000) as service:  # An ask has 800.
        trainer = Trainer(service)
        trainer.ask(0)
        assert gate.entered.acquire(timeout=20)
        trainer.ask(1)
        seeds = np.arange(100).tobytes()
        refused(RefusalKind.BUSY, "seeds", trainer.ask, 0, fence=1, inputs=seeds, index=seeds)
        name, outcome = trainer.answers.next()
        assert (name, outcome.skipped) == (1, True)
        gate.opened.set()
        assert trainer.answers.next()[1].skipped


def test_an_abandoned_ask_leaves_nothing(wanted: list[bytes]) -> None:
    gate = Gate()
    with service_of(gate=gate) as service:
        trainer = Trainer(service, credit=3)
        asked = [trainer.ask(batch) for batch in range(3)]
        assert gate.entered.acquire(timeout=20)
        service.abandon(asked[0])  # Being sampled.
        service.abandon(asked[1])  # In the queue.
        gate.opened.set()
        name, _ = trainer.answers.next()
        assert name == 2
        service.abandon(asked[2])  # It has its outcome.
        assert len(trainer.answers) == 0
        for batch in range(3):
            trainer.ask(batch)


def test_one_slot_is_not_written_twice_at_once() -> None:
    gate = Gate()
    with service_of(gate=gate) as service:
        service.ring_door = "somewhere"
        trainer = Trainer(service, ring_slots=2, ring_slot_bytes=1 << 20)
        trainer.ask(0, slot=1)
        refused(RefusalKind.NOT_FOUND, "slot 1 is asked for by another call", trainer.ask, 1, slot=1)
        refused(RefusalKind.INVALID, "slot 3 of a ring of 2", trainer.ask, 1, slot=3)
        trainer.ask(1, slot=2)
        gate.opened.set()
        assert [trainer.answers.next()[1].in_slot for _ in range(2)] == [True, True]
        trainer.ask(1, slot=1)


def test_who_does_not_read_parks_network_channels_until_its_calls_are_cut() -> None:
    clock = Clock()
    with service_of(clock=clock, frame_bytes=100_000) as service:  # A frame has 60 kB, in a buffer of 65.
        service.ring_door = "somewhere"
        sloth, other = Trainer(service), Trainer(service, job=OTHER_JOB)
        local = Trainer(service, job=OTHER_JOB, ring_slots=1, ring_slot_bytes=1 << 20)
        for batch in range(3):
            sloth.ask(batch)
        held = [sloth.answers.next()[1] for _ in range(2)]
        assert wait_until(lambda: service.load().busy == 0)
        other.ask(0)
        local.ask(0, slot=1)
        assert local.answers.next()[1].in_slot  # A ring needs no such memory.
        service.sweep()
        assert len(sloth.answers) == len(other.answers) == 0  # It may still read.
        clock.now += 6
        service.sweep()
        assert other.answers.next()[1].frame is not None  # And not the sloth's next, which came before.
        assert len(sloth.answers) == 0
        assert sloth.fetch(held[0]) is None  # Its oldest.
        assert sloth.fetch(held[1]) is not None
        assert service.load().frame_bytes < 3 * 70_000


def test_a_job_that_waits_for_nobody_but_itself_loses_nothing() -> None:
    clock = Clock()
    with service_of(clock=clock, frame_bytes=100_000) as service:
        trainers = [Trainer(service, key=str(number)) for number in range(2)]
        for batch in range(3):  # In turns: else the first may have two frames made before the second asks.
            for trainer in trainers:
                trainer.ask(batch)
        for turn in range(6):  # Slower than a frame may wait to be read where others need its memory.
            clock.now += 14
            name, outcome = trainers[turn % 2].answers.next()
            service.heartbeat(JOB, [each.channel.id for each in trainers])
            service.sweep()
            assert trainers[turn % 2].fetch(outcome) is not None, name


def test_frames_that_are_sent_to_who_does_not_read_take_a_part_of_the_memory_only() -> None:
    with service_of(frame_bytes=400_000) as service:  # One job's part while they are sent: 100 kB.
        stalled, other = Trainer(service, credit=8), Trainer(service, job=OTHER_JOB)
        for batch in range(4):
            stalled.ask(batch)
        assert wait_until(lambda: len(stalled.answers) >= 3)
        for batch in range(6):
            other.ask(batch % 4)
            assert other.fetch(other.answers.next()[1]) is not None
        assert service.load().ready_bytes <= 400_000


def test_jobs_share_frame_memory_however_many_channels_they_have() -> None:
    gate = Gate()  # Until both want memory: alone, a job may have all of it.
    with service_of(workers=2, frame_bytes=600_000, gate=gate) as service:
        greedy = [Trainer(service, key=str(number), credit=8) for number in range(12)]
        other = Trainer(service, job=OTHER_JOB, credit=8)
        for batch in range(8):
            for trainer in (*greedy, other):
                trainer.ask(batch % 4)
        gate.opened.set()
        frames = [other.answers.next()[1] for _ in range(3)]
        held = service.frames.held()
        assert held[LOCAL, JOB] < 300_000 + 2 * 65_536  # Half, and what was begun.
        for frame in frames:
            assert other.fetch(frame) is not None
        for _ in range(5):
            assert other.fetch(other.answers.next()[1]) is not None


def test_frames_that_do_not_fit_their_slots_are_bounded_as_all_others() -> None:
    with service_of(frame_bytes=200_000) as service:
        service.ring_door = "somewhere"
        trainer = Trainer(service, credit=64, ring_slots=64, ring_slot_bytes=4096)
        for slot in range(1, 21):
            trainer.ask(slot % 4, slot=slot)
        assert wait_until(lambda: len(trainer.answers) == 4 and service.load().busy == 0)
        assert service.load().frame_bytes <= 200_000 + 65_536
        for _ in range(20):
            assert trainer.fetch(trainer.answers.next()[1]) is not None


def test_an_ask_that_waits_for_memory_is_refused_when_the_server_drains() -> None:
    gate = Gate()
    with service_of(frame_bytes=100_000, gate=gate) as service:
        service.ring_door = "somewhere"
        other = Trainer(service, job=OTHER_JOB)
        trainer = Trainer(service, ring_slots=4, ring_slot_bytes=4096)
        gate.opened.set()
        for batch in range(2):
            other.ask(batch)
            other.answers.next()
        gate.opened.clear()
        for _ in range(2):
            assert gate.entered.acquire(timeout=20)
        trainer.ask(0, slot=1)
        assert gate.entered.acquire(timeout=20)
        assert not service.drain(0)
        gate.opened.set()
        refusal = trainer.answers.next()[1].refusal
        assert refusal is not None
        assert refusal.kind is RefusalKind.UNAVAILABLE


# --- who may have what


def test_joining_a_producer_and_conflicts() -> None:
    with service_of() as service:
        given: dict[str, Any] = {"key": "train", "plan": PLAN.to_json(), "graph": DIGEST}
        assert service.create_producer(JOB, **given)
        assert not service.create_producer(JOB, **given)
        assert service.create_producer(OTHER_JOB, **given)
        other = with_sampler(PLAN, replace=True).to_json()
        message = "a producer 'train' of other options exists: replace is False there and True here"
        refused(RefusalKind.CONFLICT, message, service.create_producer, JOB, **{**given, "plan": other})
        refused(
            RefusalKind.CONFLICT,
            "asked for graph '0000",
            service.create_producer,
            JOB,
            **{**given, "graph": "0" * 64},
        )
        refused(RefusalKind.INVALID, "not JSON", service.create_producer, JOB, **{**given, "plan": "x"})
        refused(
            RefusalKind.INVALID, "a key has 1 to 256", service.create_producer, JOB, **{**given, "key": ""}
        )
        assert service.load().producers == 2


def test_what_a_job_has_is_nobody_elses(wanted: list[bytes]) -> None:
    with service_of() as service:
        mine = Trainer(service)
        mine.ask(0)
        outcome = mine.answers.next()[1]
        service.create_producer(OTHER_JOB, key="other", plan=PLAN.to_json(), graph=DIGEST)
        refused(
            RefusalKind.NOT_FOUND,
            "this job has no such channel here: open it again",
            service.submit,
            OTHER_JOB,
            sample_request(mine.channel.id, 0),
            print,
        )
        order = ChannelOptions(key="train", name="", credit=1)
        refused(RefusalKind.NOT_FOUND, "no producer 'train' here", service.open_channel, OTHER_JOB, order)
        service.close_channel(OTHER_JOB, mine.channel.id)
        service.destroy_producer(OTHER_JOB, "train")
        assert service.heartbeat(OTHER_JOB, [mine.channel.id]) == []
        assert service.heartbeat(JOB, [b"none", mine.channel.id]) == [mine.channel.id]
        assert mine.fetch(outcome) == wanted[0]


def test_a_closed_channel_ends_its_asks_and_its_producer_goes_with_the_last() -> None:
    gate = Gate()
    with service_of(gate=gate) as service:
        trainer, second = Trainer(service), Trainer(service)
        for batch in range(2):
            trainer.ask(batch)
        assert gate.entered.acquire(timeout=20)
        for _ in range(2):
            service.close_channel(JOB, trainer.channel.id)
        assert service.load().producers == 1
        service.close_channel(JOB, second.channel.id)
        load = service.load()
        assert (load.producers, load.jobs, load.channels) == (0, 0, ())
        gate.opened.set()
        for _ in range(2):
            refusal = trainer.answers.next()[1].refusal
            assert refusal is not None
            assert refusal.kind is RefusalKind.NOT_FOUND
        refused(RefusalKind.NOT_FOUND, "open it again", trainer.ask, 1)
        assert not service.frames.held()


def test_destroying_a_producer_takes_its_channels() -> None:
    with service_of() as service:
        trainer, other = Trainer(service), Trainer(service, key="other")
        for _ in range(2):
            service.destroy_producer(JOB, "train")
        refused(RefusalKind.NOT_FOUND, "no such channel", trainer.ask, 0)
        other.ask(0)
        assert other.answers.next()[1].frame is not None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"credit": 0}, r"credit 0 does not lie in \[1, 64\]"),
        ({"credit": 65}, "credit 65"),
        ({"share": 0}, "share 0"),
        ({"name": "x" * 257}, "a name of 257 characters"),
        ({"key": "x" * 257}, "a key has 1 to 256"),
        ({"key": "a\nb"}, r"a key has no control characters, got 'a\\nb'"),
        ({"name": "a\x1b[2J"}, r"a name has no control characters, got 'a\\x1b\[2J'"),
        ({"ring_slots": 4}, "a number of slots and their size"),
        ({"ring_slots": 4, "ring_slot_bytes": 100}, "whole pages"),
    ],
)
def test_orders_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with service_of() as service:
        service.ring_door = "somewhere"
        service.create_producer(JOB, key="train", plan=PLAN.to_json(), graph=DIGEST)
        order = ChannelOptions(**{"key": "train", "name": "", "credit": 4, **changes})
        refused(RefusalKind.INVALID, message, service.open_channel, JOB, order)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": b"1234567"}, "50 entries of seed take 400 bytes, got 7"),
        ({"index": b"12345678"}, "1 entries of seed take 8 bytes, got 400"),
        ({"index": b"1234567"}, "an index of 7 bytes is no int64"),
        ({"inputs": b"", "index": b""}, "a batch has 1 to 100 seeds, this one 0"),
        ({"inputs": bytes(808), "index": bytes(808)}, "this one 101"),
        ({"inputs": b"\xff" * 400}, "seeds -1 to -1 lie outside of 600 nodes"),
        ({"inputs": np.full(50, 600).tobytes()}, "seeds 600 to 600 lie outside"),
        ({"fence": 2**63}, "below"),
        ({"epoch": 2**63}, "below"),
        ({"slot": 1}, "slot 1 of a ring of 0"),
    ],
)
def test_asks_that_cannot_be_are_refused(changes: dict[str, Any], message: str) -> None:
    with service_of(batch_seeds=100) as service:
        trainer = Trainer(service)
        refused(RefusalKind.INVALID, message, trainer.ask, 0, **changes)
        trainer.ask(0)
        assert trainer.answers.next()[1].frame is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"channels": 2}, "2 channels on this server"),
        ({"channels_per_job": 2}, "2 channels of one job"),
        ({"producers": 2}, "2 producers on this server"),
        ({"producers_per_job": 2}, "2 producers of one job"),
        ({"ring_bytes": 2 << 20}, "this server has 0 left for rings"),
    ],
)
def test_limits_bind_until_something_is_closed(given: dict[str, Any], message: str) -> None:
    with service_of(**given) as service:
        service.ring_door = "somewhere"

        def trainer(number: int) -> Trainer:
            return Trainer(service, key=str(number), ring_slots=1, ring_slot_bytes=1 << 20)

        first, _ = trainer(1), trainer(2)
        refused(RefusalKind.BUSY, message, trainer, 3)
        service.close_channel(JOB, first.channel.id)
        trainer(3)


def test_jobs_and_waiting_seeds_are_limited_too() -> None:
    gate = Gate()
    with service_of(gate=gate, jobs=1, request_bytes=2000) as service:
        trainer = Trainer(service)
        refused(RefusalKind.BUSY, "1 jobs on this server", Trainer, service, job=OTHER_JOB)
        trainer.ask(0)
        trainer.ask(1)
        refused(RefusalKind.BUSY, "as many seeds waiting as it may hold", trainer.ask, 2)
        gate.opened.set()
        for _ in range(2):
            trainer.answers.next()
        trainer.ask(2)


def test_limits_refuse_nonsense() -> None:
    with pytest.raises(ValueError, match="credit must be positive, got 0"):
        Limits(credit=0)


# --- leases


def test_a_job_that_is_silent_loses_what_it_holds(
    caplog: pytest.LogCaptureFixture, wanted: list[bytes]
) -> None:
    clock = Clock()
    with service_of(clock=clock, lease_s=30.0) as service:
        service.ring_door = "somewhere"
        silent = Trainer(service, ring_slots=1, ring_slot_bytes=4096)
        alive = Trainer(service, job=OTHER_JOB)
        silent.ask(0)
        assert silent.fetch(silent.answers.next()[1]) is not None
        clock.now += 29
        service.heartbeat(OTHER_JOB, [alive.channel.id])
        service.sweep()
        clock.now += 2
        service.sweep()
        load = service.load()
        assert (load.jobs, load.producers) == (1, 1)
        assert service.heartbeat(OTHER_JOB, [alive.channel.id]) == [alive.channel.id]
        refused(RefusalKind.NOT_FOUND, "no such channel", silent.ask, 0)
        assert service.ring_of(silent.channel.id) is None
        [record] = [each for each in caplog.records if "reclaimed" in each.message]
        assert "1 channels and 1 producers are reclaimed" in record.message
        alive.ask(1)
        assert alive.fetch(alive.answers.next()[1]) == wanted[1]


def test_leases_are_of_channels_each_renewed_by_what_names_it() -> None:
    """Ranks share a job: what one of them left behind goes, whatever others do."""
    clock = Clock()
    with service_of(clock=clock, lease_s=30.0) as service:
        asking, beating, dead = (Trainer(service) for _ in range(3))
        other = Trainer(service, key="other")
        assert service.load().producers == 2
        for _ in range(4):
            clock.now += 20
            asking.ask(0)
            asking.fetch(asking.answers.next()[1])
            service.heartbeat(JOB, [beating.channel.id])
            service.create_producer(JOB, key="train", plan=PLAN.to_json(), graph=DIGEST)
            service.sweep()
        load = service.load()
        assert (len(load.channels), load.producers) == (2, 1)
        everyone = [each.channel.id for each in (asking, beating, dead, other)]
        assert service.heartbeat(JOB, everyone) == [asking.channel.id, beating.channel.id]
        for trainer in (dead, other):
            refused(RefusalKind.NOT_FOUND, "no such channel", trainer.ask, 0)


def test_a_producer_that_nobody_opens_a_channel_of_goes_too() -> None:
    clock = Clock()
    with service_of(clock=clock, lease_s=30.0) as service:
        for key in ("left", "joined"):
            service.create_producer(JOB, key=key, plan=PLAN.to_json(), graph=DIGEST)
        clock.now += 20
        service.create_producer(JOB, key="joined", plan=PLAN.to_json(), graph=DIGEST)
        clock.now += 20
        service.sweep()
        assert service.load().producers == 1
        service.open_channel(JOB, ChannelOptions(key="joined", name="", credit=1))
        clock.now += 31
        service.sweep()
        assert (service.load().jobs, service.load().producers) == (0, 0)


def test_idle_servers_give_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers, memory = record_made(monkeypatch, SamplerPool), record_made(monkeypatch, BufferPool)
    clock = Clock()
    with service_of(clock=clock) as service:
        trainer = Trainer(service)
        trainer.ask(0)
        trainer.fetch(trainer.answers.next()[1])
        assert wait_until(lambda: samplers[0].idle == 1)
        assert memory[0].held
        clock.now += 61
        service.heartbeat(JOB, [trainer.channel.id])
        service.sweep()
        assert samplers[0].idle == 0
        assert memory[0].held == 0


# --- life


def test_nothing_is_sampled_before_it_is_ready() -> None:
    with service_of(ready=False) as service:
        refused(RefusalKind.UNAVAILABLE, "the server is starting", Trainer, service)
        assert service.load().workers == 0
        service.make_ready(None)
        Trainer(service)
        with pytest.raises(ValueError, match="it becomes ready once"):
            service.make_ready(None)


def test_draining_refuses_what_waits_and_finishes_what_was_begun(wanted: list[bytes]) -> None:
    gate = Gate()
    with service_of(gate=gate) as service:
        trainer = Trainer(service)
        for batch in range(2):
            trainer.ask(batch)
        assert gate.entered.acquire(timeout=20)
        assert not service.drain(0.01)
        refusal = trainer.answers.next()[1].refusal
        assert refusal is not None
        assert refusal.kind is RefusalKind.UNAVAILABLE
        refused(RefusalKind.UNAVAILABLE, "the server is draining", trainer.ask, 2)
        gate.opened.set()
        outcome = trainer.answers.next()[1]
        assert not service.drain(0.05)  # It was not fetched.
        assert trainer.fetch(outcome) == wanted[0]
        assert service.drain(10)


@pytest.mark.usefixtures("no_leftovers")
def test_closing_ends_all_in_any_state() -> None:
    before = {*threading.enumerate()}
    with service_of(ready=False) as service:
        service.close()
        with pytest.raises(ValueError, match="the service is closed"):
            service.make_ready(None)
    gate = Gate()
    with service_of(workers=2, gate=gate) as service:
        service.ring_door = "somewhere"
        trainer = Trainer(service, ring_slots=2, ring_slot_bytes=1 << 20)
        trainer.ask(0, slot=1)
        for batch in range(1, 5):
            trainer.ask(batch)
        assert gate.entered.acquire(timeout=20)
        gate.opened.set()
        service.close()
        service.close()
        for _ in range(5):
            trainer.answers.next()
        refused(RefusalKind.UNAVAILABLE, "the server is closed", trainer.ask, 0)
    del trainer, service
    gc.collect()
    assert {*threading.enumerate()} <= before


def test_closing_does_not_wait_for_a_store_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_server.sampling.service._JOIN_S", 0.05)
    graph, hang = small_graph(), threading.Event()
    with service_of(ready=False) as service:
        store = PartitionedStore(graph.schema, local={0: LocalStore(graph, 0)}, remote={})
        monkeypatch.setattr(store, "close", lambda: hang.wait(20))
        service.make_ready(lambda: store)
        service.close()
    hang.set()


def test_samplers_are_shared_by_equal_plans_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers = record_made(monkeypatch, SamplerPool)
    with service_of(memory=8 << 20) as service:  # An eighth for idle ones; each has some 100 kB.
        for key in ("a", "b"):
            trainer = Trainer(service, key=key)
            trainer.ask(0)
            trainer.answers.next()
        assert wait_until(lambda: samplers[0].idle == 1)
        for seed in range(20):
            trainer = Trainer(service, key=f"seed {seed}", plan=replace(PLAN, run_seed=seed))
            trainer.ask(0)
            trainer.answers.next()
        assert wait_until(lambda: service.load().busy == 0)
        assert 2 <= samplers[0].idle < 15
        assert samplers[0].idle_bytes <= 1 << 20


def test_load_counts_what_was_done() -> None:
    with service_of(workers=2) as service:
        trainer = Trainer(service)
        for batch in range(3):
            trainer.ask(batch)
        outcomes = [trainer.answers.next()[1] for _ in range(3)]
        trainer.fetch(outcomes[0])
        load = service.load()
        [channel] = load.channels
        total = sum(outcome.nbytes for outcome in outcomes)
        assert (load.workers, load.jobs, load.producers, load.batches, load.nbytes) == (2, 1, 1, 3, total)
        assert load.ready_bytes == total - outcomes[0].nbytes
        assert (channel.key, channel.name, channel.transport) == ("train", "train rank 0", "network")
        assert (channel.batches, channel.nbytes, channel.queued) == (3, total, 0)
        assert channel.sampling_s == pytest.approx(sum(each.sampling_s for each in outcomes))
        service.close_channel(JOB, trainer.channel.id)
        assert service.load().batches == 3


def test_samplers_go_with_the_last_producer_of_their_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers, clock, gate = record_made(monkeypatch, SamplerPool), Clock(), Gate()
    gate.opened.set()
    other = replace(PLAN, run_seed=1)
    with service_of(clock=clock, gate=gate, lease_s=30.0) as service:
        trainers = [
            Trainer(service, key="a"),
            Trainer(service, key="b"),
            Trainer(service, key="c", plan=other),
        ]
        for trainer in trainers:
            trainer.ask(0)
            trainer.answers.next()
        assert wait_until(lambda: samplers[0].idle == 2)  # One for the equal plans.
        service.destroy_producer(JOB, "a")
        assert samplers[0].idle == 2
        service.close_channel(JOB, trainers[1].channel.id)
        assert samplers[0].idle == 1
        clock.now += 31
        service.sweep()  # The lease of the last one is over.
        assert samplers[0].idle == samplers[0].idle_bytes == 0


def test_a_sampler_whose_producer_goes_while_it_works_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    samplers, gate = record_made(monkeypatch, SamplerPool), Gate()
    with service_of(gate=gate) as service:
        trainer = Trainer(service)
        trainer.ask(0)
        assert gate.entered.acquire(timeout=20)
        service.destroy_producer(JOB, "train")
        gate.opened.set()
        trainer.answers.next()
        assert wait_until(lambda: service.load().busy == 0)
        assert samplers[0].idle == samplers[0].lent_bytes == 0
