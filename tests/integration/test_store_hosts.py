"""Storage servers and trainers on hosts of their own, over TLS, when a link between them fails."""

from __future__ import annotations

import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader.rpc.certificates import self_signed
from tests.support.command_line import COMMAND
from tests.support.hosts import Host, Network, missing_for_hosts
from tests.support.ranks import Place, Ranks
from tests.support.store_server import PROGRAM
from tests.support.training import open_gate, seen_by

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fork_server import ForkServer

pytestmark = [
    pytest.mark.usefixtures("no_leftovers"),
    pytest.mark.skipif(bool(missing_for_hosts()), reason=missing_for_hosts() or "hosts can be made"),
]

DEADLINE = 40.0
TIMEOUT = 10.0
PORT = 7070
TRAINER = 2
"""Of the three hosts, the one that holds no partition."""


def server_arguments(graph: Path, folder: Path, host: Host, peer: Host) -> list[str]:
    return [
        *(str(graph), "--partition", str(host.index), "--listen", f"{host.address}:{PORT}"),
        *("--peer", f"{peer.address}:{PORT}", "--token-file", str(folder / "token")),
        *("--tls-cert", str(folder / "cert"), "--tls-key", str(folder / "key")),
        *("--tls-ca", str(folder / "cert")),
    ]


def write_credentials(folder: Path, hosts: list[Host]) -> None:
    """Write a token and a certificate that is good for all hosts."""
    certificate, key = self_signed([host.address for host in hosts])
    files = {"token": b"a-token-for-tests-never-a-secret", "cert": certificate, "key": key}
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)


@pytest.mark.slow
def test_a_link_that_is_cut_and_healed(
    fork_server: ForkServer, graph: Path, expected: list[int], tmp_path: Path
) -> None:
    """In time, nobody notices; else the batch is asked for again. A server's link, then the trainer's."""
    with Network.of(3) as network:
        first, second, third = network.hosts
        write_credentials(tmp_path, [first, second])
        training: dict[str, Any] = {
            "graph": str(graph),
            "folder": str(tmp_path),
            "join": False,
            "collectives": False,
            "addresses": [f"{second.address}:{PORT}"],
            "caller": {"token": str(tmp_path / "token"), "ca": str(tmp_path / "cert")},
            "dataset": {"timeout": DEADLINE},
            "loader": {"timeout": TIMEOUT, "prefetch_size": 1},
            "gates": ["batch 1", "batch 4"],
            "retries": 4,
        }
        special = {
            0: {"serve": server_arguments(graph, tmp_path, first, second)},
            1: {"serve": server_arguments(graph, tmp_path, second, first)},
            TRAINER: training,
        }
        where = [Place({"RANK": str(host.index), **host.environment}, host) for host in network.hosts]
        with Ranks(fork_server, PROGRAM, where, tmp_path, special=special) as ranks:
            ranks.wait_for(TRAINER, "batch 1", seconds=DEADLINE)
            second.cut()
            open_gate(tmp_path, "batch 1", rank=TRAINER)
            time.sleep(0.7)  # The time that the link is out.
            second.heal()
            ranks.wait_for(TRAINER, "batch 4", seconds=DEADLINE)
            assert "retry" not in [line[0] for line in ranks.printed(TRAINER)]
            third.cut()
            open_gate(tmp_path, "batch 4", rank=TRAINER)
            told = ranks.wait_for(TRAINER, "retry", seconds=DEADLINE)
            third.heal()
            (trainer,) = ranks.finish(seconds=DEADLINE, ranks=[TRAINER])
            for server in (0, 1):
                ranks.send(server, signal.SIGTERM)
            ranks.succeed(seconds=DEADLINE)
    assert re.match(r"(StorageUnavailable|TimeoutError): .*storage server \d at 10\.77\.0\.\d:7070", told[1])
    assert seen_by(trainer) == expected


def test_plain_text_between_hosts_is_said_on_both_sides(
    fork_server: ForkServer, graph: Path, expected: list[int], tmp_path: Path
) -> None:
    """Servers know each other by the cluster key; a trainer that did not say ``insecure`` sends nothing."""
    for name in ("token", "key"):
        (tmp_path / name).write_text(f"a-{name}-for-tests-that-is-never-a-secret")
        (tmp_path / name).chmod(0o600)
    with Network.of(3) as network:
        first, second, third = network.hosts
        options = ["--insecure", "--token-file", str(tmp_path / "token")]
        special: dict[int, dict[str, Any]] = {}
        for host, peer in ((first, second), (second, first)):
            where = ["--partition", str(host.index), "--listen", f"{host.address}:{PORT}"]
            peers = ["--peer", f"{peer.address}:{PORT}", "--cluster-key-file", str(tmp_path / "key")]
            special[host.index] = {"serve": [str(graph), *where, *peers, *options]}
        special[TRAINER] = {
            "graph": str(graph),
            "folder": str(tmp_path),
            "join": False,
            "collectives": False,
            "addresses": [f"{second.address}:{PORT}"],
            "caller": {"token": str(tmp_path / "token"), "insecure": True},
            "dataset": {"timeout": DEADLINE},
            "loader": {"timeout": TIMEOUT},
        }
        places = [Place({"RANK": str(host.index), **host.environment}, host) for host in network.hosts]
        with Ranks(fork_server, PROGRAM, places, tmp_path, special=special) as ranks:
            (trainer,) = ranks.finish(seconds=DEADLINE, ranks=[TRAINER])
            top = [*COMMAND, "top", "--once"]
            shown = [*top, f"{first.address}:{PORT}", "--token-file", str(tmp_path / "token")]
            refused = third.run(*shown, seconds=DEADLINE)
            allowed = third.run(*shown, "--insecure", seconds=DEADLINE)
            for server in (0, 1):
                ranks.send(server, signal.SIGTERM)
            ranks.succeed(seconds=DEADLINE)
    assert seen_by(trainer) == expected
    assert allowed.returncode == 0, allowed.stderr
    assert refused.returncode == 2
    assert re.match(
        r"gigl-loader: 10\.77\.0\.1:7070 can be reached from other hosts, which needs TLS", refused.stderr
    )
