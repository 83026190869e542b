"""Every file of a table is read, or named: directories, their kinds, columns in the names of directories."""

from __future__ import annotations

import bz2
import gzip
import logging
import lzma
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import ipc, orc

from gigl_loader.errors import FormatError
from gigl_loader.graph import Column
from gigl_loader.partition import ColumnOptions, GraphTables, NodeTable, build_graph, open_table
from gigl_loader.partition.readers import TEXT, Table, shards_of

Content = str | list[int]


def _read(table: Table, rows: int = 2) -> dict[str, list[Any]]:
    chunks = list(table.read(list(table.columns), rows))
    assert all(len(each) <= rows for chunk in chunks for each in chunk.values())
    found = {name: [value for chunk in chunks for value in chunk[name].tolist()] for name in table.columns}
    assert all(len(values) == table.num_rows for values in found.values())
    return found


def _files(base: Path, *, files: Mapping[str, Content]) -> str:
    """Write files: texts, or Parquet files of edges from 0 to each of these nodes."""
    for name, content in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str):
            (base / name).write_text(content)
        else:
            _parquet(base / name, dst=content)
    return str(base)


def _parquet(path: Path, *, dst: list[int], **columns: Any) -> None:
    pq.write_table(pa.table({"src": [0] * len(dst), "dst": dst, **columns}), path)


def test_a_directory_is_read_with_all_below_it_in_the_order_of_the_paths(tmp_path: Path) -> None:
    files: dict[str, Content] = {"b.parquet": [3], "a/y.parquet": [1], "a/z/x.parquet": [2], "c/_SUCCESS": ""}
    table = open_table(_files(tmp_path, files=files), role="edges")
    assert _read(table)["dst"] == [1, 2, 3]
    assert [_read(shard)["dst"] for shard in shards_of(table, 1)] == [[1], [2], [3]]


@pytest.mark.parametrize(
    ("names", "kind", "values"),
    [
        (("7", "12"), Column("I64"), [12, 12, 7]),
        (("01", "12"), TEXT, ["01", "12", "12"]),
        (("2020-01-31", "a%3A%20b"), TEXT, ["2020-01-31", "a: b", "a: b"]),
        (("1", str(1 << 63)), TEXT, ["1", str(1 << 63), str(1 << 63)]),
    ],
)
def test_names_of_directories_are_columns(
    tmp_path: Path, names: tuple[str, str], kind: object, values: list[object]
) -> None:
    files: dict[str, list[int]] = {f"k={names[0]}/p.parquet": [1], f"k={names[1]}/p.parquet": [2, 3]}
    table = open_table(_files(tmp_path, files=files), role="edges")
    assert table.columns["k"] == kind
    found = _read(table)
    assert found["k"] == values
    assert sorted(found["dst"]) == [1, 2, 3]
    assert next(iter(table.read(["k"], 5)))["k"].tolist() == values[: 2 if values[0] == 12 else 1]
    assert "p.parquet" in table.where("k", 0)


def test_a_directory_for_missing_values_masks_them(tmp_path: Path) -> None:
    files: dict[str, list[int]] = {"k=1/p.parquet": [1], "k=__HIVE_DEFAULT_PARTITION__/p.parquet": [2]}
    spec = _files(tmp_path, files=files)
    with pytest.raises(FormatError, match="values are missing"):
        _read(open_table(spec, role="edges"))
    filled = open_table(spec, role="edges", options=ColumnOptions(fill={"k": "-1"}))
    assert _read(filled)["k"] == [1, -1]


def test_nested_directories_and_patterns_of_them(tmp_path: Path) -> None:
    files: dict[str, list[int]] = {
        f"y={year}/m={month}/p.parquet": [year + month] for year in (1, 2) for month in (3, 4)
    }
    spec = _files(tmp_path, files=files)
    whole = _read(open_table(spec, role="edges"))
    assert whole == {"src": [0] * 4, "dst": [4, 5, 5, 6], "y": [1, 1, 2, 2], "m": [3, 4, 3, 4]}
    assert _read(open_table(f"{spec}/y=2", role="edges")) == {"src": [0, 0], "dst": [5, 6], "m": [3, 4]}
    assert _read(open_table(f"{spec}/y=*", role="edges")) == whole
    assert _read(open_table(f"{spec}/y=*/*/*.parquet", role="edges")).keys() == {"src", "dst", "y"}
    assert _read(open_table(f"{spec}/*/*/*.parquet", role="edges")).keys() == {"src", "dst"}


def test_a_file_without_such_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    spec = _files(tmp_path, files={"part0.parquet": [1], "dt=x/part.parquet": [2]})
    message = r"dt=x/part\.parquet and .*part0\.parquet: only one lies in a directory dt=\.\.\."
    with pytest.raises(FormatError, match=message) as caught:
        open_table(spec, role="edges")
    assert f"give '{spec}/dt=*/*.parquet' or '{spec}/*.parquet'" in str(caught.value)
    assert _read(open_table(f"{spec}/dt=*/*.parquet", role="edges")) == {"src": [0], "dst": [2], "dt": ["x"]}
    _parquet(tmp_path / "part0.parquet", dst=[1], dt=["x"])
    os.rename(tmp_path / "part0.parquet", tmp_path / "dt=x" / "part.parquet")
    with pytest.raises(FormatError, match="column 'dt' is in the file and in the name of its directory"):
        open_table(spec, role="edges")
    assert _read(open_table(f"{spec}/*/*.parquet", role="edges"))["dt"] == ["x"]


def test_what_is_not_read_is_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    texts: dict[str, Content] = dict.fromkeys(
        ("README.md", "notes.txt", "sub/_temporary/0.parquet", "z.h5"), "x"
    )
    silent = dict.fromkeys(("_SUCCESS", "_metadata", ".DS_Store", "a.parquet.crc", ".git/a.csv"), "")
    spec = _files(tmp_path, files=texts | silent)
    _parquet(tmp_path / "a.parquet", dst=[1])
    with caplog.at_level(logging.WARNING):
        assert _read(open_table(spec, role="edges"))["dst"] == [1]
    (record,) = caplog.records
    assert record.getMessage() == (
        f"{spec}: files that are not read: README.md, notes.txt, sub/_temporary/0.parquet, z.h5"
    )


@pytest.mark.parametrize(
    ("files", "kinds", "meant"),
    [
        ({"a.csv": "src,dst\n0,1\n", "b.parquet": [1]}, ["text (a.csv)", "Parquet (b.parquet)"], "*.csv"),
        ({"d=1/a.tsv": "src\tdst\n0\t1\n", "d=1/b.parquet": [1]}, ["text (d=1/a.tsv)"], "d=*/*.parquet"),
    ],
)
def test_tables_of_two_kinds_are_refused(
    tmp_path: Path, files: Mapping[str, Content], kinds: list[str], meant: str
) -> None:
    spec = _files(tmp_path, files=files)
    with pytest.raises(FormatError, match="holds tables of 2 kinds") as caught:
        open_table(spec, role="edges")
    assert all(kind in str(caught.value) for kind in kinds)
    assert f"'{spec}/{meant}'" in str(caught.value)
    assert _read(open_table(f"{spec}/{meant}", role="edges"))["dst"] == [1]


def test_columns_of_npy_files_beside_other_tables_are_refused(tmp_path: Path) -> None:
    spec = _files(tmp_path, files={"part0.csv": "src,dst\n0,1\n"})
    for name in ("src", "dst"):
        np.save(tmp_path / f"{name}.npy", [1, 2])
    with pytest.raises(FormatError, match=r"text \(part0.csv\)") as caught:
        open_table(spec, role="edges")
    listed = f"{spec}/dst.npy,{spec}/src.npy"
    assert listed in str(caught.value)
    assert _read(open_table(listed, role="edges")) == {"src": [1, 2], "dst": [1, 2]}


def test_csv_and_tsv_files_are_one_table(tmp_path: Path) -> None:
    spec = _files(tmp_path, files={"a.csv": "src,dst\n0,1\n", "b.tsv": "src\tdst\n0\t2\n"})
    assert _read(open_table(spec, role="edges"))["dst"] == [1, 2]
    (tmp_path / "b.tsv").write_text("src\tother\n0\t2\n")
    with pytest.raises(FormatError, match=r"b\.tsv, column 'dst': missing, but I64 \[\] in .*a\.csv"):
        open_table(spec, role="edges")


def test_empty_files_and_files_of_a_header_alone_have_no_rows(tmp_path: Path) -> None:
    files = {"part-0.csv": "", "part-1.csv": "src,dst\n", "part-2.csv": "src,dst\n0,1\n", "part-3.csv": ""}
    assert _read(open_table(_files(tmp_path / "edges.csv", files=files), role="edges"))["dst"] == [1]


def test_a_directory_with_an_ending(tmp_path: Path) -> None:
    spec = _files(tmp_path / "edges.parquet", files={"part-0.snappy.parquet": [1], "_SUCCESS": ""})
    assert _read(open_table(spec, role="edges"))["dst"] == [1]
    assert _read(open_table(f"{spec}/", role="edges"))["dst"] == [1]
    assert _read(open_table(str(tmp_path / "*.parquet"), role="edges"))["dst"] == [1]


@pytest.mark.parametrize("name", ["e.txt", "e.dat", "e.edges", "part-0", "E.CSV", "e.csv.gz", "p.gz"])
@pytest.mark.parametrize("whole", [False, True])
def test_texts_have_any_ending(tmp_path: Path, name: str, whole: bool) -> None:
    text = b"src,dst\n0,1\n"
    (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    spec = str(tmp_path if whole else tmp_path / name)
    assert _read(open_table(spec, role="edges"))["dst"] == [1]


def test_texts_without_an_ending_are_read_where_no_file_has_one(tmp_path: Path) -> None:
    spec = _files(tmp_path, files={"e.txt": "src,dst\n0,1\n", "LICENSE": "all rights", "x.bin": "y"})
    assert _read(open_table(spec, role="edges"))["dst"] == [1]


def test_files_of_other_kinds_with_the_ending_of_texts(tmp_path: Path) -> None:
    _parquet(tmp_path / "e.csv", dst=[1])
    assert _read(open_table(str(tmp_path / "e.csv"), role="edges"))["dst"] == [1]
    with (tmp_path / "n.txt").open("wb") as file:
        np.save(file, [[0, 1, 2], [1, 2, 3]])
    assert _read(open_table(str(tmp_path / "n.txt"), role="edges"))["dst"] == [1, 2, 3]
    (tmp_path / "z.csv").write_bytes(gzip.compress(b"src,dst\n0,1\n"))
    assert _read(open_table(str(tmp_path / "z.csv"), role="edges"))["dst"] == [1]
    compressors: dict[str, Any] = {"x.csv.xz": lzma.compress, "b.csv.bz2": bz2.compress}
    for name, compress in compressors.items():
        (tmp_path / name).write_bytes(compress(b"src,dst\n0,1\n") + compress(b"0,2\n"))
        assert _read(open_table(str(tmp_path / name), role="edges"))["dst"] == [1, 2]
    (tmp_path / "h.dat").write_bytes(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(FormatError, match="no reader for HDF5"):
        open_table(str(tmp_path / "h.dat"), role="edges")
    (tmp_path / "o.csv").write_text("ORC,src,dst\n1,0,1\n")
    assert _read(open_table(str(tmp_path / "o.csv"), role="edges"))["dst"] == [1]


def test_files_at_a_uri_are_found_as_those_of_a_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files: dict[str, Content] = {"k=1/p.parquet": [1], "k=2/q/p.parquet": [2], "k=2/a.md": "x"}
    spec = f"file://{_files(tmp_path, files=files)}"
    with caplog.at_level(logging.WARNING):
        assert _read(open_table(spec, role="edges")) == {"src": [0, 0], "dst": [1, 2], "k": [1, 2]}
    assert f"{spec}: files that are not read: k=2/a.md" in caplog.text
    assert _read(open_table(f"{spec}/k=*/*.parquet", role="edges")) == {"src": [0], "dst": [1], "k": [1]}
    assert _read(open_table(f"{spec}/*/p.parquet", role="edges")) == {"src": [0], "dst": [1]}
    assert _read(open_table(f"{spec}/k=1/p.parquet", role="edges")) == {"src": [0], "dst": [1]}
    with pytest.raises(FileNotFoundError):
        open_table(f"{spec}/*.csv", role="edges")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ("*.parquet", "no file matches"),
        ("empty", "a directory without tables"),
        ("other", r"a directory without tables; its files: b\.bin"),
    ],
)
def test_nothing_to_read_is_one_clear_line(tmp_path: Path, spec: str, text: str) -> None:
    (tmp_path / "empty").mkdir()
    _files(tmp_path / "other", files={"b.bin": "x"})
    with pytest.raises(FileNotFoundError, match=text) as caught:
        open_table(f"{tmp_path}/{spec}", role="edges")
    assert "\n" not in str(caught.value)


def test_links_to_directories_are_followed_but_not_in_a_circle(tmp_path: Path) -> None:
    spec = _files(tmp_path / "in", files={"a.parquet": [1]})
    _files(tmp_path / "out", files={"b.parquet": [2]})
    (tmp_path / "in" / "more").symlink_to(tmp_path / "out")
    assert _read(open_table(spec, role="edges"))["dst"] == [1, 2]
    (tmp_path / "out" / "back").symlink_to(tmp_path / "in")
    with pytest.raises(FormatError, match=r"a link to .*, whose files are read already"):
        open_table(spec, role="edges")


def test_a_pipe_is_no_table(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FormatError, match="no regular file"):
        open_table(str(tmp_path / "pipe"), role="edges")


COLUMNS = {
    "src": pa.array([0, 1, 2, 3, 4]),
    "dst": pa.array([1, 2, 3, 4, 0], pa.int32()),
    "w": pa.array([0.5, 1.5, 2.5, 3.5, 4.5], pa.float32()),
    "x": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 0.0]]),
    "split": pa.array(["train", None, "test", "train", "val"]),
}


def _written(path: Path, rows: int = 2) -> str:
    """Write the columns in pieces of some rows."""
    table = pa.table(COLUMNS)
    options = ipc.IpcWriteOptions(compression="lz4" if path.suffix == ".feather" else None)
    if path.suffix == ".orc":
        with orc.ORCWriter(path, stripe_size=1, batch_size=rows) as writer:
            for start in range(0, len(table), rows):
                writer.write(table.slice(start, rows))
    elif path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=rows)
    else:
        make = ipc.new_stream if path.suffix == ".arrow" else ipc.new_file
        with make(path, table.schema, options=options) as writer:
            writer.write_table(table, rows)
    return str(path)


@pytest.mark.parametrize("name", ["e.arrow", "e.feather", "e.ipc", "e.orc"])
def test_arrow_and_orc_files_are_read_as_parquet_files_are(tmp_path: Path, name: str) -> None:
    table = open_table(_written(tmp_path / name), role="nodes")
    expected = open_table(_written(tmp_path / "e.parquet"), role="nodes")
    assert dict(table.columns) == dict(expected.columns)
    assert table.columns["x"] == Column("F64", (2,))
    for rows in (1, 2, 3, 100):
        assert _read(table, rows) == _read(expected, rows)
    chunk = next(iter(table.read(["w", "dst"], 4)))
    assert list(chunk) == ["w", "dst"]
    assert chunk["w"].dtype == np.float32
    shards = shards_of(table, 3)
    assert [row for shard in shards for row in _read(shard)["src"]] == [0, 1, 2, 3, 4]
    assert shards[-1].where("w", 0) == f"{tmp_path / name}, column 'w', row {5 - shards[-1].num_rows}"
    if not name.endswith(".orc"):
        assert [shard.num_rows for shard in shards] == [4, 1]


@pytest.mark.parametrize("name", ["p.arrow", "p.parquet"])
def test_files_of_polars_have_views_and_categories(tmp_path: Path, name: str) -> None:
    frame = pl.DataFrame({"id": ["a", "longer than twelve", "c"], "c": ["u", None, "u"], "n": [1, 2, 3]})
    frame = frame.with_columns(pl.col("c").cast(pl.Categorical))
    path = tmp_path / name
    frame.write_ipc(path) if name.endswith(".arrow") else frame.write_parquet(path)
    table = open_table(str(path), role="nodes")
    assert dict(table.columns) == {"id": TEXT, "c": TEXT, "n": Column("I64")}
    assert _read(table) == {**frame.to_dict(as_series=False), "c": ["u", "", "u"]}


@pytest.mark.parametrize("name", ["e.feather", "e.orc", "e.arrow"])
def test_damaged_arrow_and_orc_files_are_refused(tmp_path: Path, name: str) -> None:
    path = Path(_written(tmp_path / name))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(FormatError, match=f"{name}: not a readable"):
        _read(open_table(str(path), role="nodes"))
    path.write_bytes(b"")
    with pytest.raises(FormatError, match=f"{name}: not a readable"):
        open_table(str(path), role="nodes")


def test_a_graph_of_a_directory_with_columns_in_its_names(tmp_path: Path) -> None:
    files: dict[str, list[int]] = {"day=1/p.parquet": [1, 2], "day=2/p.parquet": [0]}
    edges = open_table(_files(tmp_path / "in", files=files), role="edges")
    tables = GraphTables({("node", "to", "node"): edges}, {"node": NodeTable(count=3)})
    schema = build_graph(tables, tmp_path / "out")
    assert schema.edges["node", "to", "node"].columns["day"] == Column("I64")
