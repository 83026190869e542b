"""Free memory, by control groups of both versions, the machine and ``RLIMIT_AS``."""

from __future__ import annotations

import errno
import resource
from pathlib import Path

import pytest

from gigl_loader.resources import FreeMemory, free_memory, naming_process_limit

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
