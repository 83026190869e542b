"""Roles that columns have by the names that formats and data sets give them, and names with any character."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gigl_loader import DistDataset
from gigl_loader.cli.build_options import TableOptions, UnknownIdHandling
from gigl_loader.cli.printed_command import Change, passing_changes, with_options
from gigl_loader.graph import Graph
from gigl_loader.partition import ColumnOptions, open_table
from gigl_loader.partition.refusals import OptionsNeeded
from gigl_loader.partition.roles import by_convention, end_names
from tests.support.command_line import run_here

EDGE = ("node", "to", "node")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def partition(arguments: str, code: int = 0, **files: str) -> str:
    """Write files, run a build, return what it says."""
    for name, text in files.items():
        Path(f"{name}.csv").write_text(text)
    done = run_here("partition", "graph", "--overwrite", *shlex.split(arguments))
    assert done.returncode == code, done.stderr
    return done.stderr


def edges_of(kind: Any = EDGE) -> set[tuple[Any, Any]]:
    """Return the ends of all edges, as the table has them."""
    graph, dataset = Graph.open("graph"), DistDataset.open("graph")
    topology = graph.topology(kind, 0)
    ends = np.repeat(np.arange(len(topology["indptr"]) - 1), np.diff(topology["indptr"]))

    def ids(positions: Any, node_type: str) -> list[Any]:
        found = graph.directory(node_type).node_ids(np.asarray(positions, np.int64))
        return [*map(_plain, dataset.original_ids(torch.from_numpy(found), node_type))]

    return set(zip(ids(topology["indices"], kind[0]), ids(ends, kind[2]), strict=True))


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


PAIRS = [
    "src,dst",
    "SRC,DST",
    "Source,Target",
    "from,to",
    "src_id,dst_id",
    "srcId,dstId",
    "source_id,target_id",
    "source_node,destination_node",
    "~from,~to",
    ":START_ID(Person),:END_ID(Movie)",
    "a:START_ID,b:END_ID(Movie)",
    "head,tail",
    "h,t",
    "subject,object",
    "start,end",
    "u,v",
    "FromNodeId,ToNodeId",
    "x_id,y_id",
    "node_1,node_2",
    "source:string,target:string",
]


@pytest.mark.parametrize("header", PAIRS)
def test_ends_are_known_by_the_names_of_conventions(header: str) -> None:
    partition("--edges e.csv", e=f"{header},w\n5,7,1\n7,9,2\n")
    assert {(int(a), int(b)) for a, b in edges_of()} == {(5, 7), (7, 9)}
    assert set(Graph.open("graph").schema.edges[EDGE].columns) == {"w"}
    first, second = header.split(",")
    partition("--edges e.csv", e=f"{second},w,{first}\n007,1,x\n7,2,007\n")
    assert edges_of() == {("x", "007"), ("007", "7")}


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("user_id,item_id", ("user", "buys", "item")),
        ("userId,movieId", ("user", "rates", "movie")),
        ("MOVIE,User", ("movie", "of", "user")),
        ("userId,movieId", ("users", "rate", "movies")),
        ("txId1,txId2", ("tx", "pays", "tx")),
    ],
)
def test_ends_are_named_after_their_types(header: str, kind: tuple[str, str, str]) -> None:
    partition(f"--edges {','.join(kind)}=e.csv", e=f"{header}\n5,7\n7,9\n")
    assert edges_of(kind) == {(5, 7), (7, 9)}


@pytest.mark.parametrize(
    ("header", "node_type"),
    [
        ("ID,age", "node"),
        ("NodeId,age", "node"),
        ("~id,age", "node"),
        (":ID,age", "node"),
        (":ID(Person),age:int", "node"),
        ("movieId:ID(Movie),age:int", "node"),
        ("user,age:long", "user"),
        ("user_id,age", "user"),
        ("userId,age", "users"),
    ],
)
def test_ids_of_nodes_are_known_by_the_names_of_conventions(header: str, node_type: str) -> None:
    partition(f"--nodes {node_type}=n.csv", n=f"{header}\n2,20\n0,0\n1,10\n")
    graph = Graph.open("graph")
    assert graph.node_column(node_type, "age", 0).tolist() == [0, 10, 20]
    assert set(graph.schema.nodes[node_type].columns) == {"age"}


def test_the_files_of_neo4j_and_neptune_are_read_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    partition(
        "--nodes movie=n.csv --edges person,acted,movie=e.csv --drop title",
        n="movieId:ID(Movie),title,year:int,secret:IGNORE,:LABEL\nt1,A,1999,q,Movie\nt2,B,2003,q,Movie;Sequel\n",
        e=":START_ID(Person),stars:double,:END_ID(Movie),:TYPE\nann,0.1,t1,ACTED_IN\nbob,0.2,t2,DIRECTED\n",
    )
    assert "n.csv: left out 'secret:IGNORE', which its header says to ignore" in caplog.text
    kind = ("person", "acted", "movie")
    assert edges_of(kind) == {("ann", "t1"), ("bob", "t2")}
    graph, dataset = Graph.open("graph"), DistDataset.open("graph")
    assert graph.node_column("movie", "year", 0).tolist() == [1999, 2003]
    assert sorted(graph.edge_column(kind, "stars", 0).tolist()) == [0.1, 0.2]
    assert dataset.vocabulary("movie", "label") == ("Movie", "Movie;Sequel")
    assert dataset.vocabulary(kind, "label") == ("ACTED_IN", "DIRECTED")
    partition(
        "--edges e.csv --nodes n.csv",
        n="~id,~label,age:Int(single)\na,P,3\nb,P,4\n",
        e="~id,~from,~to,~label,w:Double\n7,a,b,knows,0.5\n9,b,a,likes,0.25\n",
    )
    graph = Graph.open("graph")
    assert sorted(graph.topology(EDGE, 0)["edge_ids"].tolist()) == [7, 9]
    assert str(graph.schema.edges[EDGE].columns["w"].dtype) == "F64"


def test_relations_are_known_by_the_names_of_conventions() -> None:
    for header in ("head,relation,tail", "h,r,t", "subject,predicate,object", ":START_ID,:TYPE,:END_ID"):
        partition("--edges e,@kind,e=e.csv", e=f"{header}\na,likes,b\nb,knows,a\n")
        assert DistDataset.open("graph").edge_types == [("e", "knows", "e"), ("e", "likes", "e")]


def test_two_readings_are_refused_with_the_commands_of_both() -> None:
    error = partition("--edges e.csv", code=2, e="x_id,y_id,x_index,y_index\n5,7,0,1\n7,9,1,2\n")
    assert "ends may be 'x_id' and 'y_id' or 'x_index' and 'y_index'" in error
    found = []
    for command in error.partition("Choose: ")[2].split("; or: "):
        assert run_here(*shlex.split(command)[1:]).returncode == 0
        found.append(edges_of())
    assert found == [{(5, 7), (7, 9)}, {(0, 1), (1, 2)}]
    error = partition("--nodes user=n.csv", code=2, n="ID,user_id,age\n2,7,20\n0,6,0\n1,5,10\n")
    assert "--rename user:ID=id; or: " in error
    assert error.strip().endswith("--rename user:user_id=id")


def test_texts_without_a_convention_may_have_a_header_or_none_and_two_orders() -> None:
    error = partition("--edges e.csv", code=2, e="ann,friend,bob\ncat,enemy,dan\n")
    commands = error.strip().partition("Choose: ")[2].split("; or: ")
    assert "--csv-columns src,relation,dst --encode relation" in commands[1]
    assert "--csv-columns src,dst,relation --encode relation" in commands[2]
    found = []
    for command in commands:
        assert run_here(*shlex.split(command)[1:]).returncode == 0
        found.append(edges_of())
    assert found[0] == {("cat", "enemy")}
    assert found[1:] == [
        {("ann", "bob"), ("cat", "dan")},
        {("ann", "friend"), ("cat", "enemy")},
    ]


def test_the_order_of_triples_is_known_where_ends_have_values_in_common() -> None:
    error = partition("--edges e.csv", code=2, e="ann,bob,friend\nbob,cat,enemy\n")
    assert error.count("--csv-columns") == 1
    assert "--csv-columns src,dst,relation --encode relation" in error
    error = partition("--edges p,@kind,p=e.csv", code=2, e="ann,bob,likes\nbob,ann,likes\nann,cat,friend\n")
    assert "--csv-columns p,@kind,p:src,dst,kind" in error


@pytest.mark.parametrize(
    "header", ["x_id,x_type,relation,y_id,y_type", "head,head_type,relation,tail,tail_type"]
)
def test_types_in_rows_are_refused_unless_an_option_says_what_they_are(header: str) -> None:
    rows = f"{header}\n1,gene,hits,1,disease\n2,gene,hits,1,disease\n"
    _, first, _, _, second = header.split(",")
    error = partition("--edges e.csv --encode relation", code=2, e=rows)
    assert f"e.csv: {first!r} and {second!r} give the types of the ends" in error
    assert "This would work" not in error
    partition(f"--edges e.csv --encode relation --drop {first},{second}")
    partition(f"--edges e.csv --encode relation --encode {first} --encode {second}")
    numbers = rows.replace("gene", "0").replace("disease", "1")
    assert "give the types of the ends" in partition("--edges e.csv --encode relation", code=2, e=numbers)


def test_triples_of_integers_have_their_relation_as_a_column() -> None:
    partition("--edges e.csv", e="h,r,t\n5,0,7\n7,1,9\n")
    assert edges_of() == {(5, 7), (7, 9)}
    assert set(Graph.open("graph").schema.edges[EDGE].columns) == {"r"}


def test_exact_names_come_before_conventions() -> None:
    """Tables that have them are read as before these conventions."""
    names = ["src", "dst", "from", "to", "edgeId", "x_id", "y_id"]
    assert {old: new.name for old, new in by_convention(names, "edges", EDGE).items()} == {}
    names = ["source", "target", "from", "to"]
    assert [new.name for new in by_convention(names, "edges", EDGE).values()] == ["src", "dst"]
    assert by_convention(["id", "node", "ID"], "nodes", "node") == {}
    assert by_convention(["ID", "age"], "nodes", "node", row_ids=True) == {}
    assert by_convention(["age", "age:int"], "nodes", "node")["age:int"].name == "age:int"
    assert end_names(["x", "y", "user"], ("user", "to", "user")) == []


def test_options_come_before_conventions() -> None:
    partition("--edges e.csv --rename a=src --rename b=dst", e="from,to,a,b\n1,2,5,7\n")
    assert edges_of() == {(5, 7)}
    partition("--nodes user=n.csv --encode user --row-ids user", n="user,age\nann,3\nbob,4\n")
    assert set(Graph.open("graph").schema.nodes["user"].columns) == {"user", "age"}
    partition("--edges e.csv --drop from,to", e="u,v,from,to\n1,2,5,7\n")
    assert edges_of() == {(1, 2)}


def test_tables_in_python_have_the_type_that_options_give() -> None:
    Path("n.csv").write_text("user_id,age\n7,1\n")
    assert set(open_table("n.csv", role="nodes").columns) == {"user_id", "age"}
    assert set(open_table("n.csv", role="nodes", options=ColumnOptions(type="user")).columns) == {"id", "age"}


# Files without a header


def test_the_files_of_ogb_build_after_one_step() -> None:
    error = partition(
        "--edges e.csv --nodes n.csv --split train=train.csv",
        code=2,
        e="0,1\n1,2\n",
        n="0.5,-0.25\n1.5,0.75\n2.5,3.0\n",
        train="0\n2\n",
    )
    _, _, command = error.strip().partition("This would work: gigl-loader ")
    assert run_here(*shlex.split(command)).returncode == 0
    graph = Graph.open("graph")
    assert graph.node_column("node", "x", 0).tolist() == [[0.5, -0.25], [1.5, 0.75], [2.5, 3.0]]
    assert graph.split("node", "train").tolist() == [0, 2]
    assert edges_of() == {(0, 1), (1, 2)}


def test_a_header_is_no_row_where_columns_are_named() -> None:
    options = "--edges user,buys,item=e.csv --csv-columns src,dst"
    error = partition(options, code=2, e="user,item\nann,tea\nbob,milk\n")
    assert "e.csv: the first line, 'user,item', looks like a header: leave --csv-columns out" in error
    assert "This would work" not in error
    partition(options, e="ann,tea\nbob,milk\n")
    partition("--edges user,buys,item=e.csv --csv-columns user,item", e="ann,tea\nbob,milk\n")
    assert edges_of(("user", "buys", "item")) == {("ann", "tea"), ("bob", "milk")}


# Names with any character


def test_names_with_any_character_can_be_given() -> None:
    header = '"from:a","to=b","w,1","t:""q""","x*[0]",city:kind,node:z'
    rows = "5,7,0.5,3,1.5,Ulm,0.1\n7,9,0.25,4,2.5,Bonn,0.2\n"
    partition(
        """--edges e.csv --rename from:a=src --rename '"to=b"=dst' --drop '"w,1"' --rename 't:"q"=t'
        --fill '"x*[0]"=0' --quantize '"x*[0]"=int8' --encode city:kind --time t --weight '"node:z"'""",
        e=header + "\n" + rows,
    )
    edges = Graph.open("graph").schema.edges[EDGE]
    assert edges_of() == {(5, 7), (7, 9)}
    assert set(edges.columns) == {"t", "x*[0]", "city:kind", "node:z"}
    assert edges.columns["x*[0]"].quantized is not None
    assert set(edges.vocabularies) == {"city:kind"}
    assert (edges.weights, edges.times) == (("node:z",), ("t",))


def test_printed_commands_write_names_with_any_character() -> None:
    error = partition(
        "--edges e.csv --nodes n.csv",
        code=2,
        e='"a:src","b=dst","n,te","w:1"\n5,7,x,\n7,9,y,1\n',
        n='"user:key","age,","what?"\n5,3,\n7,,a\n9,5,b\n',
    )
    for _ in range(2):
        _, _, command = error.strip().partition("This would work: gigl-loader ")
        done = run_here(*shlex.split(command))
        error = done.stderr
    assert done.returncode == 0, error
    assert edges_of() == {(5, 7), (7, 9)}
    assert Graph.open("graph").node_column("node", "age,", 0).tolist() == [3, 4, 5]


# Printed commands


def test_relations_in_a_table_of_one_type_are_encoded_or_make_types() -> None:
    error = partition("--edges e.csv", code=2, e="head,relation,tail\na,likes,b\nb,knows,a\n")
    assert "'relation': names relations: --edges node,@relation,node=FILES makes a type of each" in error
    _, _, command = error.strip().partition("This would work: gigl-loader ")
    assert run_here(*shlex.split(command)).returncode == 0
    assert DistDataset.open("graph").vocabulary(EDGE, "relation") == ("knows", "likes")
    partition("--edges node,@relation,node=e.csv")
    assert len(DistDataset.open("graph").edge_types) == 2


def test_a_printed_command_has_passed_the_same_checks() -> None:
    """What is refused in the next step is among the options of the first, or no command is printed."""
    error = partition("--edges e.csv", code=2, e="a,b,when,batch,what\nn5,2,3,4,x\nn3,4,5,6,y\n")
    _, _, command = error.strip().partition("This would work: gigl-loader ")
    done = run_here(*shlex.split(command))
    assert done.returncode == 0, done.stderr


def test_a_command_that_would_be_refused_is_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(problems: list[str], *_: Any) -> OptionsNeeded:
        return OptionsNeeded(problems, ["--drop", "nothing"])

    monkeypatch.setattr("gigl_loader.partition.checks.OptionsNeeded", refuse)
    error = partition("--edges e.csv", code=2, e="src,dst,what\n5,2,x\n3,4,y\n")
    assert error == "gigl-loader: e.csv, column 'what': holds text, not numbers\n"


def test_options_of_several_refusals_are_put_together() -> None:
    Path("e.csv").write_text("a,b,n_id,what\nx,2,4,p\n3,4,6,q\n")
    given = TableOptions(edges=["e.csv"])
    [passing] = passing_changes(given, Change(["--rename", "a=src", "--rename", "b=dst"]))
    assert passing.added[4:] == [
        *("--dtype", "node,to,node:dst=text", "--drop", "what"),
        *("--rename", "node,to,node:n_id=edge_n_id"),
    ]
    assert passing_changes(given, Change(["--drop", "nothing"])) == []
    assert with_options(given, Change(["--unknown-ids", "add"])).unknown_ids is UnknownIdHandling.add
