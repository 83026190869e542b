"""Statuses of control calls: which error each is, and what a refusal carries."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.rpc import control, graph_store_pb2
from gigl_loader.rpc.control import REFUSAL_HEADER, control_error, refusal_mark, status_of
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.refusals import (
    FAULT_RULES,
    Busy,
    Contact,
    Damaged,
    FaultKind,
    Refusal,
    RefusalKind,
    Retry,
    TooLarge,
    Unknown,
    retry_of,
)

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


# --- What a refusal carries


@pytest.mark.parametrize("kind", RefusalKind)
def test_a_refusal_survives_the_wire(kind: RefusalKind) -> None:
    found = Refusal.from_record(Refusal(kind, "what is wrong").to_record())
    assert found is not None
    assert (found.kind, found.message) == (kind, "what is wrong")
    assert str(found.error("host 1 at h:1")) == "host 1 at h:1: what is wrong"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (RefusalKind.MALFORMED, FormatError),
        (RefusalKind.INVALID, ValueError),
        (RefusalKind.UNAUTHENTICATED, StorageUnavailable),
        (RefusalKind.FORBIDDEN, SamplingError),
        (RefusalKind.OTHER_GRAPH, SamplingError),
        (RefusalKind.TOO_LARGE, TooLarge),
        (RefusalKind.BUSY, Busy),
        (RefusalKind.DAMAGED, Damaged),
        (RefusalKind.NOT_FOUND, Unknown),
        (RefusalKind.CONFLICT, ValueError),
        (RefusalKind.UNAVAILABLE, StorageUnavailable),
        (RefusalKind.UNIMPLEMENTED, ValueError),
        (RefusalKind.FAILED, StorageUnavailable),
    ],
)
def test_the_kind_decides_the_exception(kind: RefusalKind, expected: type[Exception]) -> None:
    assert type(Refusal(kind, "").error("")) is expected


def test_a_wrong_token_is_a_mistake_until_one_was_right() -> None:
    refusal = Refusal(RefusalKind.UNAUTHENTICATED, "")
    assert type(refusal.error("", Contact.FIRST)) is SamplingError


def test_every_fault_has_one_rule() -> None:
    kinds = [rule.kind for rule in FAULT_RULES]
    assert sorted(kinds, key=str) == sorted([*RefusalKind, *FaultKind], key=str)


def test_what_is_retried_until_the_timeout_is_raised_as_unavailable() -> None:
    """So that whoever retries ``StorageUnavailable`` retries all of it, and nothing else."""
    until_timeout = (Retry.AGAIN, Retry.CHANNEL)
    for rule in FAULT_RULES:
        assert issubclass(rule.error, StorageUnavailable) == (rule.retry in until_timeout), rule
        assert rule.first is None or not issubclass(rule.first, StorageUnavailable), rule
        assert retry_of(rule.error("")) is rule.retry or rule.kind is FaultKind.CONTENT, rule


def test_waiting_helps_whatever_is_not_marked() -> None:
    """But for a frame that is whole: no line has damaged it."""
    for rule in FAULT_RULES:
        if not (rule.is_marked or rule.kind is FaultKind.CONTENT):
            assert rule.retry is Retry.AGAIN, rule


def test_the_table_in_the_documentation_is_that_of_the_code() -> None:
    text = Path(__file__).parents[2].joinpath("docs", "internals", "faults.md").read_text()
    shown = text.partition("| fault | marked |")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [
        f"| {rule.kind.value} | {'yes' if rule.is_marked else 'no'} | {rule.retry.value} | "
        f"`{rule.error.__name__}` | {'' if rule.first is None else f'`{rule.first.__name__}`'} |"
        for rule in FAULT_RULES
    ]
    assert shown == rows


@pytest.mark.parametrize(
    "word",
    [
        "malformed",
        "damaged",
        "invalid",
        "unauthenticated",
        "other graph",
        "too large",
        "failed",
        "busy",
    ],
)
def test_records_are_those_of_the_wire_version(word: str) -> None:
    """Services and callers of other releases read these words: docs/internals/wire.md lists them."""
    record = Refusal(RefusalKind(word), "why").to_record()
    assert record == b'{"kind": "%s", "message": "why"}' % word.encode()


def test_long_and_foreign_texts_fit_a_header() -> None:
    record = Refusal(RefusalKind.FAILED, "é\n" * 10_000).to_record()
    assert len(record) < 3_000
    assert record.isascii()
    assert Refusal.from_record(record) is not None


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{}",
        b"[]",
        b"7",
        b"\xff",
        b'{"kind": "no such", "message": ""}',
        b'{"kind": "busy"}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_record_is_none(record: bytes) -> None:
    assert Refusal.from_record(record) is None


# --- The generated messages


PROTO = Path(control.__file__).with_name("graph_store.proto").read_text()


def test_the_generated_messages_are_those_of_the_proto() -> None:
    written = {
        message: re.findall(r"(\w+) = (\d+);", body)
        for message, body in re.findall(
            r"^message (\w+) \{(.*?)(?:^|(?<=\{))\}$", PROTO, re.MULTILINE | re.DOTALL
        )
    }
    generated = {
        message.name: [(field.name, str(field.number)) for field in message.fields]
        for message in graph_store_pb2.DESCRIPTOR.message_types_by_name.values()
    }
    assert generated == written
    calls = re.findall(r"rpc (\w+)\((\w+)\) returns \((\w+)\);", PROTO)
    methods = [
        *control.METHODS.items(),
        *control.STORE_METHODS.items(),
        *control.ADMIN_METHODS.items(),
    ]
    assert calls == [(name, ask.__name__, reply.__name__) for name, (ask, reply) in methods]


def test_the_generated_code_runs_under_old_and_new_protobuf() -> None:
    """Code of newer generators refuses every runtime older than itself."""
    assert "ValidateProtobufRuntimeVersion" not in Path(graph_store_pb2.__file__).read_text()
