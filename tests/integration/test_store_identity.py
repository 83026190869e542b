"""Who is a server: a trainer that has the token and passes itself off as one is kept out."""

from __future__ import annotations

import logging
import shutil
import socket
import struct
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.graph.graph import Graph
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.store_client import StoreClient
from gigl_server.cluster.peers import JoinRefused
from gigl_server.config import ServeOptions
from gigl_server.server import build_storage_server
from tests.support.certificates import Authority
from tests.support.clusters import READY_S, check_same, embedded
from tests.support.leftovers import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from gigl_server.server import StorageServer

pytestmark = pytest.mark.usefixtures("no_leftovers")

TOKEN, KEY = "a-token-for-tests-never-a-secret", "a-cluster-key-for-tests-never-a-secret"
OPTIONS: dict[str, Any] = {"batch_size": 32, "seed": 11, "timeout": 30.0, "device": "cpu"}
CALLER = Caller(token=TOKEN)


@pytest.fixture(scope="module")
def zeroed(graph: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same graph, by its manifest, with features of zeros."""
    path = tmp_path_factory.mktemp("hostile") / "graph"
    shutil.copytree(graph, path)
    for file in path.glob("part-*/nodes/*.safetensors"):
        content = bytearray(file.read_bytes())
        (header,) = struct.unpack_from("<Q", content)
        content[8 + header :] = bytes(len(content) - 8 - header)
        file.chmod(0o644)
        file.write_bytes(content)
    return path


@pytest.fixture
def secrets(tmp_path: Path) -> dict[str, Any]:
    """Options of a server that has the token and the cluster key."""
    files = {"token_file": tmp_path / "token", "cluster_key_file": tmp_path / "key"}
    for path, content in zip(files.values(), (TOKEN, KEY), strict=True):
        path.write_text(content)
        path.chmod(0o600)
    return {name: str(path) for name, path in files.items()}


def started(graph: Path, partition: int, peers: list[StorageServer], **options: Any) -> StorageServer:
    settings: dict[str, Any] = {"listen": "127.0.0.1:0", "workers": 1, **options}
    addresses = tuple(each.endpoint.control_address for each in peers)
    return build_storage_server(
        ServeOptions(graph_dir=graph, partitions=(partition,), peers=addresses, **settings)
    )


def announce(server: StorageServer, pretender: StorageServer, caller: Caller, **shown: Any) -> str:
    """Call as a server does that wants to be found, and return the challenge."""
    where = Address.parse(server.endpoint.control_address)
    endpoint = Endpoint.of_address(where, what="server", certificate=server.endpoint.certificate)
    with closing(StoreClient(endpoint, caller)) as client:
        return client.cluster(10, announce=pretender.endpoint.control_address, **shown).challenge


def batches(graph: Path, server: StorageServer, caller: Caller) -> None:
    """Fail unless a trainer gets the batches that one process makes of the right graph."""
    address = server.endpoint.control_address
    with (
        RemoteDistDataset.connect(address, credentials=caller, timeout=30.0) as dataset,
        DistNeighborLoader(dataset, [4, 3], "train", **OPTIONS) as loader,
    ):
        found = list(loader)
    check_same(found, embedded(graph, [4, 3], "train", **OPTIONS))


def test_a_pretender_with_the_token_is_kept_out_and_the_right_one_joins(
    graph: Path, zeroed: Path, secrets: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    token = {"token_file": secrets["token_file"]}
    with started(graph, 0, [], **secrets) as first, started(zeroed, 1, [], **token) as pretender:
        challenge = announce(first, pretender, CALLER)
        announce(
            first, pretender, CALLER, cluster_key="a-key-that-was-guessed-by-a-trainer", challenge=challenge
        )
        assert wait_until(lambda: "without proof of the cluster key" in caplog.text)
        with started(graph, 1, [first], **secrets) as second:
            for server in (first, second):
                server.wait_ready(READY_S)
            with closing(StoreClient(first.endpoint, CALLER)) as client:
                members = {each.control_address for each in client.cluster(10).servers}
            assert members == {first.endpoint.control_address, second.endpoint.control_address}
            batches(graph, first, CALLER)


def test_a_pretender_whose_address_was_given_is_refused(
    graph: Path, zeroed: Path, secrets: dict[str, Any]
) -> None:
    token = {"token_file": secrets["token_file"]}
    with (
        started(zeroed, 1, [], **token) as pretender,
        started(graph, 0, [pretender], **secrets) as first,
        pytest.raises(JoinRefused, match="does not prove that it has the cluster key of this one") as refused,
    ):
        first.wait_ready(READY_S)
    assert pretender.endpoint.control_address in str(refused.value)


def test_a_server_that_lacks_the_key_is_told(graph: Path, secrets: dict[str, Any]) -> None:
    token = {"token_file": secrets["token_file"]}
    with (
        started(graph, 0, [], **secrets) as first,
        started(graph, 1, [first], **token) as second,
        pytest.raises(JoinRefused, match="has a cluster key, and this one has none: give all servers"),
    ):
        second.wait_ready(READY_S)


def test_a_pretender_with_the_token_and_no_certificate_is_kept_out(
    graph: Path, zeroed: Path, secrets: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With TLS and no cluster key: a certificate for another address, or by a stranger, proves nothing."""
    caplog.set_level(logging.INFO)
    authority, stranger = Authority(), Authority()
    (tmp_path / "ca").write_bytes(authority.pem)
    options = {"token_file": secrets["token_file"], "tls_ca": str(tmp_path / "ca")}
    pairs: dict[str, dict[str, str]] = {}
    signed = {
        "right": authority.sign(),
        "of a trainer": authority.sign("10.0.0.9"),
        "of a stranger": stranger.sign(),
    }
    for name, (certificate, key) in signed.items():
        pairs[name] = {"tls_cert": str(tmp_path / f"{name}.pem"), "tls_key": str(tmp_path / f"{name}.key")}
        (tmp_path / f"{name}.pem").write_bytes(certificate)
        (tmp_path / f"{name}.key").write_bytes(key)
        (tmp_path / f"{name}.key").chmod(0o600)
    caller = Caller(token=TOKEN, authority=authority.pem.decode())
    with started(graph, 0, [], **options, **pairs["right"]) as first:
        for name in ("of a trainer", "of a stranger"):
            shown = {**options, **pairs[name]}
            credentials = (
                ServeOptions(graph_dir=zeroed, **shown, advertise="10.0.0.9").load_credentials()
                if (name == "of a trainer")
                else ServeOptions(graph_dir=zeroed, **shown).load_credentials()
            )
            settings = ServeOptions(graph_dir=zeroed, partitions=(1,), listen="127.0.0.1:0", workers=1)
            with build_storage_server(
                settings, graph=Graph.open(zeroed, parts=[1]), credentials=credentials
            ) as pretender:
                announce(first, pretender, caller)
                address = pretender.endpoint.control_address
                told = f"passing over {address}, which asked to join"
                assert wait_until(lambda told=told: told in caplog.text)
        with started(graph, 1, [first], **options, **pairs["right"]) as second:
            second.wait_ready(READY_S)
            first.wait_ready(READY_S)
            batches(graph, second, caller)


def test_beyond_loopback_a_token_alone_is_refused_before_a_port_is_bound(
    graph: Path, secrets: dict[str, Any]
) -> None:
    there: dict[str, Any] = {"listen": "0.0.0.0:0", "advertise": "127.0.0.1", "insecure": True}
    with pytest.raises(
        ValueError, match="nothing tells another server of this cluster from a trainer"
    ) as told:
        started(graph, 0, [], **there, token_file=secrets["token_file"])
    assert "\n" not in str(told.value)
    started(graph, 0, [], **there, **secrets).close()
    started(graph, 0, [], **there).close()
    whole = ServeOptions(graph_dir=graph, workers=1, **there, token_file=secrets["token_file"])
    build_storage_server(whole).close()


def test_on_loopback_it_is_a_warning(
    graph: Path, secrets: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    started(graph, 0, [], token_file=secrets["token_file"]).close()
    assert caplog.text.count("nothing tells another server of this cluster from a trainer") == 1


def test_no_token_goes_to_an_address_that_a_stranger_announced(
    graph: Path, secrets: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """Without a cluster key an announcement is followed, but not in plain text beyond this machine."""
    with (
        socket.create_server(("0.0.0.0", 0)) as listener,
        started(graph, 0, [], token_file=secrets["token_file"]) as first,
    ):
        listener.settimeout(1.0)
        port = listener.getsockname()[1]
        where = Endpoint.of_address(Address.parse(first.endpoint.control_address), what="server")
        with closing(StoreClient(where, CALLER)) as client:
            client.cluster(10, announce=f"0.0.0.0:{port}")
        told = f"0.0.0.0:{port} can be reached from other hosts, which needs TLS"
        assert wait_until(lambda: told in caplog.text)
        with pytest.raises(TimeoutError):
            listener.accept()
