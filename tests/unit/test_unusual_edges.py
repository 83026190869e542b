"""Text files of edges that are no list of edges with a header: what is printed builds the right graph."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_line import run_here
from tests.support.contents import Contents, contents_of

Edges = list[tuple[Any, Any]]
DAY = 86_400 * 10**9
PAIRS = [(0, 1), (0, 2), (1, 2), (3, 4), (4, 0)]
LISTED = "".join(f"{src} {dst}\n" for src, dst in PAIRS)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(arguments: str) -> str:
    """Run a build that is refused; return what it says."""
    done = run_here("partition", "graph", *shlex.split(arguments))
    assert done.returncode == 2, done.stderr
    return done.stderr.strip()


def commands(error: str) -> list[str]:
    """Return the commands that a refusal prints."""
    _, found, listed = re.split(r"(This would work: |Choose: )", error)
    assert found, error
    return listed.split("; or: ")


def contents(command: str) -> Contents:
    """Run a printed command; return what its graph contains."""
    done = run_here(*shlex.split(command)[1:], "--overwrite")
    assert done.returncode == 0, done.stderr
    return contents_of(Path("graph"))


def edges_of(command: str) -> Edges:
    """Run a printed command; return the edges of its graph, sorted."""
    [rows] = contents(command).edges.values()
    return sorted((row[0], row[1]) for row in rows)


@pytest.mark.parametrize(("between", "last"), [(" ", "7 8 9.6"), (",", "7\t8,9.6")])
def test_a_decimal_far_down_a_list_of_neighbours_is_no_node(folder: Path, between: str, last: str) -> None:
    """DuckDB's cast would round it."""
    lists = (between.join(map(str, range(node, node + node % 3 + 1))) for node in range(200_000))
    rows = (f"{node}{last[1]}{others}" for node, others in enumerate(lists))
    (folder / "e.txt").write_text("\n".join([*rows, last]))
    *_, command = commands(refused("--edges e.txt"))
    done = run_here(*shlex.split(command)[1:], "--overwrite")
    assert (done.returncode, "no integer: 9.6" in done.stderr) == (2, True), done.stderr


NEIGHBOURS = [(0, 1), (0, 2), (1, 2), (3, 4)]


@pytest.mark.parametrize(
    ("text", "options", "readings"),
    [
        (f"5 5\n{LISTED}", "", [PAIRS, [*PAIRS, (5, 5)]]),
        (f"5 5\n{LISTED}", " --csv-columns src,dst", [PAIRS, [*PAIRS, (5, 5)]]),
        ("4 4 2\n0 1 7\n2 3 7\n", " --csv-columns src,dst,w", [[(0, 1), (2, 3)], [(0, 1), (2, 3), (4, 4)]]),
        ("3\n0 1\n1 2\n", "", [[(0, 1), (1, 2)]]),
        ("3 2\n0 1 0.5\n1 2 0.25\n", " --csv-columns src,dst,w", [[(0, 1), (1, 2)]]),
        ("0 1 2\n1 2\n3 4\n", "", [NEIGHBOURS]),
        ("# a comment\n0: 1 2\n1: 2\n3: 4\n5:\n", "", [NEIGHBOURS]),
        ("0\t1,2\n1\t2\n3\t4\n", "", [NEIGHBOURS]),
        ("0\t1,2\n1\t2\n3\t4\n", " --csv-columns src,dst", [NEIGHBOURS]),
        ('node,neighbours\n0,"1,2"\n1,2\n3,4\n', "", [NEIGHBOURS]),
        ("0 1 1 0\n0 0 1 0\n0 0 0 0\n0 0 0 1\n", "", [[(0, 1), (0, 2), (1, 2), (3, 3)]]),
        ("0,1,0\n0,0,1\n1,0,1\n", "", [[(0, 1), (1, 2), (2, 0), (2, 2)], [(0, 0), (0, 1), (1, 0)]]),
        (",a,b,c\na,0,2,0\nb,0,0,1\nc,0,0,0\n", "", [[("a", "b"), ("b", "c")]]),
        (",7,8\n7,0,2\n8,1,0\n", "", [[(7, 8), (8, 7)]]),
        ("Exported today\nsrc,dst\na,b\nb,c\n", "", [[("a", "b"), ("b", "c")]]),
        ("Exported today,\nfrom,to\n1,2\n2,3\n", "", [[(1, 2), (2, 3)]]),
        ("src:dst\na:b\nb:c\n", "", [[("a", "b"), ("b", "c")]]),
    ],
)
def test_each_reading_of_a_file_is_a_command(text: str, options: str, readings: list[Edges]) -> None:
    Path("e.txt").write_text(text)
    found = commands(refused(f"--edges e.txt{options}"))
    assert [edges_of(command) for command in found] == readings


@pytest.mark.parametrize("options", ["", " --csv-columns src,dst"])
@pytest.mark.parametrize("text", ["3 3\n2 3\n1 3\n1 2\n", "4 3\n2\n1 3\n2 4\n3\n"])
def test_a_file_of_metis_is_no_list_of_edges(text: str, options: str) -> None:
    Path("g.txt").write_text(text)
    assert "g.txt: no reader for METIS" in refused(f"--edges g.txt{options}")


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("c a comment\np sp 4 2\na 1 2 7\na 2 3 8\n", "DIMACS"),
        ("p edge 3 2\ne 1 2\ne 2 3\n", "DIMACS"),
        ('*Vertices 2\n1 "a"\n2 "b"\n*Arcs\n1 2 1\n', "Pajek"),
        ("dl n=3 format=edgelist1\ndata:\n1 2\n2 3\n", "UCINET's DL"),
    ],
)
def test_texts_of_other_programs_are_known_by_their_first_lines(text: str, kind: str) -> None:
    Path("g.txt").write_text(text)
    assert f"g.txt: no reader for {kind}; in Python:" in refused("--edges g.txt")


@pytest.mark.parametrize(
    "text",
    [
        "sep=;\nsrc;dst;w\n1;2;0.5\n2;3;1\n",  # Excel
        '"src" "dst" "w"\n"1" 1 2 0.5\n"2" 2 3 1\n',  # R
        'src  dst w\n "1"   "2" 0.5\n "2" "3" 1\n',
        "src\x01dst\x01w\n1\x012\x010.5\n2\x013\x011\n",  # Hive
    ],
)
def test_files_as_other_programs_write_them_build_at_once(text: str) -> None:
    Path("e.txt").write_text(text)
    assert contents("gigl-loader partition graph --edges e.txt").edges == {
        ("node", "to", "node"): [(1, 2, 0.5), (2, 3, 1.0)]
    }


def test_texts_in_quotes_keep_their_blanks() -> None:
    Path("e.txt").write_text('src dst\n"New  York"   Oslo\nOslo "Rio de  Janeiro"\n')
    [edges] = contents("gigl-loader partition graph --edges e.txt").edges.values()
    assert edges == [("New  York", "Oslo"), ("Oslo", "Rio de  Janeiro")]


def test_a_comment_between_texts_is_no_edge() -> None:
    Path("e.csv").write_text("src,dst\na,b\n# c,d\nb,c\n")
    assert "e.csv, line 3, column 'src': '# c' looks like a comment" in refused("--edges e.csv")
    assert len(contents("gigl-loader partition graph --edges e.csv --dtype src=text").nodes["node"]) == 5


@pytest.mark.parametrize(
    ("cells", "days"),
    [
        (("13/02/2020", "01/03/2020"), [[43, 60]]),
        (("01/02/2020", "03/04/2020"), [[31, 93], [1, 63]]),
        (("13.02.2020", "14.02.2020"), [[43, 44]]),
        (("13-Feb-2020", "14-Feb-2020"), [[43, 44]]),
        (("2/13/2020 12:00", "2/14/2020 00:00"), [[43.5, 44]]),
    ],
)
def test_dates_of_other_forms_are_converted_by_the_command(
    cells: tuple[str, str], days: list[list[float]]
) -> None:
    Path("e.csv").write_text(f"src,dst,when\n0,1,{cells[0]}\n1,2,{cells[1]}\n")
    begin = 18_262  # 2020-01-01
    found = [
        [row[2] / DAY - begin for row in contents(command).edges["node", "to", "node"]]
        for command in commands(refused("--edges e.csv"))
    ]
    assert found == days


def test_a_query_that_converts_leaves_other_columns_as_they_are() -> None:
    Path("n.csv").write_text("id;born;w;city\n007;13/02/2020;0,5;Oslo\n7;14/02/2020;1,5;Rom\n")
    Path("e.csv").write_text("src;dst\n007;7\n")
    [command] = commands(refused("--edges e.csv --nodes n.csv --encode city"))
    assert [*contents(command).nodes["node"]] == ["007", "7"]
    assert "decimal_separator = ','" in command


def test_columns_of_yes_and_no_are_booleans() -> None:
    Path("e.csv").write_text("src,dst,a,b\n0,1,yes,t\n1,2,no,f\n")
    [command] = commands(refused("--edges e.csv"))
    assert contents(command).edges["node", "to", "node"] == [(0, 1, True, True), (1, 2, False, False)]


@pytest.mark.parametrize("header", ["user_id,item_id,timestamp,state_label,list", "userId,itemId,timestamp"])
def test_ends_that_name_two_types_are_not_merged_unasked(header: str) -> None:
    Path("e.csv").write_text(f"{header}\n0,0,0.5,0,-0.5,0.25,1\n1,0,36,0,-0.5,0.25,2\n")
    same, two = commands(refused("--edges e.csv"))
    assert {*contents(same).nodes} == {"node"}
    found = contents(two)
    assert {kind: [*nodes] for kind, nodes in found.nodes.items()} == {"user": [0, 1], "item": [0]}
    assert [row[:2] for row in found.edges["user", "to", "item"]] == [(0, 0), (1, 0)]


def test_types_in_rows_and_columns_for_edges_have_commands() -> None:
    Path("kg.csv").write_text("head,head_type,rel,tail,tail_type\n1,gene,binds,1,drug\n2,gene,binds,1,drug\n")
    *_, typed = commands(refused("--edges kg.csv"))
    assert contents(typed).edges == {("gene", "binds", "drug"): [(1, 1), (2, 1)]}
    Path("e.csv").write_text("src,dst\n0,1\n1,2\n")
    np.save("w.npy", np.array([0.5, 0.25], np.float32))
    [joined] = commands(refused("--edges e.csv --join w.npy"))
    assert contents(joined).edges["node", "to", "node"] == [(0, 1, 0.5), (1, 2, 0.25)]


def test_nodes_without_header_have_ids_only_where_edges_name_them() -> None:
    Path("e.csv").write_text("src,dst\n0,1\n1,2\n")
    Path("f.csv").write_text("7,1.5\n9,2.5\n11,3.5\n")
    [command] = commands(refused("--edges e.csv --nodes f.csv"))
    assert contents(command).nodes["node"][1] == {"x": [9.0, 2.5]}


def test_files_of_a_directory_that_differ_have_commands() -> None:
    for name, number in (("logs/part.parquet", 0), ("logs/dt=x/part.parquet", 1)):
        Path(name).parent.mkdir(exist_ok=True)
        pq.write_table(pa.table({"src": [number], "dst": [number + 1]}), name)
    inside, outside, both = commands(refused("--edges logs"))
    assert [edges_of(each) for each in (inside, outside, both)] == [[(1, 2)], [(0, 1)], [(0, 1), (1, 2)]]
    pq.write_table(pa.table({"src": pa.array([3], pa.int32()), "dst": [4]}), "logs/more.parquet")
    assert edges_of(commands(refused("--edges 'logs/*.parquet'"))[0]) == [(0, 1), (3, 4)]


def test_bytes_of_parquet_are_decoded_by_the_command() -> None:
    pq.write_table(pa.table({"src": [b"a", b"b"], "dst": [b"b", b"c"]}), "e.parquet")
    [command] = commands(refused("--edges e.parquet"))
    assert edges_of(command) == [("a", "b"), ("b", "c")]
