"""Where ranks for tests are born.

A rank that starts afresh spends seconds importing torch. The fork_server is a process that imports the
modules once and forks every rank from there; it has no thread, and has used nothing of what it
imported. It is told what to do by JSON lines and answers each with one. Processes that outlive their
rank become its children, so that whoever asks sees them. All end when its input does.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from tests.support.hosts import enter_network

ROOT = Path(__file__).parents[2]
_PATIENCE = 60.0
"""Seconds in which it ends by itself."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class ForkServer:
    """Starts ranks in milliseconds: forks of a process that has imported torch."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.fork_server", *modules],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._ranks: dict[int, int | None] = {}
        """How each rank ended, ``None`` while it runs. The kernel gives numbers again, not only to ranks."""

    @classmethod
    @contextmanager
    def of(cls, *modules: str) -> Iterator[ForkServer]:
        """Yield a fork server that imports ``modules``. Whoever was born there ends with it."""
        fork_server = cls(*modules)
        try:
            fork_server._answer()
            yield fork_server
        finally:
            fork_server.close()

    def start(self, order: dict[str, Any]) -> int:
        """Fork a rank and return its process id."""
        pid = int(self._ask({"start": order})["pid"])
        self._ranks[pid] = None
        return pid

    def status(self, pid: int) -> int | None:
        """Return how a rank ended, ``None`` while it runs."""
        for ended, status in self._ask({})["ended"].items():
            if self._ranks.get(int(ended), status) is None:
                self._ranks[int(ended)] = status
        return self._ranks.get(pid)

    def everyone(self) -> list[psutil.Process]:
        """Return ranks, what they started, and what was left by those that have ended."""
        self.status(0)  # Reaps: the dead are nobody.
        return list(psutil.Process(self._process.pid).children(recursive=True))

    def close(self) -> None:
        """End everyone. Closing twice is fine."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the fork server has ended; standard error says why")
        answer: dict[str, Any] = json.loads(line)
        return answer


def main() -> None:
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    for module in sys.argv[1:]:
        import_module(module)
    gc.freeze()  # Garbage collections of ranks copy no page of what was imported.
    assert len(os.listdir("/proc/self/task")) == 1, "threads are lost by a fork"
    _say({"pid": os.getpid()})
    for line in sys.stdin:
        order = json.loads(line)
        if "start" not in order:
            _say({"ended": _reap()})
        elif pid := os.fork():
            _say({"pid": pid})
        else:
            _become(order["start"])()  # And then ends as any interpreter does.
            return
    _end_children()


def _become(order: dict[str, Any]) -> Callable[[], None]:
    """Make this fork a rank: a process like one that was started with the given environment."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    _redirect(0, os.devnull, os.O_RDONLY)
    for descriptor, path in ((1, order["output"]), (2, order["errors"])):
        _redirect(descriptor, path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    if order["network"]:
        enter_network(order["network"])
    module, _, function = order["program"].partition(":")
    program = getattr(import_module(module), function)

    def run() -> None:
        try:
            program(**order["arguments"])
        except Exception as error:
            Path(order["failure"]).write_text(f"{type(error).__name__}: {error}")
            raise

    return run


def _redirect(descriptor: int, path: str, flags: int) -> None:
    opened = os.open(path, flags, 0o600)
    os.dup2(opened, descriptor)
    os.close(opened)


def _reap() -> dict[int, int]:
    """Return how each child ended that did since the last time: exit code, or minus the signal."""
    ended = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def _end_children() -> None:
    """Kill all children, and the orphans that come to this process meanwhile."""
    with suppress(ChildProcessError):
        while True:
            for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            os.waitpid(-1, 0)


def _say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


if __name__ == "__main__":
    main()
