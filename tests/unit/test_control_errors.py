"""Which exception stands for which status of a control call."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import grpc
import pytest

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.rpc.control import REFUSAL_HEADER, control_error, refusal_mark, status_of
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.refusals import Busy, Contact, Damaged, Refusal, RefusalKind, Unknown

CALLER = Caller(token="0123456789abcdef")
HERE = Endpoint(
    what="storage server", host_index=2, host="10.0.0.7", control_port=7000, data_port=7001, partitions=(2,)
)


def told(
    code: grpc.StatusCode,
    details: str | None = "some reason",
    caller: Caller = CALLER,
    *,
    mark: str = "",
    contact: Contact = Contact.ESTABLISHED,
) -> Exception:
    error: Any = grpc.RpcError()
    error.code, error.details = lambda: code, lambda: details
    error.trailing_metadata = lambda: ((REFUSAL_HEADER, mark),) if mark else ()
    return control_error(HERE, caller, cast("grpc.RpcError", error), contact)


def refused(kind: RefusalKind, text: str = "why", **options: Any) -> Exception:
    return told(status_of(kind), text, mark=refusal_mark(kind, text), **options)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("UNAVAILABLE", StorageUnavailable),
        ("NOT_FOUND", Unknown),
        ("RESOURCE_EXHAUSTED", Busy),
        ("INVALID_ARGUMENT", StorageUnavailable),
        ("FAILED_PRECONDITION", StorageUnavailable),
        ("UNAUTHENTICATED", StorageUnavailable),
        ("PERMISSION_DENIED", StorageUnavailable),
        ("INTERNAL", StorageUnavailable),
        ("UNKNOWN", StorageUnavailable),
        ("DATA_LOSS", Damaged),
    ],
)
def test_a_status_without_a_mark_is_a_fault_of_the_moment(code: str, kind: type[Exception]) -> None:
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


@pytest.mark.parametrize("contact", Contact)
@pytest.mark.parametrize("kind", RefusalKind)
def test_a_refusal_is_one_exception_by_both_ports(kind: RefusalKind, contact: Contact) -> None:
    by_control, by_data = refused(kind, contact=contact), Refusal(kind, "why").error(str(HERE), contact)
    assert (type(by_control), str(by_control)) == (type(by_data), str(by_data))


def test_a_damaged_mark_is_none() -> None:
    """Kind or text may have been another one."""
    mark = refusal_mark(RefusalKind.INVALID, "why")
    assert isinstance(told(grpc.StatusCode.INVALID_ARGUMENT, "why", mark=mark), ValueError)
    for damaged, text in ((mark.replace("invalid", "forbidden"), "why"), (mark, "whz"), (mark[:-1], "why")):
        found = told(grpc.StatusCode.INVALID_ARGUMENT, text, mark=damaged)
        assert type(found) is StorageUnavailable


def test_some_statuses_say_more_in_our_words() -> None:
    late = told(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded")
    assert str(late) == f"{HERE}: no answer in time"
    assert isinstance(late, StorageUnavailable)
    for contact, expected in ((Contact.FIRST, ValueError), (Contact.ESTABLISHED, StorageUnavailable)):
        wrong_port = told(grpc.StatusCode.UNIMPLEMENTED, "", contact=contact)
        assert "if it is a data port, give the port of --listen" in str(wrong_port)
        assert type(wrong_port) is expected


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
    refuse = partial(refused, RefusalKind.UNAUTHENTICATED, "wrong token", contact=Contact.FIRST)
    error = refuse(caller=Caller())
    assert str(error).startswith(
        f"{HERE}: it wants a token, and none was given: Caller.from_files(token=PATH)"
    )
    assert type(error) is SamplingError
    assert "wrong token" in str(refuse())


def test_the_noise_of_grpc_is_left_out() -> None:
    details = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.7:7000: refused\n twice"
    assert str(told(grpc.StatusCode.UNAVAILABLE, details)) == f"{HERE}: ipv4:10.0.0.7:7000: refused twice"
    assert len(str(told(grpc.StatusCode.UNAVAILABLE, "x" * 10_000))) < 1_100
    assert str(told(grpc.StatusCode.UNKNOWN, None)) == f"{HERE}: UNKNOWN"


def test_certificates_that_are_not_good_are_someones_to_mend() -> None:
    details = "Ssl handshake failed: CERTIFICATE_VERIFY_FAILED: self signed certificate"
    for text in (details, "WRONG_VERSION_NUMBER"):
        first = told(grpc.StatusCode.UNAVAILABLE, text, contact=Contact.FIRST)
        assert isinstance(first, ValueError)
        later = told(grpc.StatusCode.UNAVAILABLE, text)
        assert type(later) is StorageUnavailable
        assert str(later) == str(first)
