"""A wall clock of all processes of a leg that can jump by hours, forwards and backwards."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HERE = str(Path(__file__).parent / "clock")


class JumpingClock:
    """The clock that processes started within ``spread`` see."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0.0)

    def jump(self, seconds: float) -> None:
        """Be off by so much from now on."""
        with self._file.open("r+b" if self._file.exists() else "w+b") as file:
            file.write(struct.pack("=d", seconds))

    @contextmanager
    def spread(self) -> Iterator[None]:
        """Have processes that are started in this block use the clock."""
        before = {name: os.environ.get(name) for name in ("PYTHONPATH", "GIGL_CHAOS_CLOCK")}
        paths = [_HERE, *filter(None, [before["PYTHONPATH"]])]
        os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "GIGL_CHAOS_CLOCK": str(self._file)}
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
