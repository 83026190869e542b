"""Schemas refuse what cannot be, and survive JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
from gigl_loader.graph import (
    Column,
    EdgeSchema,
    GraphSchema,
    NodeSchema,
    edge_type_address,
    type_name,
)


def _nodes(**changes: Any) -> NodeSchema:
    return NodeSchema(**{"count": 5, "bounds": (0, 3, 5), "columns": {}, "splits": {}, **changes})


def _edges(**changes: Any) -> EdgeSchema:
    return EdgeSchema(**{"count": 2, "wide_indices": False, "columns": {}, **changes})


def _graph(**changes: Any) -> GraphSchema:
    fields: dict[str, Any] = {
        "edge_dir": "in",
        "homogeneous": False,
        "nodes": {"b": _nodes(columns={"x": Column("F32", (4,))}, splits={"train": 2}), "a": _nodes()},
        "edges": {
            ("b", "r", "a"): _edges(weight=True),
            ("a", "r", "b"): _edges(columns={"t": Column("I64")}),
        },
        "num_partitions": 2,
    }
    return GraphSchema(**{**fields, **changes})


def test_a_schema_survives_json() -> None:
    schema = _graph()
    assert GraphSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_types_are_sorted_however_they_are_given() -> None:
    assert list(_graph().nodes) == ["a", "b"]
    assert list(_graph().edges) == [("a", "r", "b"), ("b", "r", "a")]


def test_the_target_follows_the_edge_direction() -> None:
    inward, outward = _graph(), _graph(edge_dir="out")
    assert (inward.target_type(("a", "r", "b")), inward.neighbor_type(("a", "r", "b"))) == ("b", "a")
    assert (outward.target_type(("a", "r", "b")), outward.neighbor_type(("a", "r", "b"))) == ("a", "b")


REFUSALS: dict[str, tuple[Any, str]] = {
    "unknown dtype": (lambda: Column("F33"), "unknown dtype 'F33'"),
    "negative row shape": (lambda: Column("F32", (-1,)), "negative size"),
    "unknown kind of ids": (lambda: _nodes(ids="odd"), "ids must be one of"),
    "bounds that do not reach the end": (lambda: _nodes(bounds=(0, 3, 4)), "run from 0 to 5"),
    "bounds that do not begin at 0": (lambda: _nodes(bounds=(1, 3, 5)), "run from 0 to 5"),
    "bounds that fall": (lambda: _nodes(bounds=(0, 6, 5)), "must not fall"),
    "no bounds": (lambda: _nodes(bounds=()), "run from 0 to 5"),
    "column without a name": (lambda: _nodes(columns={"": Column("F32")}), "cannot name a column"),
    "column named as metadata": (lambda: _edges(columns={"__metadata__": Column("F32")}), "cannot name"),
    "split without a name": (lambda: _nodes(splits={"": 1}), "cannot name a split"),
    "negative edges": (lambda: _edges(count=-1), "cannot have -1 edges"),
    "edge direction": (lambda: _graph(edge_dir="up"), "edge_dir"),
    "no partition": (lambda: _graph(num_partitions=0), "at least 1 partition"),
    "other number of bounds": (lambda: _graph(num_partitions=3), "3 bounds, 3 partitions"),
    "homogeneous with two types": (lambda: _graph(homogeneous=True), "one node type"),
    "unknown end": (lambda: _graph(edges={("a", "r", "c"): _edges()}), "'c' is not in the graph"),
    "edge type of two names": (lambda: _graph(edges={("a", "r"): _edges()}), "an edge type is"),
    "empty relation": (lambda: _graph(edges={("a", "", "b"): _edges()}), "cannot name a type"),
    "empty node type": (lambda: _graph(nodes={"": _nodes()}, edges={}), "cannot name a type"),
    "wide without need": (lambda: _graph(edges={("a", "r", "b"): _edges(wide_indices=True)}), "wide_indices"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_schema_that_cannot_be_is_refused(case: str) -> None:
    make, message = REFUSALS[case]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    "change",
    [
        {"edge_dir": "up"},
        {"nodes": 3},
        {"nodes": [{"type": "a"}]},
        {"edges": [{"type": ["a"]}]},
        {"num_partitions": "many"},
    ],
)
def test_json_that_is_no_schema_is_a_format_error(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="bad graph schema"):
        GraphSchema.from_json({**_graph().to_json(), **change})


def test_a_schema_with_a_part_missing_is_a_format_error() -> None:
    document = _graph().to_json()
    del document["edges"]
    with pytest.raises(FormatError, match="KeyError"):
        GraphSchema.from_json(document)


_parts = st.text(min_size=1, max_size=8)


@given(st.tuples(_parts, _parts, _parts), st.tuples(_parts, _parts, _parts))
def test_names_of_edge_types_are_safe_and_distinct(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (type_name(one) == type_name(other)) == (one == other)
    assert "/" not in type_name(one)
    assert "\0" not in type_name(one)
    assert type_name(one).isascii()


def test_addresses_of_edge_types_are_fixed_for_ever() -> None:
    # Changing them would change every batch that was ever drawn.
    assert edge_type_address(("node", "to", "node")) == 0xD1659D
    assert edge_type_address(("paper", "cites", "paper")) == 0x08E5C4
    assert 0 <= edge_type_address(("a", "b", "c")) < 2**24
