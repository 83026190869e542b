"""``gigl-loader partition --from``: files of other systems, written here as those systems write them."""

from __future__ import annotations

import gzip
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader.cli.build_options import Form
from gigl_loader.graph import Graph
from tests.support.command_line import run_here
from tests.support.contents import Contents, contents_of

HOMOGENEOUS = ("node", "to", "node")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of files, which is not the current one: paths of manifests are relative to the manifest."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def build(form: str, path: Path, *options: str) -> Contents:
    done = run_here("partition", "graph", "--from", form, str(path), "--overwrite", *options)
    assert done.returncode == 0, done.stderr
    return contents_of(Path("graph"))


def refusal(form: str, path: Path, *options: str) -> str:
    shutil.rmtree("graph", ignore_errors=True)
    done = run_here("partition", "graph", "--from", form, str(path), *options)
    assert done.returncode == 2, done.stderr
    assert not Path("graph").exists()
    return done.stderr.strip().splitlines()[-1]


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.csv").write_text(text)


def save(folder: Path, **arrays: Any) -> None:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", np.array(array))


def test_relbench(folder: Path) -> None:
    (folder / "db").mkdir()

    def table(name: str, columns: dict[str, Any], **metadata: Any) -> None:
        made = pa.table(columns)
        texts = {key: json.dumps(value) for key, value in metadata.items()}
        pq.write_table(made.replace_schema_metadata(texts), folder / "db" / f"{name}.parquet")

    table("users", {"uid": [0, 1], "age": [31, 40]}, pkey_col="uid", fkey_col_to_pkey_table={}, time_col=None)
    table(
        "posts",
        {"pid": [0, 1, 2], "owner": pa.array([1, None, 0]), "at": pa.array([5, 6, 7], pa.timestamp("ns"))},
        pkey_col="pid",
        fkey_col_to_pkey_table={"owner": "users"},
        time_col="at",
    )
    found = build("relbench", folder)
    assert found.nodes == {
        "users": {0: {"age": 31}, 1: {"age": 40}},
        "posts": {0: {"time": 5}, 1: {"time": 6}, 2: {"time": 7}},
    }
    assert found.edges == {
        ("posts", "f2p_owner", "users"): [(0, 1), (2, 0)],
        ("users", "rev_f2p_owner", "posts"): [(1, 0), (0, 2)],
    }


def test_relbench_without_metadata(folder: Path) -> None:
    pq.write_table(pa.table({"id": [0]}), folder / "users.parquet")
    assert "users.parquet: no 'pkey_col' in its metadata: this is no table of RelBench" in refusal(
        "relbench", folder
    )


DISTDGL: dict[str, Any] = {
    "graph_name": "g",
    "node_type": ["author", "paper"],
    "num_nodes_per_chunk": [[2, 1], [1, 2]],
    "edge_type": ["author:writes:paper", "paper:cites:paper", "paper:likes:paper"],
    "num_edges_per_chunk": [[1, 1], [2, 0], [1, 0]],
    "edges": {
        "author:writes:paper": {
            "format": {"name": "csv", "delimiter": " "},
            "data": ["writes0.csv", "writes1.csv"],
        },
        "paper:cites:paper": {"format": {"name": "parquet"}, "data": ["cites.parquet"]},
        "paper:likes:paper": {"format": {"name": "numpy"}, "data": ["likes.npy"]},
    },
    "node_data": {
        "paper": {
            "feat": {"format": {"name": "numpy"}, "data": ["feat0.npy", "feat1.npy"]},
            "label": {"format": {"name": "numpy"}, "data": ["label0.npy", "label1.npy"]},
            "train_mask": {"format": {"name": "numpy"}, "data": ["mask0.npy", "mask1.npy"]},
        }
    },
    "edge_data": {
        "paper:cites:paper": {"w": {"format": {"name": "numpy"}, "data": ["w.npy"]}},
        "author:writes:paper": {
            "t": {"format": {"name": "numpy"}, "data": ["t0.npy", "t1.npy"]},
            "u": {"format": {"name": "parquet"}, "data": ["cites.parquet"]},
        },
    },
}


@pytest.fixture
def distdgl(folder: Path) -> Path:
    write(folder, writes0="2 0\n", writes1="0 2\n")
    pq.write_table(pa.table({"a": [0, 1], "b": [1, 2]}), folder / "cites.parquet")
    save(
        folder,
        w=[0.5, 0.25],
        t0=[5],
        t1=[6],
        likes=[[0, 2]],
        feat0=[[1.0, 2.0]],
        feat1=[[3.0, 4.0], [5.0, 6.0]],
    )
    save(folder, label0=[7], label1=[8, 9], mask0=[1], mask1=[0, 1])
    (folder / "metadata.json").write_text(json.dumps(DISTDGL))
    return folder


def test_distdgl(distdgl: Path) -> None:
    found = build("distdgl", distdgl, "--dtype", "x=float16")
    assert found.nodes == {
        "author": {0: {}, 1: {}, 2: {}},
        "paper": {0: {"x": [1, 2], "y": 7}, 1: {"x": [3, 4], "y": 8}, 2: {"x": [5, 6], "y": 9}},
    }
    assert found.edges == {
        ("author", "writes", "paper"): [(2, 0, 5), (0, 2, 6)],
        ("paper", "cites", "paper"): [(0, 1, 0.5), (1, 2, 0.25)],
        ("paper", "likes", "paper"): [(0, 2)],
    }
    assert found.splits == {"paper": {"train": [0, 2]}}


def test_what_distdgl_asks_for_and_the_files_do_not_have(distdgl: Path) -> None:
    save(distdgl, likes=[[0, 2], [1, 1]])
    assert "likes.npy: [2, 2] can be read in two ways" in refusal("distdgl", distdgl)
    save(distdgl, likes=[[0, 2]], label1=[8])
    assert "label: 2 rows for 3 nodes" in refusal("distdgl", distdgl)
    (distdgl / "feat1.npy").unlink()
    assert refusal("distdgl", distdgl).endswith(f"no such file or directory: {distdgl / 'feat1.npy'}")


def test_dgl(folder: Path) -> None:
    (folder / "meta.yaml").write_text(
        "dataset_name: d\nseparator: ';'\n"
        "edge_data:\n- {file_name: e.csv, etype: [user, likes, item], src_id_field: u}\n"
        "node_data:\n- {file_name: u.csv, ntype: user}\n"
        "- {file_name: i.csv, ntype: item, node_id_field: sku}\n"
    )
    write(folder, e="u;dst_id;weight\n7;a;0.5\n5;b;1.5\n", i="sku;price\na;3\nb;4\n")
    write(folder, u="node_id;label;train_mask;val_mask\n5;1;True;False\n7;0;False;True\n")
    found = build("dgl", folder / "meta.yaml")
    assert found.nodes == {"user": {5: {"y": 1}, 7: {"y": 0}}, "item": {"a": {"price": 3}, "b": {"price": 4}}}
    assert found.edges == {("user", "likes", "item"): [(7, "a", 0.5), (5, "b", 1.5)]}
    assert found.splits == {"user": {"train": [5], "val": [7]}}


def test_dgl_of_one_type(folder: Path) -> None:
    (folder / "meta.yaml").write_text(
        "dataset_name: d\nedge_data:\n- file_name: e.csv\nnode_data:\n- file_name: n.csv\n"
    )
    write(folder, e='src_id,dst_id,w\n4,1,"1.5, 2"\n1,4,"3,4.5"\n')
    write(folder, n='node_id,train_mask,feat\n1,0,"0.5, 1"\n4,1,"2,0.25"\n')
    found = build("dgl", folder)
    assert found.nodes == {"node": {1: {"x": [0.5, 1]}, 4: {"x": [2, 0.25]}}}
    assert found.edges == {HOMOGENEOUS: [(4, 1, [1.5, 2]), (1, 4, [3, 4.5])]}
    assert found.splits == {"node": {"train": [4]}}
    write(folder, n="graph_id,node_id\n0,1\n1,4\n")
    assert "n.csv: column 'graph_id': a data set of several graphs is no graph" in refusal("dgl", folder)


GRAPHBOLT = """
dataset_name: d
graph:
  nodes: [{type: user, num: 3}, {type: item, num: 2}]
  edges:
  - {type: "user:buys:item", format: csv, path: edges/buys.csv}
  - {type: "user:knows:user", format: numpy, path: edges/knows.npy}
feature_data:
- {domain: node, type: user, name: feat, format: numpy, in_memory: false, path: feat.npy}
- {domain: node, type: user, name: age, format: numpy, path: age.npy}
- {domain: edge, type: "user:knows:user", name: w, format: numpy, path: w.npy}
tasks:
- name: node_classification
  num_classes: 2
  train_set:
  - type: user
    data: [{name: seeds, format: numpy, path: train.npy}, {name: labels, format: numpy, path: y.npy}]
  validation_set:
  - type: user
    data: [{name: seeds, format: numpy, path: val.npy}, {name: labels, format: numpy, path: y1.npy}]
- name: node_regression
  train_set:
  - {type: user, data: [{format: numpy, path: val.npy}]}
- name: link_prediction
  train_set:
  - {type: "user:buys:item", data: [{name: seeds, format: numpy, path: pairs.npy}]}
"""


@pytest.fixture
def graphbolt(folder: Path) -> Path:
    (folder / "edges").mkdir()
    (folder / "edges" / "buys.csv").write_text("0,1\n2,0\n")
    np.save(folder / "edges" / "knows.npy", np.array([[0, 1], [1, 2]]))
    save(
        folder,
        w=[7, 8],
        feat=[[1.0], [2.0], [3.0]],
        age=[4, 5, 6],
        train=[2, 0],
        val=[1],
        y=[1, 0],
        y1=[3],
        pairs=[[0, 1]],
    )
    (folder / "metadata.yaml").write_text(GRAPHBOLT)
    return folder


def test_graphbolt(graphbolt: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = build("graphbolt", graphbolt, "--dtype", "x=float32")
    users = {at: {"age": at + 4, "x": [at + 1], "y": label} for at, label in enumerate([0, 3, 1])}
    assert found.nodes == {"user": users, "item": {0: {}, 1: {}}}
    assert found.edges == {
        ("user", "buys", "item"): [(0, 1), (2, 0)],
        ("user", "knows", "user"): [(0, 1, 7), (1, 2, 8)],
    }
    assert found.splits == {"user": {"train": [0, 2], "val": [1]}}
    for part in (
        "train_set of link_prediction: seeds that are edges",
        f"{graphbolt / 'val.npy'}: user has a split 'train' already",
    ):
        assert f"left out {part}" in caplog.text


@pytest.mark.parametrize(("labels", "missing"), [([1, 0], -1), ([1.5, 0.5], None)])
def test_labels_of_some_nodes_of_graphbolt(graphbolt: Path, labels: list[float], missing: int | None) -> None:
    save(graphbolt, y=labels, val=np.array([], np.int64), y1=np.array([], np.array(labels).dtype))
    found = build("graphbolt", graphbolt)
    users = [found.nodes["user"][at]["y"] for at in range(3)]
    assert users[::2] == labels[::-1]
    assert users[1] == missing or (missing is None and np.isnan(users[1]))


def test_graphbolt_with_pickles(graphbolt: Path) -> None:
    (graphbolt / "feat.pt").write_text("")
    text = GRAPHBOLT.replace(
        "format: numpy, in_memory: false, path: feat.npy", "format: torch, path: feat.pt"
    )
    (graphbolt / "metadata.yaml").write_text(text)
    assert "feat.pt: pickles are never loaded: save the tensor with numpy.save" in refusal(
        "graphbolt", graphbolt
    )
    (graphbolt / "metadata.yaml").write_text("graph_topology: {type: FusedCSCSamplingGraph, path: g.pt}\n")
    assert "graph_topology is a pickle" in refusal("graphbolt", graphbolt)


GRAPHSTORM: dict[str, Any] = {
    "version": "gconstruct-v0.1",
    "nodes": [
        {
            "node_id_col": "pid",
            "node_type": "paper",
            "format": {"name": "parquet"},
            "files": "papers*.parquet",
            "features": [
                {"feature_col": ["a", "b"], "feature_name": "ab", "out_dtype": "float32"},
                {"feature_col": "venue", "transform": {"name": "to_categorical"}},
                {"feature_col": "year", "transform": {"name": "max_min_norm"}},
                {"feature_col": "title", "transform": {"name": "bert_hf"}},
            ],
            "labels": [
                {
                    "label_col": "field",
                    "task_type": "classification",
                    "custom_split_filenames": {
                        "train": "train.parquet",
                        "valid": "val.parquet",
                        "column": ["pid"],
                    },
                }
            ],
        },
        {
            "node_id_col": "n",
            "node_type": "author",
            "format": {"name": "csv", "separator": "|"},
            "files": ["a.csv"],
        },
    ],
    "edges": [
        {
            "source_id_col": "who",
            "dest_id_col": "what",
            "relation": ["author", "writes", "paper"],
            "format": {"name": "csv", "separator": "|"},
            "files": ["w.csv"],
            "features": [{"feature_col": ["n"], "feature_name": "order"}],
            "labels": [{"task_type": "link_prediction", "split_pct": [1.0, 0, 0]}],
        }
    ],
}


@pytest.fixture
def graphstorm(folder: Path) -> Path:
    papers = {
        "pid": ["p", "q"],
        "a": [1.0, 2.0],
        "b": [3, 4],
        "venue": ["kdd", "icml"],
        "year": [2001, 2002],
        "title": ["x", "y"],
        "field": ["ml", "db"],
        "unused": ["z", "z"],
    }
    pq.write_table(pa.table(papers), folder / "papers0.parquet")
    for name, ids in {"train": ["q"], "val": ["p"]}.items():
        pq.write_table(pa.table({"pid": ids}), folder / f"{name}.parquet")
    write(folder, a="n|other\n3|4\n5|6\n", w="who|what|n\n5|p|1\n3|q|2\n")
    (folder / "config.json").write_text(json.dumps(GRAPHSTORM))
    return folder


def test_graphstorm(graphstorm: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = build("graphstorm", graphstorm / "config.json")
    assert found.nodes == {
        "paper": {
            "p": {"ab": [1, 3], "venue": [0, 1], "year": 2001, "y": 1},
            "q": {"ab": [2, 4], "venue": [1, 0], "year": 2002, "y": 0},
        },
        "author": {3: {}, 5: {}},
    }
    assert found.edges == {("author", "writes", "paper"): [(5, "p", 1), (3, "q", 2)]}
    assert found.splits == {"paper": {"train": ["q"], "val": ["p"]}}
    assert "left out feature 'title' of paper: transform bert_hf" in caplog.text
    assert "left out transform max_min_norm of feature 'year' of paper: it is stored as it is" in caplog.text


def test_graphstorm_with_json_lines(folder: Path) -> None:
    label = {"label_col": "y", "custom_split_filenames": {"train": "train.json", "test": "test.json"}}
    nodes = {"node_type": "n", "node_id_col": "k", "format": {"name": "JSON"}, "files": "n.jsonl"}
    ends = {"relation": ["n", "to", "n"], "source_id_col": "a", "dest_id_col": "b"}
    features = [{"feature_col": "x", "out_dtype": "float32"}]
    config = {
        "nodes": [nodes | {"features": features, "labels": [label]}],
        "edges": [ends | {"format": {"name": "parquet"}, "files": "e.parquet"}],
    }
    (folder / "n.jsonl").write_text('{"k": "u", "x": [1, 2.5], "y": 3}\n{"k": "v", "x": [3, 4], "y": 5}\n')
    (folder / "train.json").write_text('"v"\n')
    (folder / "test.json").write_text('"u"\n')
    pq.write_table(pa.table({"a": ["v"], "b": ["u"]}), folder / "e.parquet")
    (folder / "config.json").write_text(json.dumps(config))
    found = build("graphstorm", folder)
    assert found.nodes == {"n": {"u": {"x": [1, 2.5], "y": 3}, "v": {"x": [3, 4], "y": 5}}}
    assert (found.edges, found.splits) == (
        {("n", "to", "n"): [("v", "u")]},
        {"n": {"train": ["v"], "test": ["u"]}},
    )


def test_graphstorm_names_what_is_missing(graphstorm: Path) -> None:
    def changed(key: str, value: Any) -> str:
        nodes = [GRAPHSTORM["nodes"][0] | {key: value}, GRAPHSTORM["nodes"][1]]
        (graphstorm / "config.json").write_text(json.dumps(GRAPHSTORM | {"nodes": nodes}))
        return refusal("graphstorm", graphstorm)

    assert "nodes[0]: no reader for hdf5: write it as Parquet" in changed("format", {"name": "hdf5"})
    assert "papers*.parquet: no column 'x'; columns: 'pid'" in changed("features", [{"feature_col": "x"}])
    assert "no such file or directory: " in changed("files", ["none.parquet"])


def test_neo4j(folder: Path) -> None:
    write(
        folder,
        movies="movieId:ID(Movie),title,year:int,:LABEL\n1,Alien,1979,Movie\n2,Aliens,1986,Movie;Sequel\n",
    )
    write(folder, **{"people-header": "id:ID(Person),age:int,score:double\n"})
    write(folder, **{"people-part1": "ann,31,0.5\n", "people-part2": "bob,40,1.5\n"})
    write(folder, acted=":START_ID(Person),role,:END_ID(Movie),:TYPE\nann,x,1,ACTED_IN\nbob,y,2,ACTED_IN\n")
    write(
        folder,
        links=":START_ID(Person),since:short,:END_ID(Person),:TYPE\nann,3,bob,KNOWS\nbob,4,ann,LIKES\n",
    )
    found = build("neo4j", folder, "--drop", "Movie:title", "--drop", "Person,ACTED_IN,Movie:role")
    assert found.nodes == {
        "Movie": {1: {"year": 1979}, 2: {"year": 1986}},
        "Person": {"ann": {"age": 31, "score": 0.5}, "bob": {"age": 40, "score": 1.5}},
    }
    assert found.edges == {
        ("Person", "ACTED_IN", "Movie"): [("ann", 1), ("bob", 2)],
        ("Person", "KNOWS", "Person"): [("ann", "bob", 3)],
        ("Person", "LIKES", "Person"): [("bob", "ann", 4)],
    }


def test_neo4j_with_one_id_space(folder: Path) -> None:
    write(folder, movies="movieId:ID,year:int,:LABEL\nm1,1979,Movie\nm2,1986,Movie;Sequel\n")
    write(folder, actors="personId:ID,:LABEL\nann,Actor\n")
    write(folder, roles=":START_ID,:END_ID,:TYPE\nann,m2,ACTED_IN\n")
    found = build("neo4j", folder)
    assert found.nodes == {"Movie": {"m1": {"year": 1979}, "m2": {"year": 1986}}, "Actor": {"ann": {}}}
    assert found.edges == {("Actor", "ACTED_IN", "Movie"): [("ann", "m2")]}
    write(folder, roles=":START_ID,:END_ID,:TYPE\nann,m2,ACTED_IN\nann,ann,KNOWS\n")
    assert "roles.csv" in refusal(
        "neo4j", folder
    )  # Of several types of ends: ids of another type are unknown.


def test_neo4j_with_another_delimiter(folder: Path) -> None:
    write(
        folder,
        movies=":ID(Movie)\tyear:int\n1\t1979\n2\t1986\n",
        next=":START_ID(Movie)\t:END_ID(Movie)\n1\t2\n",
    )
    for options in ((), ("--csv-delimiter", "tab")):
        found = build("neo4j", folder, *options)
        assert found.nodes == {"Movie": {1: {"year": 1979}, 2: {"year": 1986}}}
        assert found.edges == {("Movie", "next", "Movie"): [(1, 2)]}


def test_neo4j_with_arrays(folder: Path) -> None:
    write(folder, movies=":ID(Movie),x:float[],tags:string[]\n1,0.5;1.5,a;b\n2,2;3.5,c\n")
    write(folder, edges=":START_ID(Movie),:END_ID(Movie)\n1,2\n")
    advice = "column 'tags:string[]': arrays of numbers alone are read; --drop"
    told = refusal("neo4j", folder)
    assert advice in told
    found = build("neo4j", folder, "--drop", shlex.split(told.partition("--drop ")[2])[0])
    assert found.nodes == {"Movie": {1: {"x": [0.5, 1.5]}, 2: {"x": [2, 3.5]}}}
    assert found.edges == {("Movie", "edges", "Movie"): [(1, 2)]}


def test_neptune(folder: Path) -> None:
    (folder / "nodes").mkdir()
    (folder / "edges").mkdir()
    write(
        folder / "nodes",
        **{"p-0": "~id, ~label, age:Int\nv1,person,29\n", "p-1": "~id, ~label, age:Int\nv2,person,27\n"},
    )
    write(folder / "edges", e="~id,~from,~to,~label,w:Double\ne1,v1,v2,knows,0.5\ne2,v2,v1,created,1.0\n")
    found = build("neptune", folder)
    assert found.nodes == {"person": {"v1": {"age": 29}, "v2": {"age": 27}}}
    assert found.edges == {
        ("person", "knows", "person"): [("v1", "v2", 0.5)],
        ("person", "created", "person"): [("v2", "v1", 1.0)],
    }


def test_snap(folder: Path) -> None:
    with gzip.open(folder / "g.txt.gz", "wt") as file:
        file.write("# Directed graph: g.txt\n# FromNodeId\tToNodeId\tSign\n0\t7\t-1\n7\t3\t1\n")
    found = build("snap", folder / "g.txt.gz")
    assert found.edges == {HOMOGENEOUS: [(0, 7, -1), (7, 3, 1)]}
    assert set(found.nodes["node"]) == {0, 3, 7}
    write(folder, four="6,2,4,1289241911.5\n")
    assert "4 columns, and no line names them: add --csv-columns src,dst,NAME" in refusal(
        "snap", folder / "four.csv"
    )
    assert build("snap", folder / "four.csv", "--csv-columns", "src,dst,rating,at").edges == {
        HOMOGENEOUS: [(6, 2, 1289241911.5, 4)]
    }


def packed(folder: Path, **texts: str) -> None:
    """Write files with compression, as OGB does."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with gzip.open(folder / f"{name.replace('_', '-')}.csv.gz", "wt") as file:
            file.write(text)


def test_ogb(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = folder / "ogbn_products"
    packed(data / "raw", edge="0,1\n2,0\n", num_node_list="3\n", num_edge_list="2\n")
    packed(data / "raw", node_feat="0.5,1\n1,0\n0,2.5\n")
    packed(data / "split" / "sales_ranking", train="2\n0\n", valid="1\n")
    found = build("ogb", data)
    assert found.nodes == {"node": {0: {"x": [0.5, 1]}, 1: {"x": [1, 0]}, 2: {"x": [0, 2.5]}}}
    assert found.edges == {HOMOGENEOUS: [(0, 1), (2, 0)]}
    assert found.splits == {"node": {"train": [0, 2], "val": [1]}}
    assert Graph.open("graph").schema.nodes["node"].columns["x"].dtype == "F32"
    assert "left out reversed edges, which OGB's own loader adds to this data set" in caplog.text
    assert build("ogb", data, "--undirected").edges == {HOMOGENEOUS: [(0, 1), (2, 0), (1, 0), (0, 2)]}
    packed(data / "raw", node_label="5\n6\n7\n", edge_weight="3\n4\n")
    found = build("ogb", data)
    assert found.nodes["node"][2] == {"x": [0, 2.5], "y": 7}
    assert found.edges == {HOMOGENEOUS: [(0, 1, 3), (2, 0, 4)]}
    packed(data / "raw", edge_weight="3\n4.5\n")
    assert "no integer: 4.5" in refusal("ogb", data)
    packed(data / "raw", edge_weight="3\n4\n5\n")
    assert "rows" in refusal("ogb", data)
    packed(data / "raw", num_node_list="3\n2\n")
    assert "raw: 2 graphs, not one" in refusal("ogb", data)


def test_ogb_of_several_types(folder: Path) -> None:
    raw = folder / "raw"
    packed(
        raw, num_node_dict="author,paper\n2,3\n", triplet_type_list="author,writes,paper\npaper,cites,paper\n"
    )
    packed(raw / "relations" / "author___writes___paper", edge="1,2\n0,0\n")
    packed(raw / "relations" / "paper___cites___paper", edge="1,0\n")
    packed(raw / "node-label" / "paper", node_label="4\n5\n6\n")
    packed(folder / "split" / "time" / "paper", train="0\n1\n", valid="2\n")
    found = build("ogb", folder)
    assert found.nodes == {"author": {0: {}, 1: {}}, "paper": {0: {"y": 4}, 1: {"y": 5}, 2: {"y": 6}}}
    assert found.edges == {
        ("author", "writes", "paper"): [(1, 2), (0, 0)],
        ("paper", "cites", "paper"): [(1, 0)],
    }
    assert found.splits == {"paper": {"train": [0, 1], "val": [2]}}


def test_snap_without_names(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "g.txt").write_text("# Undirected graph: ../g.txt\n# Nodes: 3 Edges: 2\n3 5\n5 9\n")
    assert build("snap", folder / "g.txt").edges == {HOMOGENEOUS: [(3, 5), (5, 9)]}
    assert "left out reversed edges: the graph is undirected" in caplog.text
    write(folder, named="id_1,id_2\n3,5\n")
    assert build("snap", folder / "named.csv").edges == {HOMOGENEOUS: [(3, 5)]}


def test_movielens(folder: Path) -> None:
    write(folder, ratings="userId,movieId,rating,timestamp\n1,31,2.5,1260759144\n7,10,4.0,1260759179\n")
    write(
        folder, movies="movieId,title,genres\n10,GoldenEye (1995),Action|Thriller\n31,Dangerous Minds,Drama\n"
    )
    found = build("movielens", folder, "--drop", "title,genres")
    assert found.nodes == {"movie": {10: {}, 31: {}}, "user": {1: {}, 7: {}}}
    assert found.edges == {("user", "rates", "movie"): [(1, 31, 2.5, 1260759144), (7, 10, 4.0, 1260759179)]}
    assert Graph.open("graph").schema.edges["user", "rates", "movie"].times == ("time",)


def test_movielens_without_header_lines(folder: Path) -> None:
    movie = "{}|Caf\xe9 (1995)|01-Jan-1995||http://url|" + "|".join("0101010101010101010") + "\n"
    (folder / "u.data").write_text("196\t242\t3\t881250949\n186\t302\t4\t891717742\n")
    (folder / "u.item").write_text(movie.format(242) + movie.format(302), "latin-1")
    (folder / "u.user").write_text("186|24|M|writer|85711\n196|49|F|other|94043\n")
    found = build(
        "movielens", folder, "--drop", "title,released,video,url,occupation,zip", "--encode", "gender"
    )
    assert found.nodes["user"] == {186: {"age": 24, "gender": 1}, 196: {"age": 49, "gender": 0}}
    assert found.nodes["movie"] == {242: {"genres": [0, 1] * 9 + [0]}, 302: {"genres": [0, 1] * 9 + [0]}}
    assert found.edges == {("user", "rates", "movie"): [(196, 242, 3, 881250949), (186, 302, 4, 891717742)]}
    (folder / "u.data").unlink()
    (folder / "ratings.dat").write_text("1::7::5::978300760\n2::9::3::978302109\n")
    (folder / "movies.dat").write_text("7::Caf\xe9 (1995)::Drama|War\n9::X: Y (1996)::Drama\n", "latin-1")
    found = build("movielens", folder, "--drop", "title,genres")
    assert found.edges == {("user", "rates", "movie"): [(1, 7, 5, 978300760), (2, 9, 3, 978302109)]}
    assert found.nodes == {"movie": {7: {}, 9: {}}, "user": {1: {}, 2: {}}}


@pytest.mark.parametrize("form", [form.value for form in Form])
def test_a_path_that_is_not_of_the_form_is_one_line(folder: Path, form: str) -> None:
    assert len(refusal(form, folder / "none").splitlines()) == 1
    assert str(folder) in refusal(form, folder)


def test_options_of_the_command_line_win(folder: Path) -> None:
    rows = ":ID(N),a:int,b:string,c:int,:LABEL\n1,5,x,7,P\n2,6,y,8,Q\n"
    write(folder, n=rows, e=":START_ID(N),:END_ID(N)\n1,2\n")
    options = ("--encode", "N:b", "--rename", "N::LABEL=kind", "--encode", "N:kind", "--drop", "N:a:int")
    found = build("neo4j", folder, *options, "--dtype", "N:c=float64")
    assert found.nodes == {"N": {1: {"b": 0, "kind": 0, "c": 7}, 2: {"b": 1, "kind": 1, "c": 8}}}
    assert Graph.open("graph").schema.nodes["N"].columns["c"].dtype == "F64"


@pytest.mark.parametrize("name", ["Gene [human]", "gene/protein", "a=b", "x,y", "a:b", 'say "x"', "2 ü"])
def test_names_of_types_may_be_odd(folder: Path, name: str) -> None:
    shown = name.replace('"', '""')
    write(folder, n=f'":ID({shown})",a:int,b\n1,5,u\n2,6,v\n')
    write(folder, e=f'":START_ID({shown})",":END_ID({shown})",:TYPE\n1,2,"{shown}"\n')
    advice = refusal("neo4j", folder)
    assert "This would work: " in advice
    command = shlex.split(advice.partition("This would work: ")[2])
    found = build("neo4j", folder, *command[command.index(str(folder)) + 1 :])
    assert found.nodes == {name: {1: {"a": 5}, 2: {"a": 6}}}
    assert found.edges == {(name, name, name): [(1, 2)]}
