"""The audit log: limits per caller and in all, and what becomes of bytes of strangers."""

from __future__ import annotations

import logging

import pytest

from gigl_server.admission import Identity
from gigl_server.logs import AuditLog, GrpcLogFilter

ALICE = Identity(address="10.0.0.1", token="alice")
BOB = Identity(address="10.0.0.2")


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def audit(clock: Clock, caplog: pytest.LogCaptureFixture) -> AuditLog:
    caplog.set_level(logging.WARNING)
    return AuditLog(clock)


def test_a_refusal_is_one_line_with_its_caller(audit: AuditLog, caplog: pytest.LogCaptureFixture) -> None:
    audit.refused(ALICE, "wrong token")
    assert caplog.messages == ["refused 10.0.0.1, token alice: wrong token"]
    assert caplog.records[0].levelno == logging.WARNING


def test_a_flood_of_one_caller_is_cut_and_counted(
    audit: AuditLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(1000):
        audit.refused(ALICE, "wrong token")
    audit.refused(BOB, "wrong token")
    assert len(caplog.messages) == 6
    assert caplog.messages[-1].startswith("refused 10.0.0.2")
    clock.now = 61.0
    audit.refused(ALICE, "wrong token")
    assert caplog.messages[-1].endswith("(995 refusals of this caller before this one were not logged)")


def test_a_flood_of_many_callers_is_cut(
    audit: AuditLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    callers = [Identity(address=f"2001:db8:{number:x}::/64") for number in range(5000)]
    for caller in callers:
        audit.refused(caller, "wrong token")
    assert len(caplog.messages) == 60
    clock.now = 61.0
    audit.refused(callers[-1], "wrong token")
    assert caplog.messages[-1].endswith("(1 refusals of this caller before this one were not logged)")
    audit.refused(callers[-1025], "wrong token")  # The counts of 1,024 callers are kept.
    assert caplog.messages[-1].endswith("wrong token")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("a\nb\x1b[2J\x00", r"a\nb\x1b[2J\x00"),
        ("\u202e\udcff", r"\u202e\udcff"),
        ("plain text", "plain text"),
        ("x" * 1000, "x" * 300 + "..."),
    ],
)
def test_bytes_of_strangers_are_escaped(
    audit: AuditLog, caplog: pytest.LogCaptureFixture, said: str, shown: str
) -> None:
    audit.refused(BOB, said)
    assert caplog.messages[-1] == f"refused 10.0.0.2: {shown}"


def test_what_grpc_logs_has_no_bytes_of_callers(clock: Clock) -> None:
    logs, lines = GrpcLogFilter(clock), []
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        exc_info = (type(error), error, None)
    for number in range(100):
        record = logging.LogRecord(
            "grpc._cython.cygrpc", logging.ERROR, "", number, "Invalid encoding on %s", ("secret",), exc_info
        )
        if logs.filter(record):
            lines.append(logging.Formatter().format(record))
    assert lines == ["gRPC: Invalid encoding on %s (UnicodeDecodeError)"] * 10
    ours = logging.LogRecord("gigl_server", logging.INFO, "", 0, "a: %s", ("b",), None)
    assert logs.filter(ours)
    assert ours.getMessage() == "a: b"
