"""Quantised values: off by half a step at most, and the same by kernel, torch and plain Python."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.graph import Column, Graph
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.quantization import Quantization
from gigl_loader.loaders.dequantize import Dequantizer
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.partition.declared import read_quantize
from tests.support.quantised import allowed_error, packed_columns, values_of

if TYPE_CHECKING:
    from gigl_loader.arrays import Bytes
    from gigl_loader.graph import Column


EDGE = ("node", "to", "node")
EDGES = ArrayTable("edges", {"src": np.array([0]), "dst": np.array([0])})
KINDS = ["int8", "uint4", "uint2", "uint1"]


def round_trip(table: ArrayTable, how: Quantization, **options: Any) -> np.ndarray[Any, Any]:
    """Return the values of column ``x`` after a build with it quantised."""
    tables = GraphTables({EDGE: EDGES}, {"node": NodeTable(table)}, quantize={"node": {"x": how}})
    folder = MemoryFolder()
    schema = build_graph(tables, folder, **options)
    graph = Graph.open(folder)
    packed = np.concatenate([graph.node_column("node", "x", part) for part in range(schema.num_partitions)])
    return values_of(packed, schema.nodes["node"].columns["x"])


def floats_of(values: np.ndarray[Any, Any], dtype: str) -> tuple[ArrayTable, np.ndarray[Any, Any]]:
    """Return a table of the values in a dtype, and what they then are as float64."""
    if dtype == "BF16":
        rounded = torch.from_numpy(values).to(torch.bfloat16)
        bits = rounded.view(torch.int16).numpy().view(np.uint16)
        table = ArrayTable("nodes", {"x": bits}, {"x": Column("BF16", values.shape[1:])})
        return table, rounded.to(torch.float64).numpy()
    array = values.astype({"F16": np.float16, "F32": np.float32, "F64": np.float64}[dtype])
    return ArrayTable("nodes", {"x": array}), array.astype(np.float64)


def check_error(found: Any, values: Any, how: Quantization) -> None:
    flat = values.reshape(len(values), -1)
    assert found.shape == values.shape
    assert (np.abs(found.reshape(flat.shape) - flat) <= allowed_error(flat, how)).all()


@settings(max_examples=150)
@given(
    kind=st.sampled_from(KINDS),
    per=st.sampled_from(["column", "row"]),
    dtype=st.sampled_from(["F16", "BF16", "F32", "F64"]),
    shape=st.sampled_from([(), (1,), (3,), (7,), (16,), (3, 3)]),
    rows=st.integers(1, 30),
    spread=st.sampled_from([0.0, 1e-43, 1e-5, 1.0, 1e4]),
    offset=st.sampled_from([0.0, -1.0, 1000.0]),
    seed=st.integers(0, 1000),
)
def test_a_value_is_off_by_half_a_step_at_most(
    *,
    kind: str,
    per: Literal["column", "row"],
    dtype: str,
    shape: tuple[int, ...],
    rows: int,
    spread: float,
    offset: float,
    seed: int,
) -> None:
    how = Quantization(kind, per)
    random = np.random.default_rng(seed)
    table, values = floats_of(random.standard_normal((rows, *shape)) * spread + offset, dtype)
    check_error(round_trip(table, how), values, how)


@settings(max_examples=100)
@given(
    kind=st.sampled_from(["int8", "uint4", "uint2"]),
    per=st.sampled_from(["column", "row"]),
    values=st.lists(
        st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=2),
        min_size=1,
        max_size=4,
    ),
)
def test_any_finite_floats_can_be_quantised(
    *, kind: str, per: Literal["column", "row"], values: list[list[float]]
) -> None:
    how = Quantization(kind, per)
    table, exact = floats_of(np.array(values), "F32")
    check_error(round_trip(table, how), exact, how)


@pytest.mark.parametrize("per", ["column", "row"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_constant_comes_back_exactly(kind: str, per: Literal["column", "row"]) -> None:
    values = np.full((5, 3), 0.1, np.float32)
    assert np.array_equal(round_trip(ArrayTable("nodes", {"x": values}), Quantization(kind, per)), values)


def test_numbers_that_are_levels_come_back_exactly() -> None:
    values = np.arange(512, dtype=np.float32).reshape(2, 256).T - 7
    assert np.array_equal(round_trip(ArrayTable("nodes", {"x": values}), Quantization("int8")), values)


@pytest.mark.parametrize("per", ["column", "row"])
def test_neither_memory_nor_partitions_change_a_value(per: Literal["column", "row"]) -> None:
    random = np.random.default_rng(1)
    ids = random.permutation(3000)
    x = random.standard_normal((3000, 9)).astype(np.float16)
    how = Quantization("uint2", per)
    whole = round_trip(ArrayTable("nodes", {"x": x[np.argsort(ids)]}), how)
    shuffled = ArrayTable("nodes", {"id": ids, "x": x})
    assert np.array_equal(round_trip(shuffled, how), whole)
    assert np.array_equal(round_trip(shuffled, how, memory_limit=150_000, num_partitions=3), whole)


def test_a_type_without_nodes_can_be_quantised() -> None:
    table = ArrayTable("nodes", {"x": np.empty((0, 4), np.float32)})
    none = ArrayTable("edges", {"src": np.empty(0, np.int64), "dst": np.empty(0, np.int64)})
    for how in (Quantization("int8"), Quantization("int8", "row")):
        folder = MemoryFolder()
        build_graph(
            GraphTables({EDGE: none}, {"node": NodeTable(table)}, quantize={"node": {"x": how}}), folder
        )
        packed = Graph.open(folder).node_column("node", "x", 0)
        assert packed.shape == (0, how.row_bytes(4))


KNOWN: dict[Any, Any] = {"a": {"x": 1, "y": 1}, "b": {"x": 1}, EDGE: {"w": 1}}


def test_a_name_stands_for_every_type_and_a_type_comes_first() -> None:
    found = read_quantize({"a": {"x": "uint4:per-row"}, "x": "int8", "w": Quantization("uint1")}, KNOWN, "q")
    assert found == {
        "a": {"x": Quantization("uint4", "row")},
        "b": {"x": Quantization("int8")},
        EDGE: {"w": Quantization("uint1")},
    }
    assert read_quantize(None, KNOWN, "q") == {}


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        ("int8", TypeError, r"q must map columns to kinds, such as \{'x': 'int8'\}, got 'int8'"),
        ({"z": "int8"}, ValueError, "q: no type has a column 'z'; known: w, x, y"),
        ({"c": {"x": "int8"}}, ValueError, "q: unknown type 'c'; known: a, b, "),
        ({"b": {"y": "int8"}}, ValueError, "q: 'b' has no column 'y'"),
        (
            {"x": "int4"},
            ValueError,
            "q: a column is quantised as one of int8, uint4, uint2, uint1, not 'int4'",
        ),
        ({"x": "int8:row"}, ValueError, "q: 'int8:row': write int8:per-row or int8:per-column"),
        ({"x": 8}, TypeError, "q: a column is quantised as a text such as 'int8' says, got 8"),
    ],
)
def test_what_cannot_be_meant_is_named(wanted: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_quantize(wanted, KNOWN, "q")


@pytest.mark.parametrize("text", ["int8", "int8:per-column", "uint1:per-row"])
def test_a_quantisation_is_written_as_it_is_read(text: str) -> None:
    how = Quantization.parse(text)
    assert Quantization.parse(str(how)) == how
    assert how.row_bytes(9) == math.ceil(9 * how.bits / 8) + (8 if how.per == "row" else 0)


# --- Values of quantised columns: by the kernel and by torch operations, bit for bit those of plain Python


@settings(max_examples=120)
@given(packed_columns())
def test_kernel_and_torch_give_the_values_of_plain_python(drawn: tuple[Column, Bytes]) -> None:
    column, packed = drawn
    expected, dequantizer = values_of(packed, column).view(np.uint32), Dequantizer(column)
    by_kernel = dequantizer.on_host(packed, lambda nbytes: np.empty(nbytes, np.uint8))
    by_torch = dequantizer.on_device(torch.from_numpy(packed))
    for found in (by_kernel, by_torch):
        assert found.dtype == torch.float32
        assert np.array_equal(found.numpy().view(np.uint32), expected)
