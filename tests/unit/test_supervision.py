"""Supervision of the parts of a server."""

from __future__ import annotations

import threading

import pytest

from gigl_server.supervision import Part, PartDead, PartSilent, Supervisor


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
