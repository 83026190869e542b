"""CUDA devices of this machine, which only tests marked ``device`` see.

Other tests give the same result on every machine: without a ``device``, their loaders, and those of the
processes that they start, stay on the CPU.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_WITHOUT = {"is_available": lambda: False, "device_count": lambda: 0, "is_initialized": lambda: False}


class CudaDevices:
    """Shows the devices to a test, or hides them."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        """``items`` are the tests of this session. Without a ``device`` test, PyTorch is left alone."""
        self._environment = os.environ.get(_VARIABLE)
        self._calls: dict[str, Any] = {}
        if any(map(_needs_device, items)):
            import torch

            # This call also initialises the driver, which reads the environment once.
            if torch.cuda.is_available():
                self._calls = {name: getattr(torch.cuda, name) for name in _WITHOUT}

    def prepare(self, item: pytest.Item) -> None:
        """Show the devices if the test needs one, else hide them. Skip the test if there is none."""
        if not _needs_device(item):
            os.environ[_VARIABLE] = ""
            self._patch(_WITHOUT)
            return
        if not self._calls:
            pytest.skip("needs a CUDA device: make test-device on a machine that has one")
        self.restore()

    def restore(self) -> None:
        """Show the devices, and restore the environment."""
        if self._environment is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = self._environment
        self._patch(self._calls)

    def _patch(self, calls: dict[str, Any]) -> None:
        if self._calls:
            for name, call in calls.items():
                setattr(sys.modules["torch"].cuda, name, call)


def _needs_device(item: pytest.Item) -> bool:
    return item.get_closest_marker("device") is not None
