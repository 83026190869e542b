from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from gigl_loader.processes import FreshProcess, describe_status, is_stopped, leave_with, run_state
from tests.support.leftovers import is_gone, wait_until


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


def echo(link: socket.socket) -> None:
    """Runs in a child: says what it was started with, and leaves when the parent's end closes."""
    with link:
        link.sendall(f"{sys.path == link.recv(1 << 16).decode().split(os.pathsep)}".encode())
        link.recv(1)


def outlive(link: socket.socket) -> None:
    """Runs in a child: ends with the process whose number it is told, and for no other reason."""
    leave_with(int(link.recv(100)))
    link.sendall(b"up")
    signal.pause()


@pytest.mark.usefixtures("no_leftovers")
def test_a_fresh_process_runs_one_function_with_the_path_of_its_parent() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        child = FreshProcess("tests.unit.test_processes:echo", theirs)
        theirs.close()
        ours.sendall(os.pathsep.join(sys.path).encode())
        assert ours.recv(100) == b"True"
        assert child.wait(0) is None
    assert child.wait(10) == 0
    child.send_signal(signal.SIGKILL)  # Does nothing, and does not hit a process that took its number.


def test_a_process_leaves_with_another_even_by_sigkill() -> None:
    ours, theirs = socket.socketpair()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as parent, ours:
        child = FreshProcess("tests.unit.test_processes:outlive", theirs)
        ours.sendall(str(parent.pid).encode())
        assert ours.recv(2) == b"up"
        parent.kill()
        assert child.wait(10) == 0
    theirs.close()


def test_a_process_leaves_at_once_when_the_other_is_gone_already() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as parent:
        pass
    assert wait_until(lambda: is_gone(parent.pid))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = FreshProcess("tests.unit.test_processes:outlive", theirs)
        ours.sendall(str(parent.pid).encode())
        assert child.wait(10) == 0


def test_a_child_outlives_a_thread_that_started_it() -> None:
    ours, theirs = socket.socketpair()
    started: list[FreshProcess] = []

    def start() -> None:
        started.append(FreshProcess("tests.unit.test_processes:outlive", theirs))

    with ours, theirs:
        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        ours.sendall(str(os.getpid()).encode())
        assert ours.recv(10) == b"up"
        assert started[0].wait(0.05) is None
        started[0].send_signal(signal.SIGKILL)
        assert started[0].wait(10) == -signal.SIGKILL


def test_freed_memory_is_kept_but_where_the_environment_tunes_glibc() -> None:
    """Memory that came and went is there still: the next pieces cost no page faults."""
    script = (
        "import resource, sys\n"
        "from gigl_loader.processes import keep_freed_memory\n"
        "keep_freed_memory()\n"
        "def churn():\n"
        "    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "    for _ in range(50):\n"
        "        pieces = [bytearray(2 << 20) for _ in range(4)]\n"
        "        del pieces\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before\n"
        "churn()\n"
        "print(churn())\n"
    )

    def faults(**environment: str) -> int:
        plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
        run = [sys.executable, "-c", script]
        return int(subprocess.run(run, env=plain | environment, capture_output=True, check=True).stdout)

    assert faults() < 2_000 < faults(MALLOC_MMAP_THRESHOLD_=str(1 << 20))


def test_a_stopped_process_is_told_from_one_that_is_debugged() -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    attach, detach = 16, 17  # sys/ptrace.h
    try:
        assert not is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        assert wait_until(lambda: is_stopped(process.pid))
        if ptrace(attach, process.pid, None, None) == 0:  # Some sandboxes forbid it.
            assert wait_until(lambda: run_state(process.pid) == "stopped by a debugger")
            assert not is_stopped(process.pid)
            ptrace(detach, process.pid, None, None)
        process.send_signal(signal.SIGCONT)
        assert wait_until(lambda: not is_stopped(process.pid))
    finally:
        process.kill()
        process.wait()
    assert not is_stopped(process.pid)
