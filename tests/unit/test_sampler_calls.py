"""Calls of a sampler from inside: what they leave behind, their context, their names, forked children."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from contextvars import ContextVar
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader import DistDataset
from gigl_loader.loaders.sampler_calls import SamplerCall
from tests.support.pyg_graphs import graph_of, homogeneous
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader import Sampler
    from gigl_loader.group import RankGroup

WAIT_S = 30.0
FANOUTS = [3, 2]
DATASET = DistDataset(graph_of(homogeneous()))


def test_producers_of_ranks_have_names_of_their_own() -> None:
    """A server keeps one producer of a name for each job, and the ranks of a job may give the same one."""

    def program(_: RankGroup) -> str:
        with DATASET.sampler(FANOUTS, name="serving") as sampler:
            return str(sampler._open_batches.args[1].name)

    assert run_ranks(2, program) == ["serving of rank 0", "serving of rank 1"]


def test_calls_that_were_given_up_do_not_pile_up() -> None:
    entered, opened = threading.Event(), threading.Event()

    def hold(batch: Any) -> Any:
        entered.set()
        assert opened.wait(WAIT_S)
        return batch

    async def crowded() -> None:
        first = asyncio.create_task(sampler.asample([1]))
        assert await asyncio.to_thread(entered.wait, WAIT_S)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.to_thread(sampler.sample, [2], timeout=0.01)
            assert [call.has_ended for call in sampler._turns._waiting] == [True]
        opened.set()
        await first

    with DATASET.sampler(FANOUTS, transform=hold, concurrency=1) as sampler:
        asyncio.run(crowded())


def test_an_error_is_raised_and_not_logged_as_well(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Any) -> Any:
        raise KeyError("mine")

    with DATASET.sampler(FANOUTS, transform=fail) as sampler:
        with pytest.raises(KeyError, match="mine"):
            asyncio.run(sampler.asample([1]))
        gc.collect()
    assert not caplog.records


def test_a_batch_is_made_in_the_context_of_its_caller() -> None:
    caller, seen = ContextVar("caller", default="none"), []

    def note(batch: Any) -> Any:
        seen.append(caller.get())
        return batch

    async def call(name: str) -> None:
        caller.set(name)
        await sampler.asample([1])

    with DATASET.sampler(FANOUTS, transform=note) as sampler:
        for name in ("first", "second"):
            asyncio.run(call(name))
    assert seen == ["first", "second"]


def test_calls_in_turn_use_one_pipeline() -> None:
    with DATASET.sampler(FANOUTS) as sampler:
        sampler.sample([1])
        [first] = sampler._pipelines
        sampler.sample([2])
        assert [*sampler._pipelines] == [first]


@pytest.mark.parametrize("leave", [lambda sampler: sampler.close(), lambda sampler: sampler._end()])
def test_a_forked_child_leaves_the_threads_of_its_parent_alone(leave: Callable[[Sampler], None]) -> None:
    """One of them may have had a lock at the fork, which nobody gives back in the child."""
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with sampler._turns._changed:
            held.set()
            assert forked.wait(WAIT_S)

    with DATASET.sampler(FANOUTS) as sampler:
        sampler.sample([1])
        holder = threading.Thread(target=hold)
        holder.start()
        assert held.wait(WAIT_S)
        pid = os.fork()
        if not pid:
            signal.alarm(10)
            leave(sampler)
            os._exit(0)
        forked.set()
        holder.join(WAIT_S)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        sampler.sample([1])


class Batches:
    """Notes whether a source was opened."""

    is_open = False

    def open(self) -> None:
        self.is_open = True

    def receive(self, request: Any, timeout_s: float) -> Any:
        return request

    def interrupt(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("gives_up", [True, False])
def test_a_call_that_is_late_opens_no_source(gives_up: bool) -> None:
    def request() -> Any:
        if gives_up:
            call.leave("given up")
        else:
            time.sleep(0.05)

    batches: Any = Batches()
    call = SamplerCall(request, lambda frame: frame, timeout_s=WAIT_S if gives_up else 0.02)
    call.serve(batches)
    assert not batches.is_open
    text = (
        "given up" if gives_up else "no batch within 0.02 s: the call waits for the positions of its seeds$"
    )
    with pytest.raises(RuntimeError if gives_up else TimeoutError, match=text):
        call.wait()


def test_a_close_waits_until_sources_are_closed() -> None:
    sampler = DATASET.sampler(FANOUTS)
    sampler.sample([1])
    [batches] = sampler._turns._sources
    close, closed = batches.close, []

    def slowly() -> None:
        time.sleep(0.1)
        close()
        closed.append(True)

    batches.close = slowly  # type: ignore[method-assign]
    sampler.close()
    assert closed


def test_a_call_beside_a_close_fails_at_once() -> None:
    sampler = DATASET.sampler(FANOUTS)
    sampler._turns.close(wait_s=WAIT_S)  # The call had seen an open sampler.
    with pytest.raises(RuntimeError, match="was closed"):
        sampler.sample([1], timeout=1.0)


def test_seconds_add_up() -> None:
    with DATASET.sampler(FANOUTS) as sampler:
        seconds = [0.0]
        for _ in range(5):
            sampler.sample([1])
            seconds.append(sampler.stats()["seconds"])
        assert all(before < after for before, after in pairwise(seconds))
