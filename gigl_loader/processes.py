"""Child processes: a fresh interpreter, a description of how it ended, death together with its parent.

Standard library only: a child imports this before anything else.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Environment of a child: several children keep several cores busy, a pool in each would fight over them."""

# What arrives over a network lands in memory of 1 to 2 MB that is freed at once. As glibc comes, it gives
# such memory back to the system every time, and taking it again costs as much as receiving it: with these,
# a peer's reply takes 40 % fewer CPU seconds on both sides. At most 16 MB are kept by each of glibc's arenas:
# 64 MB save no more (a client: 0.60 and 0.57 s/GB), 4 MB much less (1.04), and large messages of any caller
# fill them.
_TRIM_BYTES, _MMAP_BYTES = 16 << 20, 8 << 20
_WARM_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(_TRIM_BYTES), "MALLOC_MMAP_THRESHOLD_": str(_MMAP_BYTES)}
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h

# The parent's path replaces the interpreter's own before anything is imported, so that the child finds
# the same modules; `-m` would put the working directory first, where another gigl_loader may lie.
_BOOT = "import sys; sys.path[:] = sys.argv[4:]; from gigl_loader.processes import enter; enter()"

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4  # prctl.h

_RUN_STATES = {
    "R": "running",
    "S": "waiting",
    "D": "waiting for a device",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "dead",
    "X": "dead",
}


class FreshProcess:
    """A fresh interpreter that runs one function. The parent's main module is never imported again."""

    def __init__(
        self, entry: str, link: socket.socket, *, stderr: int | None = None, pass_fds: Sequence[int] = ()
    ) -> None:
        """Start ``entry``, a ``module:function`` that takes the child's ``link``. Returns at once.

        ``pass_fds`` stay open in the child under their numbers; ``stderr`` becomes its descriptor 2.
        """
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        self._process = subprocess.Popen(
            [
                sys.executable,
                *flags,
                "-c",
                _BOOT,
                str(link.fileno()),
                entry,
                str(in_main_thread()),
                *sys.path,
            ],
            stdin=subprocess.DEVNULL,
            stderr=stderr,
            pass_fds=(link.fileno(), *pass_fds),
            start_new_session=True,
            env=_WARM_MEMORY | os.environ | ONE_THREAD,
        )
        self.pid = self._process.pid

    def wait(self, timeout: float | None) -> int | None:
        """Return the exit status (negative: the signal), or ``None`` if it still runs after ``timeout`` s.

        Without a ``timeout`` the caller waits for as long as the process lives.
        """
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process was found to have ended."""
        self._process.send_signal(number)


def keep_freed_memory() -> None:
    """Have this process keep freed memory as children of ours do, unless its environment tunes glibc itself.

    For processes that this one did not start: a trainer that receives batches, a server started by hand.
    No effect where there is no glibc.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)


def release_freed_memory() -> None:
    """Give memory that was freed back to the system, for a process that has nothing to do for a while.

    No effect where there is no glibc.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def enter() -> None:
    """Run what ``FreshProcess`` named, in the child."""
    if sys.argv[3] == str(True):
        die_with_starter()
    module, _, function = sys.argv[2].partition(":")
    getattr(import_module(module), function)(socket.socket(fileno=int(sys.argv[1])))


def describe_status(status: int | None) -> str:
    """Say how a process ended."""
    if status is None:
        return "closed its socket and goes on running"
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = " (often the kernel, for lack of memory)" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def run_state(pid: int) -> str:
    """Say what the kernel makes of a process: running, waiting, stopped, dead."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return "dead"
    return _RUN_STATES.get(fields[0].decode(), "alive")


def is_stopped(pid: int) -> bool:
    """Return whether a signal stopped a process, and no debugger is attached to it."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
    except OSError:
        return False
    state, tracer = fields.get("State", "").split(), fields.get("TracerPid", "").strip()
    return state[:1] == ["T"] and tracer == "0"


def in_main_thread() -> bool:
    """Return whether the caller's thread is the one that lasts as long as its process."""
    return threading.get_native_id() == os.getpid()


def die_with_starter() -> None:
    """Have the kernel kill this process when the *thread* that started it ends, even if it is stopped then.

    A stopped process notices nothing and would stay for ever. For children of a main thread only: one
    that a short-lived thread started would be killed in the midst of its work.
    """
    with suppress(OSError, AttributeError):  # Not Linux: ``leave_with`` must do.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def forbid_cores() -> None:
    """Have the kernel write no core of this process, which would hold its tokens and keys.

    Other processes of the same user cannot trace it either, nor read its memory and descriptors in ``/proc``,
    whose files of this process now belong to root. Programs that it starts are not affected. Linux only.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def leave_with(parent_pid: int) -> None:
    """End this process when the parent ends, whatever is going on.

    End of file on the link is not enough: a child that the parent forked may hold it open, and what is
    being worked on may take its time.
    """
    try:
        watched = os.pidfd_open(parent_pid)
    except ProcessLookupError:
        os._exit(0)
    except (AttributeError, OSError):
        return  # Kernels before 5.3 and strict sandboxes: end of file must do.
    threading.Thread(target=_exit_after, args=(watched,), name="parent watch", daemon=True).start()


def _exit_after(pidfd: int) -> None:
    watch = select.poll()
    watch.register(pidfd, select.POLLIN)
    watch.poll()
    os._exit(0)
