"""An executor in this process, whose samplers are held up by the test, batch by batch."""

from __future__ import annotations

import os
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gigl_loader.channel.frame import Frame
from gigl_loader.channel.message import Request, Response, Result, receive
from gigl_loader.channel.ring import Ring, RingLayout, State
from gigl_loader.errors import StorageUnavailable
from gigl_loader.memfile import create_memory, map_memory
from gigl_loader.sampling.costs import CostCounter
from gigl_loader.sampling.store import WireCounts
from gigl_loader.tensors import ArraySpec, Layout
from gigl_loader.workers.executor import Executor
from tests.support.leftovers import wait_until
from tests.support.sources import PLAN

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes
    from gigl_loader.sampling.plan import SampledBatch
    from gigl_loader.sampling.request import BatchRequest

pytestmark = pytest.mark.usefixtures("no_leftovers")

LAYOUT = RingLayout(request_slots=4, request_bytes=64, slots=4, slot_bytes=4096)
SECONDS = 20


@dataclass
class Gates:
    """What samplers wait for, and what they were told to raise."""

    open: dict[int, threading.Event] = field(default_factory=lambda: defaultdict(threading.Event))
    begun: dict[int, threading.Event] = field(default_factory=lambda: defaultdict(threading.Event))
    errors: dict[int, Exception] = field(default_factory=dict)
    nbytes: int = 8


@dataclass
class Written:
    """A frame of one array."""

    layout: Layout
    batch: int

    def write(self, buffer: Bytes) -> None:
        buffer[: len(self.layout.header)] = np.frombuffer(self.layout.header, np.uint8)
        self.layout.view(buffer, "seeds")[:] = self.batch


@dataclass
class HeldUp:
    """Makes the frame of a batch when its gate opens."""

    gates: Gates
    costs: CostCounter

    def sample(self, request: BatchRequest) -> SampledBatch:
        self.gates.begun[request.batch].set()
        assert self.gates.open[request.batch].wait(SECONDS)
        if request.batch in self.gates.errors:
            raise self.gates.errors[request.batch]
        metadata = {"epoch": str(request.epoch), "batch": str(request.batch)}
        return Written(
            Layout.plan({"seeds": ArraySpec("I64", (self.gates.nbytes,))}, metadata), request.batch
        )


class Trainer:
    """The far end of an executor with three samplers."""

    def __init__(self, stack: ExitStack, counters: list[CostCounter]) -> None:
        ring_fd = create_memory("gigl-ring-test", LAYOUT.nbytes)
        stack.callback(os.close, ring_fd)
        self.ring, ring = Ring(ring_fd, LAYOUT), Ring(ring_fd, LAYOUT)
        self.link, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.link.settimeout(SECONDS)
        stack.enter_context(self.link)
        stack.enter_context(link)
        self.gates = Gates()
        self.ring.generation = 1
        self.executor = Executor(
            ring,
            [HeldUp(self.gates, each) for each in counters],
            link,
            inputs=PLAN.inputs,
            worker=0,
            trace_fd=2,
        )

    def ask(self, batch: int, *, generation: int = 1) -> None:
        self.ring.request_slot(batch % LAYOUT.request_slots)[:] = 0
        self.executor.put(Request(batch % LAYOUT.request_slots, 1, generation, 0, batch, 0))

    def begun(self, *batches: int) -> None:
        for batch in batches:
            assert self.gates.begun[batch].wait(SECONDS)

    def answer(self) -> Response:
        data, fds = receive(self.link)
        answer = Response.unpack(data)
        for fd in fds:
            assert map_memory(fd, answer.nbytes).size == answer.nbytes
            os.close(fd)
        return answer

    def frame(self, answer: Response) -> Frame:
        return Frame(memory := self.ring.slots.buffer(answer.slot)[: answer.nbytes], Layout.parse(memory))

    def release(self) -> None:
        for batch in range(20):
            self.gates.open[batch].set()


@pytest.fixture
def trainer() -> Iterator[Trainer]:
    with ExitStack() as stack:
        costs = CostCounter(lambda: WireCounts(bytes_in=10, bytes_out=3, calls=2))
        far = Trainer(stack, [costs] * 3)
        yield far
        far.release()
        assert far.executor.leave(SECONDS)
        vars(far).clear()  # Pytest keeps the object itself for longer than its memory may live.


def test_as_many_batches_as_samplers_are_under_way_and_answered_as_they_finish(trainer: Trainer) -> None:
    for batch in range(4):
        trainer.ask(batch)
    trainer.begun(0, 1, 2)
    assert not trainer.gates.begun[3].is_set()
    for batch in (2, 0, 1, 3):
        trainer.gates.open[batch].set()
        answer = trainer.answer()
        assert (answer.result, answer.request_slot) == (Result.FRAME, batch)
        frame = trainer.frame(answer)
        assert (frame.batch, set(frame.array("seeds").tolist())) == (batch, {batch})


def test_the_note_tells_of_the_oldest_batch_under_way(trainer: Trainer) -> None:
    for count, batch in enumerate((5, 3, 4)):
        trainer.ask(batch)
        trainer.begun(batch)
        doing = trainer.ring.doing()
        assert (doing.state, doing.batch, doing.others) == (State.SAMPLING, 5, count)
    assert doing.batches == "batch 5 of epoch 0 and 2 more"
    since = trainer.ring.doing().seconds
    for batch, oldest in ((3, (State.SAMPLING, 5, 1)), (5, (State.SAMPLING, 4, 0))):
        trainer.gates.open[batch].set()
        trainer.answer()
        now = trainer.ring.doing()
        assert (now.state, now.batch, now.others) == oldest
        assert now.seconds >= since or batch == 5
    trainer.gates.open[4].set()
    trainer.answer()
    assert trainer.ring.doing().state == State.IDLE


def test_requests_of_an_epoch_that_was_left_are_skipped_and_those_under_way_finish(trainer: Trainer) -> None:
    for batch in range(4):
        trainer.ask(batch)
    trainer.begun(0, 1, 2)
    trainer.ring.generation = 2
    trainer.ask(7, generation=2)
    trainer.gates.open[7].set()
    for batch in (0, 1, 2):
        trainer.gates.open[batch].set()
    outcomes = sorted((answer.result, answer.request_slot) for answer in (trainer.answer() for _ in range(5)))
    frames = [(Result.FRAME, 0), (Result.FRAME, 1), (Result.FRAME, 2), (Result.FRAME, 3)]
    assert outcomes == [*frames, (Result.SKIPPED, 3)]
    assert not trainer.gates.begun[3].is_set()


def test_a_failure_is_its_own_batch_s_and_says_whether_asking_again_helps(trainer: Trainer) -> None:
    trainer.gates.errors = {0: ValueError("as planned"), 1: StorageUnavailable("host 1 is silent")}
    trainer.release()
    for batch in range(3):
        trainer.ask(batch)
    answers = {answer.request_slot: answer for answer in (trainer.answer() for _ in range(3))}
    assert [answers[request_slot].unavailable for request_slot in range(3)] == [0, 1, 0]
    assert "as planned" in trainer.frame(answers[0]).layout.metadata["failure"]
    assert "host 1 is silent" in trainer.frame(answers[1]).layout.metadata["failure"]
    assert trainer.frame(answers[2]).batch == 2


def test_frames_that_fit_no_slot_come_apart(trainer: Trainer) -> None:
    trainer.gates.nbytes = LAYOUT.slot_bytes
    trainer.release()
    for batch in range(3):
        trainer.ask(batch)
    assert {trainer.answer().result for _ in range(3)} == {Result.OVERSIZE}


def test_two_frames_never_share_a_slot(trainer: Trainer) -> None:
    for batch in range(3):
        trainer.ask(batch)
    trainer.begun(0, 1, 2)
    trainer.release()
    assert len({trainer.answer().slot for _ in range(3)}) == 3


def test_a_counter_that_is_shared_is_counted_once(trainer: Trainer) -> None:
    trainer.release()
    trainer.ask(0)
    spent = trainer.answer().spent
    assert (spent.wire_bytes_in, spent.wire_bytes_out, spent.peer_calls) == (10, 3, 2)
    assert spent.cpu_ns > 0


def test_leaving_waits_for_what_is_under_way_but_not_for_ever(trainer: Trainer) -> None:
    trainer.ask(0)
    trainer.begun(0)
    assert not trainer.executor.leave(0.01)
    trainer.gates.open[0].set()
    assert trainer.executor.leave(SECONDS)


def test_a_trainer_that_is_gone_ends_the_threads_quietly(trainer: Trainer) -> None:
    trainer.ask(0)
    trainer.begun(0)
    trainer.link.close()
    trainer.gates.open[0].set()
    assert wait_until(lambda: len(_samplers()) == 2, seconds=SECONDS)


def _samplers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("sampler ")]
