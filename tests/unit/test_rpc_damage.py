"""Damaged bytes: refused or read, never another exception; checksums of what crosses a wire."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
from gigl_loader.native import crc32c
from gigl_loader.rpc.checksums import (
    CHECKSUM_HEADER,
    Crc32c,
    Unread,
    message_checksum,
    message_is_whole,
)
from gigl_loader.rpc.graph_store_pb2 import SampleRequest
from gigl_loader.rpc.refusals import Refusal
from gigl_loader.rpc.replies import RowScatter, neighbors_document, parsed, read_neighbors
from tests.unit import test_rpc_replies as replies
from tests.unit import test_rpc_requests as requests


@st.composite
def damage(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Places and values of some bytes."""
    return draw(st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=4))


def damaged(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    copy = bytearray(data)
    for place, value in changes:
        copy[place % len(copy)] = value
    return bytes(copy)


def outcome(request: bytes) -> Refusal | None:
    try:
        requests.read(request)
    except Refusal as refused:
        return refused
    return None


@pytest.mark.parametrize(
    "whole", [requests.N, requests.R, requests.E, requests.S], ids=["neighbors", "rows", "edges", "split"]
)
@settings(max_examples=300)
@given(changes=damage(), cut=st.integers(0, 40))
def test_a_damaged_request_is_refused_or_means_something(
    whole: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    data = damaged(whole, changes)
    refused = outcome(data[: len(data) - (cut if cut < 20 else 0)])
    assert refused is None or (refused.message and len(refused.to_record()) < 3_000)


@settings(max_examples=300)
@given(changes=damage())
def test_a_damaged_reply_of_neighbours_is_refused_or_can_be_one(changes: list[tuple[int, int]]) -> None:
    data = np.frombuffer(
        damaged(np.concatenate(neighbors_document(replies.DRAWN)).tobytes(), changes), np.uint8
    )
    try:
        found = read_neighbors(*parsed(data), replies.ask(), replies.SCHEMA)
    except FormatError:
        return
    assert found.counts.sum() == len(found.positions)
    assert found.positions.min() >= 0
    assert found.positions.max() < 9


@settings(max_examples=300)
@given(changes=damage(), cuts=st.lists(st.integers(0, 300), max_size=4))
def test_a_damaged_reply_of_rows_writes_nowhere_else(changes: list[tuple[int, int]], cuts: list[int]) -> None:
    data = np.frombuffer(damaged(replies.row_reply().tobytes(), changes), np.uint8)
    out = [np.full((6, 8), 99, np.uint8), np.full((6, 3), 99, np.uint8)]
    rows = RowScatter(replies.ROWS, replies.PLACES, out)
    try:
        for chunk in np.split(data, sorted(cuts)):
            rows.add(chunk)
        rows.finish()
    except FormatError:
        pass
    assert all((matrix[[2, 4]] == 99).all() for matrix in out)


# --- Checksums of what crosses a wire: of messages, and of rows while they are gathered


def request() -> SampleRequest:
    return SampleRequest(channel=b"c" * 16, epoch=3, batch=7, inputs=bytes(range(64)), index=bytes(64))


def test_every_flipped_bit_of_a_message_is_found() -> None:
    sent = [("other", "x"), (CHECKSUM_HEADER, message_checksum(request()))]
    assert message_is_whole(request(), sent)
    data = request().SerializeToString()
    changed = 0
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        message = SampleRequest()
        try:
            message.ParseFromString(bytes(damaged))
        except Exception:  # protobuf has many.
            continue
        if message != request():
            changed += 1
            assert not message_is_whole(message, sent)
    assert changed > 1000


def test_a_message_without_a_checksum_is_believed_where_none_is_required() -> None:
    assert message_is_whole(request(), None)
    assert not message_is_whole(request(), [("gigl-crc32b", "0")], required=True)
    assert message_is_whole(request(), [(CHECKSUM_HEADER, message_checksum(request()))], required=True)
    assert not message_is_whole(None, None)
    assert message_is_whole(request(), [("other", "x")])
    assert not message_is_whole(request(), [(CHECKSUM_HEADER, "0"), (CHECKSUM_HEADER, "1")])


@given(st.integers(0, 30), st.integers(1, 9), st.integers(0, 9), st.data())
def test_every_way_to_take_bytes_is_the_same(count: int, width: int, seed: int, data: st.DataObject) -> None:
    random = np.random.default_rng(seed)
    rows = random.integers(0, 256, (count, width), np.uint8)
    places = random.permutation(count)
    for checksum in (Crc32c(), Unread()):
        cut = data.draw(st.integers(0, count))
        scattered = np.empty_like(rows)
        checksum.copy_rows(rows[:cut], None, places[:cut], scattered)
        checksum.add(rows[cut:].reshape(-1))
        assert np.array_equal(scattered[places[:cut]], rows[:cut])
        assert checksum.value == (None if isinstance(checksum, Unread) else crc32c(rows.reshape(-1)))
