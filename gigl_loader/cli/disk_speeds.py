"""Measurement of ``gigl-loader doctor --disk``: the speed of a disk by the number of reads in flight."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigl_loader.options import size_text
from gigl_loader.sampling.disk_speed import MEASURABLE_BYTES, DiskSpeed, measure_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DEPTHS = (1, 4, 16, 64, 128)
_LOADERS = 64
"""Reads that a loader keeps in flight."""
_TEMPORARY_BYTES = 256 << 20
_MAX_FILES = 100_000
"""Files that are looked at."""


@dataclass(frozen=True, slots=True)
class DiskSpeeds:
    """Speeds of the disk below a directory."""

    file: str
    """File that was read."""
    nbytes: int
    temporary: bool
    """There was no large file: one was written, and removed."""
    speeds: tuple[DiskSpeed, ...]

    @property
    def gap(self) -> int:
        """Break-even gap, in bytes, with as many reads in flight as a loader has."""
        return next(each.gap for each in self.speeds if each.depth == _LOADERS)

    def to_json(self) -> dict[str, Any]:
        last = self.speeds[-1]
        return {
            "file": self.file,
            "file_bytes": self.nbytes,
            "temporary": self.temporary,
            "engine": last.engine,
            "direct": last.direct,
            "gap_bytes": self.gap,
            "depths": [
                {
                    "depth": each.depth,
                    "reads_per_s": round(each.reads_per_s),
                    "bytes_per_s": round(each.bytes_per_s),
                    "gap_bytes": each.gap,
                }
                for each in self.speeds
            ],
        }

    @property
    def notes(self) -> tuple[str, str]:
        """What was read and how, and what the gap means."""
        last = self.speeds[-1]
        written = ", written for this and removed" if self.temporary else ""
        how = "direct reads" if last.direct else "through the page cache: its file system has no direct reads"
        return (
            f"{self.file} ({size_text(self.nbytes)}{written}): {how}, by {last.engine}",
            f"break-even gap with {_LOADERS} reads in flight: {self.gap / 1000:.0f} KB. Rows that are "
            "closer come with one read. A loader measures it at its start: there is nothing to set.",
        )


def measure(
    where: str | os.PathLike[str],
    show: Callable[[str, int, int], None] | None = None,
    *,
    seconds: float = 4.5,
) -> DiskSpeeds:
    """Measure the disk of the largest file at or below ``where``, or of a new one if all are small."""
    path = Path(where)
    if not path.exists():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    with _measurable(path) as (file, temporary):
        found = []
        for done, depth in enumerate(_DEPTHS):
            if show is not None:
                show("reads in flight: depths", done, len(_DEPTHS))
            found.append(measure_disk(str(file), depth=depth, seconds=seconds / len(_DEPTHS)))
        if show is not None:
            show("reads in flight: depths", len(_DEPTHS), len(_DEPTHS))
        return DiskSpeeds(str(file), file.stat().st_size, temporary, tuple(found))


@contextmanager
def _measurable(path: Path) -> Iterator[tuple[Path, bool]]:
    """Lend a file of at least 64 MiB, and whether it is a temporary one."""
    below = (Path(directory, name) for directory, _, names in os.walk(path) for name in names)
    largest = max([path] if path.is_file() else islice(below, _MAX_FILES), key=_size, default=path)
    if _size(largest) >= MEASURABLE_BYTES:
        yield largest, False
        return
    where = path if path.is_dir() else path.parent
    with tempfile.NamedTemporaryFile(dir=where, prefix=".gigl-loader-disk-") as file:
        block = os.urandom(1 << 20)
        for _ in range(_TEMPORARY_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        yield Path(file.name), True


def _size(path: Path) -> int:
    """Return the size of a regular file, 0 of anything else."""
    try:
        found = path.lstat()
    except OSError:  # It was removed meanwhile.
        return 0
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
