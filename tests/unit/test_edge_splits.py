"""Splits of edges that are stored with a graph: which links they give, and which edges batches may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from gigl_loader.splits import split_edges
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
    with pytest.raises(ValueError, match="the input holds no link"):
        links_of(dataset, "test")
