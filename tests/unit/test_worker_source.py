"""Workers that fail, die, hang or are killed, with real signals. What all sources promise is in contract/."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import time
from contextlib import closing
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from gigl_loader.errors import WorkerDied
from gigl_loader.processes import is_stopped
from gigl_loader.workers import source as source_module
from tests.support.faults import FaultPlan
from tests.support.leftovers import is_gone, wait_until
from tests.support.sources import NUM_BATCHES, SourceKind, bytes_of, drain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.sampling.source import BatchSource
    from gigl_loader.workers.source import WorkerSource

pytestmark = [
    pytest.mark.usefixtures("fork_server", "no_leftovers"),
    # Some tests fork this process, which may have threads of torch.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]

TWO = SourceKind(2)
FORKED = SourceKind(2, "fork")
"""A seventh of the CPU: where it plays no part how workers start."""


@pytest.fixture(scope="module")
def expected() -> list[bytes]:
    source = SourceKind(0).open()
    source.start_epoch(0)
    return drain(source)


@pytest.fixture(scope="module")
def fork_server() -> None:
    """Multiprocessing's own server outlives every test that uses it: start it before they begin."""
    forkserver.ensure_running()


def pids(source: BatchSource) -> list[int]:
    return [worker["pid"] for worker in source.stats()["workers"]]


def notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", []))


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("ERROR"):
        yield


# --- death and restart


@pytest.mark.some(2)
@pytest.mark.parametrize("what", ["kill", "segv", "exit"])
@pytest.mark.parametrize("at_batch", [0, 5, NUM_BATCHES - 1])
def test_a_worker_that_dies_is_replaced_and_its_batches_come_again(
    expected: list[bytes], what: str, at_batch: int
) -> None:
    with closing(TWO.open(FaultPlan(what=what, at_batch=at_batch))) as source:
        source.start_epoch(0)
        assert drain(source) == expected
        assert 1 <= source.stats()["restarts"] <= 2


@pytest.mark.parametrize("at_batch", [0, 5])
def test_a_batch_that_is_not_available_is_requested_again(expected: list[bytes], at_batch: int) -> None:
    with closing(FORKED.open(FaultPlan(what="away", at_batch=at_batch, lives=2))) as source:
        source.start_epoch(0)
        assert drain(source) == expected
        assert source.stats()["restarts"] == 0


def test_a_worker_killed_at_its_start_is_replaced(expected: list[bytes]) -> None:
    with closing(FORKED.open(FaultPlan(what="kill", worker=1))) as source:
        source.start_epoch(0)
        assert drain(source) == expected
        assert source.stats()["restarts"] <= 1


def test_workers_killed_from_outside_between_batches_are_replaced(expected: list[bytes]) -> None:
    with closing(FORKED.open(max_worker_restarts=4)) as source:
        source.start_epoch(0)
        seen = drain(source, 3)
        for pid in pids(source):
            os.kill(pid, signal.SIGKILL)
        seen += drain(source, 4)
        os.kill(pids(source)[0], signal.SIGTERM)
        seen += drain(source, NUM_BATCHES - 7)
        assert seen == expected


def test_finished_frames_survive_their_worker(expected: list[bytes]) -> None:
    with closing(SourceKind(1, "fork").open(max_worker_restarts=1)) as source:
        source.start_epoch(0)
        first = source.receive(20)
        wait_until(lambda: False, seconds=0.2)  # The queued batches are finished meanwhile.
        os.kill(pids(source)[0], signal.SIGKILL)
        assert [bytes_of(first), *drain(source, NUM_BATCHES - 1)] == expected


@pytest.mark.parametrize(("what", "name"), [("kill", "SIGKILL"), ("segv", "SIGSEGV")])
def test_a_batch_that_always_kills_ends_in_worker_died(what: str, name: str, expected: list[bytes]) -> None:
    with closing(TWO.open(FaultPlan(what=what, at_batch=2, lives=9), max_worker_restarts=1)) as source:
        source.start_epoch(0)
        with pytest.raises(WorkerDied) as caught:
            drain(source)
        message = str(caught.value)
        assert f"was killed by {name}" in message
        assert "while it sampled batch 2 of epoch 0" in message
        assert "max_worker_restarts" in message
        assert f"(pid {next(pid for pid in pids(source) if str(pid) in message)})" in message
        if what == "segv":
            assert "Segmentation fault" in notes(caught.value)
            assert "faults.py" in notes(caught.value)
        with pytest.raises(WorkerDied, match=f"was killed by {name}"):
            source.receive(20)
        with pytest.raises(WorkerDied):
            source.start_epoch(1)


def test_no_restarts_means_none() -> None:
    with closing(FORKED.open(FaultPlan(what="kill", at_batch=3), max_worker_restarts=0)) as source:
        source.start_epoch(0)
        with pytest.raises(WorkerDied, match="batch 3 of epoch 0; 0 restarts"):
            drain(source)
        assert source.stats()["restarts"] == 0


@pytest.mark.parametrize(("what", "text"), [("exit", "exit code 3"), ("raise", "exit code 1")])
def test_a_worker_that_cannot_start_is_not_tried_again(what: str, text: str) -> None:
    with closing(TWO.open(FaultPlan(what=what, lives=99), max_worker_restarts=50)) as source:
        source.start_epoch(0)
        began = time.monotonic()
        with pytest.raises(WorkerDied, match=rf"{text} while it started; it cannot start") as caught:
            source.receive(20)
        assert time.monotonic() - began < 10
        assert source.stats()["restarts"] == 0
        if what == "raise":
            assert "Mishap: as planned" in notes(caught.value)


def test_a_worker_that_cannot_start_a_thread_is_the_limit_of_processes() -> None:
    with closing(TWO.open(FaultPlan(what="limit", lives=99), max_worker_restarts=50)) as source:
        source.start_epoch(0)
        for _ in range(2):
            with pytest.raises(OSError, match=r"num_workers=2: .*ulimit -u, .* or lower num_workers$"):
                source.receive(20)
        assert source.stats()["restarts"] == 0


def test_a_process_that_cannot_be_started_is_the_limit_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with closing(TWO.open(FaultPlan(what="kill", at_batch=2))) as source:
        monkeypatch.setattr(subprocess, "Popen", refuse)
        source.start_epoch(0)
        with pytest.raises(WorkerDied, match=r"starting another failed: .*num_workers=2: .*ulimit -u"):
            drain(source)
    with pytest.raises(OSError, match=r"num_workers=2: .*ulimit -u, .* or lower num_workers$"):
        TWO.open()


def test_what_a_broken_installation_prints_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "json.py").write_text("raise ImportError('not the json you know')")
    monkeypatch.syspath_prepend(str(tmp_path))
    with closing(TWO.open()) as source:
        source.start_epoch(0)
        with pytest.raises(WorkerDied, match="cannot start") as caught:
            source.receive(20)
        assert "not the json you know" in notes(caught.value)


# --- slowness


def test_a_stopped_worker_is_slow_not_dead(expected: list[bytes]) -> None:
    with closing(SourceKind(1, "fork").open(FaultPlan(what="stop", at_batch=2))) as source:
        source.start_epoch(0)
        assert drain(source, 2) == expected[:2]
        pid = pids(source)[0]
        assert wait_until(lambda: is_stopped(pid))
        with pytest.raises(TimeoutError) as caught:
            source.receive(0.5)
        message = str(caught.value)
        assert "no batch within 0.5 s (batch 2 of epoch 0)" in message
        assert f"worker 0 (pid {pid}): stopped by a signal, while it sampled batch 2 of epoch 0" in message
        os.kill(pid, signal.SIGCONT)
        assert drain(source, NUM_BATCHES - 2) == expected[2:]
        assert source.stats()["restarts"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_stays_stopped_is_replaced(
    expected: list[bytes], workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level("WARNING"),
        closing(SourceKind(workers).open(FaultPlan(what="stop", at_batch=3))) as source,
    ):
        source.start_epoch(0)
        assert [bytes_of(source.receive(100)) for _ in range(NUM_BATCHES)] == expected
        assert source.stats()["restarts"] == 1
    assert "was stopped by a signal for" in caplog.text


@pytest.mark.slow
def test_a_worker_stopped_at_its_start_is_replaced(expected: list[bytes]) -> None:
    with closing(TWO.open(FaultPlan(what="stop", worker=1))) as source:
        source.start_epoch(0)
        assert [bytes_of(source.receive(100)) for _ in range(NUM_BATCHES)] == expected


@pytest.mark.slow
def test_a_worker_that_is_always_stopped_ends_in_worker_died() -> None:
    with closing(SourceKind(1).open(FaultPlan(what="stop", at_batch=1), max_worker_restarts=0)) as source:
        source.start_epoch(0)
        source.receive(100)
        with pytest.raises(
            WorkerDied, match=r"stopped by a signal for .* while it sampled batch 1 of epoch 0"
        ):
            source.receive(100)


@pytest.mark.slow
def test_a_slow_worker_is_left_alone(expected: list[bytes]) -> None:
    """It sleeps, or computes, for longer than one that is stopped may be."""
    with closing(TWO.open(FaultPlan(what="sleep", at_batch=3, seconds=8))) as source:
        source.start_epoch(0)
        assert [bytes_of(source.receive(100)) for _ in range(NUM_BATCHES)] == expected
        assert source.stats()["restarts"] == 0


def test_a_timeout_tells_what_each_worker_does() -> None:
    with closing(FORKED.open(FaultPlan(what="sleep", at_batch=1))) as source:
        source.start_epoch(0)
        source.receive(20)
        with pytest.raises(TimeoutError) as caught:
            source.receive(1.0)
        message = str(caught.value)
        assert "sampling batch 1 of epoch 0 for" in message
        assert "idle for" in message
        assert "in commit" in notes(caught.value)
        assert "in receive" in notes(caught.value)


def test_a_timeout_while_a_worker_starts_does_not_kill_it() -> None:
    with closing(SourceKind(1).open()) as source:
        source.start_epoch(0)
        with pytest.raises(TimeoutError, match="starting for"):
            source.receive(0.001)
        assert drain(source)
        assert source.stats()["restarts"] == 0


def test_out_of_order_delivery_does_not_wait_for_the_slowest(
    expected: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_MAX_GRACE_S", 1e9)  # On a busy machine, the others take their time.
    with closing(FORKED.open(FaultPlan(what="stop", at_batch=0), in_order=False)) as source:
        source.start_epoch(0)
        held_back = 4  # What the stopped worker has in its queue.
        frames = [source.receive(20) for _ in range(NUM_BATCHES - held_back)]
        with pytest.raises(TimeoutError, match="any batch"):
            source.receive(0.2)
        assert wait_until(lambda: any(map(is_stopped, pids(source))))  # It may have begun late.
        for pid in pids(source):
            os.kill(pid, signal.SIGCONT)
        frames += [source.receive(20) for _ in range(held_back)]
        assert sorted(frame.batch for frame in frames) == list(range(NUM_BATCHES))
        assert frames[0].batch != 0
        assert [bytes_of(frame) for frame in sorted(frames, key=lambda frame: frame.batch)] == expected


# --- shutdown


@pytest.mark.parametrize("what", ["stop", "sleep"])
def test_closing_is_quick_whatever_the_workers_do(what: str) -> None:
    source = FORKED.open(FaultPlan(what=what, at_batch=1))
    source.start_epoch(0)
    source.receive(20)
    began = time.monotonic()
    source.close()
    assert time.monotonic() - began < 20
    assert all(map(is_gone, pids(source)))


def test_idle_workers_leave_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.workers.source._LEAVE_SECONDS", 60.0)
    source = TWO.open()
    source.start_epoch(0)
    drain(source)
    began = time.monotonic()
    source.close()
    assert time.monotonic() - began < 30


def test_closing_before_the_workers_are_up() -> None:
    source = TWO.open()
    source.close()
    assert all(map(is_gone, pids(source)))


def test_a_worker_killed_at_shutdown_does_not_matter() -> None:
    source = FORKED.open()
    source.start_epoch(0)
    source.receive(20)
    for pid in pids(source):
        os.kill(pid, signal.SIGKILL)
    source.close()


# --- forks of the trainer


def test_a_forked_child_can_neither_use_nor_harm_the_workers(expected: list[bytes]) -> None:
    with closing(FORKED.open()) as source:
        source.start_epoch(0)
        frames = [source.receive(20), source.receive(20)]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(ValueError, match="belong to process"):
                    source.receive(20)
                source.close()
                frames.clear()
                del source
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert [*map(bytes_of, frames), *drain(source, NUM_BATCHES - 2)] == expected
        assert source.stats()["restarts"] == 0


def test_a_child_that_outlives_the_source_does_not_keep_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_loader.workers.source._LEAVE_SECONDS", 60.0)
    source = FORKED.open()
    source.start_epoch(0)
    source.receive(20)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0)
    began = time.monotonic()
    source.close()
    took = time.monotonic() - began
    assert all(map(is_gone, pids(source)))
    for fd in (write_end, read_end):
        os.close(fd)
    os.waitpid(child, 0)
    assert took < 30  # They left by themselves: one that waits for the child is killed after 60 s.


# --- start methods and options


class _BelongsToItsMaker:
    """In a cycle that only a garbage collection ends, and deadly where another process collects it."""

    def __init__(self) -> None:
        self.itself, self.pid = self, os.getpid()

    def __del__(self) -> None:
        if os.getpid() != self.pid:
            os.abort()


def test_a_forked_worker_collects_no_garbage_of_the_trainer(expected: list[bytes]) -> None:
    gc.collect()
    gc.disable()
    _BelongsToItsMaker()
    try:
        source = SourceKind(2, "fork").open(FaultPlan(what="collect", at_batch=3), max_worker_restarts=0)
        gc.collect()
    finally:
        gc.enable()
    with closing(source):
        source.start_epoch(0)
        assert drain(source) == expected


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_other_start_methods_restart_and_end_alike(method: str, expected: list[bytes]) -> None:
    with closing(SourceKind(2, method).open(FaultPlan(what="kill", at_batch=3))) as source:
        source.start_epoch(0)
        assert drain(source) == expected
        assert source.stats()["restarts"] >= 1


def test_fork_is_refused_once_cuda_is_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        class cuda:
            @staticmethod
            def is_initialized() -> bool:
                return True

    monkeypatch.setitem(__import__("sys").modules, "torch", Torch)
    with pytest.raises(ValueError, match="cannot share CUDA: use multiprocessing_context='spawn'"):
        SourceKind(1, "fork").open()


# --- memory


def test_slots_come_back_when_the_last_array_dies(expected: list[bytes]) -> None:
    with closing(SourceKind(1, "fork").open()) as source:
        for _ in range(3):
            source.start_epoch(0)
            for number in range(NUM_BATCHES):
                array = source.receive(20).array("node/node/x")
                assert array.base is not None
                assert array.flags.writeable
                assert number < 12
        assert source.stats()["copied_out"] == 0


def test_frames_are_copied_out_only_when_many_are_kept(expected: list[bytes]) -> None:
    with closing(SourceKind(1, "fork").open()) as source:
        source.start_epoch(0)
        kept = [source.receive(20) for _ in range(NUM_BATCHES)]
        assert 0 < source.stats()["copied_out"] < NUM_BATCHES
        assert [bytes_of(frame) for frame in kept] == expected
        del kept
        before = source.stats()["copied_out"]
        source.start_epoch(0)
        assert drain(source) == expected
        assert source.stats()["copied_out"] == before


@pytest.mark.parametrize("workers", [1, 2])
def test_frames_that_outgrow_their_memory_while_many_are_kept_stop_nothing(
    expected: list[bytes], workers: int
) -> None:
    source = cast("WorkerSource", SourceKind(workers, "fork").open())
    with closing(source):
        source.start_epoch(0)
        kept = [source.receive(20) for _ in range(5)]
        source._handles[0]._limit.note(1 << 50)  # From now on, memory holds two frames of one worker.
        os.kill(source._handles[-1].incarnation.pid, signal.SIGKILL)
        kept += [source.receive(20) for _ in range(NUM_BATCHES - 5)]
        assert [bytes_of(frame) for frame in kept] == expected


def test_a_written_array_stays_written() -> None:
    """Batches are the consumer's to change: no later frame comes into memory that is still held."""
    with closing(SourceKind(1, "fork").open()) as source:
        source.start_epoch(0)
        arrays = []
        for number in range(NUM_BATCHES):
            array = source.receive(20).array("node/node/x")
            array[:] = number
            arrays.append(array)
        source.start_epoch(1)
        drain(source)
        assert all(np.all(array == number) for number, array in enumerate(arrays))


def test_a_worker_is_small() -> None:
    """Private memory: the interpreter and NumPy take 13 MB of it. The graph and the ring are shared."""
    with closing(SourceKind(1).open()) as source:
        source.start_epoch(0)
        drain(source)
        status = Path(f"/proc/{pids(source)[0]}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("RssAnon"))
        assert int(line.split()[1]) < 40_000


def test_a_worker_can_be_told_apart_in_a_list_of_processes() -> None:
    with closing(TWO.open()) as source:
        source.start_epoch(0)
        drain(source)
        names = [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids(source)]
    assert names == ["gigl-worker-0", "gigl-worker-1"]
