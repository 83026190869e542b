"""Triton kernels on a CPU: Triton interprets them, which it decides when they are imported."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

_PACKAGE = "gigl_loader.device"


@contextmanager
def interpreted() -> Iterator[None]:
    """Have kernels that are imported now run on the CPU. Afterwards, they are imported anew."""
    pytest.importorskip("triton", reason="needs Triton: the test extra brings it on Linux")
    with pytest.MonkeyPatch.context() as patches:
        patches.setenv("TRITON_INTERPRET", "1")
        forget_kernels()
        try:
            yield
        finally:
            forget_kernels()


def forget_kernels() -> None:
    """Have the next import of kernels import them anew."""
    for name in [name for name in sys.modules if name.startswith(f"{_PACKAGE}.")]:
        del sys.modules[name]
        delattr(sys.modules[_PACKAGE], name.rpartition(".")[2])
