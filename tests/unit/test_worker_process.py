from __future__ import annotations

import os
import sys

import pytest

from gigl_loader.workers.process import check_start_method


def test_workers_need_linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(ValueError, match="use num_workers=0"):
        check_start_method("spawn")


def test_workers_need_an_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ValueError, match=r"sys\.executable is empty"):
        check_start_method("spawn")
    check_start_method("fork")
