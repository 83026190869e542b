"""``import_glt``: directories of GLT become the graphs that the same tables make, and damage is told."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.cli.app import build_app
from gigl_loader.errors import FormatError
from gigl_loader.graph import Graph
from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.partition import build_graph, import_glt
from tests.support.glt_files import GltGraph, heterogeneous, homogeneous, write_glt

GRAPHS = {"homogeneous": homogeneous(), "heterogeneous": heterogeneous()}


def contents(path: Path) -> dict[str, bytes]:
    return {
        file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()
    }


@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_is_that_of_the_same_tables(tmp_path: Path, name: str, shuffled: bool, edge_dir: Any) -> None:
    graph = GRAPHS[name]
    books = write_glt(tmp_path / "glt", graph, num_partitions=3, shuffled=shuffled)
    import_glt(tmp_path / "glt", tmp_path / "imported", edge_dir=edge_dir)
    build_graph(graph.tables(), tmp_path / "built", num_partitions=3, edge_dir=edge_dir, assigner=books)
    assert contents(tmp_path / "imported") == contents(tmp_path / "built")


def test_memory_changes_nothing(tmp_path: Path) -> None:
    write_glt(tmp_path / "glt", GRAPHS["homogeneous"], shuffled=True)
    import_glt(tmp_path / "glt", tmp_path / "ample")
    import_glt(tmp_path / "glt", tmp_path / "scarce", memory_limit=16_000)
    assert contents(tmp_path / "scarce") == contents(tmp_path / "ample")


def test_lists_in_one_place_are_read_from_there(tmp_path: Path) -> None:
    """GLT leaves edge ids out there, unless edges have features: places in the list are the ids then."""
    graph = GRAPHS["heterogeneous"]
    write_glt(tmp_path / "glt", graph, cached=True)
    import_glt(tmp_path / "glt", tmp_path / "graph")
    dataset = DistDataset.open(tmp_path / "graph")
    loader = DistNeighborLoader(dataset, [-1], ("user", torch.arange(40)), batch_size=40, num_workers=0)
    [batch] = loader
    knows = batch["user", "knows", "user"]
    ends = batch["user"].n_id[knows.edge_index]
    torch.testing.assert_close(ends, graph.edges["user", "knows", "user"][:, knows.e_id])
    torch.testing.assert_close(knows.edge_attr, graph.edge_attr["user", "knows", "user"][knows.e_id])
    assert sorted(knows.e_id.tolist()) == list(range(90))


def test_labels_and_splits_come_from_files_of_their_own(tmp_path: Path) -> None:
    graph = GRAPHS["heterogeneous"]
    write_glt(tmp_path / "glt", graph)
    torch.save(torch.arange(40) % 7, tmp_path / "users.pt")
    torch.save(torch.arange(30) % 5, tmp_path / "items.pt")
    torch.save(torch.arange(40) < 10, tmp_path / "mask.pt")
    torch.save(torch.tensor([3, 1]), tmp_path / "some.pt")
    torch.save(torch.tensor([7]), tmp_path / "more.pt")
    schema = import_glt(
        tmp_path / "glt",
        tmp_path / "graph",
        labels={"user": tmp_path / "users.pt", "item": tmp_path / "items.pt"},
        splits={
            "user": {"train": [tmp_path / "mask.pt"]},
            "item": {"test": [tmp_path / "some.pt", tmp_path / "more.pt"]},
        },
    )
    graph_files = Graph.open(tmp_path / "graph")
    for kind, modulus in (("user", 7), ("item", 5)):
        ids, y = graph_files.node_ids(kind), [graph_files.node_column(kind, "y", part) for part in (0, 1)]
        assert ids is not None
        np.testing.assert_array_equal(np.concatenate(y), ids % modulus)
    assert dict(schema.nodes["user"].splits) == {"train": 10}
    assert dict(schema.nodes["item"].splits) == {"test": 3}


def test_the_command_line(tmp_path: Path) -> None:
    write_glt(tmp_path / "glt", GRAPHS["homogeneous"])
    torch.save(torch.arange(60), tmp_path / "y.pt")
    torch.save(torch.arange(9), tmp_path / "train.pt")
    arguments = ["import-glt", str(tmp_path / "glt"), str(tmp_path / "graph"), "--json", "--edge-dir", "out"]
    extra = ["--label", f"{tmp_path / 'y.pt'}", "--split", f"train={tmp_path / 'train.pt'}"]
    result = CliRunner().invoke(build_app(), [*arguments, *extra])
    assert result.exit_code == 0, result.output
    schema = json.loads(result.stdout)["schema"]
    assert (schema["num_partitions"], schema["edge_dir"]) == (2, "out")
    graph = Graph.open(tmp_path / "graph")
    assert sorted(graph.schema.nodes[HOMOGENEOUS_NODE].columns) == ["x", "y"]
    assert graph.schema.edges[HOMOGENEOUS_EDGE].weights == ("weight",)
    for wrong in (arguments, [*arguments, "--overwrite", "--label", "a=b=c"], [*arguments, "--split", "x"]):
        result = CliRunner().invoke(build_app(), wrong)
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1), result.output


class Attack:
    """Unpickled by Python, it runs a command."""

    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._mark}",)


@pytest.mark.parametrize("name", ["META", "part0/node_feat/feats.pkl", "part1/edge_feat/ids.pkl"])
def test_nothing_in_a_file_is_run(tmp_path: Path, name: str) -> None:
    write_glt(tmp_path / "glt", GRAPHS["homogeneous"])
    (tmp_path / "glt" / name).write_bytes(pickle.dumps(Attack(tmp_path / "mark")))
    with pytest.raises(FormatError, match=name):
        import_glt(tmp_path / "glt", tmp_path / "graph")
    assert not (tmp_path / "mark").exists()
    assert not (tmp_path / "graph").exists()


def _save(name: str, tensor: Any) -> Callable[[Path], None]:
    return lambda root: torch.save(tensor, root / name)


def _dump(name: str, *values: Any) -> Callable[[Path], None]:
    return lambda root: void((root / name).write_bytes(b"".join(map(pickle.dumps, values))))


def void(_: object) -> None:
    """Drop a value."""


def _meta(**changes: Any) -> Callable[[Path], None]:
    meta = {"num_parts": 2, "data_cls": "homo", "node_types": None, "edge_types": None, **changes}
    return _dump("META", meta)


def _twice(name: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        tensor = torch.load(root / name)
        tensor[-1] = tensor[0]
        torch.save(tensor, root / name)

    return change


def _shorter(name: str) -> Callable[[Path], None]:
    return lambda root: torch.save(torch.load(root / name)[:-1].clone(), root / name)


def _cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda root: void((root / name).write_bytes((root / name).read_bytes()[:size]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_meta(num_parts=0), r"META: num_parts is no number in 1\.\.65536"),
        (_meta(num_parts=True), "META: num_parts"),
        (_meta(num_parts=3), "part2"),
        (_meta(num_parts=1), "edge_pb.pt: 300 edges, but the partitions hold"),
        (_meta(data_cls="x"), "META: data_cls"),
        (_meta(data_cls="hetero"), "META: node_types is no list of 1 to 10000 types"),
        (
            _meta(data_cls="hetero", node_types=["../x"], edge_types=[]),
            "META: a type that is no name of a file",
        ),
        (
            _meta(data_cls="hetero", node_types=["a"], edge_types=[("a", "to", "b")]),
            "META: edge type .*: no node type 'b'",
        ),
        (
            _meta(data_cls="hetero", node_types=["a"], edge_types=["ab"]),
            "META: an edge type that is not three",
        ),
        (_dump("META", [1]), "META: no dict"),
        (_dump("META", {1: 2}), "META: a dict whose keys are not texts"),
        (_cut("META", 20), "META: ends early"),
        (_save("node_pb.pt", torch.full((60,), 2)), r"node_pb.pt, row 0: partition 2 is not in 0\.\.1"),
        (_save("node_pb.pt", torch.full((60,), -1)), r"node_pb.pt, row 0: partition -1 is not in 0\.\.1"),
        (_save("node_pb.pt", torch.zeros(60)), r"node_pb.pt: holds F32 \[\] a row, not integers"),
        (_save("node_pb.pt", torch.zeros(2, 30, dtype=torch.int64)), r"node_pb.pt: holds I64 \[30\] a row"),
        (_save("node_pb.pt", torch.zeros((), dtype=torch.int64)), "node_pb.pt: a single number"),
        (_save("node_pb.pt", torch.arange(120)[::2]), "node_pb.pt: a tensor that is not contiguous"),
        (_save("node_pb.pt", {"a": 1}), "node_pb.pt: holds no tensor"),
        (
            _save("node_pb.pt", torch.zeros(60, dtype=torch.complex64)),
            "holds no tensor that is stored here: it names torch.ComplexFloatStorage",
        ),
        (_save("node_pb.pt", torch.zeros(60, dtype=torch.int64).to_sparse()), "node_pb.pt: holds no tensor"),
        (_dump("node_pb.pt", torch.zeros(60)), "node_pb.pt: not a file of torch.save"),
        (_cut("node_pb.pt", 400), "node_pb.pt: not a file of torch.save, or cut off"),
        (_shorter("node_pb.pt"), "have features of 60 nodes of type 'node', of the 59"),
        (_shorter("edge_pb.pt"), "edge_pb.pt: 299 edges, but the partitions hold 300"),
        (_shorter("part0/graph/cols.pt"), r"cols.pt: \d+ rows, but \d+ in rows.pt"),
        (_shorter("part0/graph/weights.pt"), r"weights.pt: \d+ rows, but \d+ in rows.pt"),
        (_twice("part0/graph/eids.pt"), r"part0/graph/eids.pt, row \d+: edge id \d+ occurs a second time"),
        (lambda root: void(shutil.copytree(root / "part0", root / "part1", dirs_exist_ok=True)), "part"),
        (lambda root: void((root / "part1/graph/cols.pt").unlink()), r"part1/graph/cols.pt"),
        (lambda root: shutil.rmtree(root / "part1/edge_feat"), "part1/graph: no features of its"),
        (lambda root: shutil.rmtree(root / "part1/node_feat"), "have features of .* of the 60 in node_pb"),
        (lambda root: void((root / "part1/graph/eids.pt").unlink()), "part1/graph: no eids.pt"),
        (
            _dump("part0/node_feat/feats.pkl", torch.zeros(2, 5)),
            r"ids.pkl: \d+ ids of the 2 rows of feats.pkl",
        ),
        (_dump("part0/node_feat/feats.pkl"), "feats.pkl: no tensor"),
        (
            _dump("part0/node_feat/feats.pkl", torch.zeros(2, 5), torch.zeros(2, 4)),
            r"tensor 1 holds F32 \[4\]",
        ),
        (_dump("part0/node_feat/feats.pkl", [torch.zeros(2, 5)]), "feats.pkl: holds no tensor"),
        (_cut("part0/node_feat/feats.pkl", 500), "feats.pkl: ends early"),
        (_save("part0/graph/cols.pt", torch.full((300,), 60)), "rows"),
    ],
)
def test_damage_is_one_line_that_names_the_file(
    tmp_path: Path, change: Callable[[Path], None], message: str
) -> None:
    write_glt(tmp_path / "glt", GRAPHS["homogeneous"])
    change(tmp_path / "glt")
    with pytest.raises((FormatError, FileNotFoundError), match=message) as caught:
        import_glt(tmp_path / "glt", tmp_path / "graph")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "graph").exists()


def test_ids_that_no_node_or_edge_has(tmp_path: Path) -> None:
    write_glt(tmp_path / "glt", GRAPHS["homogeneous"])
    for name, wrong, message in (
        ("rows.pt", 60, r"rows.pt, row 3: unknown node id 60 of type 'node'"),
        ("cols.pt", -1, r"cols.pt, row 3: unknown node id -1 of type 'node'"),
        ("eids.pt", 300, r"eids.pt, row 3: edge id 300 is not in 0\.\.299"),
    ):
        path = tmp_path / "glt/part0/graph" / name
        good = torch.load(path)
        bad = good.clone()
        bad[3] = wrong
        torch.save(bad, path)
        with pytest.raises(FormatError, match=message):
            import_glt(tmp_path / "glt", tmp_path / "graph")
        torch.save(good, path)


def test_arguments_are_checked(tmp_path: Path) -> None:
    write_glt(tmp_path / "glt", GRAPHS["homogeneous"])
    torch.save(torch.arange(5), tmp_path / "y.pt")
    with pytest.raises(ValueError, match=r"no node type 'user' in .*; known: 'node'"):
        import_glt(tmp_path / "glt", tmp_path / "graph", labels={"user": tmp_path / "y.pt"})
    with pytest.raises(FormatError, match=r"y.pt: 5 rows for 60 nodes of type 'node'"):
        import_glt(tmp_path / "glt", tmp_path / "graph", labels={"node": tmp_path / "y.pt"})
    with pytest.raises(ValueError, match="holds the directory to import"):
        import_glt(tmp_path / "glt", tmp_path, overwrite=True)
    with pytest.raises(ValueError, match="exists: give another name"):
        import_glt(tmp_path / "glt", tmp_path / "glt" / "part0")
    with pytest.raises(ValueError, match="raise the memory limit"):
        import_glt(tmp_path / "glt", tmp_path / "graph", memory_limit=60)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("small")
    write_glt(root / "glt", homogeneous(num_nodes=8, num_edges=12))
    return root


@pytest.mark.slow
@settings(max_examples=150)
@given(data=st.data())
def test_damaged_bytes_end_in_a_clean_error(small: Path, data: st.DataObject) -> None:
    """Or in a graph, where they are numbers."""
    files = sorted(path for path in (small / "glt").rglob("*") if path.is_file())
    path = data.draw(st.sampled_from(files))
    good = path.read_bytes()
    start = data.draw(st.integers(0, len(good) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=9))
    message = str(small)
    try:
        path.write_bytes(good[:start] + patch + good[start + len(patch) :])
        import_glt(small / "glt", small / "graph", overwrite=True, memory_limit=1 << 20)
    except FormatError as error:
        message = str(error)
    finally:
        path.write_bytes(good)
    assert str(small) in message
    assert "\n" not in message


def test_a_graph_without_features_or_edges(tmp_path: Path) -> None:
    graph = GltGraph({HOMOGENEOUS_NODE: 5}, {HOMOGENEOUS_EDGE: torch.empty((2, 0), dtype=torch.int64)})
    write_glt(tmp_path / "glt", graph, num_partitions=1)
    schema = import_glt(tmp_path / "glt", tmp_path / "graph")
    assert (schema.nodes[HOMOGENEOUS_NODE].count, schema.edges[HOMOGENEOUS_EDGE].count) == (5, 0)
