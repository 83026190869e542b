"""Embeddings in files: one row per node, those of the model, whatever the input, the format and the ranks."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.nn import GraphSAGE, to_hetero
from torch_geometric.nn.models import GCN

from gigl_loader import (
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    write_embeddings,
)
from gigl_loader.graph import HOMOGENEOUS_EDGE
from gigl_loader.group import RankGroup
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from tests.support.pyg_graphs import heterogeneous, homogeneous
from tests.support.thread_ranks import run_ranks

DATA = homogeneous()
DATASET = DistDataset.from_pyg(DATA)
FANOUT = [3, 2]
OPTIONS: dict[str, Any] = {"batch_size": 16, "num_workers": 0, "seed": 7}


def model() -> GraphSAGE:
    torch.manual_seed(0)
    return GraphSAGE(6, 8, 2, out_channels=4, dropout=0.5)


def loader_of(nodes: Any = None, **options: Any) -> DistNeighborLoader:
    return DistNeighborLoader(DATASET, FANOUT, nodes, **{**OPTIONS, **options})


def rows_in(path: Path) -> dict[Any, list[float]]:
    """Return the row of each node. Fails where a node has two."""
    table = pq.read_table(path)
    rows = dict(zip(table["id"].to_pylist(), table["embedding"].to_pylist(), strict=True))
    assert len(rows) == table.num_rows
    return rows


def expected(loader: DistNeighborLoader) -> dict[int, list[float]]:
    """Return the rows of one epoch, as a user would compute them: each node's of its first entry."""
    module = model().eval()
    entries: dict[int, tuple[int, list[float]]] = {}
    with torch.no_grad():
        for batch in loader:
            out = module(batch.x, batch.edge_index)[batch.seed_index]
            places, nodes = batch.input_id.tolist(), batch.batch.tolist()
            entries |= dict(zip(places, zip(nodes, out.tolist(), strict=True), strict=True))
    rows: dict[int, list[float]] = {}
    for _, (node, row) in sorted(entries.items()):
        rows.setdefault(node, row)
    return rows


INPUTS: dict[str, Any] = {
    "all": None,
    "split": "train",
    "list": [7, 3, 200, 0],
    "repeated": [7, 7, 3, *range(40), 7],
    "mask": DATA.train_mask,
}


@pytest.mark.some(3)
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"num_workers": 1}], ids=str)
@pytest.mark.parametrize("nodes", INPUTS.values(), ids=INPUTS)
def test_each_node_has_the_row_of_the_model(nodes: Any, options: dict[str, Any], tmp_path: Path) -> None:
    with loader_of(nodes, **options) as loader:
        wanted = expected(loader)
        loader.set_epoch(0)
        count = write_embeddings(loader, model(), tmp_path / "out", rows_per_shard=40)
        assert loader.epoch == 1
    assert count == len(wanted)
    assert rows_in(tmp_path / "out") == wanted


def test_parquet_has_the_promised_columns(tmp_path: Path) -> None:
    with loader_of() as loader:
        write_embeddings(loader, model(), tmp_path / "wide", rows_per_shard=100)
        write_embeddings(loader, model(), tmp_path / "half", dtype=torch.float16)
    schema = pq.read_table(tmp_path / "wide").schema
    assert str(schema.field("id").type) == "int64"
    assert str(schema.field("embedding").type) == "fixed_size_list<element: float>[4]"
    names = [f"embeddings-00000-0000{shard}.parquet" for shard in range(4)]  # 6 batches of 16 each
    assert sorted(path.name for path in (tmp_path / "wide").iterdir()) == [
        "_manifest-00000-of-00001.json",
        *names,
    ]
    half = pq.read_table(tmp_path / "half")
    assert str(half.schema.field("embedding").type) == "fixed_size_list<element: halffloat>[4]"
    assert half.num_rows == DATASET.num_nodes


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_npy_has_pairs_of_files(dtype: torch.dtype, tmp_path: Path) -> None:
    with loader_of() as loader:
        wanted = expected(loader)
        loader.set_epoch(0)
        write_embeddings(loader, model(), tmp_path, format="npy", dtype=dtype, rows_per_shard=100)
    found: dict[int, list[float]] = {}
    for ids in sorted(tmp_path.glob("ids-*.npy")):
        rows = np.load(ids.with_name(ids.name.replace("ids", "embeddings")))
        assert rows.dtype == str(dtype).removeprefix("torch.")
        assert np.load(ids).dtype == np.int64
        found |= dict(zip(np.load(ids).tolist(), rows, strict=True))
    assert sorted(found) == sorted(wanted)
    for node, row in wanted.items():
        np.testing.assert_allclose(found[node], row, rtol=2e-3, atol=1e-4)


CALLABLES: dict[str, Callable[[Any], torch.Tensor]] = {
    "seeds": lambda batch: batch.x[batch.seed_index],
    "nodes": lambda batch: batch.x,
}


@pytest.mark.parametrize("name", CALLABLES)
def test_a_callable_returns_rows_of_seeds_or_of_nodes(name: str, tmp_path: Path) -> None:
    with loader_of() as loader:
        write_embeddings(loader, CALLABLES[name], tmp_path)
    found = rows_in(tmp_path)
    assert [found[node] for node in range(DATASET.num_nodes)] == DATA.x.tolist()


def test_a_callable_of_repeated_nodes_returns_rows_of_seeds(tmp_path: Path) -> None:
    with loader_of([5, 5, 2]) as loader:
        with pytest.raises(
            ValueError, match=r"needed is \[3, D\], rows of the seeds, as the input names nodes twice"
        ):
            write_embeddings(loader, CALLABLES["nodes"], tmp_path)
        assert write_embeddings(loader, CALLABLES["seeds"], tmp_path) == 2
    assert rows_in(tmp_path) == {5: DATA.x[5].tolist(), 2: DATA.x[2].tolist()}


def test_heterogeneous_batches_and_disjoint_trees(tmp_path: Path) -> None:
    data = heterogeneous()
    del data["tag"]
    for kind in [kind for kind in data.edge_types if "tag" in kind]:
        del data[kind]
    hetero = to_hetero(GraphSAGE((-1, -1), 8, 1, out_channels=3), data.metadata())
    with torch.no_grad():
        hetero(data.x_dict, data.edge_index_dict)
    options: dict[str, Any] = {**OPTIONS, "disjoint": True}
    with DistNeighborLoader(DistDataset.from_pyg(data), [-1], ("item", None), **options) as loader:
        assert write_embeddings(loader, hetero, tmp_path) == 90
    with torch.no_grad():
        wanted = hetero.eval()(data.x_dict, data.edge_index_dict)["item"]
    found = rows_in(tmp_path)
    torch.testing.assert_close(torch.tensor([found[node] for node in range(90)]), wanted)


@pytest.fixture
def named(tmp_path: Path) -> DistDataset:
    """A graph whose nodes have texts as ids."""
    names = np.array([f"user {number}" for number in range(50)])
    nodes = NodeTable(ArrayTable("nodes", {"id": names, "x": np.eye(50, dtype=np.float32)}))
    edges = {HOMOGENEOUS_EDGE: ArrayTable("edges", {"src": names, "dst": np.roll(names, 1)})}
    build_graph(GraphTables(edges=edges, nodes={"node": nodes}), tmp_path / "graph", num_partitions=2)
    return DistDataset.open(tmp_path / "graph")


def test_texts_are_written_where_they_are_asked_for(named: DistDataset, tmp_path: Path) -> None:
    with DistNeighborLoader(named, [2], None, **OPTIONS) as loader:
        write_embeddings(loader, CALLABLES["nodes"], tmp_path / "texts", original_ids=True)
        write_embeddings(loader, CALLABLES["nodes"], tmp_path / "numbers")
        with pytest.raises(ValueError, match=r"are texts here, which \.npy does not take"):
            write_embeddings(loader, CALLABLES["nodes"], tmp_path / "npy", original_ids=True, format="npy")
    found = rows_in(tmp_path / "texts")
    assert sorted(found) == sorted(f"user {number}" for number in range(50))
    assert all(np.argmax(row) == int(name.split()[1]) for name, row in found.items())
    assert sorted(rows_in(tmp_path / "numbers")) == list(range(50))


def test_modes_of_modules_are_as_before(tmp_path: Path) -> None:
    module = model()
    module.dropout.train(False)
    seen = []
    module.convs[0].register_forward_hook(lambda *_: seen.append((module.training, torch.is_grad_enabled())))
    with loader_of() as loader:
        write_embeddings(loader, module, tmp_path / "module")
        write_embeddings(loader, Method().rows, tmp_path / "method")
    assert set(seen) == {(False, False)}
    assert module.training
    assert not module.dropout.training


class Method(torch.nn.Module):
    """A module one of whose methods takes a batch."""

    def rows(self, batch: Any) -> torch.Tensor:
        assert not self.training
        return batch.x  # type: ignore[no-any-return]


# Ranks


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize(
    ("nodes", "world_size"),
    [(None, 2), (None, 3), ([4, 9, 2], 2), ([4, 9], 4), ([4, 4, 9, 4, 9], 3)],
    ids=str,
)
def test_ranks_write_each_node_once(nodes: Any, world_size: int, even: bool, tmp_path: Path) -> None:
    def rank(_: RankGroup) -> int:
        with loader_of(nodes, even_batches=even, batch_size=4) as loader:
            return write_embeddings(loader, CALLABLES["seeds"], tmp_path, rows_per_shard=20)

    counts = run_ranks(world_size, rank)
    assert all(isinstance(count, int) for count in counts), counts
    wanted = sorted(set(nodes or range(DATASET.num_nodes)))
    found = rows_in(tmp_path)
    assert sum(counts) == len(found)  # type: ignore[arg-type]
    assert sorted(found) == wanted
    assert all(found[node] == DATA.x[node].tolist() for node in wanted)
    again = run_ranks(world_size, rank)
    assert again == counts


def test_a_rank_that_cannot_write_is_told_to_all(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("in the way")

    def rank(group: RankGroup) -> int:
        with loader_of() as loader:
            return write_embeddings(loader, CALLABLES["seeds"], tmp_path / str(group.rank))

    first, second = run_ranks(2, rank)
    assert isinstance(first, RuntimeError)
    assert "rank 1 cannot write embeddings: FileExistsError" in str(first)
    assert isinstance(second, FileExistsError)


def test_ranks_with_different_models_are_refused(tmp_path: Path) -> None:
    def rank(group: RankGroup) -> int:
        torch.manual_seed(group.rank)
        with loader_of() as loader:
            return write_embeddings(loader, torch.nn.Bilinear(1, 1, group.rank + 1), tmp_path)

    for error in run_ranks(2, rank):
        assert "ranks differ in write_embeddings: digest of the model of rank 1 and rank 0" in str(error)


# Going on


@dataclass(frozen=True, slots=True)
class Stop:
    """A model that fails at a batch."""

    at: int
    calls: Counter[str]

    def __call__(self, batch: Any) -> torch.Tensor:
        self.calls["batches"] += 1
        if self.calls["batches"] == self.at:
            raise RuntimeError("as planned")
        return batch.x  # type: ignore[no-any-return]


@pytest.mark.some(1)
@pytest.mark.parametrize("stop_at", [1, 2, 7, 19])
@pytest.mark.parametrize("seed", [7, None], ids=["seed", "random seed"])
def test_a_call_that_failed_goes_on_behind_its_last_shard(
    stop_at: int, seed: int | None, tmp_path: Path
) -> None:
    with loader_of(seed=seed) as loader, pytest.raises(RuntimeError, match="as planned"):
        write_embeddings(loader, Stop(stop_at, Counter()), tmp_path, rows_per_shard=32)
    calls: Counter[str] = Counter()
    with loader_of(seed=seed, num_workers=1) as loader:
        assert write_embeddings(loader, Stop(0, calls), tmp_path, rows_per_shard=32) == 300
        assert loader.epoch == 1
    assert calls["batches"] == 19 - (stop_at - 1) // 2 * 2
    assert len(rows_in(tmp_path)) == 300


@pytest.mark.some(3)
@pytest.mark.parametrize("nodes", [None, [*range(50), *range(120), *range(290)]], ids=["all", "repeated"])
@pytest.mark.parametrize("seed", [7, None], ids=["seed", "random seed"])
@pytest.mark.parametrize("runs", [(2, 3), (4, 1), (1, 3), (3, 2, 4), (2, 2, 3, 3)], ids=str)
def test_other_numbers_of_ranks_go_on_with_the_rows_that_lack(
    runs: tuple[int, ...], seed: int | None, nodes: Any, tmp_path: Path
) -> None:
    """Ranks are not equally far when they fail, the first of them farthest."""

    def rank(group: RankGroup, *, last: bool) -> int:
        with loader_of(nodes, seed=seed, shuffle=True, even_batches=True, name="all") as loader:
            stop = Stop(0 if last else 7 - 2 * group.rank, Counter())
            rows = write_embeddings(
                loader, lambda batch: stop(batch)[batch.seed_index], tmp_path, rows_per_shard=32
            )
            assert loader.epoch == 1
            return rows

    wanted = len(set(nodes or range(300)))
    for number, world_size in enumerate(runs):
        last = number + 1 == len(runs)
        results = run_ranks(world_size, partial(rank, last=last))
        assert not last or all(isinstance(each, int) for each in results), results
    found = rows_in(tmp_path)
    assert sorted(found) == list(range(wanted))
    assert all(found[node] == DATA.x[node].tolist() for node in range(wanted))


def test_what_other_ranks_have_completed_is_not_made_again(tmp_path: Path) -> None:
    def rank(_: RankGroup) -> int:
        with loader_of() as loader:
            return write_embeddings(loader, CALLABLES["seeds"], tmp_path)

    assert sum(run_ranks(2, rank)) == 300  # type: ignore[arg-type]
    with loader_of() as loader:
        assert write_embeddings(loader, Stop(1, Counter()), tmp_path) == 0
        assert loader.epoch == 1
    assert len(rows_in(tmp_path)) == 300


def test_files_that_no_manifest_lists_are_not_kept_by_other_ranks(tmp_path: Path) -> None:
    with loader_of() as loader, pytest.raises(RuntimeError, match="as planned"):
        write_embeddings(loader, Stop(5, Counter()), tmp_path, rows_per_shard=32)
    (tmp_path / "embeddings-00000-00002.parquet").write_bytes(b"of a process that was killed")

    def rank(_: RankGroup) -> int:
        with loader_of() as loader:
            return write_embeddings(loader, CALLABLES["seeds"], tmp_path, rows_per_shard=32)

    assert all(isinstance(each, int) for each in run_ranks(2, rank))
    assert len(rows_in(tmp_path)) == 300


def test_files_of_a_rank_that_still_writes_are_left_alone(tmp_path: Path) -> None:
    """Ranks of another number are started while one of the earlier ones is still at work."""

    def fail(group: RankGroup) -> int:
        with loader_of(name="all") as loader:
            return write_embeddings(loader, Stop(5, Counter()), tmp_path, rows_per_shard=32)

    run_ranks(3, fail)
    unlisted = tmp_path / "embeddings-00002-00009.parquet"
    unlisted.write_bytes(b"its manifest comes next")
    with open(tmp_path / ".lock-00002", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        results = run_ranks(2, fail)
    assert any("another process writes to" in str(each) for each in results)
    assert unlisted.exists()


def test_what_is_complete_is_not_made_again(tmp_path: Path) -> None:
    calls: Counter[str] = Counter()
    for _ in range(2):
        with loader_of() as loader:
            assert write_embeddings(loader, Stop(0, calls), tmp_path) == 300
            assert loader.stats()["batches"] in (19, 0)
    assert calls["batches"] == 19


def _scaled() -> GraphSAGE:
    module = model()
    with torch.no_grad():
        next(module.parameters()).mul_(2)
    return module


@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("loader_options", "options", "module", "message"),
    [
        ({"batch_size": 8}, {}, model, "batch_size is 8 here, 16 there"),
        ({"seed": 8}, {}, model, "seed is 8 here, 7 there"),
        ({"nodes": "train"}, {}, model, "digest of seeds is .* number of seeds is"),
        ({}, {"dtype": torch.float16}, model, "dtype is float16 here, float32 there"),
        ({}, {"format": "npy"}, model, "format is npy here, parquet there"),
        ({}, {"rows_per_shard": 16}, model, "batches per shard is 1 here, 6250 there"),
        ({}, {}, _scaled, "digest of the model is"),
    ],
    ids=["batch_size", "seed", "nodes", "dtype", "format", "rows_per_shard", "weights"],
)
def test_another_run_is_refused_with_the_difference(
    loader_options: dict[str, Any], options: dict[str, Any], module: Any, message: str, tmp_path: Path
) -> None:
    with loader_of() as loader:
        write_embeddings(loader, model(), tmp_path)
    with (
        loader_of(**loader_options) as loader,
        pytest.raises(ValueError, match=f"is of another run: .*{message}"),
    ):
        write_embeddings(loader, module(), tmp_path, **options)
    assert loader.stats()["batches"] == 0


def test_another_graph_is_refused(tmp_path: Path) -> None:
    with loader_of() as loader:
        write_embeddings(loader, model(), tmp_path)
    other = homogeneous()
    other.x = other.x + 1
    with (
        DistNeighborLoader(DistDataset.from_pyg(other), FANOUT, **OPTIONS) as loader,
        pytest.raises(ValueError, match="is of another run: graph is"),
    ):
        write_embeddings(loader, model(), tmp_path)


# Refusals


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with loader_of() as loader, pytest.raises(ValueError, match=r"something else \(it has thesis.tex\)"):
        write_embeddings(loader, model(), tmp_path)


def test_shards_without_a_manifest_are_refused(tmp_path: Path) -> None:
    with loader_of() as loader:
        write_embeddings(loader, model(), tmp_path)
        (tmp_path / "_manifest-00000-of-00001.json").unlink()
        with pytest.raises(ValueError, match=r"something else \(it has embeddings-00000-00000.parquet\)"):
            write_embeddings(loader, model(), tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "is damaged"), ("{", "is damaged"), ("[]", "no manifest"), ("{}", "no manifest")],
)
def test_a_damaged_manifest_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "_manifest-00000-of-00001.json").write_text(content)
    with loader_of() as loader, pytest.raises(ValueError, match=message):
        write_embeddings(loader, model(), tmp_path)


def test_a_shard_that_was_changed_is_refused(tmp_path: Path) -> None:
    with loader_of() as loader:
        write_embeddings(loader, model(), tmp_path)
        (tmp_path / "embeddings-00000-00000.parquet").write_text("")
        with pytest.raises(ValueError, match="is gone or was changed"):
            write_embeddings(loader, model(), tmp_path)


def test_two_processes_do_not_write_to_one_directory(tmp_path: Path) -> None:
    def nested(batch: Any) -> Any:
        with loader_of() as other, pytest.raises(ValueError, match="another process writes to"):
            write_embeddings(other, CALLABLES["nodes"], tmp_path)
        return batch.x

    with loader_of([1]) as loader:
        write_embeddings(loader, nested, tmp_path)
    assert not list(tmp_path.glob(".lock*"))


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with loader_of() as loader:
        with pytest.raises(OSError, match=r"Not a directory: '.*/file/out'"):
            write_embeddings(loader, model(), tmp_path / "file" / "out")
        assert loader.stats()["batches"] == 0


def test_too_small_a_disk_is_told_after_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("", (), {"free": 1000}))
    with loader_of() as loader:
        with pytest.raises(OSError, match="the rows to come need 7,296 bytes, and 1,000 are free"):
            write_embeddings(loader, model(), tmp_path)
        assert loader.stats()["batches"] == 1


def test_shards_that_are_written_need_no_space_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([7_296, *[0] * 20])
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("", (), {"free": next(left)}))
    with loader_of() as loader:
        assert write_embeddings(loader, model(), tmp_path, rows_per_shard=32) == 300


def test_a_disk_that_becomes_full_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        if "embeddings-00000-00001" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with loader_of() as loader:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="no space left for the next shard; after making some"):
                write_embeddings(loader, model(), tmp_path, rows_per_shard=100)
        assert not list(tmp_path.glob(".tmp*"))
        manifest = json.loads((tmp_path / "_manifest-00000-of-00001.json").read_text())
        assert [shard["rows"] for shard in manifest["shards"]] == [96]
        assert write_embeddings(loader, model(), tmp_path, rows_per_shard=100) == 300
    assert len(rows_in(tmp_path)) == 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "csv"}, "format must be 'parquet' or 'npy', got 'csv'"),
        ({"dtype": torch.float64}, "dtype must be torch.float32 or torch.float16, got torch.float64"),
        ({"rows_per_shard": 0}, "rows_per_shard must be at least 1"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with loader_of() as loader, pytest.raises(ValueError, match=message):
        write_embeddings(loader, model(), tmp_path, **options)


@pytest.mark.parametrize(
    "options", [{"drop_last": True}, {"in_order": False}, {"seed_weights": torch.ones(300)}], ids=str
)
def test_loaders_that_leave_nodes_out_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    name = next(iter(options))
    with loader_of(**options) as loader, pytest.raises(ValueError, match=f"without {name}"):
        write_embeddings(loader, model(), tmp_path)


def test_only_loaders_of_nodes_will_do(tmp_path: Path) -> None:
    with (
        DistLinkNeighborLoader(DATASET, FANOUT, **OPTIONS) as loader,
        pytest.raises(ValueError, match="needs a loader of nodes"),
    ):
        write_embeddings(loader, model(), tmp_path)
    with pytest.raises(TypeError, match="needs a DistNeighborLoader, not a list"):
        write_embeddings([], model(), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (lambda batch: batch.x[:1], r"a tensor of shape \[1, 6\]; needed is \[16, D\]"),
        (lambda batch: batch.x[:, 0], "a tensor of shape"),
        (lambda batch: batch.x[:, :0], r"must be floats"),
        (lambda batch: batch.n_id[:, None], r"must be floats"),
        (lambda batch: None, "returned a NoneType"),
    ],
)
def test_rows_of_another_shape_are_refused(out: Any, message: str, tmp_path: Path) -> None:
    with loader_of() as loader, pytest.raises(ValueError, match=message):
        write_embeddings(loader, out, tmp_path)


def test_numbers_beyond_float16_are_refused(tmp_path: Path) -> None:
    with loader_of() as loader, pytest.raises(ValueError, match="does not fit float16"):
        write_embeddings(loader, lambda batch: batch.x * 1e6, tmp_path, dtype=torch.float16)


def test_a_module_needs_features(tmp_path: Path) -> None:
    with loader_of(node_columns=["y"]) as loader, pytest.raises(ValueError, match="which the batch lacks"):
        write_embeddings(loader, model(), tmp_path)


def test_a_model_without_weights_is_refused(tmp_path: Path) -> None:
    with loader_of() as loader, pytest.raises(ValueError, match="is not initialised"):
        write_embeddings(loader, GCN(-1, 8, 2), tmp_path)


def test_a_progress_bar_comes_on_a_terminal_or_when_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with loader_of() as loader:
        write_embeddings(loader, model(), tmp_path / "none")
        assert capfd.readouterr().err == ""
        write_embeddings(loader, model(), tmp_path / "some", progress_bar=True)
        assert "19/19" in capfd.readouterr().err
