"""Tensors shared between processes, and their lock."""

from __future__ import annotations

import copy
import gc
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_loader import SharedTensors
from tests.support.leftovers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.usefixtures("no_leftovers")
ROOT = Path(__file__).parents[2]


def shared(count: int = 4) -> SharedTensors:
    return SharedTensors.create({"weight": torch.zeros(count), "step": torch.tensor(7)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.bfloat16])
def test_tensors_come_back_as_they_were(dtype: torch.dtype) -> None:
    given = {
        "matrix": torch.arange(12).reshape(3, 4).to(dtype).t(),
        "number": torch.tensor(1).to(dtype),
        "empty": torch.empty(0, 5, dtype=dtype),
    }
    found = SharedTensors.create(given)
    assert set(found) == set(given)
    assert len(found) == 3
    for name, tensor in given.items():
        assert found[name].dtype == dtype
        assert torch.equal(found[name], tensor)


def test_a_tensor_is_a_view_and_a_copy_was_taken() -> None:
    given = torch.zeros(4)
    found = SharedTensors.create({"weight": given, "array": np.zeros(3, np.uint8)})
    found["weight"][1] = 5
    assert found["weight"].tolist() == [0, 5, 0, 0]
    assert found.array("weight").tolist() == [0, 5, 0, 0]
    assert given.sum() == 0
    assert found["array"].dtype == torch.uint8
    weight = found["weight"]
    del found
    gc.collect()
    weight += 1  # The memory lives as long as a tensor of it.
    assert weight.tolist() == [1, 6, 1, 1]


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(TypeError, match="'a' is a dict"):
        SharedTensors.create({"a": {"b": torch.zeros(1)}})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="'a' must be a dense tensor or an array, got a list"):
        SharedTensors.create({"a": [1.0]})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="complex64"):
        SharedTensors.create({"a": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(TypeError, match="dense"):
        SharedTensors.create({"a": torch.zeros(2, 2).to_sparse()})


def test_an_unknown_name_is_told_with_those_known() -> None:
    with pytest.raises(KeyError, match=r"no shared tensor 'wait'; there are: .*weight"):
        shared()["wait"]


def test_it_is_not_pickled() -> None:
    with pytest.raises(TypeError, match="hands them to its sampling processes"):
        copy.deepcopy(shared())


def test_the_lock_may_be_nested() -> None:
    found = shared()
    with found.lock(), found.lock(timeout=0.1), found.lock(timeout=0):
        found["weight"][0] = 1
    with found.lock(timeout=0):
        pass


def test_an_error_inside_gives_the_lock_back() -> None:
    found = shared()
    with pytest.raises(ZeroDivisionError), found.lock():
        raise ZeroDivisionError
    with SharedTensors(os.dup(found.fd)).lock(timeout=0):
        pass


def test_a_thread_that_holds_it_is_named() -> None:
    found = shared()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with found.lock():
            held.set()
            done.wait(20)

    holder = threading.Thread(target=hold, name="the trainer's helper")
    holder.start()
    assert held.wait(20)
    expected = r"free within 0.01 s: thread the trainer's helper of this process"
    with pytest.raises(TimeoutError, match=expected), found.lock(timeout=0.01):
        pass
    done.set()
    holder.join()
    with found.lock(timeout=0):
        pass


def test_two_views_of_one_memory_exclude_each_other() -> None:
    found = shared()
    other = SharedTensors(os.dup(found.fd))
    with found.lock():
        expected = rf"process {os.getpid()} \(this one\) holds them"
        with pytest.raises(TimeoutError, match=expected), other.lock(timeout=0.01):
            pass
    with other.lock(timeout=0):
        other["weight"][0] = 3
    assert found["weight"][0] == 3


HOLDER = """
import sys
from gigl_loader.shared import SharedTensors
shared = SharedTensors(int(sys.argv[1]))
with shared.lock():
    if "weight" in shared and "places" not in shared:
        shared.array("weight")[0] = 9
    print("held", "torch" in sys.modules, flush=True)
    sys.stdin.read()
"""


class Holder:
    """A process that holds the lock until it is told to let go."""

    def __init__(self, found: SharedTensors) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(found.fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(found.fd,),
            cwd=ROOT,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def held(found: SharedTensors) -> Iterator[Holder]:
    holder = Holder(found)
    try:
        yield holder
    finally:
        holder.end()


def test_a_process_that_holds_it_is_named_and_needs_no_torch() -> None:
    found = shared()
    with held(found) as other:
        assert other.said == "held False\n"
        assert found["weight"][0] == 9
        expected = rf"process {other.process.pid} \((waiting|running)\) holds them"
        with pytest.raises(TimeoutError, match=expected), found.lock(timeout=0.02):
            pass
        other.process.communicate("")
        with found.lock(timeout=20):
            pass


def test_a_holder_that_is_killed_holds_nothing() -> None:
    found = shared()
    with held(found) as other:
        other.process.kill()
        other.process.wait()
        with found.lock(timeout=20):
            assert found["weight"][0] == 9


def test_a_holder_that_is_stopped_is_said_to_be() -> None:
    found = shared()
    with held(found) as other:
        other.process.send_signal(signal.SIGSTOP)
        os.waitpid(other.process.pid, os.WUNTRACED)
        with pytest.raises(TimeoutError, match="stopped by a signal"), found.lock(timeout=0.02):
            pass


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_hold_what_its_parent_holds() -> None:
    found = shared()
    with found.lock():
        child = os.fork()
        if not child:
            with_status = 1
            try:
                with found.lock(timeout=0.05):
                    with_status = 2
            except TimeoutError as error:
                with_status = 0 if f"process {os.getppid()}" in str(error) else 3
            finally:
                os._exit(with_status)
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_many_writers_lose_nothing() -> None:
    program = (
        "import sys\nfrom gigl_loader.shared import SharedTensors\nshared = SharedTensors(int(sys.argv[1]))\n"
        "for _ in range(300):\n    with shared.lock():\n        shared.array('step')[...] += 1\n"
    )
    found = SharedTensors.create({"step": torch.tensor(0)})
    command = [sys.executable, "-c", program, str(found.fd)]
    processes = [subprocess.Popen(command, pass_fds=(found.fd,), cwd=ROOT) for _ in range(2)]

    def add() -> None:
        for _ in range(300):
            with found.lock():
                found["step"].add_(1)

    threads = [threading.Thread(target=add) for _ in range(2)]
    for each in threads:
        each.start()
    for thread in threads:
        thread.join()
    assert [process.wait(60) for process in processes] == [0, 0]
    assert int(found["step"]) == 1200


def test_the_memory_goes_with_the_last_tensor() -> None:
    def lives(inode: int) -> bool:
        return any(f" {inode} " in line for line in Path("/proc/self/maps").read_text().splitlines())

    found: Any = shared()
    inode = os.fstat(found.fd).st_ino
    weight = found["weight"]
    del found
    gc.collect()
    assert lives(inode)
    del weight
    assert wait_until(lambda: not lives(inode))
