from __future__ import annotations

import pytest

from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.rpc.refusals import Busy, Damaged, Gone, Refusal, RefusalKind, TooLarge, Unknown


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
        (RefusalKind.UNAUTHENTICATED, SamplingError),
        (RefusalKind.OTHER_GRAPH, SamplingError),
        (RefusalKind.TOO_LARGE, TooLarge),
        (RefusalKind.BUSY, Busy),
        (RefusalKind.DAMAGED, Damaged),
        (RefusalKind.NOT_FOUND, Unknown),
        (RefusalKind.GONE, Gone),
        (RefusalKind.CONFLICT, ValueError),
        (RefusalKind.UNAVAILABLE, StorageUnavailable),
        (RefusalKind.UNIMPLEMENTED, ValueError),
        (RefusalKind.FAILED, SamplingError),
    ],
)
def test_the_kind_decides_the_exception(kind: RefusalKind, expected: type[Exception]) -> None:
    assert type(Refusal(kind, "").error("")) is expected


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
