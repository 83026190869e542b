"""Checksums of what crosses a wire: of messages, and of replies in chunks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
from gigl_loader.native import crc32c
from gigl_loader.rpc.checksums import (
    CHECKSUM_HEADER,
    Crc32c,
    ReplyChunks,
    Unread,
    checksum_trailer,
    message_checksum,
    message_is_whole,
)
from gigl_loader.rpc.graph_store_pb2 import SampleRequest


def request() -> SampleRequest:
    return SampleRequest(channel=b"c" * 16, epoch=3, batch=7, inputs=bytes(range(64)), index=bytes(64))


def reply_of(chunks: list[bytes], checksum: Crc32c | Unread) -> ReplyChunks:
    return ReplyChunks(((np.frombuffer(chunk, np.uint8), None) for chunk in chunks), checksum)


def read(chunks: list[bytes]) -> bytes:
    """Read a reply as all readers do."""
    reply = reply_of(chunks, Crc32c())
    found = b""
    for chunk, _ in reply:
        copy = np.empty_like(chunk)
        reply.checksum.copy(chunk, copy)
        found += copy.tobytes()
    assert reply.nbytes == len(found)
    return found


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


def test_a_message_without_a_checksum_is_believed() -> None:
    assert message_is_whole(request(), None)
    assert not message_is_whole(None, None)
    assert message_is_whole(request(), [("other", "x")])
    assert not message_is_whole(request(), [(CHECKSUM_HEADER, "0"), (CHECKSUM_HEADER, "1")])


@given(st.lists(st.binary(max_size=9), max_size=9), st.data())
def test_chunks_arrive_as_they_are_and_every_flipped_bit_is_found(
    sent: list[bytes], data: st.DataObject
) -> None:
    whole = b"".join(sent)
    chunks = [*sent, checksum_trailer(crc32c(np.frombuffer(whole, np.uint8)))]
    assert read(chunks) == whole
    which = data.draw(st.sampled_from([place for place, chunk in enumerate(chunks) if chunk]))
    bit = data.draw(st.integers(0, 8 * len(chunks[which]) - 1))
    damaged = bytearray(chunks[which])
    damaged[bit // 8] ^= 1 << bit % 8
    chunks[which] = bytes(damaged)
    with pytest.raises(FormatError, match="does not match its checksum"):
        read(chunks)


@pytest.mark.parametrize("chunks", [[], [b"abc"], [b"abcdefgh"], [b"abcd"]])
def test_a_reply_that_was_cut_is_found(chunks: list[bytes]) -> None:
    with pytest.raises(FormatError, match="does not match its checksum"):
        read(chunks)


def test_a_reader_that_shows_no_byte_to_the_checksum_is_told() -> None:
    sent = np.frombuffer(b"abcdefgh", np.uint8)
    with pytest.raises(FormatError, match="does not match its checksum"):
        list(reply_of([sent.tobytes(), checksum_trailer(crc32c(sent))], Crc32c()))


@given(st.integers(0, 30), st.integers(1, 9), st.integers(0, 9), st.data())
def test_every_way_to_take_bytes_is_the_same(count: int, width: int, seed: int, data: st.DataObject) -> None:
    random = np.random.default_rng(seed)
    rows = random.integers(0, 256, (count, width), np.uint8)
    flat, places = rows.reshape(-1), random.permutation(count)
    trailer = checksum_trailer(crc32c(flat))
    for checksum in (Crc32c(), Unread()):
        cut = data.draw(st.integers(0, count))
        scattered, copied = np.empty_like(rows), np.empty_like(flat[cut * width :])
        checksum.copy_rows(rows[:cut], None, places[:cut], scattered)
        checksum.copy(flat[cut * width :], copied)
        assert np.array_equal(scattered[places[:cut]], rows[:cut])
        assert np.array_equal(copied, flat[cut * width :])
        assert checksum.matches(trailer)
        assert checksum.trailer() == (bytes(4) if isinstance(checksum, Unread) else trailer)
        checksum.add(np.ones(1, np.uint8))
        assert checksum.matches(trailer) == isinstance(checksum, Unread)
