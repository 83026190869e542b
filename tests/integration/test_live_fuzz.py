"""Some thousand hostile requests at live ports: honest callers go on, and every part lives at the end."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.live.calls import changed
from tests.fuzz.live.http2 import KILLER, frame, header_block
from tests.fuzz.live.run import run

_REQUESTS, _SEED = 2_000, 1
"""``make fuzz`` throws a million."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_live_ports_bear_hostile_bytes() -> None:
    report = run(_REQUESTS, _SEED)
    assert report["defects"] == []
    assert report["requests"] >= _REQUESTS


def test_frames_are_what_http2_says() -> None:
    assert frame(6, 0, 0, b"12345678") == b"\0\0\x08\x06\0\0\0\0\x0012345678"
    assert header_block([(b"a", b"b" * 200)]) == b"\0\x01a\x7f\x49" + b"b" * 200
    assert b"/\xff" in KILLER


def test_the_same_seed_throws_the_same_bytes() -> None:
    first, again = (
        [changed(b"some message", random.Random(f"{_SEED}/{number}")) for number in range(50)]
        for _ in range(2)
    )
    assert first == again
    assert len(set(first)) > 40
