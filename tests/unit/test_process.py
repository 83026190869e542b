from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from gigl_loader.sampling.process import check_start_method, describe_status, run_state


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with exit code 0"),
        (3, "ended with exit code 3"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL (often the kernel, for lack of memory)"),
        (-63, "was killed by signal 63"),
        (None, "closed its socket and goes on running"),
    ],
)
def test_the_end_of_a_process_in_words(status: int | None, words: str) -> None:
    assert describe_status(status) == words


def test_the_state_of_a_process_in_words() -> None:
    assert run_state(os.getpid()) == "running"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert run_state(process.pid) == "stopped by a signal"
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert run_state(process.pid) == "dead"
    assert run_state(process.pid) == "dead"


def test_workers_need_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ValueError, match="use num_workers=0"):
        check_start_method("spawn")


def test_workers_need_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ValueError, match=r"sys\.executable is empty"):
        check_start_method("spawn")
    check_start_method("fork")
