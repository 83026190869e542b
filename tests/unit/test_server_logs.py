"""The server's log: what a full disk does to it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import pytest

from gigl_server.logs import LineHandler, quiet_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("test of the log")
    found.propagate = False
    yield found
    for handler in list(found.handlers):
        found.removeHandler(handler)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_loses_lines_and_says_so_when_it_is_over(logger: logging.Logger, tmp_path: Path) -> None:
    path = tmp_path / "log"
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        logger.addHandler(LineHandler(fd))
        for _ in range(3):
            logger.error("lost")
        good = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(good, fd)
        os.close(good)
        logger.error("there is room again")
        logger.error("and still")
    finally:
        os.close(fd)
    first, second = path.read_text().splitlines()
    assert first == "there is room again (3 lines before this one were lost)"
    assert second == "and still"


def test_a_line_that_was_torn_does_not_take_the_next_with_it(
    logger: logging.Logger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, room = os.write, [4, 1 << 20, 1 << 20]
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[: room.pop(0)]))
    path = tmp_path / "log"
    with path.open("wb") as file:
        logger.addHandler(LineHandler(file.fileno()))
        for line in ("torn", "whole", "and whole"):
            logger.error(line)
    assert path.read_text().splitlines() == ["torn", "whole (1 lines before this one were lost)", "and whole"]


def test_a_descriptor_that_was_closed_stops_nobody(logger: logging.Logger) -> None:
    logger.addHandler(LineHandler(10_000))
    logger.error("into nothing")


def test_grpc_is_quiet_unless_the_user_asked_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "so that what was there comes back")
    monkeypatch.delenv("GRPC_VERBOSITY")
    quiet_grpc()
    assert os.environ["GRPC_VERBOSITY"] == "NONE"
    monkeypatch.setenv("GRPC_VERBOSITY", "DEBUG")
    quiet_grpc()
    assert os.environ["GRPC_VERBOSITY"] == "DEBUG"
