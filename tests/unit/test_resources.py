"""Free memory and usable cores, by control groups of both versions, the machine and limits."""

from __future__ import annotations

import errno
import math
import os
import resource
from pathlib import Path

import pytest

from gigl_loader import resources
from gigl_loader.resources import (
    FreeMemory,
    address_bytes,
    free_memory,
    idle_seconds,
    naming_process_limit,
    usable_cores,
)

GB = 1 << 30
V1_NONE = 9223372036854771712
Group = tuple[int | str, int, int]
"""Limit, usage, and what of it are pages of files."""

V2, V1 = "memory.max of ", "memory.limit_in_bytes of "
MACHINE = "MemAvailable of this machine"

CASES: list[tuple[str, str, dict[str, Group], int, str]] = [
    ("no group", "0::/", {}, 16 * GB, MACHINE),
    ("v2", "0::/a/b", {"a/b": (3 * GB, 2 * GB, GB)}, 2 * GB, V2 + "CGROUP/a/b"),
    ("v2, limit above", "0::/a/b", {"a/b": ("max", GB, 0), "a": (3 * GB, GB, 0)}, 2 * GB, V2 + "CGROUP/a"),
    ("v2, least left", "0::/a/b", {"a/b": (3 * GB, 0, 0), "a": (4 * GB, 2 * GB, 0)}, 2 * GB, V2 + "CGROUP/a"),
    ("v2, own name space", "0::/../b", {"": (3 * GB, 0, 0)}, 3 * GB, V2 + "CGROUP"),
    ("v2, full", "0::/", {"": (GB, 2 * GB, GB >> 1)}, 0, V2 + "CGROUP"),
    ("v2, above the machine", "0::/", {"": (64 * GB, 0, 0)}, 16 * GB, MACHINE),
    ("v1", "4:cpu,memory:/a", {"memory/a": (3 * GB, 2 * GB, GB)}, 2 * GB, V1 + "CGROUP/memory/a"),
    (
        "v1, limit above",
        "4:memory:/a/b\n0::/",
        {"memory/a/b": (V1_NONE, 0, 0), "memory/a": (3 * GB, 0, 0), "memory": (V1_NONE, 0, 0)},
        3 * GB,
        V1 + "CGROUP/memory/a",
    ),
    ("v1, in a container", "4:memory:/elsewhere", {"memory": (GB, 0, 0)}, GB, V1 + "CGROUP/memory"),
]


@pytest.mark.parametrize(
    ("line", "groups", "left", "source"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_the_least_of_all_limits_counts(
    tmp_path: Path, line: str, groups: dict[str, Group], left: int, source: str
) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(f"1:cpuset:/other\n{line}\n")
    (proc / "meminfo").write_text("MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\nHugePages_Total: 0\n")
    for name, (limit, used, files) in groups.items():
        folder = cgroup / name
        folder.mkdir(parents=True, exist_ok=True)
        v1 = name.startswith("memory")
        (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(f"{limit}\n")
        (folder / ("memory.usage_in_bytes" if v1 else "memory.current")).write_text(f"{used}\n")
        prefix = "active_file 1\ntotal_" if v1 else ""
        (folder / "memory.stat").write_text(
            f"cache 7\n{prefix}active_file {files - files // 4}\n"
            f"{'total_' if v1 else ''}inactive_file {files // 4}\n"
        )
    assert free_memory(cgroup, proc) == FreeMemory(left, source.replace("CGROUP", str(cgroup)))


def test_address_space_is_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/statm").write_text("1024 9 9 9 0 9 0\n")
    (tmp_path / "meminfo").write_text("MemAvailable: 16777216 kB\n")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (GB, GB))
    used = 1024 * resource.getpagesize()
    assert free_memory(tmp_path / "cgroup", tmp_path) == FreeMemory(GB - used, "RLIMIT_AS (ulimit -v)")


@pytest.mark.parametrize(
    ("line", "files", "cores"),
    [
        ("0::/pod/a", {"pod/a/cpu.max": "max 100000", "pod/cpu.max": "150000 100000"}, 2),
        ("0::/pod/a", {"pod/a/cpu.max": "50000 100000"}, 1),
        ("0::/pod/a", {"pod/a/cpu.max": "max 100000"}, 1000),
        ("0::/elsewhere", {}, 1000),
        (
            "3:cpu,cpuacct:/a\n0::/",
            {"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"},
            3,
        ),
        (
            "3:cpu,cpuacct:/a\n0::/",
            {"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"},
            1000,
        ),
        ("0::/", {"cpu.max": "nonsense"}, 1000),
    ],
)
def test_control_groups_limit_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(1000))
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"1:cpuset:/other\n{line}\n")
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(f"{text}\n")
    assert usable_cores(tmp_path / "cgroup", tmp_path / "proc") == cores


def test_idle_time_of_the_cores_is_read(tmp_path: Path) -> None:
    assert math.isnan(idle_seconds(tmp_path))
    (tmp_path / "stat").write_text("cpu  100 0 200 5000 700 0 0 0 0 0\ncpu0 1 2 3 4 5 6\n")
    assert idle_seconds(tmp_path) == 5700 / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(("limit", "address"), [(1 << 40, 1 << 20), (resource.RLIM_INFINITY, 1 << 38)])
def test_slots_have_room_where_address_space_is_not_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, address: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(resources, "_PROC", tmp_path)
    assert address_bytes(1 << 20) == address
    (tmp_path / "sys/vm").mkdir(parents=True)
    (tmp_path / "sys/vm/overcommit_memory").write_text("2\n")
    assert address_bytes(1 << 20) == 1 << 20


def test_this_machine_has_memory() -> None:
    assert free_memory().nbytes > 0


def test_the_limit_of_processes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (120, 500))
    for error in (BlockingIOError(errno.EAGAIN, "again"), RuntimeError("can't start new thread")):
        with (
            pytest.raises(
                OSError, match=r"^\[Errno 11\] n=4: no further .* a limit of 120 is reached: .* lower n$"
            ),
            naming_process_limit("m=1"),
            naming_process_limit("n=4"),
        ):
            raise error


@pytest.mark.parametrize(
    "error", [RuntimeError("other"), OSError(errno.ENOENT, "no"), ValueError("can't start")]
)
def test_other_errors_are_no_limit_of_processes(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, naming_process_limit("num_workers=4"):
        raise error
    assert caught.value is error
