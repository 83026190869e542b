"""Files as people have them: each is built right, or refused in a line that says what to do."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gigl_loader import FormatError
from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.graph.schema import HOMOGENEOUS_NODE, Column
from gigl_loader.partition import ColumnOptions, GraphTables, NodeTable, Table, open_table
from gigl_loader.partition.readers.text_format import CsvFormat
from gigl_loader.partition.refusals import ForeignFile, OptionsNeeded

_ROWS = b"src,dst,w\n" + b"".join(
    b"%d,%d,%d.5\n" % (row, row * 7 % 1000, row % 100) for row in range(200_000)
)


def _read(table: Table) -> dict[str, list[Any]]:
    chunks = list(table.read(list(table.columns), 1000))
    return {name: [value for chunk in chunks for value in chunk[name].tolist()] for name in table.columns}


def _opened(**options: str) -> GraphTables:
    given: Any = {name: [value] for name, value in options.items()}
    return open_tables(TableOptions(**given))


def _nodes(tables: GraphTables) -> Table:
    entry = tables.nodes[HOMOGENEOUS_NODE]
    assert isinstance(entry, NodeTable)
    assert entry.rows is not None
    return entry.rows


@pytest.mark.parametrize("text", ["src, dst\nann, bob\nbob, ann\n", "src; dst\nann; bob\nbob; ann\n"])
def test_a_blank_after_every_delimiter_is_no_part_of_texts(tmp_path: Path, text: str) -> None:
    (tmp_path / "e.csv").write_text(text)
    table = open_table(str(tmp_path / "e.csv"), role="edges")
    assert _read(table) == {"src": ["ann", "bob"], "dst": ["bob", "ann"]}


def test_a_blank_after_some_delimiters_is_part_of_texts(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text('src,dst\nann,"bob, jr"\n ann,bob\n')
    table = open_table(str(tmp_path / "e.csv"), role="edges")
    assert _read(table) == {"src": ["ann", " ann"], "dst": ["bob, jr", "bob"]}


def test_a_matrix_in_a_text_file_is_refused(tmp_path: Path) -> None:
    """The first of its lines without ``%`` has its size, and would be an edge."""
    (tmp_path / "m.edges").write_text("%%MatrixMarket matrix coordinate pattern general\n3 3 2\n1 2\n1 3\n")
    form = ColumnOptions(csv=CsvFormat(columns=("src", "dst", "weight")))
    with pytest.raises(ForeignFile, match=r"no reader for MatrixMarket; in Python:\n.*\n.*mmread"):
        open_table(str(tmp_path / "m.edges"), role="edges", options=form)


@pytest.mark.parametrize("content", [b"\n\n\n", b"\xef\xbb\xbf", b"  \n \n"])
def test_a_file_without_values_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "e.csv").write_bytes(content)
    with pytest.raises(FormatError, match=r"e\.csv: no line with a value"):
        open_table(str(tmp_path / "e.csv"), role="edges")


def test_a_name_of_a_column_that_is_no_name_is_not_printed(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("x" * 5000 + ",dst\n1,2\n")
    with pytest.raises(FormatError, match=r"e\.csv, line 1: no header") as caught:
        open_table(str(tmp_path / "e.csv"), role="edges")
    assert len(str(caught.value)) < 500


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]


_COMPRESSED = {
    "gz": gzip.compress(_ROWS, 1),
    "bz2": bz2.compress(_ROWS, 1),
    "xz": lzma.compress(_ROWS, preset=0),
    "zst": bytes(pa.compress(_ROWS, "zstd", asbytes=True)),
}


@pytest.mark.parametrize(
    ("ending", "harm"),
    [*((ending, "cut") for ending in _COMPRESSED), *((ending, "flipped") for ending in ("gz", "bz2", "xz"))],
)
def test_a_damaged_compressed_file_is_named(tmp_path: Path, ending: str, harm: str) -> None:
    content = _COMPRESSED[ending]
    (tmp_path / f"e.csv.{ending}").write_bytes(content[:-100] if harm == "cut" else _flipped(content))
    with pytest.raises(FormatError, match=rf"e\.csv\.{ending}[:,]"):
        _read(open_table(str(tmp_path / f"e.csv.{ending}"), role="edges"))


def _write_people(folder: Path) -> tuple[str, str]:
    (folder / "n.csv").write_text("id,f\n30,0.3\n10,0.1\n20,0.2\n")
    (folder / "labels.csv").write_text("account,label\n10,1\n20,2\n30,3\n")
    return str(folder / "n.csv"), str(folder / "labels.csv")


def test_a_joined_file_with_a_column_of_ids_is_not_read_by_row(tmp_path: Path) -> None:
    nodes, labels = _write_people(tmp_path)
    with pytest.raises(OptionsNeeded, match=r"'account' looks like ids of .*add --drop") as caught:
        _opened(nodes=nodes, joins=labels)
    assert caught.value.options == ["--rename", "node:account=id"]
    found = _read(_nodes(_opened(nodes=nodes, joins=labels, rename="node:account=id")))
    assert dict(zip(found["id"], found["y"], strict=True)) == {30: 3, 10: 1, 20: 2}


def test_the_rows_of_a_joined_file_have_an_order_where_an_option_says_so(tmp_path: Path) -> None:
    nodes, labels = _write_people(tmp_path)
    assert _read(_nodes(_opened(nodes=nodes, joins=labels, drop="node:account")))["y"] == [1, 2, 3]


def test_ids_that_both_files_call_alike_are_the_key(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("txId,f\n30,0.3\n10,0.1\n20,0.2\n")
    (tmp_path / "labels.csv").write_text("txId,label\n10,1\n20,2\n30,3\n")
    with pytest.raises(OptionsNeeded, match="'txId' looks like ids") as caught:
        _opened(nodes=str(tmp_path / "n.csv"), joins=str(tmp_path / "labels.csv"))
    assert caught.value.options == ["--rename", "node:txId=id"]


@pytest.mark.parametrize("column", ["label\n2\n0\n1\n", "rank\n30\n10\n20\n", "age\n7\n8\n9\n"])
def test_columns_that_are_no_ids_are_joined_by_row(tmp_path: Path, column: str) -> None:
    nodes, _ = _write_people(tmp_path)
    (tmp_path / "more.csv").write_text(column)
    assert _nodes(_opened(nodes=nodes, joins=str(tmp_path / "more.csv"))).num_rows == 3


_PAIRS = {"src": [0, 3], "dst": [1, 2]}


@pytest.mark.parametrize(
    "text",
    ['{"src": 0, "dst": 1}\n{"dst": 2, "src": 3}\n', '[{"src": 0, "dst": 1},\n {"src": 3, "dst": 2}]'],
)
def test_json_is_read_in_lines_and_in_an_array(tmp_path: Path, text: str) -> None:
    (tmp_path / "e.json").write_text(text)
    assert _read(open_table(str(tmp_path / "e.json"), role="edges")) == _PAIRS
    (tmp_path / "_SUCCESS").touch()
    assert _read(open_table(str(tmp_path), role="edges")) == _PAIRS


def test_json_beside_tables_is_no_table(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "info.json").write_text("{}")
    (tmp_path / "e.csv").write_text("src,dst\n0,1\n3,2\n")
    assert _read(open_table(str(tmp_path), role="edges")) == _PAIRS
    assert "files that are not read: info.json" in caplog.text


@pytest.mark.parametrize(
    ("rows", "readings"),
    [
        ("5\t0\t7\n7\t1\t9\n9\t0\t5\n", ["src,column2,dst"]),
        ("5\t7\t0\n7\t9\t1\n9\t5\t0\n", ["src,dst,column3"]),
        ("5\t1\t3\n7\t5\t5\n5\t7\t1\n", ["src,dst,column3", "src,column2,dst"]),
        ("1\t2\t0.5\n2\t1\t1.5\n", ["src,dst,column3"]),
    ],
)
def test_the_ends_among_three_integers_are_told_by_common_values(
    tmp_path: Path, rows: str, readings: list[str]
) -> None:
    (tmp_path / "e.tsv").write_text(rows)
    with pytest.raises(OptionsNeeded) as caught:
        _opened(edges=str(tmp_path / "e.tsv"))
    found = [options[1] for options in caught.value.readings] or [caught.value.options[1]]
    assert found == readings


_GRAPH_OF_TYPES = "x_id,x_type,relation,name,y_id,y_type\n1,gene,binds,A,1,drug\n2,gene,binds,B,1,drug\n"


def test_options_name_a_table_of_types_as_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "kg.csv").write_text(_GRAPH_OF_TYPES)
    edges = f"@x_type,@relation,@y_type={tmp_path / 'kg.csv'}"
    with pytest.raises(OptionsNeeded, match="'name': holds text") as caught:
        _opened(edges=edges)
    assert caught.value.options == ["--drop", "@x_type,@relation,@y_type:name"]
    assert [*_opened(edges=edges, drop=caught.value.options[1]).edges] == [("gene", "@relation", "drug")]


def test_a_table_with_types_in_its_rows_is_refused_with_their_columns(tmp_path: Path) -> None:
    (tmp_path / "kg.csv").write_text(_GRAPH_OF_TYPES)
    with pytest.raises(OptionsNeeded, match="as --edges '@x_type,@relation,@y_type=FILES'"):
        _opened(edges=str(tmp_path / "kg.csv"))


def test_columns_that_are_joined_to_no_table_name_that_of_the_edges(tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("src,dst\n0,1\n3,2\n")
    (tmp_path / "w.csv").write_text("w\n0.5\n1.5\n")
    edges, weights = str(tmp_path / "e.csv"), str(tmp_path / "w.csv")
    with pytest.raises(ValueError, match="of edges by --join node,to,node=FILES"):
        _opened(edges=edges, joins=weights)
    assert "w" in _opened(edges=edges, joins=f"node,to,node={weights}").edges["node", "to", "node"].columns


def test_a_text_file_may_have_thousands_of_columns(tmp_path: Path) -> None:
    names = [f"w{at}" for at in range(3000)]
    (tmp_path / "n.csv").write_text(",".join(["id", *names]) + "\n7" + ",0.5" * 3000 + "\n")
    table = open_table(str(tmp_path / "n.csv"), role="nodes")
    assert [chunk["w2999"].tolist() for chunk in table.read(["id", "w2999"], 10)] == [[0.5]]


def test_a_text_file_with_too_many_columns_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text("id" + ",w" * 20_000 + "\n7" + ",0" * 20_000 + "\n")
    with pytest.raises(FormatError, match=r"20001 columns: text files may have 16384: .* \.npy or Parquet"):
        open_table(str(tmp_path / "n.csv"), role="nodes")


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        ("1.0", "2.", Column("I64")),
        ("1.000000000000000000e+00", "2.000000000000000000e+01", Column("I64")),
        ("1.23457E+15", "1.23457E+15", Column("F64")),
        ("1e+06", "2e+06", Column("F64")),
    ],
)
def test_only_decimal_numbers_with_all_digits_are_ids(
    tmp_path: Path, first: str, second: str, kind: Column
) -> None:
    """Excel writes 1234567890123456 so: other integers look the same."""
    (tmp_path / "e.csv").write_text(f"src,dst\n{first},1\n{second},2\n")
    assert open_table(str(tmp_path / "e.csv"), role="edges").columns["src"] == kind


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (("1,234", "5,678"), [1.234, 1234]),  # Both readings are printed.
        (("0,5", "12,25"), [0.5]),
        (("1,234,567.5", "2,345,678.0"), [1234567.5]),
        (("1.234,5", "2.345,25"), [1234.5]),
    ],
)
def test_numbers_with_commas_are_no_vectors_and_a_query_converts_them(
    tmp_path: Path, cells: tuple[str, str], values: list[float]
) -> None:
    (tmp_path / "e.csv").write_text(f'src,dst,n\n0,1,"{cells[0]}"\n1,2,"{cells[1]}"\n')
    with pytest.raises(OptionsNeeded) as caught:
        _opened(edges=str(tmp_path / "e.csv"))
    assert caught.value.options == []
    found = [
        _read(open_table(query, role="edges"))["n"][0] for [query] in map(dict.values, caught.value.files)
    ]
    assert found == values


def test_texts_that_come_again_and_again_are_to_be_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{at},{('1', '2', 'unknown')[at % 3]},name {at}" for at in range(24)]
    (tmp_path / "n.csv").write_text("\n".join(["id,class,name", *rows, ""]))
    with pytest.raises(OptionsNeeded) as caught:
        _opened(nodes="n.csv")
    assert caught.value.options == ["--encode", "class", "--drop", "name"]


def test_times_with_a_zone_keep_nanoseconds(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(
        "id,t\n0,2020-01-01T00:00:00.123456789+01:00\n1,1970-01-01 00:00:00Z\n2,2020-01-01 00:00:00.5-02\n"
    )
    times = _read(open_table(str(tmp_path / "n.csv"), role="nodes"))["t"]
    assert times == [1577833200123456789, 0, 1577844000500000000]
    (tmp_path / "n.csv").write_text("id,t\n0,9999-01-01T00:00:00Z\n")
    with pytest.raises(
        FormatError, match=r"9999-01-01T00:00:00Z .* outside 1677 to 2262.*: leave the column"
    ):
        _read(open_table(str(tmp_path / "n.csv"), role="nodes"))
