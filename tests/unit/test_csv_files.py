"""CSV files as they are: delimiters, quotes, empty lines, and messages that name the right line."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import pytest

from gigl_loader import FormatError
from gigl_loader.graph import MemoryFolder
from gigl_loader.partition import ColumnOptions, GraphTables, build_graph, open_table
from gigl_loader.partition.readers.text_format import CsvFormat, only_integers


def rows_of(path: Path, form: CsvFormat = CsvFormat(), **options: Any) -> dict[str, list[Any]]:  # noqa: B008
    table = open_table(str(path), role="nodes", options=ColumnOptions(csv=form, **options))
    chunks = list(table.read(list(table.columns), 2))
    return {name: [value for chunk in chunks for value in chunk[name].tolist()] for name in table.columns}


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("n.csv", "id,x\na,1\nb,2\n", CsvFormat()),
        ("n.tsv", "id\tx\na\t1\nb\t2\n", CsvFormat()),
        ("n.csv", "id;x\na;1\nb;2\n", CsvFormat(";")),
        ("n.csv", "id|x\n'a'|1\n'b'|2\n", CsvFormat("|", quote="'")),
        ("n.tsv", "id,x\na,1\nb,2\n", CsvFormat(",")),
        ("n.csv", '"id","x"\r\n"a",1\r\n\r\n"b",2', CsvFormat()),
    ],
)
def test_delimiters_and_quotes_are_as_told(tmp_path: Path, name: str, text: str, form: CsvFormat) -> None:
    (tmp_path / name).write_text(text)
    assert rows_of(tmp_path / name, form) == {"id": ["a", "b"], "x": [1, 2]}


def test_quoted_values_may_have_delimiters_quotes_and_lines(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text('id,x\n"a,b",1\n"say ""hi""",2\n"two\nlines",3\n')
    assert rows_of(path) == {"id": ["a,b", 'say "hi"', "two\nlines"], "x": [1, 2, 3]}
    path.write_text('id;x\n"a;1\nb";2\n')
    assert rows_of(path, CsvFormat(";", quote="")) == {"id": ['"a', 'b"'], "x": [1, 2]}


@pytest.mark.parametrize("rows", [3, 300_000])
def test_a_quote_that_is_not_closed_is_told(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "n.csv"
    lines = [f"user-{row},{row}" for row in range(rows)]
    path.write_text("\n".join(["id,x", "a,1", 'b,"2', *lines]) + "\n")
    with pytest.raises(FormatError, match=r"n\.csv(, line 3)?: a quote that is not closed"):
        rows_of(path)


def test_a_quote_within_a_value_is_a_quote(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text('id,x\n5" pipe,1\nb,2\n')
    assert rows_of(path) == {"id": ['5" pipe', "b"], "x": [1, 2]}


def test_a_long_value_before_an_error_does_not_hide_it(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text(f'id,t,x\n0,"{"long " * 40_000}",1\n1,b,\n')
    with pytest.raises(FormatError, match=r"n\.csv, line 3, column 'x'"):
        rows_of(path, drop=["t"])


def test_a_file_that_is_cut_is_named(tmp_path: Path) -> None:
    path = tmp_path / "n.csv.gz"
    data = gzip.compress("".join(f"{row * 7919},{row}\n" for row in range(100_000)).encode())
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(FormatError, match=r"n\.csv\.gz: "):
        rows_of(path)


DELIMITED = {
    "semicolons in .csv": ("n.csv", "id;x\na;1\nb;2\n"),
    "tabs in .csv": ("n.csv", "id\tx\na\t1\nb\t2\n"),
    "bars in .txt": ("n.txt", "id|x\na|1\nb|2\n"),
    "two colons": ("n.dat", "id::x\na::1\nb::2\n"),
    "commas without an ending": ("n", "id,x\na,1\nb,2\n"),
    "a comma in each value of tabs": ("n.txt", "id\tx\na,\t1\nb,\t2\n"),
}


@pytest.mark.parametrize("case", DELIMITED)
def test_the_delimiter_is_what_splits_all_lines_alike(tmp_path: Path, case: str) -> None:
    name, text = DELIMITED[case]
    (tmp_path / name).write_text(text)
    found = rows_of(tmp_path / name)
    assert {key: [str(each).strip(",") for each in column] for key, column in found.items()} == {
        "id": ["a", "b"],
        "x": ["1", "2"],
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"delimiter": ""}, "delimiter of CSV files must be one to four ASCII characters, got ''"),
        ({"delimiter": ":::::"}, "delimiter of CSV files must be one to four"),
        ({"encoding": "latin-7x"}, "unknown encoding 'latin-7x'"),
        ({"delimiter": "\n"}, "delimiter of CSV files must be one"),
        ({"quote": "§"}, "quote of CSV files must be one ASCII"),
        ({"delimiter": '"'}, "delimiter and the quote of CSV files are the same"),
    ],
)
def test_a_format_that_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CsvFormat(**values)


AHEAD = {
    "nothing": ("id,t,x\n0,a,1\n", 3),
    "an empty line": ("id,t,x\n\n0,a,1\n\n", 5),
    "an empty line at the top": ("\nid,t,x\n0,a,1\n", 4),
    "a quoted line end": ('id,t,x\n0,"a\nb\n\nc",1\n', 6),
    "windows lines": ('id,t,x\r\n\r\n0,"a\r\nb",1\r\n', 5),
    "quoted quotes": ('id,t,x\n0,"say ""\n"" to",1\n', 4),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("case", AHEAD)
@pytest.mark.parametrize("bad", ["1,b,", "1,b"])
def test_a_message_names_the_line_in_the_file(
    tmp_path: Path, case: str, bad: str, *, compressed: bool
) -> None:
    text, line = AHEAD[case]
    path = tmp_path / ("n.csv.gz" if compressed else "n.csv")
    data = f"{text}{bad}\n2,c,3\n".encode()
    path.write_bytes(gzip.compress(data) if compressed else data)
    with pytest.raises(FormatError, match=rf"n\.csv(\.gz)?, line {line}\b"):
        rows_of(path, drop=["t"])


@pytest.mark.slow
def test_a_column_that_changes_its_type_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    with path.open("w") as file:
        file.write("id,x\n\n")
        file.writelines(f"{row},123456789\n" for row in range(300_000))
        file.write("300000,0.5\n")
    with pytest.raises(FormatError, match=r"n\.csv, line 300003, column 'x': .*'0\.5'"):
        rows_of(path)


LATE = {
    "a zero": "07,3",
    "a fraction": "3.7,4",
    "a sign": "1-2,3",
    "too large": f"{1 << 63},1",
    "a word": "x,1",
    "a header": "src,dst\ny,2",
}


@pytest.mark.parametrize("case", LATE)
def test_files_of_integers_alone_are_checked_as_others_are(tmp_path: Path, case: str) -> None:
    path, kind = tmp_path / "e.csv", ("node", "to", "node")
    path.write_text("src,dst\n" + f"{1 << 60},2\n" * 210_000)
    build_graph(GraphTables({kind: open_table(str(path), role="edges")}), MemoryFolder())
    with path.open("a") as file:
        file.write(f"{LATE[case]}\n")
    with pytest.raises(FormatError, match=r"e\.csv, line 21000[23], column 'src'"):
        build_graph(GraphTables({kind: open_table(str(path), role="edges")}), MemoryFolder())


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("1,2\n30,-4\n0,-0\n,5", True),
        ("1,02\n", False),
        ("01,2\n", False),
        ("1,2\n-07,1", False),
        ("1,2.5\n", False),
        ("1, 2\n", False),
        ("1,2\r\n", False),
    ],
)
def test_which_texts_are_plain_integers(monkeypatch: pytest.MonkeyPatch, text: str, *, plain: bool) -> None:
    for size in (1, 2, 3, 1 << 18):
        monkeypatch.setattr("gigl_loader.partition.readers.text_format._SCAN_BYTES", size)
        assert only_integers(io.BytesIO(text.encode()), b",") is plain
