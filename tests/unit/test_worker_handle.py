"""A handle whose worker is played by the test, message by message."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.channel.message import Request, Response, Result, receive
from gigl_loader.channel.ring import Ring, RingLayout, SlotPool, State
from gigl_loader.errors import FormatError
from gigl_loader.memfile import create_memory
from gigl_loader.sampling.request import BatchRequest
from gigl_loader.workers import handle as handle_module
from gigl_loader.workers.config import WorkerConfig
from gigl_loader.workers.frame_limit import FrameLimit
from gigl_loader.workers.handle import WorkerHandle
from tests.support.plans import seed_request
from tests.support.sources import PLAN

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("no_leftovers")

LAYOUT = RingLayout(request_slots=2, request_bytes=128, slots=4, slot_bytes=4096)
SETTING = WorkerConfig(
    worker=5,
    incarnation=0,
    trainer_pid=os.getpid(),
    sampler="",
    plan="{}",
    inputs=PLAN.inputs,
    reference={},
    ring=LAYOUT,
)


class PlayedWorker:
    """Stands in for a ``Incarnation`` and is its far end."""

    pid = 4711
    started = False
    run_state = "running"
    status: int | None = -signal.SIGKILL

    def __init__(self, config: WorkerConfig, *, method: str, ring_fd: int) -> None:
        self.incarnation = config.incarnation
        self.link, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.setblocking(False)
        self.ring = Ring(ring_fd, config.ring)

    def answer(self, outcome: int, request_slot: int, slot: int = 0, nbytes: int = 10) -> None:
        self.far.send(Response(outcome, request_slot, slot, nbytes, 0, 0).pack())

    def work(self) -> Request:
        """Take a request and write its seeds as its frame."""
        ask = Request.unpack(receive(self.far)[0])
        slot = self.ring.slots.take()
        assert slot is not None
        seeds = self.ring.request_slot(ask.request_slot).view(np.int64)[ask.num_entries :]
        self.ring.slots.buffer(slot)[: ask.num_entries] = seeds[: ask.num_entries]
        self.answer(Result.FRAME, ask.request_slot, slot, ask.num_entries)
        return ask

    def reap(self) -> tuple[str, int | None]:
        return "worker 5 (pid 4711) was killed by SIGKILL", self.status

    def take_trace(self) -> str:
        return "last words"

    def hang_up(self) -> None: ...

    def end(self, deadline: float) -> None:
        self.abandon()

    def abandon(self) -> None:
        self.link.close()
        self.far.close()
        del self.ring


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerHandle]:
    monkeypatch.setattr(handle_module, "Incarnation", PlayedWorker)
    limit = FrameLimit(1 << 40, workers=6, most=4, is_given=False)
    handle = WorkerHandle(SETTING, limit, method="spawn", spare_slots=2)
    handle.leave_epoch(1)
    yield handle
    handle.end(0)
    vars(handle).clear()  # Pytest keeps the handle itself for longer than its memory may live.


def played(handle: WorkerHandle) -> PlayedWorker:
    worker: Any = handle.incarnation
    played: PlayedWorker = worker
    return played


def room(handle: WorkerHandle) -> bool:
    return handle.has_room


def request(batch: int, epoch: int = 0) -> BatchRequest:
    return seed_request(epoch, batch, np.array([batch, batch]))


def test_requests_and_frames_pass_through_the_ring(handle: WorkerHandle) -> None:
    handle.send(request(7))
    assert played(handle).work()[2:] == (1, 0, 7, 0)
    (delivery,) = handle.deliveries()
    assert (delivery.batch, delivery.nbytes) == (7, 2)
    assert handle.hand_out(delivery).tolist() == [7, 7]


def test_room_is_for_requests_and_finished_frames_together(handle: WorkerHandle) -> None:
    handle.send(request(0))
    assert room(handle)
    handle.send(request(1))
    assert not room(handle)
    played(handle).work()
    (delivery,) = handle.deliveries()
    assert not room(handle)
    handle.hand_out(delivery)
    assert room(handle)


def test_few_frames_are_lent_and_the_others_copied(handle: WorkerHandle) -> None:
    kept = []
    for batch in range(6):
        handle.send(request(batch))
        played(handle).work()
        (delivery,) = handle.deliveries()
        kept.append(handle.hand_out(delivery))
    assert [array.tolist() for array in kept] == [[batch, batch] for batch in range(6)]
    assert handle.stats.copied_out == 4
    del kept[:2]
    handle.send(request(9))
    played(handle).work()
    (delivery,) = handle.deliveries()
    handle.hand_out(delivery)
    assert handle.stats.copied_out == 4


def test_a_copy_that_fails_leaves_its_slot_free(
    handle: WorkerHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoMemory:
        def __getitem__(self, key: slice) -> NoMemory:
            return self

        def copy(self) -> None:
            raise MemoryError

    kept = []
    for batch in range(3):
        handle.send(request(batch))
        played(handle).work()
        (delivery,) = handle.deliveries()
        if batch < 2:
            kept.append(handle.hand_out(delivery))
    monkeypatch.setattr(SlotPool, "buffer", lambda *_: NoMemory())
    with pytest.raises(MemoryError):
        handle.hand_out(delivery)
    assert played(handle).ring.slots.take() == 2


def test_answers_of_an_epoch_that_was_left_only_free_what_they_held(handle: WorkerHandle) -> None:
    handle.send(request(0))
    handle.send(request(1))
    played(handle).work()
    handle.leave_epoch(2)
    assert not room(handle)
    assert played(handle).ring.generation == 2
    assert list(handle.deliveries()) == []
    assert room(handle)
    handle.send(request(0, epoch=1))
    request_slot = Request.unpack(receive(played(handle).far)[0]).request_slot
    played(handle).answer(Result.SKIPPED, request_slot)
    played(handle).work()
    (delivery,) = handle.deliveries()
    assert delivery.batch == 0
    assert played(handle).ring.slots.take() == 1
    handle.drop(delivery)
    assert handle.load == (0, 0)


def test_a_burial_names_the_batches_to_sample_again(handle: WorkerHandle) -> None:
    handle.send(request(0))
    played(handle).work()
    (finished,) = handle.deliveries()
    handle.send(request(1))
    worker = played(handle)
    worker.started = True
    worker.ring.slots.take()
    worker.ring.note(State.SAMPLING, epoch=0, batch=1)
    worker.far.close()
    with pytest.raises(EOFError):
        list(handle.deliveries())
    death = handle.reap()
    assert death.account.endswith("was killed by SIGKILL while it sampled batch 1 of epoch 0")
    assert (death.trace, death.hopeless, death.pending) == ("last words", False, [1])
    handle.restart()
    assert (played(handle).incarnation, handle.stats.restarts) == (1, 1)
    handle.send(request(1))
    played(handle).work()
    (again,) = handle.deliveries()
    assert (finished.slot, again.slot) == (0, 1)
    assert handle.hand_out(finished).tolist() == [0, 0]
    assert handle.hand_out(again).tolist() == [1, 1]


@pytest.mark.parametrize(("status", "hopeless"), [(1, True), (0, True), (-9, False), (None, False)])
def test_ending_by_itself_before_being_up_is_hopeless(
    handle: WorkerHandle, status: int | None, hopeless: bool
) -> None:
    played(handle).status = status
    assert handle.reap().hopeless is hopeless
    handle.restart()


def test_requests_to_a_process_that_is_gone_wait_for_its_burial(handle: WorkerHandle) -> None:
    played(handle).far.close()
    handle.send(request(3))
    assert handle.reap().pending == [3]
    handle.restart()


@pytest.mark.parametrize(
    ("outcome", "request_slot", "slot", "nbytes"),
    [
        (Result.FRAME, 0, 0, 10),
        (Result.FRAME, 99, 0, 10),
        (Result.FRAME, 1, 4, 10),
        (Result.FRAME, 1, 2**40, 10),
        (Result.FRAME, 1, 3, 4097),
        (Result.FRAME, 1, 0, 4 * 4096 + 1),
        (Result.FRAME, 1, 0, 2**62),
        (Result.OVERSIZE, 1, 0, 10),
        (Result.SKIPPED, 1, 0, 0),
        (17, 1, 0, 10),
    ],
)
def test_a_worker_that_breaks_the_protocol_is_refused(
    handle: WorkerHandle, outcome: int, request_slot: int, slot: int, nbytes: int
) -> None:
    handle.send(request(0))
    assert Request.unpack(receive(played(handle).far)[0]).request_slot == 1
    played(handle).answer(outcome, request_slot, slot, nbytes)
    with pytest.raises(FormatError, match="worker 5"):
        list(handle.deliveries())


def test_a_slot_that_is_in_use_cannot_come_again(handle: WorkerHandle) -> None:
    handle.send(request(0))
    played(handle).work()
    (delivery,) = handle.deliveries()
    for kept in (delivery, handle.hand_out(delivery)):
        handle.send(request(1))
        ask = Request.unpack(receive(played(handle).far)[0])
        played(handle).answer(Result.FRAME, ask.request_slot, delivery.slot)
        with pytest.raises(FormatError, match="worker 5 sent"):
            list(handle.deliveries())
        del kept


@pytest.mark.parametrize(("fitting", "most_open"), [(12, 8), (11, 8), (5, 5), (2, 2), (0, 2)])
def test_what_is_in_flight_fits_in_the_memory_for_frames(
    monkeypatch: pytest.MonkeyPatch, fitting: int, most_open: int
) -> None:
    monkeypatch.setattr(handle_module, "Incarnation", PlayedWorker)
    layout = RingLayout(request_slots=8, request_bytes=128, slots=12, slot_bytes=4096)
    config = replace(SETTING, worker=0, ring=layout)
    limit = FrameLimit(fitting * 3000, workers=1, most=12, is_given=True)
    handle = WorkerHandle(config, limit, method="spawn", spare_slots=4)
    handle.leave_epoch(1)
    handle.send(request(0))
    ask = Request.unpack(receive(played(handle).far)[0])
    played(handle).answer(Result.FRAME, ask.request_slot, played(handle).ring.slots.take() or 0, 3000)
    (delivery,) = handle.deliveries()
    kept = handle.hand_out(delivery)
    assert _requests_sent(handle) == min(most_open, max(fitting, 2) - 1)  # A frame that is kept counts.
    del kept
    _requests_sent(handle)
    assert handle.load[0] == most_open
    handle.end(0)
    del delivery
    vars(handle).clear()


def test_frames_that_are_kept_leave_room_for_the_next(handle: WorkerHandle) -> None:
    handle._limit.note((1 << 40) // 12)  # Two of each worker.
    kept = []
    for batch in range(4):
        assert handle.has_room
        handle.send(request(batch))
        played(handle).work()
        (delivery,) = handle.deliveries()
        kept.append(handle.hand_out(delivery))
    assert [array.tolist() for array in kept] == [[batch, batch] for batch in range(4)]
    assert handle.stats.copied_out == 3


def _requests_sent(handle: WorkerHandle) -> int:
    """Send as many requests as there is room for, and return how many are open."""
    while room(handle):
        handle.send(request(1))
    return handle.load[0]


def test_many_frames_in_memory_of_their_own_are_copied_too(handle: WorkerHandle) -> None:
    """Every mapping holds a descriptor."""
    kept = []
    for batch in range(40):
        handle.send(request(batch))
        request_slot = Request.unpack(receive(played(handle).far)[0]).request_slot
        fd = create_memory("gigl-test", 4096)
        os.pwrite(fd, bytes([batch]), 0)
        socket.send_fds(
            played(handle).far, [Response(Result.OVERSIZE, request_slot, 0, 4096, 0, 0).pack()], [fd]
        )
        os.close(fd)
        (delivery,) = handle.deliveries()
        kept.append(handle.hand_out(delivery))
    del delivery
    assert [array[0] for array in kept] == list(range(40))
    assert (handle.stats.oversize, handle.stats.copied_out) == (40, 8)


def test_a_memory_file_shorter_than_it_says_is_refused(handle: WorkerHandle) -> None:
    handle.send(request(0))
    fd = create_memory("gigl-test", 100)
    answer = Response(Result.OVERSIZE, 1, 0, 4096, 0, 0).pack()
    socket.send_fds(played(handle).far, [answer], [fd])
    os.close(fd)
    with pytest.raises(FormatError, match="100 bytes for 4096"):
        list(handle.deliveries())
