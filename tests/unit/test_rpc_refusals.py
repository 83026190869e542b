from __future__ import annotations

from pathlib import Path

import pytest

from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.rpc.refusals import (
    FAULT_RULES,
    Busy,
    Contact,
    Damaged,
    FaultKind,
    Gone,
    Refusal,
    RefusalKind,
    Retry,
    TooLarge,
    Unknown,
    retry_of,
)


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
        (RefusalKind.GONE, Gone),
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
    until_timeout = (Retry.AGAIN, Retry.CHANNEL, Retry.BATCH)
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
    text = Path(__file__).parents[2].joinpath("docs", "faults.md").read_text()
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
        "gone",
        "unauthenticated",
        "other graph",
        "too large",
        "failed",
        "busy",
    ],
)
def test_records_are_those_of_the_wire_version(word: str) -> None:
    """Services and callers of other releases read these words: docs/wire.md lists them."""
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
