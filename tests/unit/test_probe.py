"""Checks of a server's own ports, against real ports."""

from __future__ import annotations

import socket
from dataclasses import replace

import grpc
import pytest

from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.endpoint import Address
from gigl_loader.rpc.peer import peer_stats
from gigl_loader.rpc.requests import Envelope
from gigl_server.peer_server import build_server
from gigl_server.ports.probe import ControlProbe, DataProbe
from gigl_server.supervision import PartDead, PartSilent
from tests.support.peers import TOKEN
from tests.support.sources import small_graph

PLAIN = Credentials(token=TOKEN)
TLS = Credentials.ephemeral(["127.0.0.1", "localhost"], token=TOKEN)
MUTUAL = replace(TLS, client_authority=TLS.certificate)
HERE = Address("127.0.0.1", 0)
PING = Envelope(graph=small_graph().manifest.digest, partition=0)


@pytest.mark.parametrize("credentials", [PLAIN, TLS, MUTUAL], ids=["plain", "TLS", "mTLS"])
@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::]:0"])
def test_ports_that_answer_are_alive(credentials: Credentials, listen: str) -> None:
    given = replace(credentials, insecure=True)
    with build_server(small_graph(), [0], listen, given, advertise="localhost") as server:
        where, end = Address.parse(listen), server.endpoint
        control = ControlProbe(where, end.control_port, lambda: given, host="localhost")
        data = DataProbe(where, end.data_port, lambda: given, host="localhost", ping=PING)
        assert control.status() is grpc.StatusCode.OK
        control.check()
        before = peer_stats(end, given.caller(), timeout_s=10)
        data.check()
        after = peer_stats(end, given.caller(), timeout_s=10)
        assert after.calls == before.calls + 1
        assert after.refused == 0


@pytest.mark.slow
def test_a_port_where_nobody_listens_is_dead() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(PartDead, match=f"nothing listens at 127.0.0.1:{port}"):
        ControlProbe(HERE, port, lambda: PLAIN, host="127.0.0.1").check()
    with pytest.raises(PartDead, match=f"nothing listens at 127.0.0.1:{port}"):
        DataProbe(HERE, port, lambda: PLAIN, host="127.0.0.1", ping=PING).check()


def test_a_port_that_takes_connections_and_does_not_answer_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_server.ports.probe._CALL_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        with pytest.raises(PartSilent, match=r"no answer within 0\.3 s"):
            ControlProbe(HERE, port, lambda: PLAIN, host="127.0.0.1").check()
        with pytest.raises(PartSilent, match=r"no answer within 0\.3 s"):
            DataProbe(HERE, port, lambda: PLAIN, host="127.0.0.1", ping=PING).check()


def test_a_port_that_ends_connections_is_not_dead() -> None:
    """As one does that has too many of them, or whose certificate has expired."""
    with build_server(small_graph(), [0], "127.0.0.1:0", TLS) as server:
        end = server.endpoint
        ControlProbe(HERE, end.control_port, lambda: PLAIN, host="127.0.0.1").check()
        other = Credentials.ephemeral(["127.0.0.1"], token=TOKEN)
        ControlProbe(HERE, end.control_port, lambda: other, host="127.0.0.1").check()
        DataProbe(HERE, end.data_port, lambda: PLAIN, host="127.0.0.1", ping=PING).check()
