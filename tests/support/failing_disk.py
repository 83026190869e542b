"""A disk that fails for real: a file system on a loop device, whose image is cut while it is mounted."""

from __future__ import annotations

import mmap
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

_BLOCK = 4096


@dataclass(frozen=True)
class FailingDisk:
    """A mounted file system of 32 MiB."""

    path: Path
    image: Path
    size: int = 32 << 20

    def fail(self, file: Path, share: float) -> Path:
        """Have reads of ``file`` fail with EIO from about ``share`` of it on. Return what repairs it."""
        os.sync()
        whole = self.image.with_suffix(".whole")
        whole.write_bytes(self.image.read_bytes())
        offset = int(share * file.stat().st_size) // _BLOCK * _BLOCK
        low, high = 0, self.size // _BLOCK  # So large an image lacks the block, or has it.
        while low + 1 < high:
            middle = (low + high) // 2
            os.truncate(self.image, middle * _BLOCK)
            low, high = (low, middle) if reads(file, offset) else (middle, high)
            self.repair(whole)
        os.truncate(self.image, low * _BLOCK)
        assert not reads(file, offset)
        return whole

    def first_bad(self, file: Path) -> int:
        """Return the first block of ``file`` that cannot be read, in bytes."""
        return next(at for at in range(0, file.stat().st_size, _BLOCK) if not reads(file, at))

    def fill(self) -> None:
        """Leave no room."""
        with suppress(OSError), (self.path / "filler").open("wb", buffering=0) as filler:
            while filler.write(bytes(1 << 20)):
                pass
        with pytest.raises(OSError, match="No space left"):
            (self.path / "more").write_bytes(bytes(1 << 20))

    def repair(self, whole: Path) -> None:
        with self.image.open("r+b") as image:
            image.write(whole.read_bytes())


def reads(file: Path, offset: int) -> bool:
    """Whether the disk reads the block at ``offset``."""
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    try:
        os.preadv(fd, [mmap.mmap(-1, _BLOCK)], offset)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


@contextmanager
def failing_disk(folder: Path) -> Iterator[FailingDisk]:
    """Mount a file system. Skips the test, with the reason, where that is not allowed."""
    disk = FailingDisk(folder / "mounted", folder / "image")
    disk.path.mkdir()
    with disk.image.open("wb") as image:
        image.truncate(disk.size)
    try:
        for command in (["mkfs.ext4", "-q"], ["mount", "-o", "loop"]):
            places = [disk.image, *([disk.path] if "mount" in command else [])]
            subprocess.run([*command, *places], check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"no disk to fail: {getattr(error, 'stderr', '') or error}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk.path], check=True, timeout=30)
