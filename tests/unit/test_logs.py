"""Logs of library and server."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gigl_loader.logs import RankFilter, log_from_environment
from gigl_server.logs import LineHandler, quiet_grpc
from tests.support.clusters import addresses_of, servers_of
from tests.support.store_graph import write_graph
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


PROGRAM = """
import os
from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistNeighborLoader

with RemoteDistDataset.connect(os.environ["GIGL_STORE"], timeout=20, transport="network") as dataset:
    with DistNeighborLoader(dataset, [2], batch_size=100, seed=1) as loader:
        for _ in loader:
            pass
"""


@pytest.fixture
def loggers() -> Iterator[list[logging.Logger]]:
    found = [logging.getLogger(name) for name in ("gigl_loader", "gigl_client")]
    yield found
    for logger in found:
        logger.setLevel(logging.NOTSET)
        logger.handlers.clear()


def run(addresses: list[str], **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={"PATH": "/usr/bin:/bin", "GIGL_STORE": ",".join(addresses), **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == ""
    return done.stderr


@pytest.mark.slow
def test_a_script_shows_its_requests_when_asked(tmp_path: Path) -> None:
    with servers_of(write_graph(tmp_path / "graph"), 1) as servers:
        addresses = addresses_of(servers)
        assert run(addresses) == ""
        shown = run(addresses, GIGL_LOG="debug")
    for pattern in (
        r"DEBUG gigl_loader\.rpc\.store_client: .*: CreateProducer: [\d.]+ ms",
        r"DEBUG gigl_client\.dispatcher: .*: Sample batch 1 of epoch 0",
        r"DEBUG gigl_loader\.rpc\.connection: .*: manifest: \d+ bytes sent, \d+ received in [\d.]+ ms",
        r"DEBUG gigl_loader\.loaders\.stream: batch 1 of epoch 0 after [\d.]+ ms",
    ):
        assert re.search(pattern, shown), (pattern, shown)


def test_messages_go_to_the_handlers_of_the_script(loggers: list[logging.Logger]) -> None:
    assert logging.getLogger().handlers  # Those of pytest.
    log_from_environment({"GIGL_LOG": "Debug"})
    assert [logger.level for logger in loggers] == [logging.DEBUG] * 2
    assert [logger.handlers for logger in loggers] == [[], []]


def test_without_the_variable_nothing_changes(loggers: list[logging.Logger]) -> None:
    log_from_environment({})
    log_from_environment({"GIGL_LOG": ""})
    assert [logger.level for logger in loggers] == [logging.NOTSET] * 2


def test_lines_carry_the_rank() -> None:
    def line(environment: dict[str, str]) -> str:
        record = logging.makeLogRecord({"msg": "up"})
        assert RankFilter(environment).filter(record)
        return logging.Formatter("%(rank)s%(message)s").format(record)

    assert line({}) == "up"
    assert line({"RANK": "5"}) == "rank 5 up"  # Of torchrun, before the process group and in its workers.
    assert run_ranks(2, lambda group: line({"RANK": "5"})) == ["rank 0 up", "rank 1 up"]


def test_another_level_is_refused() -> None:
    with pytest.raises(ValueError, match="GIGL_LOG must be one of debug, info, warning, error, got 'loud'"):
        log_from_environment({"GIGL_LOG": "loud"})


def test_grpc_writes_no_lines_of_its_own(tmp_path: Path) -> None:
    """A server that speaks plain text, asked with TLS: gRPC's core logs the handshake unless told not to."""
    with servers_of(write_graph(tmp_path / "graph"), 1) as servers:
        program = (
            "from gigl_client import Caller, RemoteDistDataset\n"
            "from tests.support.certificates import Authority\n"
            "caller = Caller(authority=Authority().pem.decode())\n"
            "try:\n"
            f"    RemoteDistDataset.connect({addresses_of(servers)!r}, credentials=caller, timeout=3)\n"
            "except Exception as error:\n"
            "    print('refused:', error)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
        )
    assert done.stdout.startswith("refused: ")
    assert done.stderr == ""


# --- The server's log: what a full disk does to it


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
