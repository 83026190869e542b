"""Bytes that were damaged anywhere: a refusal or an answer, never another exception."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
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
@settings(max_examples=300, deadline=None)
@given(changes=damage(), cut=st.integers(0, 40))
def test_a_damaged_request_is_refused_or_means_something(
    whole: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    data = damaged(whole, changes)
    refused = outcome(data[: len(data) - (cut if cut < 20 else 0)])
    assert refused is None or (refused.message and len(refused.to_record()) < 3_000)


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=300, deadline=None)
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
