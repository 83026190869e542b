"""Sources of files for pulls, as values: whole, damaged, silent or slow; and damage of files on the disk."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gigl_loader.errors import StorageUnavailable
from gigl_loader.graph.folder import DiskFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gigl_loader.arrays import Bytes


@dataclass(eq=False)
class FolderSource:
    """Another server: a folder that is read."""

    path: Path
    name: str = "source"
    fails_after: int = 1 << 62
    """Pieces after which it does not answer."""
    wrong: Callable[[str, int], bool] = lambda name, first: False
    """Whether a byte of this piece arrives flipped."""
    asked: list[tuple[str, int, int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __str__(self) -> str:
        return self.name

    def fetch(self, name: str, first: int, count: int) -> Bytes:
        with self.lock:
            self.asked.append((name, first, count))
            if len(self.asked) > self.fails_after:
                raise StorageUnavailable(f"{self.name} does not answer")
        data = DiskFolder(self.path).read(name, first, count)
        if self.wrong(name, first):
            data[count // 2] ^= 1
        return data

    def close(self) -> None:
        self.fails_after = 0


def flip(file: Path, at: int) -> None:
    """Flip a bit of a byte in place: maps of the file see it. ``at`` may count from the end."""
    with file.open("r+b") as opened:
        opened.seek(at, 2 if at < 0 else 0)
        (byte,) = opened.read(1)
        opened.seek(-1, 1)
        opened.write(bytes([byte ^ 4]))


def is_same(left: Path, right: Path) -> bool:
    """Return whether two folders have the same files, byte for byte, hidden ones included."""
    found = [
        {path.relative_to(top).as_posix(): path.read_bytes() for path in top.rglob("*") if path.is_file()}
        for top in (left, right)
    ]
    return found[0] == found[1]
