"""Servers that do not fit each other or their callers say so by name, in one line, and at once."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import Caller, RemoteDistDataset
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.rpc.versions import WIRE_VERSION
from gigl_server.cluster.peers import JoinRefused
from gigl_server.config import ServeOptions
from gigl_server.server import build_storage_server
from tests.support.clusters import addresses_of, servers_of
from tests.support.leftovers import wait_until
from tests.support.ports import free_port
from tests.support.pyg_graphs import homogeneous
from tests.support.ranks import Place, Ranks
from tests.support.store_server import PROGRAM

if TYPE_CHECKING:
    from pathlib import Path

    from gigl_server.server import StorageServer
    from tests.support.fork_server import ForkServer

pytestmark = pytest.mark.usefixtures("no_leftovers")

DEADLINE = 30.0
HERE = Place({"RANK": "0"}, None)
SOON = 10.0
"""Within seconds, however long the caller would wait."""


@pytest.fixture(scope="module")
def another_graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "another"
    build_graph(tables_from_pyg(homogeneous(1_000, 8_000, seed=1)), path, num_partitions=2)
    return path


def first_server(graph: Path) -> StorageServer:
    """Return a server of partition 0 that waits for one of partition 1."""
    options = ServeOptions(graph_dir=graph, partitions=(0,), listen="127.0.0.1:0", workers=1)
    return build_storage_server(options)


def refusal(first: StorageServer, **options: Any) -> str:
    """Return why a server that is told of the first gives up."""
    settings: dict[str, Any] = {"listen": "127.0.0.1:0", "workers": 1, "peers": tuple(addresses_of([first]))}
    began = time.monotonic()
    with (
        build_storage_server(ServeOptions(**settings | options)) as second,
        pytest.raises(JoinRefused) as raised,
    ):
        second.wait_ready(DEADLINE)
    assert time.monotonic() - began < SOON
    assert not first.ready
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_server_of_another_graph(graph: Path, another_graph: Path) -> None:
    with first_server(graph) as first:
        said = refusal(first, graph_dir=another_graph, partitions=(1,))
        where = re.escape(first.endpoint.control_address)
    assert re.search(rf"storage server at {where} has another graph: digest \w+ vs \w+", said), said


def test_a_partition_that_two_serve(graph: Path) -> None:
    """Both are members: they are replicas. The cluster waits for the other partition, and for that alone."""
    settings: dict[str, Any] = {"graph_dir": graph, "listen": "127.0.0.1:0", "workers": 1}
    with first_server(graph) as first:
        settings["peers"] = tuple(addresses_of([first]))
        with (
            build_storage_server(ServeOptions(partitions=(0,), **settings)) as second,
            build_storage_server(ServeOptions(partitions=(1,), **settings)) as third,
        ):
            for server in (first, second, third):
                server.wait_ready(DEADLINE)

            def members() -> int:
                with RemoteDistDataset.connect(addresses_of([third]), timeout=DEADLINE) as dataset:
                    return dataset.num_servers

            assert wait_until(lambda: members() == 3, seconds=DEADLINE)


def test_a_trainer_of_another_version(fork_server: ForkServer, graph: Path, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    arguments = {"serve": [str(graph), "--listen", address], "wire_version": 99}
    with Ranks(fork_server, PROGRAM, [HERE], tmp_path, arguments=arguments) as ranks:
        with pytest.raises(ValueError, match=rf"{address}.*99.*{WIRE_VERSION}") as raised:
            RemoteDistDataset.connect(address, timeout=DEADLINE)
        assert "\n" not in str(raised.value)
        ranks.send(0, signal.SIGTERM)
        ranks.succeed(seconds=DEADLINE)


def test_nobody_there_and_the_wrong_token(graph: Path, tmp_path: Path) -> None:
    """The first may mend and is waited for; the second is told at once."""
    nobody = f"127.0.0.1:{free_port()}"
    with pytest.raises(Exception, match=rf"{nobody}: nothing listens there") as raised:
        RemoteDistDataset.connect(nobody, timeout=0.5)
    assert "\n" not in str(raised.value)
    (tmp_path / "token").write_text("a-token-for-tests-never-a-secret")
    (tmp_path / "token").chmod(0o600)
    with servers_of(graph, 1, token_file=str(tmp_path / "token")) as servers:
        for credentials in (None, Caller(token="another-token-that-is-wrong")):
            began = time.monotonic()
            with pytest.raises(Exception, match="token") as raised:
                RemoteDistDataset.connect(addresses_of(servers), credentials=credentials, timeout=DEADLINE)
            assert time.monotonic() - began < SOON
            assert "\n" not in str(raised.value)
