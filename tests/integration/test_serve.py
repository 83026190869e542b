"""``gigl-loader serve``, ``top`` and ``local-cluster`` as a user meets them: signals and exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gigl_client import RemoteDistDataset
from gigl_loader.cli.app import build_app
from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.tokens import JOB_HEADER, new_job
from gigl_server.local_cluster import LocalCluster
from tests.support.command_line import COMMAND, address_in, line_with
from tests.support.leftovers import is_gone, wait_until
from tests.support.plans import neighbor_plan
from tests.support.ports import free_port
from tests.support.raw_data import RawSample, header_of
from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

EDGE = ("node", "to", "node")
PLAN = neighbor_plan(
    seed_type="node",
    num_neighbors={EDGE: (3, 3)},
    run_seed=7,
    node_columns={"node": ("x",)},
    edge_columns={},
)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("serve") / "graph")


@pytest.fixture(scope="module")
def cluster(graph: Path) -> Iterator[LocalCluster]:
    with LocalCluster(graph, servers=2) as found:
        yield found


@contextmanager
def started(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start the command line and see that it ends."""
    process = subprocess.Popen([*COMMAND, *arguments], text=True, stderr=subprocess.PIPE, **options)
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(build_app(), list(arguments))
    return result.exit_code, result.stdout, result.stderr


def client_at(address: str, job: str = "") -> closing[StoreClient]:
    where = Address.parse(address)
    endpoint = Endpoint(
        host_index=0, host=where.host, control_port=where.port, data_port=where.port, partitions=()
    )
    return closing(StoreClient(endpoint, Caller(), job))


def test_a_server_logs_its_states_and_drains_on_sigterm(graph: Path, tmp_path: Path) -> None:
    config = tmp_path / "gigl.yaml"
    config.write_text(f"graph_dir: {graph}\nlisten: 127.0.0.1:0\nmetrics: 127.0.0.1:7\npartition: [0, 1]\n")
    environment = {**os.environ, "GIGL_METRICS": "127.0.0.1:0", "GIGL_WORKERS": "1"}
    with started("serve", "--config", str(config), env=environment) as process:
        line_with(process, "starting: control port at 127.0.0.1:")
        assert "serves partitions [0, 1], 1 workers" in line_with(process, "ready")
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=20)
    assert process.returncode == 0
    said = [line.split(maxsplit=3)[3] for line in rest.splitlines()]
    assert said == ["SIGTERM: ending", "draining: 30 s at most", "stopped"]


def test_a_second_signal_ends_a_server_that_drains(graph: Path) -> None:
    """It drains for as long as a frame is not read that is larger than what the connection takes."""
    with started("serve", str(graph), "--listen", "127.0.0.1:0", "--drain", "60") as process:
        address = address_in(line_with(process, "ready"))
        job = new_job()
        with client_at(address, job) as client:
            view = client.cluster(10)
            client.create_producer("key", PLAN.to_json(), view.graph, 10)
            channel = client.open_channel("key", name="", credit=2, timeout_s=10)
            seeds = np.zeros(1 << 20, np.int64).tobytes()
            request = messages.SampleRequest(channel=channel.id, inputs=seeds, index=seeds)
            where = f"127.0.0.1:{view.data_port}"
            asked = RawSample(where, request.SerializeToString(), header_of("", (JOB_HEADER, job)))
            assert wait_until(asked.done, seconds=60)
        process.send_signal(signal.SIGTERM)
        line_with(process, "draining")
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 1
    asked.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("port", ["control", "data", "metrics"])
def test_a_port_that_is_taken_for_a_moment_is_waited_for(graph: Path, port: str) -> None:
    ports = dict(zip(("control", "data", "metrics"), range(free_port(count=3), 1 << 16), strict=False))
    taken = socket.create_server(("127.0.0.1", ports[port]))
    with started(*on_ports(graph, **ports)) as process:
        line_with(process, f"port 127.0.0.1:{ports[port]} is taken: trying again for 5 s")
        taken.close()
        line_with(process, "ready: storage server 0")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.slow
@pytest.mark.parametrize("port", ["control", "data", "metrics"])
def test_a_port_that_stays_taken_ends_a_server_with_1(graph: Path, port: str) -> None:
    ports = dict(zip(("control", "data", "metrics"), range(free_port(count=3), 1 << 16), strict=False))
    with (
        socket.create_server(("127.0.0.1", ports[port])),
        started(*on_ports(graph, **ports)) as process,
    ):
        line_with(process, "trying again for 5 s")
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
    told = (
        f"gigl-loader: cannot listen on 127.0.0.1:{ports[port]}: Address already in use; choose another port"
    )
    assert re.fullmatch(re.escape(told) + ".*\n", errors)


@pytest.mark.slow
def test_a_signal_ends_the_wait_for_a_port(graph: Path) -> None:
    port = free_port(count=2)
    with (
        socket.create_server(("127.0.0.1", port)),
        started("serve", str(graph), "--listen", f"127.0.0.1:{port}") as process,
    ):
        line_with(process, "trying again for 5 s")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def on_ports(graph: Path, *, control: int, data: int, metrics: int) -> list[str]:
    addresses = [f"127.0.0.1:{port}" for port in (control, metrics)]
    return [
        "serve",
        str(graph),
        "--listen",
        addresses[0],
        "--data-port",
        str(data),
        "--metrics",
        addresses[1],
    ]


def test_a_full_disk_does_not_stop_a_server(graph: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free_port:
        where = f"127.0.0.1:{free_port.getsockname()[1]}"
    free = ("--listen", "127.0.0.1:0", "--metrics", where)
    with open("/dev/full", "w") as full:
        process = subprocess.Popen(
            [*COMMAND, "serve", str(graph), *free, "--log-file", "/dev/full"],
            stderr=full,
            stdout=full,
        )
    try:
        assert wait_until(lambda: healthy(f"http://{where}/healthz"), seconds=30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def healthy(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(url, timeout=5) as reply:
        return bool(reply.status == 200)
    return False


def test_a_server_with_another_graph_ends_with_a_line_that_names_both(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    other = write_graph(tmp_path / "other", seed=1)
    arguments = ("serve", str(other), "-p", "1", "--listen", "127.0.0.1:0", "--peer", cluster.addresses[0])
    with started(*arguments) as process:
        _, log = process.communicate(timeout=30)
    assert process.returncode == 1
    [line] = [line for line in log.splitlines() if "ERROR" in line]
    assert f"storage server at {cluster.addresses[0]} has another graph: digest " in line


def _flip(file: Path) -> None:
    """Flip a bit in the middle of a file, in place, and leave its time as it was."""
    before = file.stat()
    with file.open("r+b") as opened:
        opened.seek(before.st_size // 2)
        (byte,) = opened.read(1)
        opened.seek(before.st_size // 2)
        opened.write(bytes([byte ^ 4]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.some(1)
@pytest.mark.parametrize("verify", ["lazy", "full"])
def test_a_server_of_a_damaged_graph_does_not_become_ready(graph: Path, tmp_path: Path, verify: str) -> None:
    damaged = Path(shutil.copytree(graph, tmp_path / "graph"))
    _flip(damaged / "part-00000/topology/node+to+node.safetensors")
    with started("serve", str(damaged), "--listen", "127.0.0.1:0", "--verify", verify) as process:
        _, log = process.communicate(timeout=60)
    assert process.returncode in (1, 2)
    assert "part-00000/topology/node+to+node.safetensors: bytes 0 to" in log.splitlines()[-1]
    assert "do not match their checksum" in log.splitlines()[-1]


def test_a_server_ends_when_damage_is_found_later(graph: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(graph, tmp_path / "graph"))
    with started("serve", str(damaged), "--listen", "127.0.0.1:0") as process:
        line_with(process, "ready")
        file = damaged / "part-00001/nodes/node.safetensors"
        _flip(file)
        os.utime(file)  # Damage that leaves the time as it was is found by the next pass, tomorrow.
        _, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "part-00001/nodes/node.safetensors: bytes 0 to" in log


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["GRAPH", "--verify", "all"], "verify must be one of 'full', 'lazy', 'none', got 'all'"),
        (["GRAPH", "-p", "7"], "partitions 7 do not lie at"),
        (["nowhere"], "no graph at nowhere"),
        (["GRAPH", "--listen", "here"], "listen: 'here' is not an address"),
        (["GRAPH", "--listen", "0.0.0.0:7000", "--advertise", "me"], "needs TLS"),
        (["GRAPH", "--listen", "127.0.0.1:0", "--token-file", "nowhere"], "nowhere"),
        (["GRAPH", "--listen", "127.0.0.1:0", "--token-file", "SHORT"], "at least 16"),
        (["GRAPH", "--config", "nowhere"], "no such file or directory: nowhere"),
        (["GRAPH", "--config", "SHORT"], "must hold one mapping of options"),
        (["GRAPH", "--tls-cert", "SHORT", "--tls-key", "SHORT"], "PEM"),
        (["GRAPH", "--drain", "-1"], "drain must lie between"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    graph: Path, tmp_path: Path, arguments: list[str], said: str
) -> None:
    short = tmp_path / "short"
    short.write_text("secret\n")
    places = {"GRAPH": str(graph), "SHORT": str(short)}
    code, output, errors = invoke("serve", *(places.get(each, each) for each in arguments))
    assert (code, output) == (2, "")
    assert errors.startswith("gigl-loader: ")
    assert said in errors
    assert errors.count("\n") == 1


def test_a_key_of_another_certificate_is_a_mistake(graph: Path, tmp_path: Path) -> None:
    ours, other = (Credentials.ephemeral(["127.0.0.1"]) for _ in range(2))
    (tmp_path / "cert.pem").write_bytes(ours.certificate)
    (tmp_path / "key.pem").write_bytes(other.key)
    files = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    code, _, errors = invoke("serve", str(graph), *files)
    assert code == 2
    assert "key" in errors
    assert errors.count("\n") == 1


def test_a_certificate_for_another_host_is_a_mistake(graph: Path, tmp_path: Path) -> None:
    other = Credentials.ephemeral(["elsewhere.example"])
    (tmp_path / "cert.pem").write_bytes(other.certificate)
    (tmp_path / "key.pem").write_bytes(other.key)
    files = ("--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem"))
    code, _, errors = invoke("serve", str(graph), *files)
    assert code == 2
    assert f"{tmp_path / 'cert.pem'}: the certificate is not good for '127.0.0.1'" in errors
    assert "it is for elsewhere.example" in errors
    assert errors.count("\n") == 1


def test_top_prints_a_table_or_a_document(cluster: LocalCluster) -> None:
    code, output, _ = invoke("top", cluster.addresses[1], "--json")
    document = json.loads(output)
    assert code == 0
    assert [server["address"] for server in document["servers"]] == cluster.addresses
    assert all(server["ready"] for server in document["servers"])
    code, output, _ = invoke("top", cluster.addresses[0], "--once")
    assert code == 0
    assert all(address in output for address in cluster.addresses)


def test_top_of_nobody_is_one_line() -> None:
    code, output, errors = invoke("top", "127.0.0.1:1", "--once")
    assert (code, output) == (1, "")
    assert "nothing listens there" in errors
    assert errors.count("\n") == 1


def test_a_server_that_was_killed_comes_back_at_its_place(cluster: LocalCluster) -> None:
    before, addresses = cluster.pids, list(cluster.addresses)
    cluster.kill(1)
    assert not cluster.running(1)
    assert cluster.describe(1).startswith("was killed by SIGKILL")
    with client_at(addresses[1]) as client, pytest.raises(StorageUnavailable, match="nothing listens"):
        client.cluster(5)
    cluster.restart(1)
    assert cluster.addresses == addresses
    assert cluster.pids[0] == before[0]
    assert cluster.pids[1] != before[1]
    with client_at(addresses[1]) as client:
        assert client.cluster(10).ready
    assert cluster.terminate(1) == 0
    cluster.restart(1)


def test_more_servers_than_partitions_are_refused(graph: Path) -> None:
    with pytest.raises(ValueError, match="a graph of 2 partitions can have 1 to 2 servers, not 3"):
        LocalCluster(graph, servers=3)


@pytest.mark.usefixtures("no_leftovers")
def test_a_cluster_that_cannot_start_leaves_nothing(graph: Path, tmp_path: Path) -> None:
    broken = tmp_path / "graph"
    subprocess.run(["cp", "-r", str(graph), str(broken)], check=True)
    for path in (broken / "part-00001" / "topology").iterdir():
        path.write_bytes(b"damage")
    with pytest.raises(Exception, match=r"storage server 1: .*part-00001"):
        LocalCluster(broken, servers=2)


@pytest.mark.slow
def test_a_command_finds_the_servers_and_gives_its_exit_code(graph: Path) -> None:
    program = (
        "import os, sys\n"
        "from gigl_client import RemoteDistDataset\n"
        "with RemoteDistDataset.connect(os.environ['GIGL_STORE']) as dataset:\n"
        "    print(dataset.num_servers)\n"
        "path = os.environ['GIGL_TOKEN_FILE']\n"
        "print(oct(os.stat(path).st_mode), oct(os.stat(os.path.dirname(path)).st_mode), path)\n"
        "print(os.environ['GIGL_STORE'])\n"
        "sys.exit(7)"
    )
    done = subprocess.run(
        [*COMMAND, "local-cluster", str(graph), "--", sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 7, done.stderr
    servers, modes, addresses = done.stdout.splitlines()
    assert servers == "2"
    assert len(addresses.split(",")) == 2
    assert done.stderr == ""
    file_mode, folder_mode, path = modes.split()
    assert (file_mode, folder_mode) == ("0o100600", "0o40700")
    assert not os.path.exists(os.path.dirname(path)), "the token outlived its cluster"


def test_a_server_that_a_trainer_could_pass_for_is_refused_at_start(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token-for-tests-never-a-secret")
    (tmp_path / "token").chmod(0o600)
    there = ("--listen", "0.0.0.0:0", "--advertise", "127.0.0.1", "--insecure")
    with started("serve", str(graph), "-p", "0", *there, "--token-file", str(tmp_path / "token")) as process:
        _, log = process.communicate(timeout=60)
    assert process.returncode == 2
    [line] = log.splitlines()
    assert line.startswith(
        "gigl-loader: 0.0.0.0:0: nothing tells another server of this cluster from a trainer"
    )
    assert "give cluster_key_file" in line


def test_a_server_that_is_started_again_proves_itself_again(graph: Path) -> None:
    token = "a-token-for-tests-never-a-secret"
    with LocalCluster(graph, servers=2, token=token) as found:
        found.restart(1)
        with RemoteDistDataset.connect(found.addresses[1], credentials=Caller(token=token)) as dataset:
            assert dataset.num_servers == 2


def test_nobody_without_its_token_asks_a_local_cluster(graph: Path) -> None:
    with started("local-cluster", str(graph), "--servers", "1", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        shown = re.search(r'connect\("(.*)", credentials=.*token="(.*)"', process.stdout.readline())
        assert shown is not None
        address, token_file = shown.groups()
        with pytest.raises(SamplingError, match="it wants a token, and none was given"):
            RemoteDistDataset.connect(address, credentials=Caller(), timeout=20)
        with RemoteDistDataset.connect(address, credentials=Caller.from_files(token=token_file)) as dataset:
            assert dataset.num_servers == 1
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    assert not os.path.exists(token_file)


@pytest.mark.some(2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_the_command_that_started_them(graph: Path, number: signal.Signals) -> None:
    with started("local-cluster", str(graph), "--servers", "1", stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        server = process.stdout.readline()
        assert process.stdout.readline().startswith('connect: RemoteDistDataset.connect("127.0.0.1:')
        process.send_signal(number)
        process.wait(20)
    assert process.returncode == {signal.SIGINT: 0, signal.SIGTERM: 143, signal.SIGKILL: -9}[number]
    assert wait_until(lambda: is_gone(int(server.rpartition(" ")[2])))
