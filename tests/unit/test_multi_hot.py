"""Values of several texts as multi-hot vectors, and vocabularies that lie in files of a graph."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, FormatError
from gigl_loader.graph import Graph, MemoryFolder
from gigl_loader.graph.manifest import MANIFEST_NAME
from gigl_loader.partition import (
    ArrayTable,
    Encoding,
    GraphTables,
    NodeTable,
    build_graph,
    open_table,
)
from tests.support.clusters import addresses_of, servers_of
from tests.support.command_line import run_here

RING = ("node", "to", "node")
EDGES = {RING: ArrayTable("edges", {"src": np.array([0]), "dst": np.array([1])})}


def encoded(table: Any, how: Encoding, **options: Any) -> Graph:
    folder = MemoryFolder()
    tables = GraphTables(EDGES, {"node": NodeTable(table)}, encode={"node": {"genres": how}})
    build_graph(tables, folder, **options)
    return Graph.open(folder)


def texts(*cells: str) -> ArrayTable:
    return ArrayTable("movies", {"genres": np.array(cells, object)})


@pytest.mark.parametrize("delimiter", ["|", ";", ",", " , "])
def test_each_text_of_a_value_has_a_place(delimiter: str) -> None:
    cells = ("b|a", "", "c", "a|a")
    graph = encoded(texts(*(cell.replace("|", delimiter) for cell in cells)), Encoding(multi_hot=True))
    assert graph.schema.nodes["node"].vocabularies == {"genres": ("a", "b", "c")}
    found = graph.node_column("node", "genres", 0)
    assert found.dtype == np.float32
    assert found.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 1], [1, 0, 0]]


def test_lists_of_texts_have_a_place_for_each(tmp_path: Path) -> None:
    for name, kind in (("plain", pa.list_(pa.string())), ("large", pa.large_list(pa.large_string()))):
        lists = pa.array([["b, c", "a"], None, [], ["a", None]], kind)
        pq.write_table(pa.table({"genres": lists}), tmp_path / f"{name}.parquet")
        graph = encoded(open_table(str(tmp_path / f"{name}.parquet"), role="nodes"), Encoding(multi_hot=True))
        assert graph.schema.nodes["node"].vocabularies == {"genres": ("a", "b, c")}
        assert graph.node_column("node", "genres", 0).tolist() == [[1, 1], [0, 0], [0, 0], [1, 0]]


def test_what_delimits_texts_is_not_guessed() -> None:
    with pytest.raises(FormatError, match=r"has \| and ,: say what .*--multi-hot 'genres=\|' or --multi-hot"):
        encoded(texts("a,b|c", "d"), Encoding(multi_hot=True))
    graph = encoded(texts("a,b|c", "d"), Encoding(multi_hot=True, delimiter="|"))
    assert graph.schema.nodes["node"].vocabularies == {"genres": ("a,b", "c", "d")}
    with pytest.raises(FormatError, match=r"printed lists such as .*CAST\(genres AS VARCHAR\[\]\)"):
        encoded(texts("['a', 'b']", ""), Encoding(multi_hot=True))
    with pytest.raises(FormatError, match="'z' is not in the vocabulary"):
        encoded(texts("a|z"), Encoding(multi_hot=True, texts=("a",)))
    with pytest.raises(FormatError, match="more than 4,096 different texts"):
        encoded(texts(*map(str, range(4097))), Encoding(multi_hot=True))


def test_the_command_line_takes_columns_of_several_texts(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n")
    (tmp_path / "nodes.csv").write_text("id,genres\n0,Action|Comedy\n1,Drama\n")
    common = ("--edges", str(tmp_path / "edges.csv"), "--nodes", str(tmp_path / "nodes.csv"))
    first = run_here("partition", str(tmp_path / "a"), *common, "--multi-hot", "genres")
    assert first.returncode == 0, first.stderr
    with DistDataset.open(tmp_path / "a") as dataset:
        assert dataset.vocabulary("node", "genres") == ("Action", "Comedy", "Drama")
    (tmp_path / "nodes.csv").write_text("id,genres\n0,Comedy\n1,Drama;Action\n")
    options = ("--multi-hot", "genres=;", "--vocabulary", str(tmp_path / "a"))
    second = run_here("partition", str(tmp_path / "b"), *common, *options)
    assert second.returncode == 0, second.stderr
    found = Graph.open(tmp_path / "b").node_column("node", "genres", 0)
    assert found.tolist() == [[0, 1, 0], [1, 0, 1]]


MANY = [f"relation {number:05}" for number in range(5000)]


@pytest.fixture(scope="module")
def knowledge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("knowledge")
    rows = [f"{at % 7},{text},{at % 5}" for at, text in enumerate(MANY)]
    (directory / "triples.csv").write_text("\n".join(["src,relation,dst", *reversed(rows), "1,,2", ""]))
    build = ("partition", str(directory / "graph"), "--edges", str(directory / "triples.csv"), "-p", "2")
    done = run_here(*build, "--encode", "relation", "--workers", "2")
    assert done.returncode == 0, done.stderr
    return directory


def test_a_large_vocabulary_lies_in_a_file(knowledge: Path) -> None:
    document = json.loads((knowledge / "graph" / MANIFEST_NAME).read_text())
    assert document["version"] == 4
    [edges] = document["schema"]["edges"]
    assert edges["vocabulary_files"] == {"relation": [0, 5000]}
    assert "vocabularies" not in edges
    with DistDataset.open(knowledge / "graph") as dataset:
        assert dataset.vocabulary(RING, "relation") == tuple(MANY)
    graph = Graph.open(knowledge / "graph")
    graph.verify()
    for part in range(2):
        ids = graph.topology(RING, part)["edge_ids"]
        found = graph.edge_column(RING, "relation", part)
        assert found.tolist() == [4999 - each if each < 5000 else -1 for each in ids.tolist()]


def test_a_large_vocabulary_comes_from_storage_servers(knowledge: Path) -> None:
    with (
        servers_of(knowledge / "graph", 2) as servers,
        RemoteDistDataset.connect(addresses_of(servers)) as dataset,
    ):
        assert dataset.vocabulary(RING, "relation") == tuple(MANY)


def test_a_large_vocabulary_is_used_again(knowledge: Path) -> None:
    (knowledge / "more.csv").write_text(f"src,relation,dst\n0,{MANY[7]},1\n1,strange,0\n")
    build = ("partition", str(knowledge / "more"), "--edges", str(knowledge / "more.csv"))
    refused = run_here(*build, "--encode", "relation", "--vocabulary", str(knowledge / "graph"))
    assert "line 3, column 'relation': 'strange' is not in the vocabulary" in refused.stderr
    done = run_here(*build, "--encode", "relation=other", "--vocabulary", str(knowledge / "graph"))
    assert done.returncode == 0, done.stderr
    graph = Graph.open(knowledge / "more")
    assert sorted(graph.edge_column(RING, "relation", 0).tolist()) == [7, 5000]
    assert graph.vocabulary(0)[-1] == "other"


def test_too_many_relations_are_refused_with_the_command_that_encodes_them(knowledge: Path) -> None:
    rows = "".join(f"0,{text},1\n" for text in MANY)
    (knowledge / "types.csv").write_text(f"src,relation,dst\n{rows}")
    build = ("partition", str(knowledge / "types"), "--edges", f"e,@relation,e={knowledge / 'types.csv'}")
    refused = run_here(*build)
    assert "more than 4,096 different texts: make it a column of one edge type" in refused.stderr
    assert "(--edges e,relation,e=FILES --encode relation)" in refused.stderr


def test_types_that_share_a_vocabulary_share_its_file() -> None:
    edges = {
        ("a", name, "a"): ArrayTable(
            name, {"src": np.zeros(5000, int), "dst": np.zeros(5000, int), "kind": np.array(MANY, object)}
        )
        for name in ("to", "of")
    }
    folder = MemoryFolder()
    build_graph(GraphTables(edges, encode={kind: {"kind": Encoding()} for kind in edges}), folder)
    assert [name for name in folder.names() if "vocab" in name] == ["vocabularies/0.safetensors"]


def test_damage_of_a_vocabulary_is_found(knowledge: Path, tmp_path: Path) -> None:
    copy = tmp_path / "graph"
    shutil.copytree(knowledge / "graph", copy)
    path = copy / "vocabularies" / "0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    graph = Graph.open(copy)
    with pytest.raises(FormatError, match=r"vocabularies/0\.safetensors: bytes"):
        graph.vocabulary(0)
    document = json.loads((copy / MANIFEST_NAME).read_text())
    document["version"] = 3
    (copy / MANIFEST_NAME).write_text(json.dumps(document))
    with pytest.raises(FormatError):
        Graph.open(copy)
