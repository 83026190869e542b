"""Whatever ends a trainer, its workers end with it and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gigl_loader.processes import run_state
from tests.support.leftovers import is_gone, shared_memory, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
WORKERS = 2
_PROMPT_S = 40.0
"""Far above what it takes on a busy machine, far below the timeouts after which everything ends anyway."""


@pytest.fixture
def temporary(tmp_path: Path) -> Iterator[Path]:
    """An empty directory for the trainer's temporary files. It, and shared memory, stay as they are."""
    shared = shared_memory()
    yield tmp_path
    assert list(tmp_path.iterdir()) == []
    assert wait_until(lambda: shared_memory() <= shared)


class Trainer:
    """A trainer in a process of its own, which has announced its workers."""

    def __init__(self, phase: str, temporary: Path, *, method: str = "spawn") -> None:
        self.stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.trainer", str(WORKERS), method, phase],
            cwd=ROOT,
            env=os.environ | {"TMPDIR": str(temporary)},
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
        )
        assert self.process.stdout is not None
        self.pids = [int(pid) for pid in self.process.stdout.readline().split()]
        assert len(self.pids) >= WORKERS, self.printed()

    def end(self, number: int) -> tuple[float, str]:
        """Send a signal. Return the seconds until trainer and workers were gone, and what was printed."""
        began = time.monotonic()
        self.process.send_signal(number)
        try:
            self.process.wait(timeout=_PROMPT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()  # Else a test that fails would leave a trainer that never ends.
            self.process.wait()
            raise
        assert wait_until(lambda: all(map(is_gone, self.pids[:WORKERS])), seconds=_PROMPT_S)
        seconds = time.monotonic() - began
        return seconds, self.printed()

    def printed(self) -> str:
        """Return what trainer and workers wrote to standard error. Ends the use of this object."""
        assert self.process.stdout is not None
        self.process.stdout.close()
        with self.stderr:
            self.stderr.seek(0)
            return self.stderr.read()


# Each phase and each method; the other six are slow.
@pytest.mark.parametrize(
    ("phase", "method"),
    [
        ("starting", "spawn"),
        ("running", "forkserver"),
        ("sampling", "fork"),
        *(
            pytest.param(phase, method, marks=pytest.mark.slow)
            for phase, method in (
                *(("starting", "fork"), ("starting", "forkserver"), ("running", "spawn")),
                *(("running", "fork"), ("sampling", "spawn"), ("sampling", "forkserver")),
            )
        ),
    ],
)
def test_sigkill_leaves_nothing(phase: str, method: str, temporary: Path) -> None:
    if method == "forkserver":
        temporary = Path(tempfile.mkdtemp())  # Multiprocessing's own server cannot clean up after SIGKILL.
    seconds, _ = Trainer(phase, temporary, method=method).end(signal.SIGKILL)
    assert seconds < _PROMPT_S


@pytest.mark.parametrize("method", ["spawn", pytest.param("fork", marks=pytest.mark.slow)])
def test_sigkill_ends_workers_that_are_stopped(method: str, temporary: Path) -> None:
    trainer = Trainer("running", temporary, method=method)
    for pid in trainer.pids[:WORKERS]:
        os.kill(pid, signal.SIGSTOP)
    assert wait_until(lambda: all(run_state(pid) == "stopped by a signal" for pid in trainer.pids[:WORKERS]))
    trainer.end(signal.SIGKILL)


def test_sigkill_while_another_child_holds_the_sockets(temporary: Path) -> None:
    trainer = Trainer("forked", temporary)
    seconds, _ = trainer.end(signal.SIGKILL)
    assert seconds < _PROMPT_S
    assert not is_gone(trainer.pids[-1])
    os.kill(trainer.pids[-1], signal.SIGKILL)


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param("starting", marks=pytest.mark.slow),
        "running",
        pytest.param("sampling", marks=pytest.mark.slow),
    ],
)
def test_ctrl_c_is_quick_and_clean(phase: str, temporary: Path) -> None:
    trainer = Trainer(phase, temporary)
    seconds, stderr = trainer.end(signal.SIGINT)
    assert trainer.process.returncode in (-signal.SIGINT, 130)
    assert stderr.count("Traceback") == 1
    assert "KeyboardInterrupt" in stderr
    assert seconds < _PROMPT_S


def test_sigterm_leaves_nothing(temporary: Path) -> None:
    seconds, stderr = Trainer("running", temporary).end(signal.SIGTERM)
    assert seconds < _PROMPT_S
    assert stderr == ""
