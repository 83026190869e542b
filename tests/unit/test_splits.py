"""Splits of nodes and edges: by hash, stored with a graph, and distrusted when they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader, FormatError
from gigl_loader.graph.graph import Graph
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.splits import split_edges, split_nodes
from gigl_loader.tensors import Layout
from tests.support import oracle
from tests.support.command_line import run_here

if TYPE_CHECKING:
    from pathlib import Path


EDGE = ("node", "to", "node")
FRACTIONS = "0.7,0.2,0.1"


def edges(count: int, seed: int = 0) -> Any:
    """Return node ids [2, E] with gaps and in no order, with parallel edges and self loops."""
    random = np.random.default_rng(seed)
    ids = random.permutation(60) * 3
    return ids[random.integers(0, 60, (2, count))]


def built(path: Path, tables: dict[str, Any], *options: str) -> DistDataset:
    """Build a graph of tables of edges by type, by the command line."""
    given = []
    for number, (name, table) in enumerate(tables.items()):
        np.save(path / f"{number}.npy", table)
        given += ["--edges", f"{name}={path / f'{number}.npy'}" if name else str(path / f"{number}.npy")]
    made = run_here("partition", str(path / "graph"), *given, *options)
    assert made.returncode == 0, made.stderr
    inspected = run_here("inspect", str(path / "graph"), "--verify")
    assert inspected.returncode == 0, inspected.stderr
    return DistDataset.open(path / "graph")


def links_of(dataset: DistDataset, given: Any, edge_type: Any = None) -> list[tuple[int, int]]:
    """Return the links of an epoch, as node ids."""
    loader = DistLinkNeighborLoader(dataset, [0], given, batch_size=64, num_workers=0, seed=0, device="cpu")
    found = []
    with loader:
        for batch in loader:
            store = batch if edge_type is None else batch[edge_type]
            ends = (batch, batch) if edge_type is None else (batch[edge_type[0]], batch[edge_type[2]])
            ids = [end.n_id[row].tolist() for end, row in zip(ends, store.edge_label_index, strict=True)]
            found += list(zip(*ids, strict=True))
    return found


def sampled_edges(dataset: DistDataset) -> list[int]:
    """Return the ids of the edges that batches have, all nodes being seeds."""
    with DistNeighborLoader(
        dataset, [-1], batch_size=1000, num_workers=0, with_edge=True, device="cpu", seed=0
    ) as loader:
        [batch] = loader
        return sorted(batch.e_id.tolist())


@pytest.mark.some(3)
@pytest.mark.parametrize("edge_dir", ["in", "out"])
@pytest.mark.parametrize(("parts", "assigner"), [("1", "range"), ("3", "hash")])
@pytest.mark.parametrize("held_out", [False, True])
def test_a_split_gives_its_links_and_batches_have_no_edge_held_out(
    tmp_path: Path, edge_dir: str, parts: str, assigner: str, held_out: bool
) -> None:
    table = edges(900)
    options = ["--split-edges", FRACTIONS, "--edge-dir", edge_dir, "-p", parts, "--assigner", assigner]
    dataset = built(tmp_path, {"": table}, *options, *(["--message-edges", "train"] if held_out else []))

    splits = split_edges(torch.from_numpy(table), [0.7, 0.2, 0.1])
    assert dataset.edge_splits == {EDGE: {name: len(numbers) for name, numbers in splits.items()}}
    for name, numbers in splits.items():
        expected = list(map(tuple, table[:, numbers].T.tolist()))
        assert links_of(dataset, name) == expected
        assert links_of(dataset, (EDGE, name)) == expected
    kept = splits["train"].tolist() if held_out else list(range(900))
    assert dataset.num_edges == len(kept)
    assert sampled_edges(dataset) == kept
    assert links_of(dataset, None) == list(map(tuple, table[:, kept].T.tolist()))


def test_splits_may_leave_edges_to_messages_alone(tmp_path: Path) -> None:
    table = edges(900)
    dataset = built(tmp_path, {"": table}, "--split-edges", "0.3,0.1,0.1", "--message-edges", "train")
    splits = split_edges(torch.from_numpy(table), [0.3, 0.1, 0.1])
    held_out = {*splits["val"].tolist(), *splits["test"].tolist()}
    assert sampled_edges(dataset) == [number for number in range(900) if number not in held_out]


def test_strict_negatives_are_no_edge_that_is_held_out(tmp_path: Path) -> None:
    table = edges(3000)
    dataset = built(tmp_path, {"": table}, "--split-edges", "0.5,0.5", "--message-edges", "train", "-p", "3")
    known = set(map(tuple, table.T.tolist()))
    assert len(known) < 3600, "some pair is no edge"
    with DistLinkNeighborLoader(
        dataset,
        [0],
        "val",
        neg_sampling={"mode": "binary", "amount": 1, "strict": True},
        batch_size=500,
        num_workers=0,
        seed=0,
        device="cpu",
    ) as loader:
        for batch in loader:
            drawn = batch.n_id[batch.edge_label_index[:, batch.edge_label == 0]]
            assert not known & set(map(tuple, drawn.T.tolist()))
        assert loader.stats()["negatives_not_strict"] == 0


def test_a_reversed_edge_is_in_the_split_of_its_edge(tmp_path: Path) -> None:
    table = edges(900)
    types = {"a,to,b": table, "a,near,a": edges(700, seed=1)}
    split = ["--split-edges", f"a,to,b={FRACTIONS}", "--split-edges", f"a,near,a={FRACTIONS}"]
    dataset = built(tmp_path, types, *split, "--undirected", "--message-edges", "train")
    for name in ("train", "val", "test"):
        there = links_of(dataset, (("a", "to", "b"), name), ("a", "to", "b"))
        back = links_of(dataset, (("b", "rev_to", "a"), name), ("b", "rev_to", "a"))
        assert back == [(dst, src) for src, dst in there]
        near = links_of(dataset, (("a", "near", "a"), name), ("a", "near", "a"))
        assert sorted(near) == sorted((dst, src) for src, dst in near)
    assert dataset.schema.edges["b", "rev_to", "a"].count == dataset.schema.edges["a", "to", "b"].count < 900


def test_columns_and_ids_of_edges_stay_with_them(tmp_path: Path) -> None:
    table = edges(400)
    lines = [f"{src},{dst},{number},{1000 - number}" for number, (src, dst) in enumerate(table.T.tolist())]
    (tmp_path / "e.csv").write_text("src,dst,w,id\n" + "\n".join(lines) + "\n")
    made = run_here(
        *("partition", str(tmp_path / "g"), "--edges", str(tmp_path / "e.csv"), "--weight", "w"),
        *("--split-edges", FRACTIONS, "--message-edges", "train"),
    )
    assert made.returncode == 0, made.stderr
    dataset = DistDataset.open(tmp_path / "g")
    with DistNeighborLoader(
        dataset, [-1], batch_size=1000, num_workers=0, weight_attr="w", device="cpu", seed=0
    ) as loader:
        [batch] = loader
    train = split_edges(torch.from_numpy(table), [0.7, 0.2, 0.1])["train"]
    weighed = train[train > 0]  # An edge of weight 0 is in no batch.
    assert sorted(batch.e_id.tolist()) == sorted((1000 - weighed).tolist())
    assert torch.equal(batch.w.to(torch.int64), 1000 - batch.e_id)
    pairs = torch.from_numpy(table)[:, 1000 - batch.e_id]
    assert torch.equal(batch.n_id[batch.edge_index], pairs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split-edges", "0.8;0.1"], "write --split-edges [TYPE=]TRAIN,VAL,TEST"),
        (["--split-edges", "0.8,0.9"], "add up to 1.7, more than 1"),
        (["--split-edges", "node=0.8"], "'node' is no edge type; write SRC,REL,DST=FRACTIONS"),
        (["--split-edges", "a,b,c=0.8"], "no edges of type ('a', 'b', 'c') to split; known: "),
        (["--split-nodes", "a,b,c=0.8"], "are edges: use --split-edges"),
        (["--message-edges", "train"], "no split 'train' of edges; known: none: split edges first"),
        (
            ["--split-edges", "0.8,0.1", "--message-edges", "test"],
            "no split 'test' of edges; known: train",
        ),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    np.save(tmp_path / "e.npy", edges(10))
    refused = run_here("partition", str(tmp_path / "g"), "--edges", str(tmp_path / "e.npy"), *options)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused.stderr
    assert message in refused.stderr


def test_a_bad_row_is_named_as_it_is_in_the_file(tmp_path: Path) -> None:
    lines = [f"{number % 7},{number % 5},{1.0 if number != 613 else -1.0}" for number in range(1000)]
    (tmp_path / "e.csv").write_text("src,dst,w\n" + "\n".join(lines) + "\n")
    refused = run_here(
        *("partition", str(tmp_path / "g"), "--edges", str(tmp_path / "e.csv"), "--weight", "w"),
        *("--split-edges", "0.9,0.1", "--message-edges", "train"),
    )
    assert refused.returncode == 2
    assert "e.csv, line 615, column 'w'" in refused.stderr


def test_splits_that_are_not_there_are_named(tmp_path: Path) -> None:
    dataset = built(tmp_path, {"": edges(50)}, "--split-edges", "0.9,0.1,0")
    with pytest.raises(ValueError, match="have no split 'dev'; known: 'train', 'val', 'test'"):
        links_of(dataset, "dev")
    assert links_of(dataset, "test") == []


# --- Splits by hash: fractions, ids alone, and the same in memory and on disk


HASHED = [0.8, 0.15, 0.05]


def test_every_node_is_in_one_split_of_about_its_fraction() -> None:
    ids = torch.arange(100_000) * 7 - 5
    splits = split_nodes(ids, HASHED)
    assert list(splits) == ["train", "val", "test"]
    assert torch.cat(list(splits.values())).sort().values.equal(ids)
    for fraction, found in zip(HASHED, splits.values(), strict=True):
        assert abs(len(found) / len(ids) - fraction) < 5 * (fraction * (1 - fraction) / len(ids)) ** 0.5


def test_the_split_of_a_node_depends_on_its_id_alone() -> None:
    whole = split_nodes(torch.arange(1000), HASHED)["val"]
    part = split_nodes(torch.arange(999, 400, -1), HASHED)["val"]
    assert part.tolist() == [node for node in reversed(whole.tolist()) if node > 400]
    assert split_nodes(torch.arange(1000), HASHED, seed=1)["val"].tolist() != whole.tolist()


def test_the_hash_is_the_written_one() -> None:
    edge_index = torch.tensor([[5, 2**40, 7, -1], [9, 3, 7, 0]])
    for undirected in (False, True):
        found = split_edges(edge_index, HASHED, seed=3, undirected=undirected)
        for number, (src, dst) in enumerate(edge_index.t().tolist()):
            ends = sorted((src, dst)) if undirected else (src, dst)
            key = oracle.batch_key(3, 0, [2])
            word, _ = oracle.philox(key, *(end & (2**64 - 1) for end in ends))
            place = (word >> 11) / 2**53
            name = "train" if place < 0.8 else "val" if place < 0.95 else "test"
            assert number in found[name].tolist()
    word, _ = oracle.philox(oracle.batch_key(0, 0, [1]), 12, 0)
    assert (12 in split_nodes(torch.arange(20), [0.5])["train"].tolist()) == (word >> 63 == 0)


def test_parallel_edges_and_reverses_fall_into_one_split() -> None:
    random = torch.Generator().manual_seed(0)
    edge_index = torch.randint(0, 30, (2, 5000), generator=random)
    both = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    split_of = torch.full((10_000,), -1)
    for number, edges in enumerate(split_edges(both, HASHED, undirected=True).values()):
        split_of[edges] = number
    assert torch.equal(split_of[:5000], split_of[5000:])
    directed = torch.full((10_000,), -1)
    for number, edges in enumerate(split_edges(both, HASHED).values()):
        directed[edges] = number
    assert not torch.equal(directed[:5000], directed[5000:])
    pairs = [tuple(pair) for pair in both.t().tolist()]
    assert len({(pair, number) for pair, number in zip(pairs, directed.tolist(), strict=True)}) == len(
        set(pairs)
    )


@pytest.mark.parametrize(
    ("fractions", "error", "message"),
    [
        ([0.8, 0.3], ValueError, "add up to 1.1, more than 1"),
        ([0.8, -0.1], ValueError, r"fraction of 'val' must lie in \[0, 1\]"),
        ([float("nan")], ValueError, "fraction of 'train' must lie"),
        ([], ValueError, "1 to 3 numbers"),
        ([0.1] * 4, ValueError, "1 to 3 numbers"),
        ("0.8", TypeError, "fractions are numbers"),
        (["a"], TypeError, "must be a number"),
    ],
)
def test_fractions_that_cannot_be_are_refused(fractions: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        split_nodes(torch.arange(5), fractions)


@pytest.mark.parametrize("none", [[], torch.tensor([]), np.array([])], ids=repr)
def test_of_no_ids_all_splits_are_empty(none: Any) -> None:
    for split in split_nodes(none, [0.8, 0.1, 0.1]).values():
        assert (split.dtype, len(split)) == (torch.int64, 0)
    assert len(split_edges(torch.empty(2, 0), [0.5])["train"]) == 0


def test_ids_that_are_none_are_refused() -> None:
    with pytest.raises(TypeError, match="ids must be integers, got float32"):
        split_nodes(torch.rand(5), HASHED)
    with pytest.raises(ValueError, match=r"edge_index must be \[2, E\], got \[5, 2\]"):
        split_edges(torch.zeros(5, 2, dtype=torch.int64), HASHED)
    with pytest.raises(ValueError, match="seed must be a whole number"):
        split_nodes(torch.arange(5), HASHED, seed=-1)


@pytest.mark.parametrize("num_partitions", [1, 3])
def test_the_command_line_makes_the_same_splits(tmp_path: Path, num_partitions: int) -> None:
    random = np.random.default_rng(0)
    ids = random.permutation(500) * 3
    edges = tmp_path / "edges.npy"
    np.save(edges, ids[random.integers(0, 500, (2, 3000))])
    options = ["--split-nodes", "0.6,0.3", "--assigner", "hash", "-p", str(num_partitions)]
    made = run_here("partition", str(tmp_path / "graph"), "--edges", str(edges), *options)
    assert made.returncode == 0, made.stderr
    dataset = DistDataset.open(tmp_path / "graph")
    nodes = dataset.fetch_node_ids()[0]
    expected = split_nodes(nodes, [0.6, 0.3])
    assert list(dataset.splits["node"]) == ["train", "val"]
    for name, found in expected.items():
        assert torch.equal(dataset.fetch_node_ids(name)[0], found)


def test_a_mistyped_option_is_refused_in_one_line(tmp_path: Path) -> None:
    edges = tmp_path / "edges.npy"
    np.save(edges, np.zeros((2, 1), np.int64))
    for option, message in (("0.8;0.1", "write --split-nodes"), ("0.8,0.9", "more than 1")):
        refused = run_here("partition", str(tmp_path / "g"), "--edges", str(edges), "--split-nodes", option)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert message in refused.stderr


# --- Splits whose positions are damaged: a clean error that names file and rule, before anything is indexed


SPLITS = "part-00000/splits/node.safetensors"


@pytest.fixture(params=["identity", "sparse"])
def graph(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """100 nodes, 50 of them for training."""
    random = np.random.default_rng(0)
    factor = 1 if request.param == "identity" else 1000
    ids = np.arange(100) * factor
    splits = np.where(np.arange(100) % 2, "train", "")
    src, dst = random.choice(ids, (2, 500))
    tables = GraphTables(
        edges={("node", "to", "node"): ArrayTable("edges", {"src": src, "dst": dst})},
        nodes={"node": NodeTable(ArrayTable("nodes", {"id": ids, "split": splits}))},
    )
    build_graph(tables, tmp_path / "graph", num_partitions=2)
    return tmp_path / "graph"


def damage(graph: Path, row: int, position: int) -> None:
    path = graph / SPLITS
    data = bytearray(path.read_bytes())
    buffer = np.frombuffer(data, np.uint8)
    Layout.parse(buffer).view(buffer, "train")[row] = position
    path.write_bytes(data)


@pytest.mark.parametrize("position", [100, -1, 10**6, 2**62, -(2**63), 0])
def test_a_position_that_cannot_be_is_named_with_its_file(graph: Path, position: int) -> None:
    damage(graph, 5, position)
    opened = Graph.open(graph, verify="none")  # What no checksum covers: a builder that erred.
    with pytest.raises(
        FormatError, match=f"^{SPLITS}: 'train' (is {position} at row 5, outside|falls at row 5)"
    ):
        opened.split("node", "train")
    with pytest.raises(FormatError, match=SPLITS):
        DistNeighborLoader(DistDataset.open(graph), [2], "train", batch_size=10, num_workers=0)


def test_a_split_that_is_whole_is_read(graph: Path) -> None:
    assert len(Graph.open(graph).split("node", "train")) == 50
