"""Speed of disks, as loaders and ``gigl-loader doctor --disk`` measure it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from gigl_loader.cli import disk_speeds
from gigl_loader.cli.app import build_app
from gigl_loader.sampling.disk_speed import (
    DEFAULT_GAP,
    MEASURABLE_BYTES,
    DiskSpeed,
    break_even_gap,
    measure_disk,
)

if TYPE_CHECKING:
    from pathlib import Path


def hole(path: Path, nbytes: int) -> Path:
    """Make a file that takes no room."""
    with path.open("wb") as file:
        file.truncate(nbytes)
    return path


@pytest.mark.parametrize("nbytes", [0, 5000, 10_000_000])
def test_any_file_can_be_measured(nbytes: int, tmp_path: Path) -> None:
    path = hole(tmp_path / "file", max(nbytes, 4096))
    found = measure_disk(str(path), depth=3, seconds=0.02)
    assert found.depth == 3
    assert found.reads_per_s > 1
    assert found.bytes_per_s > 4096
    assert found.engine in ("io_uring", "threads")


@pytest.mark.parametrize(
    ("reads", "nbytes", "gap"), [(56_000, 1.4e9, 25_000), (1e6, 1e9, 4096), (100, 1e9, 128 << 10)]
)
def test_a_gap_takes_as_long_as_a_read(reads: float, nbytes: float, gap: int) -> None:
    assert DiskSpeed(64, reads, nbytes, "threads", True).gap == gap


def test_only_large_files_tell_the_gap(tmp_path: Path) -> None:
    assert break_even_gap(None, 8) == DEFAULT_GAP
    assert break_even_gap(str(hole(tmp_path / "small", MEASURABLE_BYTES - 1)), 8) == DEFAULT_GAP
    assert 4096 <= break_even_gap(str(hole(tmp_path / "large", MEASURABLE_BYTES)), 8) <= 128 << 10


def test_a_busy_moment_does_not_widen_the_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter(DiskSpeed(8, reads, 1e9, "threads", True) for reads in (10_000, 50_000, 20_000))
    monkeypatch.setattr("gigl_loader.sampling.disk_speed.measure_disk", lambda *_, **__: next(speeds))
    assert break_even_gap(str(hole(tmp_path / "large", MEASURABLE_BYTES)), 8) == 20_000


def test_the_largest_file_below_a_directory_is_measured(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    largest = hole(tmp_path / "part" / "large", MEASURABLE_BYTES + 1)
    hole(tmp_path / "second", MEASURABLE_BYTES)
    hole(tmp_path.parent / "elsewhere", MEASURABLE_BYTES + 2)
    (tmp_path / "link").symlink_to(tmp_path.parent / "elsewhere")
    shown: list[tuple[str, int, int]] = []
    for path in (tmp_path, largest):
        found = disk_speeds.measure(path, lambda *step: shown.append(step), seconds=0.05)
        assert (found.file, found.nbytes, found.temporary) == (str(largest), MEASURABLE_BYTES + 1, False)
    assert [each.depth for each in found.speeds] == [1, 4, 16, 64, 128]
    assert [step[1:] for step in shown] == [(done, 5) for done in range(6)] * 2


def test_the_doctor_measures_a_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a large file it writes one, says so, and removes it."""
    sizes = []

    def measured(path: str, *, depth: int, seconds: float) -> DiskSpeed:
        sizes.append((os.path.getsize(path), seconds))
        return DiskSpeed(depth, 1000.0 * depth, 1e9, "threads", depth < 128)

    monkeypatch.setattr(disk_speeds, "measure_disk", measured)
    monkeypatch.setattr(disk_speeds, "_TEMPORARY_BYTES", 2 << 20)
    (tmp_path / "small").write_bytes(b"0")
    text = CliRunner().invoke(build_app(), ["doctor", "--disk", str(tmp_path)])
    assert text.exit_code == 0, text.output
    said = " ".join(text.output.split())  # A long path of the directory wraps the line.
    assert "2.1 MB, written for this and removed): through the page cache" in said
    assert "64   64,000             1,000   16 KB" in text.output
    assert "break-even gap with 64 reads in flight: 16 KB" in said
    found = json.loads(CliRunner().invoke(build_app(), ["doctor", "--json", "--disk", str(tmp_path)]).stdout)
    assert (found["gap_bytes"], found["engine"], found["direct"]) == (15_625, "threads", False)
    assert (found["temporary"], found["file_bytes"]) == (True, 2 << 20)
    assert found["depths"][1] == {
        "depth": 4,
        "reads_per_s": 4000,
        "bytes_per_s": 1_000_000_000,
        "gap_bytes": 128 << 10,
    }
    assert os.listdir(tmp_path) == ["small"]
    assert {size for size, _ in sizes} == {2 << 20}
    assert sum(seconds for _, seconds in sizes) <= 2 * 5


def test_a_place_that_is_not_there_is_the_users_mistake(tmp_path: Path) -> None:
    result = CliRunner().invoke(build_app(), ["doctor", "--disk", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert f"no such file or directory: {tmp_path}/none" in result.output
