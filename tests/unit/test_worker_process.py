"""Sampling processes: their configuration, their start, and turns of the ranks of a host."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from torch._C._distributed_c10d import HashStore

from gigl_loader.channel.ring import RingLayout
from gigl_loader.group import RankGroup
from gigl_loader.topology import Topology
from gigl_loader.workers.config import Handover, WorkerConfig
from gigl_loader.workers.process import check_start_method, start_source, startup_turn
from tests.support.sources import PLAN
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_leftovers")


def test_workers_need_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ValueError, match="use num_workers=0"):
        check_start_method("spawn")


def test_workers_need_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ValueError, match=r"sys\.executable is empty"):
        check_start_method("spawn")
    check_start_method("fork")


# --- Configuration of a sampling process


SETTING = WorkerConfig(
    worker=1,
    incarnation=2,
    trainer_pid=3,
    sampler="somewhere:something",
    plan=PLAN.to_json(),
    inputs=PLAN.inputs,
    reference={"path": "/graphs/ünïcode"},
    ring=RingLayout(request_slots=1, request_bytes=32, slots=3, slot_bytes=4096),
)


def test_a_fork_server_needs_a_script_that_is_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    check_start_method("forkserver")  # As at a prompt.
    script.__file__ = "<stdin>"
    check_start_method("spawn")
    check_start_method("fork")
    with pytest.raises(ValueError, match=r"imports the script again, and .*<stdin> is no file: write the"):
        check_start_method("forkserver")
    script.__file__ = str(tmp_path / "train.py")
    (tmp_path / "train.py").touch()
    check_start_method("forkserver")


def test_a_setting_survives_json() -> None:
    assert WorkerConfig.from_json(SETTING.to_json().encode()) == SETTING


def test_a_setting_does_not_show_the_token() -> None:
    assert "secret" not in repr(replace(SETTING, reference={"peers": {"token": "secret"}}))


def test_a_handover_arrives_with_the_graph() -> None:
    """The memory file of the graph gets another number on the way."""
    fd = os.memfd_create("graph", os.MFD_CLOEXEC)
    os.pwrite(fd, b"content", 0)
    reference = {"fd": fd, "files": {"part": [0, 7]}, "more": 1}
    sent = Handover(config=replace(SETTING, reference=reference), ring_fd=0, trace_fd=1, stderr_fd=2)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        sent.send(near)
        received = Handover.receive(far)
    found = received.config.reference
    assert received.config == replace(SETTING, reference=found)
    assert found == {**reference, "fd": found["fd"]}
    assert os.pread(found["fd"], 10, 0) == b"content"
    for each in (fd, found["fd"], received.ring_fd, received.trace_fd, received.stderr_fd):
        os.close(each)


@pytest.mark.parametrize("reference", [{"path": "/graph"}, {"fd": 0, "files": {}}])
def test_shared_files_come_under_their_names(reference: dict[str, Any]) -> None:
    files = {name: os.memfd_create(name) for name in ("weights", "seeds", "shared")}
    for name, fd in files.items():
        os.pwrite(fd, name.encode(), 0)
    sent = Handover(
        config=replace(SETTING, reference=reference, files=files), ring_fd=0, trace_fd=1, stderr_fd=2
    )
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        sent.send(near)
        received = Handover.receive(far)
    found = received.config.files
    assert {name: os.pread(fd, 10, 0).decode() for name, fd in found.items()} == {n: n for n in files}
    own = [received.ring_fd, received.trace_fd, received.stderr_fd]
    own += [received.config.reference["fd"]] if "fd" in reference else []
    for fd in (*files.values(), *found.values(), *own):
        os.close(fd)


def test_a_trainer_that_is_gone_is_noticed() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.close()
    with far, pytest.raises(EOFError):
        Handover.receive(far)


# --- Ranks of one host start their sampling processes in turn


def _place(rank: int, world_size: int = 2) -> Topology:
    return Topology(rank=rank, world_size=world_size, local_rank=rank, local_world_size=world_size)


def test_one_rank_starts_at_a_time() -> None:
    starting = threading.Lock()

    def program(group: RankGroup) -> bool:
        with startup_turn(group, _place(group.rank, 4), 10) as others_wait:
            assert starting.acquire(blocking=False)
            time.sleep(0.01)
            starting.release()
        return others_wait

    assert run_ranks(4, program) == [True] * 4


def test_a_failed_start_does_not_keep_others_from_theirs() -> None:
    group = RankGroup(HashStore(), 0, 2)
    with pytest.raises(ZeroDivisionError), startup_turn(group, _place(0), 1):
        raise ZeroDivisionError
    with startup_turn(group, _place(0), 1) as others_wait:
        assert others_wait


def test_alone_on_a_host_nobody_waits() -> None:
    group = RankGroup(HashStore(), 0, 2)
    alone = Topology(world_size=2, num_hosts=2)
    with startup_turn(group, alone, 0) as first, startup_turn(group, alone, 0) as second:
        assert not first
        assert not second
    with startup_turn(None, Topology(), 0) as third:
        assert not third


def test_hosts_do_not_wait_for_each_other() -> None:
    store = HashStore()
    places = [
        Topology(rank=rank, world_size=4, local_world_size=2, host_index=rank // 2, num_hosts=2)
        for rank in (0, 2)
    ]
    with (
        startup_turn(RankGroup(store, 0, 4), places[0], 0.1),
        startup_turn(RankGroup(store, 2, 4), places[1], 0.1),
    ):
        pass


def test_a_rank_that_starts_for_too_long_is_named() -> None:
    store = HashStore()
    with startup_turn(RankGroup(store, 1, 2), _place(1), 1):
        turn = startup_turn(RankGroup(store, 0, 2), _place(0), 0.02)
        with (
            pytest.raises(TimeoutError, match=r"^rank 1 \(pid \d+\) has been starting .* than 0\.02 s"),
            turn,
        ):
            pass


@pytest.fixture
def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_turn_of_a_rank_that_died_passes_on(dead_pid: int) -> None:
    group = RankGroup(HashStore(), 0, 2)
    group.replace("start/host-0", "", f"1 {dead_pid} abc")
    with startup_turn(group, _place(0), 5):
        pass


class _Source:
    """Counts what is asked of it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.waited = self.closed = 0

    def wait_until_up(self, timeout: float) -> None:
        self.waited += 1
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed += 1


def _started(source: _Source, place: Topology, gap_s: float | None) -> Any:
    group = RankGroup(HashStore(), place.rank, place.world_size)
    return start_source(lambda: source, group=group, topology=place, gap_s=gap_s, timeout=1)  # type: ignore[arg-type, return-value]


def test_a_source_is_up_before_the_turn_passes_on() -> None:
    source = _Source()
    assert _started(source, _place(0), None) is source
    assert source.waited == 1


def test_alone_on_a_host_nobody_waits_for_the_source() -> None:
    source = _Source()
    _started(source, Topology(world_size=2, num_hosts=2), None)
    assert source.waited == 0


def test_a_source_that_does_not_come_up_is_closed() -> None:
    source = _Source(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        _started(source, _place(0), None)
    assert source.closed == 1


def test_a_fixed_gap_is_a_multiple_of_the_local_rank() -> None:
    began = time.monotonic()
    assert _started(_Source(), _place(0), 60).waited == 0
    assert time.monotonic() - began < 10
    began = time.monotonic()
    _started(_Source(), _place(1), 0.05)
    assert time.monotonic() - began >= 0.05
