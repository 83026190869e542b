"""Requests: what is written is read, and every rule that may be broken is refused."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.graph.schema import Column, EdgeSchema, GraphSchema, NodeSchema
from gigl_loader.rpc import requests
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.requests import (
    EdgeListRequest,
    Envelope,
    Ping,
    SplitRequest,
    encode,
    encode_ping,
    parse,
)
from gigl_loader.rpc.versions import WIRE_VERSION
from gigl_loader.sampling.store import (
    DrawRule,
    EdgeRequest,
    FeatureRequest,
    InducedRequest,
    NeighborRequest,
)
from gigl_loader.tensors import Layout, spec_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

LIKES = ("user", "likes", "item")
SCHEMA = GraphSchema(
    edge_dir="in",
    homogeneous=False,
    num_partitions=2,
    nodes={
        "user": NodeSchema(count=9, bounds=(0, 4, 9), columns={}, splits={}),
        "item": NodeSchema(
            count=10,
            bounds=(0, 6, 10),
            columns={"x": Column("F32", (2,)), "y": Column("I64")},
            splits={"train": 3},
        ),
    },
    edges={
        LIKES: EdgeSchema(
            count=50, wide_indices=False, columns={"w": Column("F32"), "t": Column("I64")}, times=("t",)
        )
    },
)
ENVELOPE = Envelope(graph="abc", partition=1)
ASK = NeighborRequest(
    edge_type=LIKES,
    targets=np.array([6, 9, 6]),
    key=2**64 - 1,
    hop=2,
    rule=DrawRule(fanout=-1, replace=True),
    with_edge_ids=False,
    with_slots=True,
)
DISJOINT = replace(ASK, targets=np.array([6, 9, 6]) | np.array([0, 0, 2**23 - 1]) << 40, disjoint=True)
TIMED = replace(
    DISJOINT,
    targets=np.array([6, 9, 6]) | np.array([0, 0, 2]) << 40,
    rule=DrawRule(fanout=3, time="t", last=True),
    tree_times=np.array([-(2**63), 5, 2**63 - 1]),
)
MONOTONE = replace(
    TIMED,
    rule=DrawRule(fanout=3, time="t", window=True, monotone=True),
    tree_starts=np.array([-(2**63), 4, 5]),
    bounds=np.array([-(2**63), 5, 2**63 - 1]),
)
STRICT = replace(TIMED, rule=DrawRule(fanout=3, time="t", last=True, strictly_earlier=True))
LABOR = replace(ASK, rule=DrawRule(fanout=3, labor=True))
DEPENDENT = replace(LABOR, rule=replace(LABOR.rule, batch_dependency=2**31 - 1), number=2**63 - 1)
ROWS = FeatureRequest(kind="item", columns=("y", "x"), rows=np.array([9, 6]))
EDGE_ROWS = FeatureRequest(kind=LIKES, columns=("w",), rows=np.array([0, 29]))
EDGES = EdgeRequest(edge_type=LIKES, targets=np.array([6, 9]), neighbors=np.array([8, 0]))
INDUCED = InducedRequest(
    edge_type=LIKES,
    targets=np.array([9, 6]),
    nodes=np.array([0, 3, 8]),
    with_edge_ids=False,
    with_slots=True,
)
LIST = EdgeListRequest(edge_type=LIKES, first=3, count=20)


def read(request: bytes) -> tuple[int | None, Any]:
    return parse(request, SCHEMA, "abc", {1: lambda _: 30})


def edited(request: bytes, changes: Mapping[str, str | None], rows: npt.NDArray[Any] | None = None) -> bytes:
    """Return a request with other metadata (``None`` leaves an entry out) and other rows."""
    buffer = np.frombuffer(request, np.uint8)
    layout = Layout.parse(buffer)
    metadata = {name: text for name, text in {**layout.metadata, **changes}.items() if text is not None}
    arrays = {name: layout.view(buffer, name) for name in layout.specs} if rows is None else {"rows": rows}
    header = Layout.plan({name: spec_of(array) for name, array in arrays.items()}, metadata).header
    return header + b"".join(array.tobytes() for array in arrays.values())


def pairs(targets: list[int], neighbors: list[int]) -> bytes:
    """Return a request about edges with these arrays."""
    metadata = Layout.parse(np.frombuffer(C, np.uint8)).metadata
    arrays = {"rows": np.array(targets, I32), "neighbors": np.array(neighbors, I32)}
    layout = Layout.plan({name: spec_of(array) for name, array in arrays.items()}, metadata)
    return layout.header + b"".join(arrays[name].tobytes() for name in layout.specs)


def among(nodes: list[int], rows: tuple[int, ...] = (0, 1), **changes: str) -> bytes:
    """Return a request for induced edges with these arrays."""
    metadata = Layout.parse(np.frombuffer(encode(ENVELOPE, INDUCED, SCHEMA), np.uint8)).metadata
    arrays = {"rows": np.array(rows, I32), "nodes": np.array(nodes, I32)}
    layout = Layout.plan({name: spec_of(array) for name, array in arrays.items()}, {**metadata, **changes})
    return layout.header + b"".join(arrays[name].tobytes() for name in layout.specs)


def in_trees(rows: list[int], trees: list[int], tree_times: list[int] | None = None) -> bytes:
    """Return a request for neighbours in a disjoint batch with these arrays."""
    asked = DISJOINT if tree_times is None else TIMED
    metadata = Layout.parse(np.frombuffer(encode(ENVELOPE, asked, SCHEMA), np.uint8)).metadata
    arrays: dict[str, npt.NDArray[Any]] = {"rows": np.array(rows, I32), "trees": np.array(trees, I32)}
    if tree_times is not None:
        arrays["tree_times"] = np.array(tree_times, I64)
    layout = Layout.plan({name: spec_of(array) for name, array in arrays.items()}, metadata)
    return layout.header + b"".join(arrays[name].tobytes() for name in layout.specs)


def same(left: object, right: object) -> bool:
    return type(left) is type(right) and all(
        np.array_equal(getattr(left, field.name), getattr(right, field.name))
        for field in fields(left)  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "request_",
    [
        *(ASK, DISJOINT, TIMED, MONOTONE, STRICT, LABOR, DEPENDENT, INDUCED, ROWS, EDGE_ROWS, EDGES, LIST),
        SplitRequest(node_type="item", split="train"),
    ],
    ids=[
        "neighbors",
        "neighbors in trees",
        "neighbors in time",
        "monotone",
        "strictly earlier",
        "labor",
        "dependent batches",
        "induced",
        "rows of nodes",
        "rows of edges",
        "contains",
        "edges",
        "split",
    ],
)
def test_a_request_is_read_as_it_was_written(request_: Any) -> None:
    partition, found = read(encode(ENVELOPE, request_, SCHEMA))
    assert partition == 1
    assert same(found, request_)


def test_a_ping_says_nothing() -> None:
    assert read(encode_ping(ENVELOPE)) == (1, Ping())


def test_positions_travel_as_four_bytes_from_the_start_of_the_partition() -> None:
    request = encode(ENVELOPE, ASK, SCHEMA)
    layout = Layout.parse(np.frombuffer(request, np.uint8))
    assert layout.view(np.frombuffer(request, np.uint8), "rows").tolist() == [0, 3, 0]
    assert layout.specs["rows"].dtype == "I32"
    assert len(request) < 500


def test_positions_that_need_eight_bytes_get_them() -> None:
    ask = FeatureRequest(kind=LIKES, columns=("w",), rows=np.array([2**33]))
    _, found = parse(encode(ENVELOPE, ask, SCHEMA), SCHEMA, "abc", {1: lambda _: 2**34})
    assert isinstance(found, FeatureRequest)
    assert found.rows.tolist() == [2**33]


def test_unknown_types_are_refused_before_anything_is_sent() -> None:
    with pytest.raises(ValueError, match="no edge type"):
        encode(ENVELOPE, NeighborRequest(**{**_as_dict(ASK), "edge_type": ("a", "b", "c")}), SCHEMA)
    with pytest.raises(ValueError, match="no node type 'absent'"):
        encode(ENVELOPE, FeatureRequest(kind="absent", columns=(), rows=np.array([0])), SCHEMA)


def _as_dict(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


N = encode(ENVELOPE, ASK, SCHEMA)
D = encode(ENVELOPE, DEPENDENT, SCHEMA)
T = encode(ENVELOPE, TIMED, SCHEMA)
M = encode(ENVELOPE, MONOTONE, SCHEMA)
C = encode(ENVELOPE, EDGES, SCHEMA)
L = encode(ENVELOPE, LIST, SCHEMA)
R = encode(ENVELOPE, ROWS, SCHEMA)
E = encode(ENVELOPE, EDGE_ROWS, SCHEMA)
S = encode(ENVELOPE, SplitRequest(node_type="item", split="train"), SCHEMA)
I32, I64 = np.int32, np.int64


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (b"", RefusalKind.MALFORMED, "cannot hold the 8-byte header length"),
        (b"\xff" * 100, RefusalKind.MALFORMED, "a header of"),
        (N[:-1], RefusalKind.MALFORMED, "arrays end at byte"),
        (N + b"x", RefusalKind.MALFORMED, "1 bytes follow its end"),
        (edited(N, {"wire": None}), RefusalKind.MALFORMED, "no 'wire'"),
        (
            edited(N, {"wire": "1"}),
            RefusalKind.MALFORMED,
            f"wire version '1', this service reads {WIRE_VERSION}: install the same",
        ),
        (edited(N, {"graph": None}), RefusalKind.MALFORMED, "no 'graph'"),
        (
            edited(N, {"graph": "b" * 64}),
            RefusalKind.OTHER_GRAPH,
            "asked about graph bbbbbbbbbbbb, this service has abc",
        ),
        (edited(N, {"partition": "0"}), RefusalKind.OTHER_GRAPH, r"partition 0 is not here, only \[1\]"),
        (edited(N, {"partition": "-1"}), RefusalKind.MALFORMED, "partition -1 does not lie in"),
        (edited(N, {"partition": "one"}), RefusalKind.MALFORMED, "partition is 'one', not a number"),
        (edited(N, {"ask": None}), RefusalKind.MALFORMED, "no 'ask'"),
        (edited(N, {"ask": "everything"}), RefusalKind.MALFORMED, "unknown ask 'everything'"),
        (edited(N, {"more": "1"}), RefusalKind.MALFORMED, "unknown entry 'more'"),
        (edited(N, {"edge_type": "nonsense"}), RefusalKind.MALFORMED, "edge_type is not JSON"),
        (edited(N, {"edge_type": "[" * 9_999}), RefusalKind.MALFORMED, "edge_type is not JSON"),
        (edited(N, {"edge_type": '["a", "b"]'}), RefusalKind.MALFORMED, "a list of three names"),
        (edited(N, {"edge_type": "[1, 2, 3]"}), RefusalKind.MALFORMED, "a list of three names"),
        (edited(N, {"edge_type": '["a", "b", "c"]'}), RefusalKind.INVALID, "no edge type"),
        (edited(N, {"key": str(2**64)}), RefusalKind.MALFORMED, "key .* does not lie in"),
        (edited(N, {"key": "1" * 5_000}), RefusalKind.MALFORMED, "key is .*, not a number"),
        (edited(N, {"key": "٣"}), RefusalKind.MALFORMED, "key is .*, not a number"),
        (edited(N, {"hop": "254"}), RefusalKind.MALFORMED, r"hop 254 does not lie in \[0, 254\)"),
        (edited(N, {"fanout": "-2"}), RefusalKind.MALFORMED, "fanout -2 does not lie in"),
        (edited(N, {"fanout": str(2**31)}), RefusalKind.MALFORMED, "fanout .* does not lie in"),
        (edited(N, {"flags": '["fast"]'}), RefusalKind.MALFORMED, "flags .* are not among"),
        (
            edited(N, {"flags": '["replace", "replace"]'}),
            RefusalKind.MALFORMED,
            "not a list of different names",
        ),
        (
            edited(N, {}, np.array([-1], I32)),
            RefusalKind.INVALID,
            "rows -1 to -1 lie outside a partition of 4",
        ),
        (
            edited(N, {}, np.array([0, 4], I64)),
            RefusalKind.INVALID,
            "rows 0 to 4 lie outside a partition of 4",
        ),
        (edited(N, {}, np.array([0.0])), RefusalKind.MALFORMED, "'rows' must be I32 or I64 of one dimension"),
        (
            edited(N, {}, np.array([[0]], I32)),
            RefusalKind.MALFORMED,
            "'rows' must be I32 or I64 of one dimension",
        ),
        (in_trees([0, 1], [0]), RefusalKind.MALFORMED, "1 trees of 2 targets"),
        (in_trees([0], [-1]), RefusalKind.INVALID, "trees -1 to -1 lie outside"),
        (in_trees([0], [2**23]), RefusalKind.INVALID, "trees 8388608 to 8388608 lie outside"),
        (edited(N, {"flags": '["replace", "labor"]'}), RefusalKind.INVALID, "LABOR has no replacement"),
        (edited(D, {"flags": "[]"}), RefusalKind.INVALID, "only LABOR has"),
        (edited(D, {"batch_dependency": None}), RefusalKind.MALFORMED, "unknown entry 'number'"),
        (edited(D, {"batch_dependency": "1"}), RefusalKind.MALFORMED, "batch_dependency 1 does not lie in"),
        (edited(D, {"batch_dependency": str(2**31)}), RefusalKind.MALFORMED, "batch_dependency .* does not"),
        (edited(D, {"number": None}), RefusalKind.MALFORMED, "no 'number'"),
        (edited(D, {"number": str(2**63)}), RefusalKind.MALFORMED, "number .* does not lie in"),
        (edited(N, {"flags": '["disjoint"]'}), RefusalKind.MALFORMED, "trees"),
        (edited(T, {"time": None}), RefusalKind.INVALID, "the last neighbours are drawn by time"),
        (edited(T, {"time": None, "flags": '["disjoint"]'}), RefusalKind.MALFORMED, "entry 'tree_times'"),
        (edited(T, {"time": "w"}), RefusalKind.INVALID, "no time 'w'"),
        (edited(T, {"flags": "[]"}), RefusalKind.INVALID, "draws in time need disjoint trees"),
        (edited(T, {"flags": '["disjoint", "last", "replace"]'}), RefusalKind.INVALID, "without replacement"),
        (edited(T, {"flags": '["disjoint", "labor"]'}), RefusalKind.INVALID, "LABOR has no replacement"),
        (in_trees([0], [1], tree_times=[7]), RefusalKind.MALFORMED, "1 tree_times, of fewer trees"),
        (edited(T, {"flags": '["disjoint", "window"]'}), RefusalKind.MALFORMED, "'tree_starts' must be I32"),
        (edited(T, {"flags": '["disjoint", "monotone"]'}), RefusalKind.MALFORMED, "'bounds' must be I32"),
        (edited(M, {"flags": '["disjoint", "window"]'}), RefusalKind.MALFORMED, "unknown entry 'bounds'"),
        (edited(M, {"flags": '["disjoint", "monotone"]'}), RefusalKind.MALFORMED, "entry 'tree_starts'"),
        (edited(M, {"time": None}), RefusalKind.INVALID, "windows, .* are drawn by time"),
        (edited(N, {"flags": '["strictly_earlier"]'}), RefusalKind.INVALID, "windows, .* are drawn by time"),
        (
            edited(M, {"flags": '["disjoint", "last", "monotone"]'}),
            RefusalKind.INVALID,
            "the last neighbours are those of the whole tree",
        ),
        (
            encode(ENVELOPE, replace(MONOTONE, bounds=np.zeros(2, I64)), SCHEMA),
            RefusalKind.MALFORMED,
            "2 bounds",
        ),
        (
            encode(ENVELOPE, replace(MONOTONE, tree_starts=np.zeros(2, I64)), SCHEMA),
            RefusalKind.MALFORMED,
            "2 tree_starts, of fewer trees",
        ),
        (edited(S, {}, np.array([0], I32)), RefusalKind.MALFORMED, "unknown entry 'rows'"),
        (edited(R, {"kind": "7"}), RefusalKind.MALFORMED, "a list of three names"),
        (edited(R, {"kind": '"absent"'}), RefusalKind.INVALID, "no node type 'absent'"),
        (edited(R, {"columns": '"x"'}), RefusalKind.MALFORMED, "columns is not a list of different names"),
        (
            edited(R, {"columns": '["x", "x"]'}),
            RefusalKind.MALFORMED,
            "columns is not a list of different names",
        ),
        (edited(R, {"columns": '["x", "z"]'}), RefusalKind.INVALID, "no column 'z'"),
        (
            edited(E, {}, np.array([30], I32)),
            RefusalKind.INVALID,
            "rows 30 to 30 lie outside a partition of 30",
        ),
        (edited(C, {"edge_type": '["a", "b", "c"]'}), RefusalKind.INVALID, "no edge type"),
        (edited(C, {}, np.array([0, 1], I32)), RefusalKind.MALFORMED, "'neighbors' must be I32 or I64"),
        (pairs([0, 4], [0, 0]), RefusalKind.INVALID, "rows 0 to 4 lie outside a partition of 4"),
        (pairs([0, 1], [0, 9]), RefusalKind.INVALID, "neighbors 0 to 9 lie outside of 9 nodes"),
        (pairs([0, 1], [-1, 0]), RefusalKind.INVALID, "neighbors -1 to 0 lie outside of 9 nodes"),
        (pairs([0, 1], [0]), RefusalKind.MALFORMED, "1 neighbors of 2 targets"),
        (among([0, 3, 3]), RefusalKind.MALFORMED, "nodes do not ascend"),
        (among([3, 0]), RefusalKind.MALFORMED, "nodes do not ascend"),
        (among([-1, 0]), RefusalKind.INVALID, "nodes -1 to 0 lie outside of 9 nodes"),
        (among([0, 9]), RefusalKind.INVALID, "nodes 0 to 9 lie outside of 9 nodes"),
        (among([0], (4,)), RefusalKind.INVALID, "rows 4 to 4 lie outside a partition of 4"),
        (among([0], flags='["replace"]'), RefusalKind.MALFORMED, "flags .* are not among"),
        (among([0], edge_type='["a", "b", "c"]'), RefusalKind.INVALID, "no edge type"),
        (among([0], weight="w"), RefusalKind.INVALID, "no weight column 'w'"),
        (among([0], fanout="3"), RefusalKind.MALFORMED, "unknown entry 'fanout'"),
        (edited(L, {"first": "31"}), RefusalKind.MALFORMED, r"first 31 does not lie in \[0, 31\)"),
        (edited(L, {"count": "-1"}), RefusalKind.MALFORMED, "count -1 does not lie in"),
        (edited(L, {"count": str(2**40)}), RefusalKind.TOO_LARGE, "at most 1048576 are listed"),
        (edited(L, {"edge_type": '["a", "b", "c"]'}), RefusalKind.INVALID, "no edge type"),
        (edited(S, {"node_type": "absent"}), RefusalKind.INVALID, "no node type 'absent'"),
        (edited(S, {"split": "absent"}), RefusalKind.INVALID, "no split 'absent'"),
    ],
)
def test_every_broken_rule_is_refused(request_: bytes, kind: RefusalKind, message: str) -> None:
    with pytest.raises(Refusal, match=message) as raised:
        read(request_)
    assert raised.value.kind is kind


def test_sets_of_too_many_nodes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_INDUCED_NODES", 2)
    with pytest.raises(Refusal, match="a set of 3 nodes; at most 2 are read"):
        read(among([0, 1, 2]))


def test_large_requests_are_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_REQUEST_BYTES", 100)
    with pytest.raises(Refusal, match="at most 100 are read") as raised:
        read(b"x" * 101)
    assert raised.value.kind is RefusalKind.TOO_LARGE


def test_arrays_at_odd_addresses_are_read() -> None:
    request = json.dumps({"rows": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}})
    metadata = Layout.parse(np.frombuffer(N, np.uint8)).metadata
    text = json.dumps({**json.loads(request), "__metadata__": dict(metadata)}).encode()
    text += b" " * (text.__len__() % 2 + 1)
    odd = len(text).to_bytes(8, "little") + text + np.array([3], I32).tobytes()
    assert read(odd)[1].targets.tolist() == [9]
