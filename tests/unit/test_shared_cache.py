"""A host's cache of remote rows, opened by its other processes."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from gigl_loader.hosts.peers import open_cache
from gigl_loader.memfile import create_memory
from tests.support.stores import store_graphs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def garbage() -> Iterator[int]:
    fd = create_memory("garbage", 4096)
    yield fd
    os.close(fd)


def test_without_its_process_there_is_none(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_cache("/proc/0/fd/3", store_graphs()[0].graph) is None
    assert "no cache of remote rows" in caplog.text


def test_what_lies_there_instead_is_not_believed(garbage: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert open_cache(f"/proc/{os.getpid()}/fd/{garbage}", store_graphs()[0].graph) is None
    assert "no cache of remote rows" in caplog.text


def test_a_descriptor_that_is_something_else_by_now_is_no_cache(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read, write = os.pipe()
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        for fd in (read, file):
            assert open_cache(f"/proc/{os.getpid()}/fd/{fd}", store_graphs()[0].graph) is None
    finally:
        for fd in (read, write, file):
            os.close(fd)
    assert "not a memory file" in caplog.text
