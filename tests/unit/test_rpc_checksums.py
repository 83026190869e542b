"""Checksums of what crosses a wire: of messages, and of rows while they are gathered."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.native import crc32c
from gigl_loader.rpc.checksums import (
    CHECKSUM_HEADER,
    Crc32c,
    Unread,
    message_checksum,
    message_is_whole,
)
from gigl_loader.rpc.graph_store_pb2 import SampleRequest


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
