"""Every kind of file gives the same table, and a bad one is refused by file, column and row."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader.errors import FormatError
from gigl_loader.graph import Column
from gigl_loader.partition import ColumnOptions, Table, open_table

SRC, DST = np.array([3, 1, 2, 2]), np.array([0, 0, 1, 5])
WEIGHT = np.array([0.5, 1.0, 2.0, 4.0], dtype=np.float32)


def _read(table: Table, rows: int = 3) -> dict[str, Any]:
    """Read a table twice, in small and large pieces, which must agree."""
    names = list(table.columns)

    def joined(step: int) -> dict[str, Any]:
        chunks = list(table.read(names, step))
        assert all(len(chunk[names[0]]) <= step for chunk in chunks)
        return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in names}

    small, large = joined(rows), joined(1000)
    for name, array in large.items():
        np.testing.assert_array_equal(small[name], array)
        assert len(array) == table.num_rows
    return large


def _csv(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def _parquet(path: Path, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return str(path)


def _npy(path: Path, array: Any) -> str:
    np.save(path, array)
    return str(path)


def _edge_files(path: Path) -> dict[str, Any]:
    text = "\n".join(f"{src},{dst},{weight}" for src, dst, weight in zip(SRC, DST, WEIGHT, strict=True))
    with gzip.open(path / "zipped.csv.gz", "wt") as file:
        file.write(f"src,dst,weight\n{text}\n")
    (path / "folder").mkdir()
    for name, array in (("src", SRC), ("dst", DST), ("weight", WEIGHT)):
        _npy(path / "folder" / f"{name}.npy", array)
    (path / "shards").mkdir()
    for number, rows in enumerate((slice(0, 3), slice(3, 4))):
        _parquet(path / "shards" / f"{number}.parquet", src=SRC[rows], dst=DST[rows], weight=WEIGHT[rows])
    return {
        "csv": _csv(path / "edges.csv", f"src,dst,weight\n{text}\n"),
        "usual names": _csv(path / "usual.csv", f"source,target,weight\n{text}\n"),
        "tsv": _csv(path / "edges.tsv", f"src,dst,weight\n{text}\n".replace(",", "\t")),
        "gzip": str(path / "zipped.csv.gz"),
        "parquet": _parquet(path / "edges.parquet", src=SRC, dst=DST, weight=WEIGHT),
        "npy folder": str(path / "folder"),
        "npy files": ",".join(str(path / "folder" / f"{name}.npy") for name in ("src", "dst", "weight")),
        "named npy files": ",".join(
            f"{name}:{path / 'folder' / name}.npy" for name in ("weight", "src", "dst")
        ),
        "pattern": str(path / "shards" / "*.parquet"),
        "directory": str(path / "shards"),
        "two specs": [str(path / "shards" / "0.parquet"), str(path / "shards" / "1.parquet")],
    }


@pytest.mark.parametrize(
    "kind",
    [
        *("csv", "usual names", "tsv", "gzip", "parquet", "npy folder", "npy files", "named npy files"),
        *("pattern", "directory", "two specs"),
    ],
)
def test_every_kind_of_file_gives_the_same_table(tmp_path: Path, kind: str) -> None:
    table = open_table(_edge_files(tmp_path)[kind], role="edges")
    assert dict(table.columns) == {"src": Column("I64"), "dst": Column("I64"), "weight": Column("F32")}
    read = _read(table)
    for name, array in (("src", SRC), ("dst", DST), ("weight", WEIGHT)):
        np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("by_end", [True, False])
@pytest.mark.parametrize("dtype", ["int64", "int32", ">i8"])
def test_an_edge_index_has_its_ends_in_either_axis(
    tmp_path: Path, order: Any, by_end: bool, dtype: str
) -> None:
    array = np.asarray(np.stack([SRC, DST], axis=0 if by_end else 1).astype(dtype), order=order)
    read = _read(open_table(_npy(tmp_path / "edge_index.npy", array), role="edges"))
    np.testing.assert_array_equal(read["src"], SRC)
    np.testing.assert_array_equal(read["dst"], DST)
    assert read["src"].dtype.isnative


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 3), (7, 0), (0, 3), (0,)])
def test_npy_columns_are_read_in_either_order(tmp_path: Path, order: Any, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(0).random(shape), order=order)
    table = open_table(_npy(tmp_path / "x.npy", array), role="nodes")
    assert table.columns["x"] == Column("F64", shape[1:])
    chunks = [chunk["x"] for chunk in table.read(["x"], 2)]
    np.testing.assert_array_equal(np.concatenate(chunks) if chunks else np.empty(shape), array)


def test_npy_columns_of_three_axes(tmp_path: Path) -> None:
    array = np.arange(24).reshape(4, 3, 2)
    np.testing.assert_array_equal(
        _read(open_table(_npy(tmp_path / "x.npy", array), role="nodes"))["x"], array
    )
    with pytest.raises(FormatError, match="3-D in Fortran order"):
        open_table(_npy(tmp_path / "f.npy", np.asfortranarray(array)), role="nodes")


PARQUET_COLUMNS: dict[str, tuple[Any, Any]] = {
    "float16": (pa.array(np.array([1, 2], np.float16)), np.array([1, 2], np.float16)),
    "bool": (pa.array([True, False]), np.array([True, False])),
    "uint8": (pa.array([1, 2], pa.uint8()), np.array([1, 2], np.uint8)),
    "floats that are NaN": (pa.array([1.5, np.nan]), np.array([1.5, np.nan])),
    "fixed lists": (
        pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)),
        np.array([[1, 2], [3, 4]], np.int16),
    ),
    "lists": (pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32())), np.array([[1, 2], [3, 4]], "f4")),
    "large lists": (
        pa.array([[1.0], [3.0]], pa.large_list(pa.float64())),
        np.array([[1.0], [3.0]]),
    ),
    "lists with NaN": (pa.array([[1.0, np.nan], [3.0, 4.0]]), np.array([[1, np.nan], [3, 4]])),
    "nested fixed lists": (
        pa.array([[[1], [2]], [[3], [4]]], pa.list_(pa.list_(pa.int64(), 1), 2)),
        np.array([[[1], [2]], [[3], [4]]]),
    ),
}


@pytest.mark.parametrize("case", PARQUET_COLUMNS)
def test_parquet_columns_keep_dtype_and_shape(tmp_path: Path, case: str) -> None:
    column, expected = PARQUET_COLUMNS[case]
    table = open_table(_parquet(tmp_path / "n.parquet", x=column), role="nodes")
    read = _read(table, rows=1)["x"]
    np.testing.assert_array_equal(read, expected)
    assert read.dtype == expected.dtype
    assert table.columns["x"] == Column(_name(expected.dtype), expected.shape[1:])


def _name(dtype: Any) -> str:
    from gigl_loader.tensors import spec_of

    return spec_of(np.empty(0, dtype)).dtype


def test_a_fixed_shape_tensor_of_parquet_is_a_matrix(tmp_path: Path) -> None:
    values = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    table = open_table(_parquet(tmp_path / "n.parquet", x=column), role="nodes")
    np.testing.assert_array_equal(_read(table, rows=1)["x"], values)


def test_an_empty_parquet_table_keeps_its_types(tmp_path: Path) -> None:
    table = open_table(
        _parquet(tmp_path / "n.parquet", x=pa.array([], pa.list_(pa.float32(), 3))), role="nodes"
    )
    assert (table.num_rows, table.columns["x"]) == (0, Column("F32", (3,)))


def test_texts_of_a_split_are_read_and_missing_ones_are_empty(tmp_path: Path) -> None:
    for column in (
        pa.array(["train", None, "val"]),
        pa.array(["train", None, "val"]).dictionary_encode(),
        pa.array(["train", None, "val"], pa.large_string()),
    ):
        table = open_table(_parquet(tmp_path / "n.parquet", split=column), role="nodes")
        assert table.columns["split"] == "text"
        assert _read(table)["split"].tolist() == ["train", "", "val"]
    text = _csv(tmp_path / "n.csv", "id,split\n1,train\n2,\n3,val\n")
    assert _read(open_table(text, role="nodes"))["split"].tolist() == ["train", "", "val"]


def test_csv_numbers_have_the_types_of_numbers(tmp_path: Path) -> None:
    path = _csv(tmp_path / "n.csv", "id,label,x,flag\n5,1,0.5,true\n6,2,nan,false\n")
    table = open_table(path, role="nodes", options=ColumnOptions(fill={"x": "nan"}))
    assert table.columns == {
        "id": Column("I64"),
        "y": Column("I64"),
        "x": Column("F32"),
        "flag": Column("BOOL"),
    }
    np.testing.assert_array_equal(_read(table, rows=1)["x"], np.array([0.5, np.nan], np.float32))


def test_columns_are_renamed_stacked_dropped_and_converted(tmp_path: Path) -> None:
    path = _csv(tmp_path / "n.csv", "key,f_0,f_1,title,n\n5,1,0.5,a,3\n6,2,1.5,b,4\n")
    options = ColumnOptions(
        rename={"key": "id"}, stack={"x": "f_*"}, drop=["title"], dtypes={"x": "float16", "n": "F64"}
    )
    table = open_table(path, role="nodes", options=options)
    assert table.columns == {"x": Column("F16", (2,)), "id": Column("I64"), "n": Column("F64")}
    read = _read(table)
    np.testing.assert_array_equal(read["x"], np.array([[1, 0.5], [2, 1.5]], np.float16))
    np.testing.assert_array_equal(read["n"], [3.0, 4.0])


def test_a_usual_name_yields_to_a_column_that_has_it(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "n.parquet", label=[1, 2], y=[3, 4], feat=[5.0, 6.0])
    assert set(open_table(path, role="nodes").columns) == {"label", "y", "x"}


def test_ids_of_a_split_come_from_any_file(tmp_path: Path) -> None:
    for spec in (
        _npy(tmp_path / "train.npy", np.array([4, 2])),
        _csv(tmp_path / "train.csv", "id\n4\n2\n"),
        _parquet(tmp_path / "train.parquet", node_id=[4, 2]),
    ):
        assert _read(open_table(spec, role="ids"))["id"].tolist() == [4, 2]


def test_a_shard_without_rows_may_have_any_columns(tmp_path: Path) -> None:
    files = {"a": "id,x\n", "b": "id,x\nann,1.5\n", "c": "id\n", "d": "id,x\nbob,2.5\n"}
    for name, text in files.items():
        _csv(tmp_path / f"{name}.csv", text)
    read = _read(open_table(str(tmp_path), role="nodes"))
    assert read["id"].tolist() == ["ann", "bob"]
    assert read["x"].tolist() == [1.5, 2.5]
    assert open_table(str(tmp_path / "a.csv"), role="nodes").num_rows == 0


def test_a_place_in_shards_is_that_of_its_file(tmp_path: Path) -> None:
    table = open_table(str(_edge_files(tmp_path)["pattern"]), role="edges")
    assert table.where("src", 2) == f"{tmp_path}/shards/0.parquet, column 'src', row 2"
    assert table.where("src", 3) == f"{tmp_path}/shards/1.parquet, column 'src', row 0"


def _many_rows(folder: Path) -> str:
    """A CSV whose types change after the block that they are guessed from."""
    return _csv(folder / "a.csv", "id,x\n" + "123456789,1234567\n" * 240_000 + "1,0.5\n")


REFUSALS: dict[str, tuple[Callable[[Path], Any], type[Exception], str]] = {
    "missing file": (lambda p: str(p / "no.csv"), FileNotFoundError, r"no\.csv"),
    "missing npy": (lambda p: str(p / "no.npy"), FileNotFoundError, r"no\.npy"),
    "pattern without a match": (lambda p: str(p / "*.csv"), FileNotFoundError, r"\*\.csv"),
    "directory without tables": (str, FileNotFoundError, "a directory without tables"),
    "unknown kind": (lambda p: _csv(p / "a.xlsx", ""), ValueError, r"a\.xlsx: no reader"),
    "no npy": (lambda p: _csv(p / "a.npy", "nonsense"), FormatError, r"a\.npy: not a \.npy file"),
    "objects": (lambda p: _npy(p / "a.npy", np.array([[1], "a"], object)), FormatError, "holds object"),
    "records": (lambda p: _npy(p / "a.npy", np.zeros(2, "i4,f4")), FormatError, r"a\.npy: holds \[\('f0'"),
    "a number": (lambda p: _npy(p / "a.npy", np.float32(1)), FormatError, "a single number"),
    "npy cut off": (lambda p: _cut(_npy(p / "a.npy", np.arange(9))), FormatError, r"a\.npy: .* cut off"),
    "ragged npy": (
        lambda p: f"{_npy(p / 'a.npy', np.arange(3))},{_npy(p / 'b.npy', np.arange(2))}",
        FormatError,
        r"ragged columns: .*a\.npy has 3 rows, .*b\.npy has 2",
    ),
    "a column twice": (
        lambda p: f"a:{_npy(p / 'a.npy', SRC)},a:{_npy(p / 'b.npy', SRC)}",
        ValueError,
        "column 'a' is given twice",
    ),
    "no parquet": (lambda p: _csv(p / "a.parquet", "nonsense"), FormatError, r"a\.parquet: not a readable"),
    "ragged lists": (
        lambda p: _parquet(p / "a.parquet", x=[[1.0, 2.0], [1.0, 2.0], [3.0]]),
        FormatError,
        r"a\.parquet, column 'x', row 2: 1 values, 2 ",
    ),
    "ragged lists, later": (
        lambda p: _parquet(p / "a.parquet", x=[[1.0, 2.0]] * 3 + [[3.0]]),
        FormatError,
        r"a\.parquet, column 'x', row 3: 1 values, 2 ",
    ),
    "missing list": (
        lambda p: _parquet(p / "a.parquet", x=[[1.0], None]),
        FormatError,
        r"values are missing: .*a\.parquet, column 'x', row 1\. Fill",
    ),
    "missing integer": (
        lambda p: _parquet(p / "a.parquet", id=[1, 2, None]),
        FormatError,
        r"values are missing: .*a\.parquet, column 'id', row 2 \(ids cannot be filled\)\. Mend",
    ),
    "missing integer in a list": (
        lambda p: _parquet(p / "a.parquet", x=pa.array([[1, 2], [3, None]], pa.list_(pa.int64(), 2))),
        FormatError,
        r"values are missing: .*column 'x', row 1\. Fill",
    ),
    "empty csv": (lambda p: _csv(p / "a.csv", ""), FormatError, r"a\.csv: an empty file"),
    "ragged csv": (
        lambda p: _csv(p / "a.csv", "id,x\n1,2\n3\n"),
        FormatError,
        r"a\.csv, line 3: 1 value of 2 columns",
    ),
    "NaN in csv": (
        lambda p: _csv(p / "a.csv", "id,x\n1,2\nnan,3\n"),
        FormatError,
        r"values are missing: .*a\.csv, line 3, column 'id' \(ids cannot be filled\)\. Mend",
    ),
    "a type that changes": (
        _many_rows,
        FormatError,
        r"a\.csv, line 240002, column 'x': .*'0\.5'",
    ),
    "shards that differ": (
        lambda p: [_parquet(p / "a.parquet", x=[1]), _parquet(p / "b.parquet", x=[1.5])],
        FormatError,
        r"b\.parquet, column 'x': F64 \[\], but I64 \[\] in .*a\.parquet",
    ),
    "a shard without a column": (
        lambda p: [_parquet(p / "a.parquet", x=[1], y=[2]), _parquet(p / "b.parquet", x=[1])],
        FormatError,
        r"b\.parquet, column 'y': missing",
    ),
}


def _cut(path: str) -> str:
    Path(path).write_bytes(Path(path).read_bytes()[:-1])
    return path


@pytest.mark.parametrize("case", REFUSALS)
def test_a_bad_file_is_refused_by_file_column_and_row(tmp_path: Path, case: str) -> None:
    make, kind, message = REFUSALS[case]
    spec = make(tmp_path)
    with pytest.raises(kind, match=message):
        _read(open_table(spec, role="nodes"), rows=2)


def test_types_are_those_of_the_columns_to_be(tmp_path: Path) -> None:
    """Usual names, new names and stacks say how a CSV file is read, not only what its columns are called."""
    for header in ("src,dst", "source,target"):
        spec = _csv(tmp_path / "e.csv", f"{header}\n0123,2020-01-01\n123,2020-01-02\n")
        table = open_table(spec, role="edges", options=ColumnOptions(dtypes={"src": "text"}))
        read = _read(table)
        assert read["src"].tolist() == ["0123", "123"]
        assert read["dst"].tolist() == ["2020-01-01", "2020-01-02"]
    spec = _csv(tmp_path / "n.csv", "f_0,f_1,feat\n0.1,16777217.5,0.1\n0.2,1,0.3\n")
    options = ColumnOptions(stack={"y": "f_*"}, dtypes={"y": "float64", "x": "float64"})
    read = _read(open_table(spec, role="nodes", options=options))
    assert read["y"][0].tolist() == [0.1, 16777217.5]
    assert read["x"].tolist() == [0.1, 0.3]


def test_a_text_in_a_column_of_numbers_is_named(tmp_path: Path) -> None:
    spec = _csv(tmp_path / "a.csv", "id,x\n1,2\nabc,3\n")
    with pytest.raises(FormatError, match=r"a\.csv, line 3, column 'id': .*'abc'"):
        _read(open_table(spec, role="nodes", options=ColumnOptions(dtypes={"id": "int64"})), rows=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (ColumnOptions(rename={"b": "id"}), "no column 'b' to rename; columns: 'a', 't', 'label'"),
        (ColumnOptions(stack={"x": "f*"}), "no column 'f\\*' to stack into 'x'; columns: 'a'"),
        (ColumnOptions(stack={"x": "[at]"}), "column 't': text cannot be stacked into 'x'"),
        (ColumnOptions(dtypes={"b": "float32"}), "no column 'b' to convert"),
        (ColumnOptions(rename={"a": "y"}), "two columns would be named 'y'"),
    ],
)
def test_column_options_that_fit_nothing_are_refused(
    tmp_path: Path, options: ColumnOptions, message: str
) -> None:
    path = _parquet(tmp_path / "n.parquet", a=[1], t=["x"], label=[2])
    with pytest.raises((ValueError, FormatError), match=message):
        open_table(path, role="nodes", options=options)


def test_a_conversion_that_loses_is_refused(tmp_path: Path) -> None:
    path = _parquet(tmp_path / "n.parquet", a=[1.0, 2.5])
    table = open_table(path, role="nodes", options=ColumnOptions(dtypes={"a": "int8"}))
    with pytest.raises(FormatError, match=r"n\.parquet, column 'a', row 1: 2\.5 is no int8"):
        _read(table)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="column 'x': unknown dtype 'float33'; known: bool"):
        ColumnOptions(dtypes={"x": "float33"})


def test_an_edge_index_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"shape \[3, 4\]; an edge index is \[2, E\] or \[E, 2\]"):
        open_table(_npy(tmp_path / "a.npy", np.zeros((3, 4), int)), role="edges")


def test_a_page_that_was_damaged_is_not_read(tmp_path: Path) -> None:
    """Of files that have checksums of their pages, which is up to their writer."""
    path = tmp_path / "a.parquet"
    table = pa.table({"x": pa.array(np.random.default_rng(0).integers(0, 1 << 40, 10_000))})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"a\.parquet: cannot be read: .*CRC"):
        list(open_table(str(path), role="nodes").read(["x"], 1000))
