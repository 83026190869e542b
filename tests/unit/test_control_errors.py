"""Which exception stands for which status of a control call."""

from __future__ import annotations

from typing import Any, cast

import grpc
import pytest

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.rpc.control_errors import control_error, status_of
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.refusals import Busy, Refusal, RefusalKind, Unknown

CALLER = Caller(token="0123456789abcdef")
HERE = Endpoint(
    what="storage server", host_index=2, host="10.0.0.7", control_port=7000, data_port=7001, partitions=(2,)
)


def told(code: grpc.StatusCode, details: str | None = "some reason", caller: Caller = CALLER) -> Exception:
    error: Any = grpc.RpcError()
    error.code, error.details = lambda: code, lambda: details
    return control_error(HERE, caller, cast("grpc.RpcError", error))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNAVAILABLE", StorageUnavailable),
        ("NOT_FOUND", Unknown),
        ("RESOURCE_EXHAUSTED", Busy),
        ("INVALID_ARGUMENT", ValueError),
        ("FAILED_PRECONDITION", ValueError),
        ("UNAUTHENTICATED", SamplingError),
        ("PERMISSION_DENIED", SamplingError),
        ("INTERNAL", SamplingError),
        ("UNKNOWN", SamplingError),
    ],
)
def test_each_status_has_its_exception(code: str, kind: type[Exception]) -> None:
    error = told(grpc.StatusCode[code])
    assert type(error) is kind
    assert str(error) == "storage server 2 at 10.0.0.7:7000: some reason"


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("MALFORMED", "INVALID_ARGUMENT"),
        ("DAMAGED", "DATA_LOSS"),
        ("INVALID", "INVALID_ARGUMENT"),
        ("UNAUTHENTICATED", "UNAUTHENTICATED"),
        ("NOT_FOUND", "NOT_FOUND"),
        ("GONE", "NOT_FOUND"),
        ("CONFLICT", "FAILED_PRECONDITION"),
        ("OTHER_GRAPH", "FAILED_PRECONDITION"),
        ("TOO_LARGE", "RESOURCE_EXHAUSTED"),
        ("BUSY", "RESOURCE_EXHAUSTED"),
        ("UNAVAILABLE", "UNAVAILABLE"),
        ("UNIMPLEMENTED", "UNIMPLEMENTED"),
        ("FAILED", "INTERNAL"),
    ],
)
def test_each_refusal_has_its_status(kind: str, code: str) -> None:
    assert status_of(RefusalKind[kind]) is grpc.StatusCode[code]


@pytest.mark.parametrize(
    "kind",
    ["DAMAGED", "INVALID", "UNAUTHENTICATED", "NOT_FOUND", "CONFLICT", "BUSY", "UNAVAILABLE", "FAILED"],
)
def test_a_refusal_is_one_exception_by_both_ports(kind: str) -> None:
    refusal = Refusal(RefusalKind[kind], "why")
    by_control, by_data = told(status_of(refusal.kind), refusal.message), refusal.error(str(HERE))
    assert (type(by_control), str(by_control)) == (type(by_data), str(by_data))


def test_some_statuses_say_more_in_our_words() -> None:
    late = told(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert str(late) == f"{HERE}: no answer in time"
    assert isinstance(late, StorageUnavailable)
    wrong_port = told(grpc.StatusCode.UNIMPLEMENTED, "")
    assert "if it is a data port, give the port of --listen" in str(wrong_port)
    assert isinstance(wrong_port, ValueError)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("UNKNOWN: ipv4:10.0.0.7:7000: Failed to connect: Connection refused", "nothing listens there"),
        (
            "ipv4:10.0.0.7:7000: connection attempt timed out before receiving SETTINGS frame",
            "does not answer",
        ),
        ("Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got 79)", "--metrics"),
    ],
)
def test_what_grpc_says_in_its_text_is_said_in_plain_words(text: str, words: str) -> None:
    error = told(grpc.StatusCode.UNAVAILABLE, text)
    assert isinstance(error, StorageUnavailable)  # In the midst of a run, it may pass.
    assert words in str(error)
    assert "ipv4" not in str(error)
    assert "HTTP/2" not in str(error)


def test_who_gave_no_token_is_told_how_to_give_one() -> None:
    error = told(grpc.StatusCode.UNAUTHENTICATED, "wrong token", Caller())
    assert str(error).startswith(
        f"{HERE}: it wants a token, and none was given: Caller.from_files(token=PATH)"
    )
    assert isinstance(error, SamplingError)
    assert "wrong token" in str(told(grpc.StatusCode.UNAUTHENTICATED, "wrong token"))


def test_the_noise_of_grpc_is_left_out() -> None:
    details = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.7:7000: refused\n twice"
    assert str(told(grpc.StatusCode.UNAVAILABLE, details)) == f"{HERE}: ipv4:10.0.0.7:7000: refused twice"
    assert len(str(told(grpc.StatusCode.UNAVAILABLE, "x" * 10_000))) < 1_100
    assert str(told(grpc.StatusCode.UNKNOWN, None)) == f"{HERE}: UNKNOWN"


def test_certificates_that_are_not_good_are_someones_to_mend() -> None:
    details = "Ssl handshake failed: CERTIFICATE_VERIFY_FAILED: self signed certificate"
    assert isinstance(told(grpc.StatusCode.UNAVAILABLE, details), ValueError)
    assert isinstance(told(grpc.StatusCode.UNAVAILABLE, "WRONG_VERSION_NUMBER"), ValueError)
