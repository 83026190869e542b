"""Supervision of the parts of a server, and checks of its own ports."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import grpc
import pytest

from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.endpoint import Address
from gigl_loader.rpc.peer import peer_stats
from gigl_loader.rpc.requests import Envelope
from gigl_server.peer_server import build_server
from gigl_server.ports.probe import ControlProbe, DataProbe
from gigl_server.supervision import Part, PartDead, PartSilent, Supervisor
from tests.support.peers import TOKEN
from tests.support.sources import small_graph


class Patient:
    """A part whose state a test sets."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class Ward:
    """A supervisor of one part, and what it said."""

    def __init__(self) -> None:
        self.patient, self.now = Patient(), 0.0
        self.deaths: list[str] = []
        self.faults: list[str] = []
        self.supervisor = Supervisor(
            [Part(name="the port", check=self.patient.check)],
            died=self.deaths.append,
            changed=lambda: self.faults.append(self.fault()),
            clock=lambda: self.now,
        )

    def fault(self) -> str:
        return self.supervisor.fault

    def look(self, seconds: float = 5.0) -> bool:
        self.now += seconds
        return self.supervisor.look()


@pytest.fixture
def ward() -> Ward:
    return Ward()


def test_a_dead_part_is_told_once_at_once(ward: Ward, caplog: pytest.LogCaptureFixture) -> None:
    assert ward.look()
    ward.patient.error = PartDead("nothing listens")
    assert not ward.look()
    assert ward.deaths == ["the port is dead: nothing listens"]
    assert ward.fault() == ward.deaths[0]
    assert caplog.messages == ward.deaths


def test_a_part_of_a_busy_machine_is_given_time(ward: Ward) -> None:
    ward.patient.error = PartSilent("no answer within 10 s")
    assert ward.look()
    assert not ward.fault()
    for _ in range(11):
        assert ward.look()
    assert ward.fault() == "the port does not answer: no answer within 10 s"
    assert not ward.deaths
    ward.patient.error = None
    assert ward.look()
    assert not ward.fault()
    assert ward.faults == ["the port does not answer: no answer within 10 s", ""]


def test_a_part_that_stays_silent_is_dead(ward: Ward) -> None:
    ward.patient.error = PartSilent("no answer within 10 s")
    looks = 0
    while ward.look(15.0):
        looks += 1
        assert looks < 10
    assert ward.now >= 60
    assert ward.deaths == ["the port is dead: no answer within 10 s, 5 times in a row"]


def test_a_process_that_was_stopped_for_long_is_not_dead(ward: Ward) -> None:
    ward.patient.error = PartSilent("no answer within 10 s")
    assert ward.look(3600.0)
    ward.patient.error = None
    assert ward.look()
    assert not ward.deaths


def test_a_check_that_fails_says_nothing_of_the_part(ward: Ward, caplog: pytest.LogCaptureFixture) -> None:
    ward.patient.error = OSError("no descriptor is left")
    assert ward.look()
    assert not ward.fault()
    assert "the port could not be checked" in caplog.text


def test_a_supervisor_that_does_not_look_is_a_fault(ward: Ward) -> None:
    ward.now += 1000.0
    assert "not looked after" in ward.fault()


def test_a_thread_that_ended_is_dead() -> None:
    deaths: list[str] = []
    thread = threading.Thread(target=lambda: None, name="sampler 3")
    threads = [threading.main_thread()]
    supervisor = Supervisor([Part(name="sampling", threads=lambda: threads)], died=deaths.append)
    assert supervisor.look()
    thread.start()
    thread.join()
    threads.append(thread)
    assert not supervisor.look()
    assert deaths == ["sampling is dead: its thread 'sampler 3' ended"]


def test_a_supervisor_ends_with_its_server(ward: Ward) -> None:
    ward.supervisor.start()
    ward.supervisor.close()
    ward.supervisor.close()
    ward.patient.error = PartDead("closed")
    assert not ward.look()
    assert not ward.deaths


# --- Checks of a server's own ports, against real ports


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
