"""A lane whose worker is played by the test, message by message."""

from __future__ import annotations

import os
import signal
import socket
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.channel.message import Answer, Ask, Outcome, receive
from gigl_loader.channel.ring import Ring, RingLayout, State, create_memory
from gigl_loader.errors import FormatError
from gigl_loader.sampling import lane as lane_module
from gigl_loader.sampling.lane import Lane
from gigl_loader.sampling.schedule import Request
from gigl_loader.sampling.setting import WorkerSetting
from tests.support.sources import PLAN

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("no_leftovers")

LAYOUT = RingLayout(boxes=2, box_seeds=8, slots=4, slot_bytes=4096)
SETTING = WorkerSetting(
    worker=5, life=0, trainer_pid=os.getpid(), sampler="", plan=PLAN, reference={}, ring=LAYOUT
)


class PlayedWorker:
    """Stands in for a ``Companion`` and is its far end."""

    pid = 4711
    started = False
    run_state = "running"
    status: int | None = -signal.SIGKILL

    def __init__(self, setting: WorkerSetting, *, method: str, ring_fd: int) -> None:
        self.life = setting.life
        self.link, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.setblocking(False)
        self.ring = Ring(ring_fd, setting.ring)

    def answer(self, outcome: int, box: int, slot: int = 0, nbytes: int = 10) -> None:
        self.far.send(Answer(outcome, box, slot, nbytes, 0, 0).pack())

    def work(self) -> Ask:
        """Take a request and write its seeds as its frame."""
        ask = Ask.unpack(receive(self.far)[0])
        slot = self.ring.slots.take()
        assert slot is not None
        self.ring.slots.buffer(slot)[: ask.num_seeds] = self.ring.box(ask.box, ask.num_seeds)[0]
        self.answer(Outcome.FRAME, ask.box, slot, ask.num_seeds)
        return ask

    def bury(self) -> tuple[str, int | None]:
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
def lane(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lane]:
    monkeypatch.setattr(lane_module, "Companion", PlayedWorker)
    lane = Lane(SETTING, method="spawn", spare_slots=2)
    lane.leave_epoch(1)
    yield lane
    lane.end(0)
    vars(lane).clear()  # Pytest keeps the lane itself for longer than its memory may live.


def played(lane: Lane) -> PlayedWorker:
    worker: Any = lane.companion
    played: PlayedWorker = worker
    return played


def room(lane: Lane) -> bool:
    return lane.has_room


def request(batch: int, epoch: int = 0) -> Request:
    return Request(epoch, batch, np.array([batch, batch]), np.array([0, 1]))


def test_requests_and_frames_pass_through_the_ring(lane: Lane) -> None:
    lane.ask(request(7))
    assert played(lane).work()[2:] == (1, 0, 7)
    (delivery,) = lane.answers()
    assert (delivery.batch, delivery.nbytes) == (7, 2)
    assert lane.hand_out(delivery).tolist() == [7, 7]


def test_room_is_for_requests_and_finished_frames_together(lane: Lane) -> None:
    lane.ask(request(0))
    assert room(lane)
    lane.ask(request(1))
    assert not room(lane)
    played(lane).work()
    (delivery,) = lane.answers()
    assert not room(lane)
    lane.hand_out(delivery)
    assert room(lane)


def test_few_frames_are_lent_and_the_others_copied(lane: Lane) -> None:
    kept = []
    for batch in range(6):
        lane.ask(request(batch))
        played(lane).work()
        (delivery,) = lane.answers()
        kept.append(lane.hand_out(delivery))
    assert [array.tolist() for array in kept] == [[batch, batch] for batch in range(6)]
    assert lane.tally.copied_out == 4
    del kept[:2]
    lane.ask(request(9))
    played(lane).work()
    (delivery,) = lane.answers()
    lane.hand_out(delivery)
    assert lane.tally.copied_out == 4


def test_a_copy_that_fails_leaves_its_slot_free(lane: Lane) -> None:
    class NoMemory:
        def __getitem__(self, key: slice) -> NoMemory:
            return self

        def copy(self) -> None:
            raise MemoryError

    slots: Any = lane._ring.slots
    kept = []
    for batch in range(3):
        lane.ask(request(batch))
        played(lane).work()
        (delivery,) = lane.answers()
        if batch < 2:
            kept.append(lane.hand_out(delivery))
    slots.buffer = lambda slot: NoMemory()
    with pytest.raises(MemoryError):
        lane.hand_out(delivery)
    assert slots.take() == 2


def test_answers_of_an_epoch_that_was_left_only_free_what_they_held(lane: Lane) -> None:
    lane.ask(request(0))
    lane.ask(request(1))
    played(lane).work()
    lane.leave_epoch(2)
    assert not room(lane)
    assert played(lane).ring.generation == 2
    assert list(lane.answers()) == []
    assert room(lane)
    lane.ask(request(0, epoch=1))
    box = Ask.unpack(receive(played(lane).far)[0]).box
    played(lane).answer(Outcome.SKIPPED, box)
    played(lane).work()
    (delivery,) = lane.answers()
    assert delivery.batch == 0
    assert played(lane).ring.slots.take() == 1
    lane.drop(delivery)
    assert lane.load == (0, 0)


def test_a_burial_names_the_batches_to_sample_again(lane: Lane) -> None:
    lane.ask(request(0))
    played(lane).work()
    (finished,) = lane.answers()
    lane.ask(request(1))
    worker = played(lane)
    worker.started = True
    worker.ring.slots.take()
    worker.ring.note(State.SAMPLING, epoch=0, batch=1)
    worker.far.close()
    with pytest.raises(EOFError):
        list(lane.answers())
    death = lane.bury()
    assert death.account.endswith("was killed by SIGKILL while it sampled batch 1 of epoch 0")
    assert (death.trace, death.hopeless, death.orphans) == ("last words", False, [1])
    lane.restart()
    assert (played(lane).life, lane.tally.restarts) == (1, 1)
    lane.ask(request(1))
    played(lane).work()
    (again,) = lane.answers()
    assert (finished.slot, again.slot) == (0, 1)
    assert lane.hand_out(finished).tolist() == [0, 0]
    assert lane.hand_out(again).tolist() == [1, 1]


@pytest.mark.parametrize(("status", "hopeless"), [(1, True), (0, True), (-9, False), (None, False)])
def test_ending_by_itself_before_being_up_is_hopeless(lane: Lane, status: int | None, hopeless: bool) -> None:
    played(lane).status = status
    assert lane.bury().hopeless is hopeless
    lane.restart()


def test_requests_to_a_process_that_is_gone_wait_for_its_burial(lane: Lane) -> None:
    played(lane).far.close()
    lane.ask(request(3))
    assert lane.bury().orphans == [3]
    lane.restart()


@pytest.mark.parametrize(
    ("outcome", "box", "slot", "nbytes"),
    [
        (Outcome.FRAME, 0, 0, 10),
        (Outcome.FRAME, 99, 0, 10),
        (Outcome.FRAME, 1, 4, 10),
        (Outcome.FRAME, 1, 2**40, 10),
        (Outcome.FRAME, 1, 0, 4097),
        (Outcome.OVERSIZE, 1, 0, 10),
        (Outcome.SKIPPED, 1, 0, 0),
        (17, 1, 0, 10),
    ],
)
def test_a_worker_that_breaks_the_protocol_is_refused(
    lane: Lane, outcome: int, box: int, slot: int, nbytes: int
) -> None:
    lane.ask(request(0))
    assert Ask.unpack(receive(played(lane).far)[0]).box == 1
    played(lane).answer(outcome, box, slot, nbytes)
    with pytest.raises(FormatError, match="worker 5"):
        list(lane.answers())


def test_a_slot_that_is_in_use_cannot_come_again(lane: Lane) -> None:
    lane.ask(request(0))
    played(lane).work()
    (delivery,) = lane.answers()
    for kept in (delivery, lane.hand_out(delivery)):
        lane.ask(request(1))
        ask = Ask.unpack(receive(played(lane).far)[0])
        played(lane).answer(Outcome.FRAME, ask.box, delivery.slot)
        with pytest.raises(FormatError, match="worker 5 sent"):
            list(lane.answers())
        del kept


def test_many_frames_in_memory_of_their_own_are_copied_too(lane: Lane) -> None:
    """Every mapping holds a descriptor."""
    kept = []
    for batch in range(40):
        lane.ask(request(batch))
        box = Ask.unpack(receive(played(lane).far)[0]).box
        fd = create_memory("gigl-test", 4096)
        os.pwrite(fd, bytes([batch]), 0)
        socket.send_fds(played(lane).far, [Answer(Outcome.OVERSIZE, box, 0, 4096, 0, 0).pack()], [fd])
        os.close(fd)
        (delivery,) = lane.answers()
        kept.append(lane.hand_out(delivery))
    del delivery
    assert [array[0] for array in kept] == list(range(40))
    assert (lane.tally.oversize, lane.tally.copied_out) == (40, 8)


def test_a_memory_file_shorter_than_it_says_is_refused(lane: Lane) -> None:
    lane.ask(request(0))
    fd = create_memory("gigl-test", 100)
    answer = Answer(Outcome.OVERSIZE, 1, 0, 4096, 0, 0).pack()
    socket.send_fds(played(lane).far, [answer], [fd])
    os.close(fd)
    with pytest.raises(FormatError, match="100 bytes for 4096"):
        list(lane.answers())
