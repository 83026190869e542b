from __future__ import annotations

import pytest

from gigl_loader.errors import FormatError, GiglError, SamplingError
from gigl_loader.rpc.refusals import Kind, Refused, TooLarge


@pytest.mark.parametrize("kind", Kind)
def test_a_refusal_survives_the_wire(kind: Kind) -> None:
    found = Refused.from_record(Refused(kind, "what is wrong").to_record())
    assert found is not None
    assert (found.kind, found.message) == (kind, "what is wrong")
    assert str(found.error("host 1 at h:1")) == "host 1 at h:1: what is wrong"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Kind.MALFORMED, FormatError),
        (Kind.INVALID, ValueError),
        (Kind.UNAUTHENTICATED, SamplingError),
        (Kind.OTHER_GRAPH, SamplingError),
        (Kind.TOO_LARGE, TooLarge),
        (Kind.BUSY, GiglError),
        (Kind.FAILED, SamplingError),
    ],
)
def test_the_kind_decides_the_exception(kind: Kind, expected: type[Exception]) -> None:
    assert type(Refused(kind, "").error("")) is expected


def test_long_and_foreign_texts_fit_a_header() -> None:
    record = Refused(Kind.FAILED, "é\n" * 10_000).to_record()
    assert len(record) < 3_000
    assert record.isascii()
    assert Refused.from_record(record) is not None


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
    assert Refused.from_record(record) is None
