"""Tables as people have them: what is wrong is told at once, with a command that builds the graph."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader import DistABLPLoader, DistDataset, DistLinkNeighborLoader, FormatError
from gigl_loader.graph import Graph, MemoryFolder
from gigl_loader.partition import ArrayTable, GraphTables, build_graph
from tests.support.command_line import run_here

FILES = {
    "follows.csv": "follower,followee,since\nann,bob,1\nbob,cat,2\n",
    "packages.csv": ",p,d\n0,zlib,libc\n1,curl,zlib\n",
    "snap.csv": "0,1\n1,2\n2,0\n",
    "repos.tsv": "1\thttps://host/a\n2\thttps://host/b\n",
    "weighted.tsv": "7\t9\t0.5\n9\t8\t1.5\n",
    "triples.tsv": "ann\tlikes\tbob\nbob\tlikes\tcat\nbob\tknows\tann\n",
    "buys.csv": "user_id,item,when,note\nann,tea,3,hot\nbob,milk,4,cold\n",
    "users.csv": "Unnamed: 0,id,name,city,age\n0,ann,Ann,Ulm,3\n1,bob,Bob,Bonn,4\n",
    "items.csv": "5,0.5\n6,0.25\n",
    "both.csv": "src,dst,name\n0,1,a\n",
    "named.csv": "id,name\n0,1\n1,2\n",
    "people.csv": ",town,name\n0,Ulm,ann\n1,Ulm,bob\n2,Bonn,cat\n",
    "texts.csv": "id,feature\n0,a\n1,b\n",
    "gaps.csv": "id,age,born,x\n0,3,2020-01-31,1\n1,,,2\n2,5,2020-02-01,\n",
    "ring.csv": "src,dst\n0,1\n1,2\n2,0\n",
    "halves.csv": "src,dst\n0.5,1\n1,2\n",
    "mixed.csv": "src,dst\nann,1\n1,2\n",
    "codes.csv": "src,code,dst\n0,7,1\n1,8,0\n",
    "reserved.csv": "id,n_id,batch,node_batch\n0,1,2,3\n1,2,3,4\n",
    "acts.csv": "src,action,dst\nann,likes,bob\n",
}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def partition(*arguments: str, code: int = 0) -> str:
    """Run a build; return what it says."""
    done = run_here("partition", "graph", *arguments)
    assert done.returncode == code, done.stderr
    return done.stderr


FOLLOWS = "--edges user,follows,user=follows.csv --rename follower=src --rename followee=dst"

REFUSED: dict[str, tuple[str, list[str], tuple[int, int]]] = {
    "ends by their order": (
        "--edges follows.csv",
        ["follows.csv: no column 'src' and none 'dst'; columns: 'follower', 'followee', 'since'"],
        (3, 2),
    ),
    "ends beside an index of pandas": ("--edges packages.csv", ["--rename p=src --rename d=dst"], (3, 2)),
    "ends by the names of the types, and a column that cannot be kept": (
        "--edges user,buys,item=buys.csv",
        ["buys.csv, column 'note': holds text, not numbers. This would work"],
        (4, 2),
    ),
    "two tables": (
        "--edges user,buys,item=buys.csv --edges user,follows,user=follows.csv",
        ["buys.csv, column 'note': holds text", "follows.csv: no column 'src'"],
        (5, 4),
    ),
    "a list of edges": ("--edges snap.csv", ["'0,1', looks like a row", "--csv-columns src,dst"], (3, 3)),
    "numbers and texts": (
        "--edges package,in,repo=repos.tsv",
        ["--csv-columns package,in,repo:src,dst"],
        (4, 2),
    ),
    "weights": ("--edges weighted.tsv", ["--csv-columns src,dst,column3"], (3, 2)),
    "triples": (
        "--edges ent,@rel,ent=triples.tsv",
        ["the first line, 'ann,likes,bob', looks", "--csv-columns ent,@rel,ent:src,rel,dst"],
        (3, 3),
    ),
    "triples of one type": (
        "--edges triples.tsv",
        ["--csv-columns src,relation,dst --encode relation"],
        (3, 3),
    ),
    "nodes": ("--nodes items.csv", ["'5,0.5', looks like a row", "--csv-columns id,column2"], (2, 0)),
    "texts of two tables": (
        "--nodes user=users.csv --edges user,buys,item=buys.csv --rename user_id=src --rename item=dst",
        [
            "users.csv, column 'name': holds text, not numbers; users.csv, column 'city': holds text",
            "buys.csv, column 'note': holds text",
            "--drop user:name,city --drop user,buys,item:note",
        ],
        (4, 2),
    ),
    "a text beside a number of the same name": (
        "--nodes named.csv --edges both.csv",
        ["--drop node,to,node:name"],
        (2, 1),
    ),
    "a text under another name": ("--nodes texts.csv", ["--drop feature"], (2, 0)),
    "ids of nodes that edges name by texts": (
        "--nodes ent=people.csv --edges ent,@rel,ent=triples.tsv",
        [
            "people.csv: no column 'id', and triples.tsv names nodes of type 'ent' by texts",
            "--csv-columns ent,@rel,ent:src,rel,dst --rename ent:name=id --drop ent:town",
        ],
        (3, 3),
    ),
    "unknown ids": (
        f"--nodes user=users.csv --drop name,city {FOLLOWS}",
        [
            "follows.csv, line 3, column 'followee': unknown node id 'cat' of type 'user'",
            "--unknown-ids drop",
        ],
        (2, 1),
    ),
    "values that are missing": (
        "--nodes gaps.csv --edges ring.csv",
        ["column 'age'", "column 'born'", "column 'x'", "--fill age=mean --drop node:born --fill x=mean"],
        (3, 3),
    ),
    "another name of the relation": (
        "--edges p,@verb,p=acts.csv",
        ["acts.csv: no column 'verb'; columns: 'src', 'action', 'dst'", "--rename p,@verb,p:action=verb"],
        (2, 1),
    ),
    "relations that are numbers": (
        "--edges p,@code,p=codes.csv",
        ["codes.csv, column 'code': holds I64, not texts", "--dtype p,@code,p:code=text"],
        (2, 2),
    ),
    "names of attributes": (
        "--nodes reserved.csv",
        [
            "reserved.csv, column 'batch': has the name of an attribute of every batch",
            "reserved.csv, column 'n_id': has",
            "--rename node:batch=node_batch_ --rename node:n_id=node_n_id",
        ],
        (2, 0),
    ),
    "ids that are decimal numbers": (
        "--edges halves.csv",
        ["halves.csv, column 'src': holds F64", "--dtype node,to,node:src=text"],
        (3, 2),
    ),
    "ids that are texts and numbers": ("--edges mixed.csv", ["--dtype node,to,node:dst=text"], (3, 2)),
    "added nodes without values": (
        f"--nodes user=users.csv --drop name,city {FOLLOWS} --unknown-ids add",
        ["users.csv: 1 nodes are added, which have no value of 'age'", "--fill user:age=0"],
        (3, 2),
    ),
}


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("case", REFUSED)
def test_a_refusal_has_a_command_that_works(case: str) -> None:
    arguments, said, sizes = REFUSED[case]
    error = partition(*arguments.split(), code=2)
    for text in said:
        assert text in error
    _, found, command = error.strip().partition("This would work: gigl-loader ")
    assert found
    done = run_here(*shlex.split(command))
    assert done.returncode == 0, done.stderr
    schema = Graph.open("graph").schema
    assert sum(each.count for each in schema.nodes.values()) == sizes[0]
    assert sum(each.count for each in schema.edges.values()) == sizes[1]


def test_ids_of_parquet_that_are_whole_decimals_have_a_command(files: Path) -> None:
    pq.write_table(pa.table({"src": [0.0, 1.0], "dst": [1, 2], "id": [0.5, 1.0]}), files / "e.parquet")
    error = partition("--edges", "e.parquet", code=2)
    assert "column 'src': holds F64, not integers; e.parquet, column 'id': holds F64" in error
    assert "This would work" not in error
    error = partition("--edges", "e.parquet", "--drop", "id", code=2)
    _, _, command = error.strip().partition("This would work: gigl-loader ")
    assert run_here(*shlex.split(command)).returncode == 0


@pytest.mark.usefixtures("files")
def test_missing_ids_have_no_command() -> None:
    Path("e.csv").write_text("src,dst,w\n0,1,\n,2,3\n")
    assert "This would work" not in partition("--edges", "e.csv", code=2)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("option", ["--split-nodes=user=0.8,0.1", "--split=user:train=named.csv"])
def test_splits_of_an_unknown_type_are_refused(option: str) -> None:
    error = partition("--edges", "ring.csv", option, code=2)
    assert "no nodes of type 'user' to split; known: node" in error


@pytest.mark.usefixtures("files")
def test_ends_come_before_columns_and_options() -> None:
    error = partition("--edges", "person,buys,thing=buys.csv", "--weight", "w", code=2)
    assert 0 < error.index("no column 'src'") < error.index("column 'note': holds text")


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--drop", "q,since,z*"], "no table has a column 'q', 'z*'; columns: "),
        (["--drop", "node,to,node:q,z"], "follows.csv: no column 'q' and none 'z' to drop; columns: "),
        (["--rename", "q=a", "--rename", "r=b"], "no table has a column 'q', 'r'"),
        (
            ["--rename", "node,to,node:q=a", "--rename", "node,to,node:r=b"],
            "no column 'q' and none 'r' to rename",
        ),
        (["--csv-columns", "src,src"], "need a name each, got 'src,src'"),
        (["--csv-columns", "a,b,c:src,dst"], "no table of type a,b,c; given: node,to,node"),
    ],
)
def test_what_matched_nothing_is_named(arguments: list[str], said: str) -> None:
    assert said in partition("--edges", "follows.csv", *arguments, code=2)


def test_numbers_that_options_take_are_names_of_columns(files: Path) -> None:
    (files / "years.csv").write_text("1990,2000\n1.5,2\n3,4\n")
    assert "'1990,2000', looks like a row" in partition("--nodes", "years.csv", code=2)
    partition("--nodes", "years.csv", "--stack", "x=19*,20*")
    assert Graph.open("graph").node_column("node", "x", 0).tolist() == [[1.5, 2], [3, 4]]


def test_an_index_of_pandas_is_left_out_and_named(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    pd = {"__index_level_0__": [4, 5], "id": [7, 8], "x": [[0.5, 1.0], [2.0, 3.0]]}
    pq.write_table(pa.table(pd), files / "n.parquet")
    partition("--nodes", "n.parquet")
    assert caplog.messages == [
        "n.parquet: left out '__index_level_0__', an index of pandas",
        "n.parquet: column 'x' has 2 float64 a row: --dtype x=float32 halves them",
    ]
    assert set(Graph.open("graph").schema.nodes["node"].columns) == {"x"}
    caplog.clear()
    options = ["--drop", "id", "--rename", "__index_level_0__=id", "--dtype", "x=float32", "--overwrite"]
    partition("--nodes", "n.parquet", *options)
    assert caplog.messages == []
    assert DistDataset.open("graph").fetch_node_ids()[0].tolist() == [4, 5]


def test_a_file_without_header_counts_its_lines_from_the_first(files: Path) -> None:
    (files / "bad.csv").write_text("1,2\n3,x\n")
    error = partition("--edges", "bad.csv", "--csv-columns", "src,dst", "--nodes", "9", code=2)
    assert "column 'dst'" in error
    (files / "gone.csv").write_text("1,2\n3,50\n")
    error = partition("--edges", "gone.csv", "--csv-columns", "src,dst", "--nodes", "9", code=2)
    assert "gone.csv, line 2, column 'dst': unknown node id 50" in error
    (files / "twice.csv").write_text("5,5\n3,5\n")
    error = partition("--edges", "twice.csv", code=2)
    assert "twice.csv: the first line, '5,5', looks like a row" in error
    assert "--csv-columns src,dst" in error


def test_unknown_ids_are_listed_by_table(files: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f"0,{number}" for number in (1, *range(20, 34), 20, 21)]
    (files / "e.csv").write_text("\n".join(["src,dst", *rows, ""]))
    (files / "train.csv").write_text("id\n1\n77\n")
    options = ["--edges", "e.csv", "--nodes", "3", "--split", "train=train.csv"]
    said = (
        "e.csv, line 3, column 'dst': unknown node id 20 of type 'node' and in 15 more rows: 21, 22, 23, 24, "
    )
    error = partition(*options, code=2)
    assert said + "25, 26, 27, 28, 29, ...; train.csv, line 3, column 'id': unknown node id 77" in error
    partition(*options, "--unknown-ids", "drop")
    assert caplog.messages[:2] == [
        "nodes node: left out 1 unknown ids",
        "edges node,to,node: left out 16 unknown ids",
    ]
    assert said in caplog.messages[2]
    graph = Graph.open("graph")
    assert (graph.schema.edges["node", "to", "node"].count, graph.split("node", "train").tolist()) == (1, [1])
    partition(*options, "--unknown-ids", "add", "--overwrite")
    assert sorted(DistDataset.open("graph").fetch_node_ids()[0].tolist()) == [0, 1, 2, *range(20, 34), 77]


# Texts as integers

CITIES = "id,city,kind,flag,label\n0,Ulm,b,true,yes\n1,Bonn,a,false,no\n2,Ulm,,true,\n"


def test_texts_become_integers_with_a_vocabulary(files: Path) -> None:
    (files / "n.csv").write_text(CITIES)
    (files / "e.csv").write_text("src,dst,label\n0,1,new\n1,2,old\n")
    options = ["--edges", "e.csv", "--nodes", "n.csv", "--encode", "node:city", "--one-hot", "kind"]
    partition(*options)
    graph, dataset = Graph.open("graph"), DistDataset.open("graph")
    columns = {name: graph.node_column("node", name, 0).tolist() for name in ("city", "kind", "y", "flag")}
    assert columns["city"] == [1, 0, 1]
    assert columns["kind"] == [[0, 1], [1, 0], [0, 0]]
    assert columns["y"] == [1, 0, -1]
    assert columns["flag"] == [True, False, True]
    assert dataset.vocabulary("node", "label") == dataset.vocabulary("node", "y") == ("no", "yes")
    assert dataset.vocabulary(("node", "to", "node"), "label") == ("new", "old")
    with pytest.raises(
        ValueError, match="'flag' of 'node' has no vocabulary; columns that have: 'y', 'city', "
    ):
        dataset.vocabulary("node", "flag")
    (files / "n.csv").write_text(CITIES.replace("2,Ulm", "2,Rom"))
    later = [*options, "--vocabulary", "graph"]
    done = run_here("partition", "later", *later)
    assert "n.csv, line 4, column 'city': 'Rom' is not in the vocabulary (--encode city=other" in done.stderr
    assert run_here("partition", "later", *later, "--encode", "city=other").returncode == 0
    assert DistDataset.open("later").vocabulary("node", "city") == ("Bonn", "Ulm", "other")
    assert Graph.open("later").node_column("node", "city", 0).tolist() == [1, 0, 2]


def test_categories_and_decimals_of_parquet_convert(files: Path) -> None:
    values = {
        "src": pa.array([0, 1, 0]),
        "dst": pa.array([1, 0, 1]),
        "price": pa.array([1.5, None, 2.25]).cast(pa.decimal128(8, 2)),
        "rank": pa.array([7, 9, None]).dictionary_encode(),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
    }
    pq.write_table(pa.table(values), files / "e.parquet")
    partition("--edges", "e.parquet", "--fill", "price=0", "--fill", "rank=4", "--encode", "kind")
    graph = Graph.open("graph")
    assert graph.schema.edges["node", "to", "node"].vocabularies == {"kind": ("x", "y")}
    ids = graph.topology(("node", "to", "node"), 0)["edge_ids"].tolist()
    found = {
        name: [graph.edge_column(("node", "to", "node"), name, 0).tolist()[ids.index(at)] for at in range(3)]
        for name in ("price", "rank", "kind")
    }
    assert found == {"price": [1.5, 0, 2.25], "rank": [7, 9, 4], "kind": [0, 1, 0]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--encode", "age"], "--encode age: no column 'age' of texts"),
        (["--encode", "name=some"], "--encode name=some: write --encode [TYPE:]COLUMN[=other]"),
        (["--one-hot", "name"], "column 'name': more than 256 different texts: encode them as integers"),
    ],
)
def test_texts_that_cannot_be_encoded_are_refused(files: Path, arguments: list[str], said: str) -> None:
    rows = [f"{number},name {number},{str(number).rjust(1000, 'x')}" for number in range(300)]
    (files / "many.csv").write_text("\n".join(["age,name,long", *rows, ""]))
    kept = arguments[1].partition("=")[0]
    dropped = [name for name in ("name", "long") if name != kept]
    assert said in partition("--nodes", "many.csv", "--drop", ",".join(dropped), *arguments, code=2)


# Relations and reverses


def test_each_text_of_a_relation_column_makes_a_type(files: Path) -> None:
    options = ["--csv-columns", "ent,@rel,ent:src,rel,dst", "--split-edges", "0.5,0.5"]
    partition("--edges", "ent,@rel,ent=triples.tsv", *options, "--reverse", "ent,@rel,ent")
    dataset = DistDataset.open("graph")
    names = ["knows", "likes", "rev_knows", "rev_likes"]
    assert dataset.edge_types == [("ent", name, "ent") for name in names]
    assert [each.count for each in dataset.schema.edges.values()] == [1, 2, 1, 2]
    assert dataset.schema.reverses["ent", "rev_likes", "ent"] == ("ent", "likes", "ent")
    splits = dataset.edge_splits
    assert [sum(each.values()) for each in splits.values()] == [1, 2, 1, 2]
    assert splits["ent", "likes", "ent"] == splits["ent", "rev_likes", "ent"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("a", "", "b")], "column 'rel', row 0: no relation"),
        ([("a", "r", "b")], "makes the type a,r,a, as a,r,a does"),
        ([("a", "x#held", "b")], "makes the type a,x#held,a, which names no edges"),
        (
            [("a", f"r{number}", "b") for number in range(4097)],
            "more than 4,096 different texts",
        ),
    ],
)
def test_relations_that_cannot_be_types_are_refused(rows: list[tuple[str, ...]], message: str) -> None:
    columns = dict(zip(("src", "rel", "dst"), np.array(rows, dtype=object).T, strict=True))
    other = ArrayTable("other", {"src": np.array(["a"]), "dst": np.array(["b"])})
    with pytest.raises(FormatError, match=message):
        build_graph(
            GraphTables({("a", "r", "a"): other, ("a", "@rel", "a"): ArrayTable("t", columns)}),
            MemoryFolder(),
        )


def test_a_declared_reverse_has_the_splits_of_its_type_and_is_excluded_with_it(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    pairs = np.unique(random.integers(0, 30, (200, 2)), axis=0)
    (tmp_path / "likes.csv").write_text("src,dst\n" + "".join(f"{u},{i}\n" for u, i in pairs))
    (tmp_path / "liked.csv").write_text("src,dst\n" + "".join(f"{i},{u}\n" for u, i in pairs[::-1]))
    graph = tmp_path / "graph"
    likes, liked = ("user", "likes", "item"), ("item", "liked_by", "user")
    done = run_here(
        *("partition", str(graph), "--edges", f"{','.join(likes)}={tmp_path / 'likes.csv'}"),
        *("--edges", f"{','.join(liked)}={tmp_path / 'liked.csv'}", "--split-edges", "0.6,0.2,0.2"),
        *("--reverse", f"{','.join(likes)}={','.join(liked)}", "--message-edges", "train"),
    )
    assert done.returncode == 0, done.stderr
    dataset = DistDataset.open(graph)
    assert dataset.schema.reverses == {likes: liked, liked: likes}
    assert dataset.edge_splits[likes] == dataset.edge_splits[liked]
    assert dataset.schema.edges[likes].count == dataset.schema.edges[liked].count < len(pairs)
    options: dict[str, Any] = {"batch_size": 16, "num_workers": 0, "seed": 0, "device": "cpu"}
    for reverses, leaks in ((None, False), ({}, True)):
        seen = Counter[bool]()
        with DistLinkNeighborLoader(
            dataset,
            [-1],
            (likes, "train"),
            exclude_targets=True,
            reverse_edge_types=reverses,
            **options,
        ) as loader:
            for batch in loader:
                users, items = batch["user"].n_id, batch["item"].n_id
                src, dst = batch[likes].edge_label_index
                targets = set(zip(users[src].tolist(), items[dst].tolist(), strict=True))
                ends = batch[liked].edge_index
                pairs_there = zip(users[ends[1]].tolist(), items[ends[0]].tolist(), strict=True)
                seen.update(pair in targets for pair in pairs_there)
        assert seen[False]
        assert bool(seen[True]) == leaks
    with DistABLPLoader(dataset, [-1], ("user", None), supervision_edge_type=likes, **options) as labels:
        for batch in labels:
            users, items = batch["user"].n_id, batch["item"].n_id
            anchors, found = batch.y_positive
            targets = set(zip(users[anchors].tolist(), items[found].tolist(), strict=True))
            ends = batch[liked].edge_index
            assert targets.isdisjoint(zip(users[ends[1]].tolist(), items[ends[0]].tolist(), strict=True))
