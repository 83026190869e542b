"""Values of tables that a reader could take for others: none is, a refusal names it, or a warning tells."""

from __future__ import annotations

import logging
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import FormatError
from gigl_loader.graph.schema import Column
from gigl_loader.partition import (
    ColumnOptions,
    GraphTables,
    build_graph,
    open_table,
    with_reverse_edges,
)
from gigl_loader.partition.readers import Table
from gigl_loader.partition.readers.text_format import CsvFormat
from gigl_loader.partition.roles import Role

EDGE = ("node", "to", "node")
NAMED = CsvFormat(columns=("src", "dst"))


def edges_of(tmp_path: Path, text: str, *, name: str = "e.csv", **options: Any) -> Table:
    (tmp_path / name).write_bytes(text.encode())
    return open_table(str(tmp_path / name), role="edges", options=ColumnOptions(**options))


def values(table: Table) -> dict[str, list[Any]]:
    chunks = list(table.read(list(table.columns), 1 << 20))
    return {name: [each for chunk in chunks for each in chunk[name].tolist()] for name in table.columns}


@pytest.mark.parametrize(
    ("text", "options", "rows"),
    [
        ("src,dst\n1,2\nsrc,dst\n3,4\n", {}, {"src": [1, 3], "dst": [2, 4]}),
        ("src,dst\r\n1,2\r\nsrc,dst\r\n3,4", {}, {"src": [1, 3], "dst": [2, 4]}),
        ("\ufeffsrc,dst\na,b\nc,d\nsrc,dst", {}, {"src": ["a", "c"], "dst": ["b", "d"]}),
        ("src,dst\na,b\n", {"csv": NAMED}, {"src": ["a"], "dst": ["b"]}),
    ],
)
def test_a_header_line_that_comes_again_is_no_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, options: dict[str, Any], rows: Any
) -> None:
    with caplog.at_level(logging.WARNING):
        assert values(edges_of(tmp_path, text, **options)) == rows
    assert "e.csv: left out 1 header lines that came again" in caplog.text


def test_lines_are_counted_with_those_that_are_left_out(tmp_path: Path) -> None:
    table = edges_of(
        tmp_path, "# of\n# old\n1,2\nsrc,dst\n3,x\n4,5\n5,6\n6,7\n", csv=NAMED, dtypes={"dst": "int64"}
    )
    with pytest.raises(FormatError, match=r"e\.csv, line 5, column 'dst'"):
        values(table)


@pytest.mark.parametrize("line", [":START_ID,:END_ID", "user,item"])
@pytest.mark.parametrize("rows", ["1,2\n3,4\n", "a,b\nc,d\n"])
def test_a_header_in_a_file_of_its_own_is_refused(tmp_path: Path, line: str, rows: str) -> None:
    (tmp_path / "0.csv").write_text(line + "\n")
    (tmp_path / "1.csv").write_text(rows)
    with pytest.raises(FormatError, match=rf"0\.csv: its one line, '{line}', looks like the header"):
        open_table(str(tmp_path), role="edges", options=ColumnOptions(csv=NAMED))


def test_comments_at_the_top_are_no_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        table = edges_of(tmp_path, "# a\tb\n% c\nx\ty\n#z\tx\n", name="e.tsv", csv=NAMED)
    assert values(table) == {"src": ["x", "#z"], "dst": ["y", "x"]}
    assert "e.tsv: left out 2 lines of comments at the top" in caplog.text
    assert values(edges_of(tmp_path, "#a,#b\n#c,#d\n", csv=NAMED))["src"] == ["#a", "#c"]  # All begin so.
    named = edges_of(tmp_path, "# of\n# src\tdst\n1\t2\n", name="f.tsv")
    assert values(named) == {"src": [1], "dst": [2]}


@pytest.mark.parametrize(
    ("text", "form", "said"),
    [
        ("src,dst\n1,2\n# more,5\n3,4\n", CsvFormat(), "line 3, column 'src': '# more' among integers"),
        ("user,item\n1,2\n3,4\n", NAMED, "line 1, column 'src': 'user' among integers"),
        ("src,dst\n1,2\n2,unknown\n3,4\n", CsvFormat(), "line 3, column 'dst': 'unknown' among integers"),
    ],
)
def test_a_text_alone_among_integers_is_refused(
    tmp_path: Path, text: str, form: CsvFormat, said: str
) -> None:
    with pytest.raises(FormatError, match=said):
        edges_of(tmp_path, text, csv=form)
    table = edges_of(tmp_path, text, csv=form, dtypes={"src": "text", "dst": "text"})
    assert len(values(table)["src"]) == 3


def test_leading_zeros_and_hexadecimal_numbers_stay_texts(tmp_path: Path) -> None:
    for first in ("007", "0xffffffffffffffff", "0x10"):
        assert values(edges_of(tmp_path, f"src,dst\n{first},0\n7,5\n")) == {
            "src": [first, "7"],
            "dst": [0, 5],
        }
    table = open_nodes(tmp_path, "id,hash\n0,0xffffffffffffffff\n1,2\n")
    assert table.columns["hash"] == "text"


def open_nodes(tmp_path: Path, text: str, **options: Any) -> Table:
    (tmp_path / "n.csv").write_text(text)
    return open_table(str(tmp_path / "n.csv"), role="nodes", options=ColumnOptions(**options))


@pytest.mark.parametrize(
    ("last", "said"),
    [
        ("007,0.5", "line 1002, column 'user': '007' among integers: --dtype src=text"),
        ("0x7,0.5", "line 1002, column 'user': '0x7' among integers: --dtype src=text"),
        (
            "7,167781560.0",
            r"column 'ts': 167781560\.0 would be 167781568\.0 in float32: --dtype time=float64",
        ),
    ],
)
def test_a_value_behind_the_first_block_is_refused_too(tmp_path: Path, last: str, said: str) -> None:
    text = "user,ts,note\n" + f"12345,0.5,{'long ' * 1000}\n" * 1000 + last + ",\n"
    table = edges_of(tmp_path, text, rename={"user": "src", "ts": "time"}, drop=["note"])
    with pytest.raises(FormatError, match=said):
        values(table)


@pytest.mark.parametrize("token", ["\\N", "NULL", "NA", "None"])
def test_a_word_for_a_missing_id_is_no_node(tmp_path: Path, token: str) -> None:
    text = f"src,dst\na,{token}\n{token},b\n"
    assert values(edges_of(tmp_path, text)) == {"src": ["a", ""], "dst": ["", "b"]}
    with pytest.raises(FormatError, match=r"e\.csv, line 3, column 'src': no id: nothing, or a word for it"):
        build_graph(GraphTables({EDGE: edges_of(tmp_path, text)}), str(tmp_path / "g"))
    as_told = edges_of(tmp_path, text, dtypes={"src": "text", "dst": "text"})
    assert values(as_told)["src"] == ["a", "" if token == "\\N" else token]
    assert values(open_nodes(tmp_path, "id,t\n0,\\N\n1,NA\n2,x\n"))["t"] == ["", "NA", "x"]


@pytest.mark.parametrize("text", ["1577836800.123", "167781560.0", "1e300"])
def test_decimal_numbers_keep_their_digits(tmp_path: Path, text: str) -> None:
    table = open_nodes(tmp_path, f"id,v,w\n0,{text},16777216.0\n1,,0.1\n", fill={"v": "0"})
    assert table.columns["v"] == Column("F64")
    assert table.columns["w"] == Column("F32")
    assert values(table)["v"] == [float(text), 0.0]
    asked = open_nodes(tmp_path, "id,v\n0,1577836800.123\n", dtypes={"v": "float32"})
    assert values(asked)["v"] == [1577836800.0]


def test_files_that_disagree_about_digits_say_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("src,dst,t\n0,1,0.5\n")
    (tmp_path / "1.csv").write_text("src,dst,t\n0,1,1577836800.123\n")
    with pytest.raises(FormatError, match=r"1\.csv, column 't': F64 .* \(--dtype t=float64\)"):
        open_table(str(tmp_path), role="edges")


def test_integers_beyond_int64_are_never_rounded_unasked(tmp_path: Path) -> None:
    with pytest.raises(
        FormatError, match=r"line 3, column 'h': 9223372036854775809 does not fit .*--dtype h=float64"
    ):
        open_nodes(tmp_path, "id,h\n0,1\n1,9223372036854775809\n")


def test_whole_decimals_of_parquet_are_integers(tmp_path: Path) -> None:
    big = [Decimal(2**60 + 1), Decimal(2**60 + 2)]
    assert values(parquet(tmp_path, src=pa.array(big, pa.decimal128(38, 0)))) == {
        "src": [2**60 + 1, 2**60 + 2]
    }
    with pytest.raises(FormatError, match=r"column 'src', row 1: 9223372036854775808 does not fit in int64"):
        values(parquet(tmp_path, src=pa.array([None, Decimal(2**63)], pa.decimal128(38, 0))))


def test_decimal_ids_that_may_be_rounded_are_refused(tmp_path: Path) -> None:
    for column in (pa.array([1.0, 2.0**53]), pa.array([1.0, 2.0**24], pa.float32())):
        with pytest.raises(FormatError, match=r"column 'src', row 1: \d+\.0 is no int64"):
            values(parquet(tmp_path, dtypes={"src": "int64"}, src=column))


def parquet(tmp_path: Path, *, dtypes: dict[str, str] | None = None, **columns: Any) -> Table:
    pq.write_table(pa.table(columns), tmp_path / "e.parquet", use_deprecated_int96_timestamps=True)
    return open_table(str(tmp_path / "e.parquet"), role="edges", options=ColumnOptions(dtypes=dtypes or {}))


def test_old_times_of_parquet_beyond_nanoseconds_are_refused(tmp_path: Path) -> None:
    moments = [datetime(2020, 1, 1), datetime(2262, 1, 1, 0, 0, 0, 1)]
    assert values(parquet(tmp_path, t=pa.array(moments, pa.timestamp("us"))))["t"][1] == 9214646400000001000
    late = pa.array([*moments, datetime(9999, 12, 31)], pa.timestamp("us"))
    with pytest.raises(FormatError, match=r"column 't', row 2: 9999-12-31 .* lies outside 1677 to 2262"):
        values(parquet(tmp_path, t=late))


def test_an_array_that_can_be_read_in_two_ways_tells_how_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    np.save(tmp_path / "e.npy", [[0, 1], [0, 2]])
    role: Role = "edges"
    with caplog.at_level(logging.WARNING):
        assert values(open_table(str(tmp_path / "e.npy"), role=role)) == {"src": [0, 1], "dst": [0, 2]}
    assert "e.npy: shape [2, 2] is read as [2, E]: two sources, then two destinations" in caplog.text


@pytest.mark.parametrize("ids", [[5, 5], [9, 3, 9], [1, 2, 3, 1]])
def test_an_edge_id_given_twice_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ids: list[int]
) -> None:
    rows = "".join(f"0,{at},{edge}\n" for at, edge in enumerate(ids))
    build_graph(GraphTables({EDGE: edges_of(tmp_path, "src,dst,id\n" + rows)}), str(tmp_path / "g"))
    assert f"e.csv, line {len(ids) + 1}, column 'id': edge id {ids[-1]} comes again" in caplog.text


@pytest.mark.parametrize("ids", [[1, 2, 3], [3, 2, 1]])
def test_edges_of_both_directions_have_each_id_twice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ids: list[int]
) -> None:
    rows = "".join(f"0,{at},{edge}\n" for at, edge in enumerate(ids))
    tables = GraphTables({EDGE: edges_of(tmp_path, "src,dst,id\n" + rows)})
    build_graph(with_reverse_edges(tables, undirected=True), str(tmp_path / "g"))
    assert "edge id" not in caplog.text


def test_whole_decimals_are_ids_and_integers_on_demand(tmp_path: Path) -> None:
    text = "src,dst,t\n0.0,1e0,36.0\n2.000000000000000000e+00,3.,7\n"
    table = edges_of(tmp_path, text, dtypes={"t": "int64"})
    assert [each.dtype for each in (table.columns[name] for name in ("src", "dst", "t"))] == ["I64"] * 3  # type: ignore[union-attr]
    assert values(table) == {"src": [0, 2], "dst": [1, 3], "t": [36, 7]}
    for bad in ("0.5", "9007199254740993.0", "01.0"):
        with pytest.raises(FormatError, match=rf"line 1004, column 'src': '{bad}' among integers"):
            values(edges_of(tmp_path, "src,dst,note\n" + f"0.0,1,{'long ' * 1000}\n" * 1002 + f"{bad},2,\n"))
    with pytest.raises(FormatError, match=r"line 2, column 't': '36\.5' is no integer"):
        values(edges_of(tmp_path, "src,dst,t\n0,1,36.5\n", dtypes={"t": "int64"}))


def test_masks_of_zeros_and_ones_are_splits(tmp_path: Path) -> None:
    table = open_nodes(tmp_path, "id,train_mask,x\n0,1,0\n1,0,1\n")
    assert (table.columns["train_mask"], table.columns["x"]) == (Column("BOOL"), Column("I64"))
    assert values(table)["train_mask"] == [True, False]
