"""Versions of two builds: which wire version they agree upon, and what is refused by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.native import draws
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc import versions
from gigl_loader.rpc.graph_requests import ManifestRequest, encode_graph_request
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.requests import Envelope, encode_ping, parse
from gigl_loader.rpc.versions import BuildVersions
from gigl_loader.tensors import Layout
from tests.support.pyg_graphs import graph_of, homogeneous

GRAPH = graph_of(homogeneous())
DIGEST = GRAPH.manifest.digest


def build(wire: int, oldest: int, specification: int = draws.DRAW_SPECIFICATION) -> BuildVersions:
    return BuildVersions(library="9.9", wire=wire, oldest_wire=oldest, draws=specification)


def run_as(monkeypatch: pytest.MonkeyPatch, wire: int, oldest: int) -> None:
    monkeypatch.setattr(versions, "WIRE_VERSION", wire)
    monkeypatch.setattr(versions, "OLDEST_WIRE_VERSION", oldest)


@given(st.tuples(*[st.integers(1, 9)] * 4))
def test_the_newest_common_version_is_used(numbers: tuple[int, int, int, int]) -> None:
    (ours, our_oldest), (theirs, their_oldest) = sorted(numbers[:2])[::-1], sorted(numbers[2:])[::-1]
    common = set(range(our_oldest, ours + 1)) & set(range(their_oldest, theirs + 1))
    with pytest.MonkeyPatch.context() as monkeypatch:
        run_as(monkeypatch, ours, our_oldest)
        if common:
            assert build(theirs, their_oldest).agree("it") == max(common)
            return
        with pytest.raises(ValueError, match=r"^it runs gigl-loader 9\.9, whose wire version is") as refused:
            build(theirs, their_oldest).agree("it")
    told = str(refused.value)
    assert "\n" not in told
    for newest, oldest in ((theirs, their_oldest), (ours, our_oldest)):
        assert (f"{oldest} to {newest}" if oldest < newest else str(newest)) in told


def test_other_draws_are_refused_with_both_numbers() -> None:
    with pytest.raises(
        ValueError, match=r"^it runs gigl-loader 9\.9, and has draw specification 7; here it is 2"
    ) as refused:
        build(versions.WIRE_VERSION, versions.OLDEST_WIRE_VERSION, 7).agree("it")
    assert "\n" not in str(refused.value)


def test_a_build_that_tells_no_range_has_one_version_and_the_first_draws() -> None:
    found = BuildVersions.of(messages.Description(version="0.1", wire_version=2))
    assert found == BuildVersions(library="0.1", wire=2, oldest_wire=2, draws=1)
    nonsense = BuildVersions.of(messages.Description(wire_version=2, oldest_wire_version=4_000_000_000))
    assert nonsense.oldest_wire == 2


def test_requests_carry_the_version_that_was_agreed_upon(monkeypatch: pytest.MonkeyPatch) -> None:
    run_as(monkeypatch, 6, 5)
    requests = {
        wire: [
            encode_ping(Envelope(graph=DIGEST, partition=0, wire=wire)),
            encode_graph_request(ManifestRequest(), "", wire=wire),
        ]
        for wire in (0, 4, 5, 6, 7)
    }
    for wire, encoded in requests.items():
        for request in encoded:
            assert Layout.parse(np.frombuffer(request, np.uint8)).metadata["wire"] == str(wire or 6)
        if wire in (4, 7):
            with pytest.raises(Refusal, match=f"wire version '{wire}', this service reads 5 to 6") as refused:
                parse(encoded[0], GRAPH.schema, DIGEST, {0: lambda _: 0})
            assert refused.value.kind is RefusalKind.MALFORMED
        else:
            assert parse(encoded[0], GRAPH.schema, DIGEST, {0: lambda _: 0})[0] == 0


@pytest.mark.parametrize("text", ["", " 2", "2.0", "+2", "02", "two", "\u0662", "2" * 30])
def test_a_version_is_a_plain_number(text: str) -> None:
    ticket = encode_ping(Envelope(graph=DIGEST, partition=0))
    size = int.from_bytes(ticket[:8], "little")
    header = json.loads(ticket[8 : 8 + size])
    header["__metadata__"]["wire"] = text
    changed = json.dumps(header).encode()
    changed += b" " * (-len(changed) % 8)
    with pytest.raises(Refusal, match="wire version"):
        parse(len(changed).to_bytes(8, "little") + changed, GRAPH.schema, DIGEST, {0: lambda _: 0})
