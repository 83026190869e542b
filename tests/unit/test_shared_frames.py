"""Equal requests of several jobs: sampled once, and answered as if each job were alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.errors import FormatError
from gigl_loader.memfile import map_memory
from gigl_server.sampling.frame_maker import SharedFrames, request_key
from tests.support.clusters import addresses_of, servers_of
from tests.support.leftovers import wait_until
from tests.support.sources import NUM_BATCHES, SourceKind, drain, small_graph
from tests.support.store_service import Clock, Gate, Trainer, sample_request, service_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from gigl_server.sampling.service import SamplingService

JOBS = [bytes([number]) * 32 for number in range(1, 5)]


@pytest.fixture(scope="module")
def wanted() -> list[bytes]:
    """Epoch 0 as it is sampled beside a trainer."""
    source = SourceKind(0).open()
    source.start_epoch(0)
    return drain(source)


def trainers_of(service: SamplingService, *, jobs: int = 2, **order: Any) -> list[Trainer]:
    return [Trainer(service, job=job, **order) for job in JOBS[:jobs]]


def shared(service: SamplingService) -> int:
    """Return how many batches were answered with the frame of an equal request."""
    return service.load().shared


def become_twins(trainers: Sequence[Trainer], *, batch: int = 0) -> None:
    """Have trainers take one equal batch."""
    for trainer in trainers:
        trainer.ask(batch)
        assert trainer.fetch(trainer.answers.next()[1])


def take(trainer: Trainer, batches: Iterable[int]) -> list[bytes | None]:
    """Request batches one after the other, and return their frames."""
    frames = []
    for batch in batches:
        trainer.ask(batch)
        frames.append(trainer.fetch(trainer.answers.next()[1]))
    return frames


# --- what is sampled once


@pytest.mark.parametrize("workers", [1, 3])
def test_four_jobs_in_step_are_sampled_once(wanted: list[bytes], workers: int) -> None:
    gate = Gate()
    with service_of(workers=workers, gate=gate) as service:
        trainers = trainers_of(service, jobs=4)
        for batch in range(NUM_BATCHES):
            for trainer in trainers:
                trainer.ask(batch)
        gate.opened.set()
        for trainer in trainers:
            came = dict(trainer.answers.next() for _ in range(NUM_BATCHES))
            assert [trainer.fetch(came[batch]) for batch in range(NUM_BATCHES)] == wanted
        load = service.load()
        assert (load.batches, load.shared) == (4 * NUM_BATCHES, 3 * NUM_BATCHES)
        assert [each.batches for each in load.channels] == [NUM_BATCHES] * 4
        assert sum(each.shared for each in load.channels) == 3 * NUM_BATCHES
        assert load.shared_bytes == 0  # All jobs have had all frames.


def test_a_job_that_is_behind_finds_the_frames_that_another_one_had_sampled(wanted: list[bytes]) -> None:
    with service_of() as service:
        ahead, behind = trainers_of(service)
        become_twins([ahead, behind])
        assert take(ahead, range(1, 6)) == wanted[1:6]
        assert service.load().shared_bytes > 0
        assert take(behind, range(1, 6)) == wanted[1:6]
        assert (shared(service), service.load().shared_bytes) == (5, 0)


def test_a_job_that_starts_later_finds_the_frames_since_its_first_equal_request(wanted: list[bytes]) -> None:
    with service_of() as service:
        first, late = trainers_of(service)
        assert take(first, range(4)) == wanted[:4]
        assert service.load().shared_bytes == 0  # There was no other job.
        assert take(late, [0]) == wanted[:1]
        assert take(first, range(4, 6)) == wanted[4:6]
        assert take(late, range(1, 6)) == wanted[1:6]
        assert shared(service) == 2


def test_frames_go_into_slots_that_a_job_may_write(wanted: list[bytes]) -> None:
    with service_of() as service:
        service.ring_door = "somewhere"
        trainers = trainers_of(service, comes=False, ring_slots=2, ring_slot_bytes=1 << 20)
        memories = []
        for trainer in trainers:
            fd = service.ring_of(trainer.channel.id)
            assert fd is not None
            memories.append(map_memory(fd, 2 << 20))
        for batch in range(3):
            for trainer, memory in zip(trainers, memories, strict=True):
                trainer.ask(batch, slot=1)
                outcome = trainer.answers.next()[1]
                assert outcome.in_slot
                assert memory[: outcome.nbytes].tobytes() == wanted[batch]
                memory[:] = 255  # Its own slot: no other job sees that.
        assert shared(service) == 2


# --- what is not shared


def test_jobs_with_other_requests_keep_nothing_for_each_other(wanted: list[bytes]) -> None:
    with service_of() as service:
        one, other = trainers_of(service)
        assert take(one, range(0, 6, 2)) == wanted[0:6:2]
        assert take(other, range(1, 6, 2)) == wanted[1:6:2]
        assert (shared(service), service.load().shared_bytes) == (0, 0)


def test_everything_that_a_frame_depends_on_is_in_the_key() -> None:
    with service_of() as service:
        trainer, deferred = Trainer(service), Trainer(service, job=JOBS[1], deferred_features=True)
        requests = [
            sample_request(trainer.channel.id, 3),
            sample_request(trainer.channel.id, 3, epoch=1),
            sample_request(trainer.channel.id, 4),
            sample_request(trainer.channel.id, 3, number=1),
        ]
        size = len(requests[0].index)
        requests += [
            sample_request(trainer.channel.id, 3, index=bytes(size)),
            sample_request(trainer.channel.id, 3, inputs=bytes(size)),
        ]
        keys = [request_key(trainer.channel, each) for each in requests]
        keys += [request_key(deferred.channel, requests[0])]
        assert len(set(keys)) == len(keys)
        waits = Trainer(service, job=JOBS[2], interactive=True)
        assert request_key(waits.channel, requests[0]) == b""


def test_without_memory_for_it_each_batch_is_sampled_for_its_job(wanted: list[bytes]) -> None:
    with service_of(shared_frame_bytes=0) as service:
        one, other = trainers_of(service)
        for trainer in (one, other):
            assert take(trainer, range(4)) == wanted[:4]
        assert shared(service) == 0


# --- faults


@pytest.mark.parametrize("end", ["cancelled", "closed", "destroyed", "expired", "failed"])
def test_jobs_that_wait_go_on_when_the_first_one_ends(
    wanted: list[bytes], end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, clock = Gate(), Clock()
    with service_of(workers=2, gate=gate, clock=clock) as service:
        first, second, third = trainers_of(service, jobs=3)
        task = first.ask(2)
        assert gate.entered.acquire(timeout=20)
        second.ask(2)
        third.ask(2)
        assert not gate.entered.acquire(timeout=0.1)  # They wait for it, and hold no thread.
        if end == "cancelled":
            service.abandon(task)
        elif end == "closed":
            service.close_channel(first.job, first.channel.id)
        elif end == "destroyed":
            service.destroy_producer(first.job, "train")
        elif end == "expired":
            clock.now += 50
            for each in (second, third):
                service.heartbeat(each.job, [each.channel.id])
            clock.now += 20
            service.sweep()
            assert len(service.load().channels) == 2
        else:
            fail_once(monkeypatch)
        gate.opened.set()
        for trainer in (second, third):
            assert trainer.fetch(trainer.answers.next()[1]) == wanted[2]


def fail_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from gigl_loader.sampling.neighbor_sampler import LocalSampler

    sample, calls = LocalSampler.sample, iter([FormatError("once")])

    def failing(sampler: Any, request: Any) -> Any:
        for error in calls:
            raise error
        return sample(sampler, request)

    monkeypatch.setattr(LocalSampler, "sample", failing)


def test_a_batch_that_was_set_aside_or_takes_long_is_not_waited_for() -> None:
    shares = SharedFrames(1 << 20, keep_s=30.0, channels={}, lock=None, clock=Clock())  # type: ignore[arg-type]
    owner, other = SimpleNamespace(owner="owner"), SimpleNamespace(owner="other")
    first: Any = SimpleNamespace(key=b"key", channel=owner, aside_since=None, ran_s=0.0)
    equal: Any = SimpleNamespace(key=b"key", channel=owner)
    assert shares.admits(equal)
    shares.begin(first)
    assert not shares.admits(equal)
    first.aside_since = 5.0
    assert shares.admits(equal)
    first.aside_since, first.ran_s = None, 0.6
    assert not shares.admits(equal)
    assert shares.admits(SimpleNamespace(key=b"key", channel=other))  # type: ignore[arg-type]
    first.ran_s = 11.0
    assert shares.admits(equal)
    shares.begin(equal)
    shares.end(equal)
    first.ran_s = 0.0
    assert not shares.admits(equal)  # The first one is still sampled.
    shares.end(first)
    assert shares.admits(equal)


def test_frames_make_room_when_memory_is_short(wanted: list[bytes]) -> None:
    with service_of(memory=8 << 20, frame_bytes=512 << 10) as service:
        ahead, behind = trainers_of(service)
        become_twins([ahead, behind])
        assert take(ahead, range(1, NUM_BATCHES)) == wanted[1:]
        kept = service.load()
        assert 0 < kept.shared_bytes <= 256 << 10
        assert kept.frame_bytes <= 512 << 10
        held = []  # Of a job that requests other batches, and fetches none.
        other = Trainer(service, job=JOBS[3])
        for batch in range(4):
            other.ask(batch, epoch=7)
            held.append(other.answers.next()[1])
        assert service.load().shared_bytes < kept.shared_bytes
        assert take(behind, range(1, NUM_BATCHES)) == wanted[1:]
        assert all(other.fetch(each) for each in held)


def test_frames_for_slots_take_no_memory_that_frames_to_be_fetched_need(wanted: list[bytes]) -> None:
    with service_of(memory=8 << 20, frame_bytes=512 << 10) as service:
        service.ring_door = "somewhere"
        given: dict[str, Any] = {"ring_slots": 2, "ring_slot_bytes": 1 << 20}
        ahead, behind = trainers_of(service, **given)
        other = Trainer(service, job=JOBS[3])
        held: list[Any] = []
        while service.load().frame_bytes <= 256 << 10:
            other.ask(len(held), epoch=7)
            held.append(other.answers.next()[1])
        before = service.load().frame_bytes
        for batch in range(4):
            for trainer in (ahead, behind):
                trainer.ask(batch, slot=1)
                assert trainer.answers.next()[1].in_slot
                load = service.load()
                assert (load.frame_bytes, load.shared_bytes) == (before, 0)
        assert all(other.fetch(each) for each in held)
        for trainer in (ahead, behind):
            trainer.ask(5, slot=1)
            assert trainer.answers.next()[1].nbytes == len(wanted[5])
        assert shared(service) == 1


def test_frames_that_no_job_comes_for_are_dropped_in_time() -> None:
    clock = Clock()
    with service_of(clock=clock) as service:
        ahead, behind = trainers_of(service)
        become_twins([ahead, behind])
        take(ahead, range(1, 4))
        clock.now += 29
        service.sweep()
        assert service.load().shared_bytes > 0
        clock.now += 2
        service.sweep()
        assert service.load().shared_bytes == 0
        wait_until(lambda: service.load().frame_bytes == 0, seconds=5)


def test_frames_of_a_job_that_has_left_are_dropped_at_once() -> None:
    with service_of() as service:
        ahead, behind = trainers_of(service)
        become_twins([ahead, behind])
        take(ahead, range(1, 4))
        service.close_channel(behind.job, behind.channel.id)
        service.sweep()
        assert service.load().shared_bytes == 0


def test_no_frame_is_answered_once_damage_is_known(
    wanted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with service_of() as service:
        ahead, behind = trainers_of(service)
        become_twins([ahead, behind])
        take(ahead, [1])
        with monkeypatch.context() as patch:
            patch.setattr(type(small_graph().verifier), "damage", {"x": "block 3 of x is damaged"})
            behind.ask(1)
            outcome = behind.answers.next()[1]
        assert outcome.unavailable
        service.hold(small_graph(), None)  # Repaired: what was drawn before is drawn again.
        assert take(behind, [1]) == [wanted[1]]
        assert shared(service) == 0


def test_a_server_that_drains_keeps_no_frame() -> None:
    with service_of() as service:
        ahead, behind = trainers_of(service)
        become_twins([ahead, behind])
        take(ahead, range(1, 4))
        assert service.drain(5.0)


# --- end to end


@pytest.mark.parametrize("transport", ["network", "ring"])
def test_loaders_of_two_jobs_share_a_server(tmp_path: Path, transport: Any) -> None:
    from gigl_loader.partition import build_graph, tables_from_pyg
    from tests.support.pyg_graphs import homogeneous

    build_graph(tables_from_pyg(homogeneous(1000, 8000)), tmp_path / "graph", num_partitions=1)
    with servers_of(tmp_path / "graph", 1) as servers:
        addresses = addresses_of(servers)
        given: dict[str, Any] = {"batch_size": 20, "shuffle": True, "seed": 3}
        with (
            RemoteDistDataset.connect(addresses, transport=transport) as one,
            RemoteDistDataset.connect(addresses, transport=transport) as other,
            DistNeighborLoader(one, [3, 2], "train", **given) as first,
            DistNeighborLoader(other, [3, 2], "train", **given) as second,
        ):
            for _ in range(3):
                for mine, theirs in zip(first, second, strict=True):
                    assert mine.n_id.equal(theirs.n_id)
                    assert mine.x.equal(theirs.x)
            [load] = one.server_stats().values()
        assert load["batches"] == 6 * len(first)
        assert 0 < load["shared"] <= 3 * len(first)
