"""Checksums of files: the same however the file was written, and each damaged block is found."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
from gigl_loader.graph import checksums
from gigl_loader.graph.checksums import BlockRecord, BlockSums, block_bytes_for
from gigl_loader.native import crc32c
from gigl_loader.tensors import Layout

LAYOUT = Layout.plan({})


def record_of(data: np.ndarray, cuts: list[int], order: list[int]) -> BlockRecord:
    """Write the pieces between ``cuts`` in some order."""
    edges = [0, *sorted(cuts), len(data)]
    pieces = list(itertools.pairwise(edges))
    sums = BlockSums(len(data))
    for place in sorted(range(len(pieces)), key=lambda each: order[each % len(order)]):
        begin, end = pieces[place]
        sums.add(begin, data[begin:end])
    return sums.finish(7)


@settings(max_examples=200)
@given(data=st.data(), size=st.integers(0, 700), order=st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_the_order_of_writing_does_not_matter(data: st.DataObject, size: int, order: list[int]) -> None:
    cuts = data.draw(st.lists(st.integers(0, size), max_size=12))
    whole = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checksums, "_SMALLEST_BLOCK", 64)
        record = record_of(whole, cuts, order)
    assert record.block_bytes == 64
    assert record.blocks.tolist() == [crc32c(whole[at : at + 64]) for at in range(0, size, 64)]


def test_a_record_survives_json_and_finds_the_damaged_block() -> None:
    whole = np.random.default_rng(0).integers(0, 256, (9 << 20) + 5, np.uint8)
    record = record_of(whole, [], [0])
    again = BlockRecord.from_json(json.loads(json.dumps(record.to_json())))
    seen: list[int] = []
    again.verify(whole, LAYOUT, "file", seen.append)
    assert sum(seen) == len(whole)
    for place in (0, (1 << 20) - 1, 1 << 20, len(whole) - 1):
        damaged = whole.copy()
        damaged[place] ^= 16
        first = place >> 20 << 20
        last = min(first + (1 << 20), len(whole)) - 1
        with pytest.raises(FormatError, match=f"file: bytes {first} to {last} do not match their checksum"):
            again.verify(damaged, LAYOUT, "file", seen.append)


@pytest.mark.parametrize("nbytes", [0, 1, 1 << 20, 1 << 36, (1 << 36) + 1, 1 << 45])
def test_a_record_stays_small(nbytes: int) -> None:
    assert nbytes <= block_bytes_for(nbytes) << 16


@pytest.mark.parametrize(
    "change",
    [
        {"blocks": "AAAA"},
        {"blocks": "no base64!"},
        {"blocks": 3},
        {"block_bytes": 0},
        {"nbytes": -1},
        {"nbytes": 1.5},
        {"nbytes": True},
        {"header": None},
    ],
)
def test_a_broken_record_is_refused(change: dict[str, object]) -> None:
    entry = record_of(np.zeros(3, np.uint8), [], [0]).to_json()
    with pytest.raises((TypeError, ValueError)):
        BlockRecord.from_json({**entry, **change})
