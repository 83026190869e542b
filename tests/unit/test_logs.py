"""``GIGL_LOG`` shows what the library does, on stderr, in a script that sets up no logging."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from gigl_loader.logs import log_from_environment
from tests.support.clusters import addresses_of, servers_of
from tests.support.store_graph import write_graph

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
