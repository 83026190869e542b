"""Replies: what is written is read, and every rule that may be broken is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import Column, EdgeSchema, GraphSchema, NodeSchema
from gigl_loader.rpc import replies
from gigl_loader.rpc.replies import (
    CHUNK_BYTES,
    RowScatter,
    neighbors_document,
    read_neighbors,
    read_split,
    row_chunks,
    row_layout,
    split_document,
)
from gigl_loader.rpc.reply_stream import ReplyBuffer, ReplyStream
from gigl_loader.sampling.store import DrawRule, FeatureRequest, NeighborRequest, Neighbors
from gigl_loader.tensors import Layout, spec_of

if TYPE_CHECKING:
    import numpy.typing as npt

EDGE = ("node", "to", "node")
SCHEMA = GraphSchema(
    edge_dir="in",
    homogeneous=True,
    num_partitions=1,
    nodes={"node": NodeSchema(count=9, bounds=(0, 9), columns={"x": Column("U8", (3,))}, splits={})},
    edges={EDGE: EdgeSchema(count=50, wide_indices=False, columns={})},
)
I32, I64 = np.int32, np.int64


def ask(**changes: Any) -> NeighborRequest:
    given: dict[str, Any] = {"with_edge_ids": True, "with_slots": True, "rule": DrawRule(fanout=2), **changes}
    return NeighborRequest(edge_type=EDGE, targets=np.arange(3), key=1, hop=0, **given)


DRAWN = Neighbors(
    np.array([2, 0, 1], I32), np.array([8, 0, 3], I32), np.array([1, 2, 2**40]), np.array([5, 2**35, 0])
)


class Source:
    """A connection that has received these bytes."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, out: npt.NDArray[np.uint8]) -> None:
        out[:] = np.frombuffer(self._data[: len(out)], np.uint8)
        self._data = self._data[len(out) :]

    def finish(self) -> bool:
        return not self._data


def reply_of(data: npt.NDArray[np.uint8], nbytes: int | None = None) -> ReplyStream:
    return ReplyStream(Source(data.tobytes()), len(data) if nbytes is None else nbytes, ReplyBuffer())


def assembled(*pieces: npt.NDArray[np.uint8], total: int | None = None) -> tuple[Layout, Any]:
    return replies.assembled(reply_of(np.concatenate(pieces), total))


def document(**arrays: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    layout = Layout.plan({name: spec_of(array) for name, array in arrays.items()})
    body = b"".join(arrays[name].tobytes() for name in layout.specs)
    return np.frombuffer(layout.header + body, np.uint8)


def test_a_server_is_heard_of_while_its_reply_comes() -> None:
    """One that sends an array of any size is slow at most."""
    data, heard = np.arange(3 << 18, dtype=np.uint8), []
    reply = ReplyStream(
        Source(data.tobytes()), len(data), ReplyBuffer(), lambda: heard.append(reply.received)
    )
    out = np.empty_like(data)
    reply.read(out)
    assert (out == data).all()
    assert heard == [0, 1 << 18, 2 << 18]


def test_neighbours_are_read_as_they_were_written() -> None:
    found = read_neighbors(*assembled(*neighbors_document(DRAWN)), ask(), SCHEMA)
    for name in ("counts", "positions", "edge_ids", "slots"):
        assert np.array_equal(getattr(found, name), getattr(DRAWN, name))
        assert getattr(found, name).dtype == getattr(DRAWN, name).dtype


def test_times_travel_with_monotone_draws_alone() -> None:
    monotone = {"rule": DrawRule(fanout=2, time="t", monotone=True)}
    timed = replace(DRAWN, times=np.array([-(2**63), 5, 2**63 - 1]))
    found = read_neighbors(*assembled(*neighbors_document(timed)), ask(**monotone), SCHEMA)
    assert found.times is not None
    assert found.times.tolist() == [-(2**63), 5, 2**63 - 1]
    for drawn, asked in ((timed, ask()), (DRAWN, ask(**monotone))):
        with pytest.raises(FormatError, match=r"arrays .*, not "):
            read_neighbors(*assembled(*neighbors_document(drawn)), asked, SCHEMA)


def test_what_was_not_asked_for_does_not_travel() -> None:
    bare = Neighbors(DRAWN.counts, DRAWN.positions, None, None)
    found = read_neighbors(
        *assembled(*neighbors_document(bare)), ask(with_edge_ids=False, with_slots=False), SCHEMA
    )
    assert (found.edge_ids, found.slots) == (None, None)


def test_slots_travel_as_four_bytes_where_they_fit() -> None:
    small = Neighbors(DRAWN.counts, DRAWN.positions, None, np.array([5, 6, 7]))
    layout, buffer = assembled(*neighbors_document(small))
    assert layout.specs["slots"].dtype == "I32"
    slots = read_neighbors(layout, buffer, ask(with_edge_ids=False), SCHEMA).slots
    assert slots is not None
    assert slots.dtype == I64


def test_a_split_is_read_as_it_was_written() -> None:
    found = read_split(*assembled(*split_document(np.array([2, 4], I32))), 2, 5)
    assert found.tolist() == [2, 4]
    assert found.dtype == I64


C, P, E, S = np.array([2, 0, 1], I32), np.array([8, 0, 3], I32), np.array([1, 2, 3]), np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (document(counts=C, positions=P, edge_ids=E), "arrays .*, not "),
        (document(counts=C, positions=P, edge_ids=E, slots=S, more=S), "arrays .*, not "),
        (document(counts=C[:2], positions=P, edge_ids=E, slots=S), r"'counts' is I32 \[2\], not I32 \[3\]"),
        (document(counts=C.astype(I64), positions=P, edge_ids=E, slots=S), r"'counts' is I64 \[3\], not I32"),
        (document(counts=np.array([4, -1, 0], I32), positions=P, edge_ids=E, slots=S), "counts of -1 to 4"),
        (document(counts=np.array([3, 0, 0], I32), positions=P, edge_ids=E, slots=S), "counts of 0 to 3"),
        (
            document(counts=C, positions=P[:2], edge_ids=E, slots=S),
            r"'positions' is I32 \[2\], not I64 \[3\]",
        ),
        (document(counts=C, positions=P + 1.0, edge_ids=E, slots=S), r"'positions' is F64 \[3\]"),
        (document(counts=C, positions=P + 1, edge_ids=E, slots=S), "positions of 1 to 9 do not lie in"),
        (document(counts=C, positions=P - 1, edge_ids=E, slots=S), "positions of -1 to 7 do not lie in"),
        (document(counts=C, positions=P, edge_ids=E[None], slots=S), r"'edge_ids' is I64 \[1, 3\]"),
        (document(counts=C, positions=P, edge_ids=E, slots=S - 1), "slots of -1 to 1 do not lie in"),
        (document(counts=C, positions=P, edge_ids=E, slots=S << 40), "slots of 0 to .* do not lie in"),
    ],
)
def test_every_broken_rule_of_neighbours_is_refused(reply: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_neighbors(*assembled(reply), ask(), SCHEMA)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (document(others=P), "arrays"),
        (document(positions=P[None]), r"\[1, 3\], not"),
        (document(positions=P), "positions of 0 to 8 do not lie in"),
    ],
)
def test_every_broken_rule_of_a_split_is_refused(reply: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_split(*assembled(reply), 0, 8)


def test_documents_that_are_not_as_large_as_they_say_are_refused() -> None:
    whole = document(positions=P)
    with pytest.raises(FormatError, match="does not match its checksum"):
        assembled(whole, total=10)
    with pytest.raises(FormatError, match="at most"):
        assembled(whole, total=replies.MAX_REPLY_BYTES + 1)
    with pytest.raises(FormatError, match="0 bytes cannot hold"):
        assembled(np.empty(0, np.uint8))
    with pytest.raises(FormatError, match="1 bytes follow its end"):
        assembled(whole, np.zeros(1, np.uint8))


def test_a_reader_that_stops_early_or_reads_on_is_told() -> None:
    reply = reply_of(np.arange(8, dtype=np.uint8))
    assert [bytes(piece) for piece in reply.pieces([3, 2])] == [bytes(range(3)), bytes([3, 4])]
    with pytest.raises(FormatError, match="3 bytes follow its end"):
        reply.finish()
    with pytest.raises(FormatError, match="it ends after 8 bytes"):
        reply.read(np.empty(4, np.uint8))
    reply.read(np.empty(3, np.uint8))
    reply.finish()


# --- rows

ROWS = FeatureRequest(kind="node", columns=("y", "x"), rows=np.arange(4))
PLACES = np.array([5, 0, 3, 1])


def row_reply() -> npt.NDArray[np.uint8]:
    layout = row_layout({"y": 8, "x": 3}, 4)
    body = np.arange(44, dtype=np.uint8)
    return np.concatenate([np.frombuffer(layout.header, np.uint8), body])


def scatter(*chunks: npt.NDArray[np.uint8]) -> tuple[Any, Any]:
    out = [np.full((6, 8), 99, np.uint8), np.full((6, 3), 99, np.uint8)]
    rows = RowScatter(ROWS, PLACES, out)
    for chunk in chunks:
        rows.add(chunk)
    rows.finish()
    return out[0], out[1]


def receive(rows: RowScatter, reply: npt.NDArray[np.uint8]) -> None:
    for chunk in rows.chunks(reply_of(reply)):
        rows.add(chunk)
    rows.finish()


@pytest.mark.parametrize("cuts", [(), (-44,), (-28,), (-12,), (-44, -36, -12, -3)], ids=str)
def test_rows_go_to_their_places_however_the_reply_is_cut_between_them(cuts: tuple[int, ...]) -> None:
    whole = row_reply()
    y, x = scatter(*np.split(whole, [len(whole) + cut for cut in cuts]))
    assert np.array_equal(y[PLACES], np.arange(32).reshape(4, 8))
    assert np.array_equal(x[PLACES], np.arange(32, 44).reshape(4, 3))
    assert (y[[2, 4]] == 99).all()


def test_rows_are_received_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "CHUNK_BYTES", 20)
    out = [np.full((6, 8), 99, np.uint8), np.full((6, 3), 99, np.uint8)]
    receive(RowScatter(ROWS, PLACES, out), row_reply())
    assert np.array_equal(out[0][PLACES], np.arange(32).reshape(4, 8))
    assert np.array_equal(out[1][PLACES], np.arange(32, 44).reshape(4, 3))
    with pytest.raises(FormatError, match=r"bytes, where the rows take \d+"):
        receive(RowScatter(ROWS, PLACES, out), row_reply()[:-1])


def test_rows_that_are_cut_short_or_changed_are_refused() -> None:
    whole = row_reply()
    with pytest.raises(FormatError, match="a chunk cuts a row of 'y'"):
        scatter(whole[:-40], whole[-40:])
    with pytest.raises(FormatError, match="a chunk cuts a row of 'x'"):
        scatter(whole[:-1], whole[-1:])
    with pytest.raises(FormatError, match="it ended after"):
        scatter(whole[:-3])
    with pytest.raises(FormatError, match="it ended after 0"):
        scatter()
    with pytest.raises(FormatError, match="more than the"):
        scatter(whole, whole[-3:])
    with pytest.raises(FormatError, match="its header does not belong"):
        scatter(whole[:20], whole[20:])
    other = whole.copy()
    other[30] ^= 1
    with pytest.raises(FormatError, match="its header does not belong"):
        scatter(other)


def test_places_outside_are_refused() -> None:
    out = [np.zeros((5, 8), np.uint8), np.zeros((5, 3), np.uint8)]
    with pytest.raises(ValueError, match=r"place|outside"):
        RowScatter(ROWS, PLACES, out).add(row_reply())


def test_no_rows_and_empty_rows() -> None:
    nothing = FeatureRequest(kind="node", columns=("x",), rows=np.empty(0, np.int64))
    for asked, width in ((nothing, 3), (FeatureRequest(kind="node", columns=("x",), rows=np.arange(4)), 0)):
        layout = row_layout({"x": width}, len(asked.rows))
        rows = RowScatter(asked, PLACES[: len(asked.rows)], [np.zeros((6, width), np.uint8)])
        rows.add(np.frombuffer(layout.header, np.uint8))
        rows.finish()


@given(
    widths=st.lists(st.sampled_from([0, 1, 512, CHUNK_BYTES // 3, CHUNK_BYTES, CHUNK_BYTES + 1]), max_size=4),
    count=st.integers(0, 9),
)
@example(widths=[512, 8], count=10_000)
def test_chunks_of_rows_follow_each_other_and_cut_no_row(widths: list[int], count: int) -> None:
    layout = row_layout({f"c{number}": width for number, width in enumerate(widths)}, count)
    chunks = row_chunks(layout)
    assert [each.start for each in chunks] == [0, *(each.stop for each in chunks[:-1])]
    assert chunks[-1].stop == layout.nbytes
    assert all(len(each) for each in chunks)
    assert len(chunks[0]) >= len(layout.header)
    for name, spec in layout.specs.items():
        offset, width = layout.offsets[name], spec.shape[1]
        for chunk in chunks:
            if offset < chunk.stop < offset + spec.nbytes:
                assert (chunk.stop - offset) % width == 0
            assert len(chunk) <= max(CHUNK_BYTES, *widths)
