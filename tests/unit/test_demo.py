"""The demo, small: node classification and link prediction, the same in every mode."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gigl_loader import DistDataset
from gigl_loader.cli.app import build_app
from gigl_loader.demo.choices import SyntheticSize
from gigl_loader.demo.datasets import (
    Demonstration,
    debian_packages,
    default_dataset,
    load_demonstration,
    read_stanzas,
)
from gigl_loader.demo.tasks import rank_sums, ranks
from gigl_loader.demo.training import Stopwatch
from tests.support.packages import write_package_list

PACKAGES = """\
Package: editor
Section: contrib/editors
Depends: libtext (>= 2) | libtext-compat, mail-agent
Recommends: reader:any [amd64]
Description: edits text
 and this line continues the description

Package: libtext
Section: libs
Description: text library

Package: postman
Section: mail
Provides: mail-agent (= 1)
Suggests: editor, nowhere
Description: sends letters

Package: reader
Section: text
Pre-Depends: libtext
Description: reads text
"""


def load(name: str, seed: int = 0, size: SyntheticSize | None = None) -> Demonstration:
    return load_demonstration(name, seed=seed, cache=Path("unused"), synthetic=size)


def demo(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(build_app(), ["demo", "--json", *arguments])
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout)
    assert isinstance(outcome, dict)
    return outcome


def test_splits_cover_every_node_once() -> None:
    data = load("synthetic", size=SyntheticSize(nodes=1_003, edges=2_000, dim=4)).data
    masks = torch.stack([data.train_mask, data.val_mask, data.test_mask])
    assert masks.sum(dim=0).tolist() == [1] * 1_003
    assert masks.sum(dim=1).tolist() == [601, 201, 201]


def test_a_seed_gives_the_same_data_set() -> None:
    size = SyntheticSize(nodes=200, edges=500, dim=3)
    first, same, other = (load("synthetic", seed=seed, size=size).data for seed in (1, 1, 2))
    assert torch.equal(first.edge_index, same.edge_index)
    assert torch.equal(first.train_mask, same.train_mask)
    assert not torch.equal(first.train_mask, other.train_mask)


def test_an_npz_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tiny.npz"
    np.savez(
        path,
        adj_data=np.ones(2), adj_indices=np.array([1, 2]), adj_indptr=np.array([0, 1, 2, 2]),
        attr_data=np.array([5.0, 7.0]), attr_indices=np.array([1, 0]), attr_indptr=np.array([0, 1, 1, 2]),
        attr_shape=np.array([3, 2]), labels=np.array([4, 9, 4]),
    )  # fmt: skip
    demonstration = load(f"npz:{path}")
    assert demonstration.data.x.tolist() == [[0, 5], [0, 0], [7, 0]]
    assert demonstration.data.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert demonstration.data.y.tolist() == [0, 1, 0]
    assert demonstration.num_classes == 2


def test_an_npz_file_without_the_parts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    np.savez(path, something=np.ones(2))
    with pytest.raises(ValueError, match=r"other\.npz.*adj_"):
        load(f"npz:{path}")


def test_a_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.npz"
    path.write_text("not an archive")
    with pytest.raises(ValueError, match=r"text\.npz"):
        load(f"npz:{path}")


@pytest.mark.parametrize("name", ["", "cora", "npz:", "npz", "digits:1", "nope:x"])
def test_an_unknown_data_set_is_refused_with_those_that_exist(name: str) -> None:
    with pytest.raises(ValueError, match="choose digits, debian"):
        load(name)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"gigl-loader\[demo\]"):
        load("digits")


def test_stanzas_are_read_with_their_fields() -> None:
    stanzas = list(read_stanzas(PACKAGES.splitlines()))
    assert [stanza["Package"] for stanza in stanzas] == ["editor", "libtext", "postman", "reader"]
    assert stanzas[0]["Description"] == "edits text"


def test_the_package_graph_has_relations_alternatives_and_virtual_packages(tmp_path: Path) -> None:
    (tmp_path / "archive_Packages").write_text(PACKAGES)
    (tmp_path / "later_Packages").write_text("Package: editor\nSection: games\n")
    data, sections = debian_packages(tmp_path)
    assert sections == ["editors", "libs", "mail", "text"]
    assert data["package"].y.tolist() == [0, 1, 2, 3]
    assert data["package", "depends", "package"].edge_index.tolist() == [[0, 0, 3], [1, 2, 1]]
    assert data["package", "recommends", "package"].edge_index.tolist() == [[0], [3]]
    assert data["package", "suggests", "package"].edge_index.tolist() == [[2], [0]]
    assert data["package", "rev_depends", "package"].edge_index.tolist() == [[1, 2, 1], [0, 0, 3]]


def test_a_machine_without_package_lists_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="apt-get update"):
        debian_packages(tmp_path)


def test_laps_add_up() -> None:
    clock = Stopwatch()
    for name in ("waiting", "computing", "waiting"):
        clock.lap(name)
    assert set(clock.seconds) == {"waiting", "computing"}
    assert min(clock.seconds.values()) >= 0


# Forking a process with threads (those of torch) is what somebody who asks for fork gets.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.usefixtures("no_leftovers")
def test_the_demo_learns_and_workers_change_nothing() -> None:
    arguments = [
        "--dataset",
        "synthetic",
        "--nodes",
        "400",
        "--edges",
        "4000",
        "--dim",
        "16",
        "--epochs",
        "2",
    ]
    arguments += [
        "--batch-size",
        "64",
        "--fanout",
        "5,3",
        "--hidden",
        "16",
        "--lr",
        "0.02",
        "--device",
        "cpu",
    ]
    inline = demo(*arguments, "--mode", "embedded")
    workers = demo(*arguments, "--num-workers", "2", "--start-method", "fork")
    assert inline["num_workers"] == 0
    assert workers["num_workers"] == 2
    assert inline["test_accuracy"] == workers["test_accuracy"]
    for ours, theirs in zip(inline["reports"], workers["reports"], strict=True):
        assert (ours["loss"], ours["val_accuracy"]) == (theirs["loss"], theirs["val_accuracy"])
        parts = ours["waiting"] + ours["copying"] + ours["computing"]
        assert parts == pytest.approx(ours["seconds"])


def test_sampling_processes_start_as_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def loader(*_: Any, **options: Any) -> None:
        raise ValueError(f"started by {options['multiprocessing_context']}")

    monkeypatch.setattr("gigl_loader.demo.tasks.DistNeighborLoader", loader)
    arguments = ["--dataset", "synthetic", "--nodes", "200", "--edges", "500", "--start-method", "forkserver"]
    result = CliRunner().invoke(build_app(), ["demo", "--json", *arguments])
    assert result.stderr == "gigl-loader: started by forkserver\n"


def test_by_default_a_sampling_process_starts_for_each_core_but_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def loader(*_: Any, **options: Any) -> None:
        raise ValueError(f"{options['num_workers']} workers")

    monkeypatch.setattr("gigl_loader.demo.tasks.DistNeighborLoader", loader)
    monkeypatch.setattr("gigl_loader.options.usable_cores", lambda: 5)
    result = CliRunner().invoke(
        build_app(), ["demo", "--json", "--dataset", "synthetic", "--nodes", "200", "--edges", "500"]
    )
    assert result.stderr == "gigl-loader: 4 workers\n"


def test_the_default_demo_passes_95_percent() -> None:
    assert demo("--epochs", "6", "--num-workers", "1", "--device", "cpu")["test_accuracy"] > 0.95


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_storage_servers_change_nothing_and_are_counted() -> None:
    arguments = [
        "--dataset",
        "synthetic",
        "--nodes",
        "400",
        "--edges",
        "4000",
        "--dim",
        "16",
        "--epochs",
        "1",
    ]
    arguments += ["--batch-size", "64", "--fanout", "5,3", "--hidden", "16", "--device", "cpu"]
    inline = demo(*arguments, "--mode", "embedded")
    served = demo(*arguments, "--mode", "graph-store")
    assert inline["servers"] == []
    assert served["test_accuracy"] == inline["test_accuracy"]
    assert served["reports"][0]["loss"] == inline["reports"][0]["loss"]
    assert [server["transport"] for server in served["servers"]] == ["ring", "ring"]
    # 240 seeds to learn, 80 to validate and 80 to test.
    assert sum(server["batches"] for server in served["servers"]) >= 4 + 2 + 2


def test_the_screen_shows_what_each_server_did() -> None:
    arguments = ["--dataset", "synthetic", "--nodes", "200", "--edges", "400", "--dim", "4", "--epochs", "1"]
    arguments += ["--mode", "graph-store", "--servers", "1", "--transport", "network", "--device", "cpu"]
    result = CliRunner().invoke(build_app(), ["demo", *arguments])
    assert result.exit_code == 0, result.output
    assert "by a storage server with a sampling thread" in result.output
    assert re.search(r"server 0 +\d+ +\d+ +network", result.output)


def test_a_heterogeneous_set_is_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "archive_Packages").write_text(PACKAGES)
    monkeypatch.setattr("gigl_loader.demo.datasets.APT_LISTS", tmp_path)
    outcome = demo("--dataset", "debian", "--mode", "embedded", "--epochs", "1", "--device", "cpu")
    assert (outcome["nodes"], outcome["edges"], outcome["classes"]) == (4, 10, 4)


def test_the_graph_stays_in_the_workdir_and_is_not_overwritten(tmp_path: Path) -> None:
    arguments = ["--dataset", "synthetic", "--nodes", "200", "--edges", "400", "--dim", "4", "--epochs", "1"]
    arguments += ["--mode", "embedded", "--workdir", str(tmp_path), "--device", "cpu"]
    result = CliRunner().invoke(build_app(), ["demo", *arguments])
    assert result.exit_code == 0, result.output
    assert "test accuracy" in result.output
    assert re.search(r"[1-9]\d* rows of features to learn from: 100% memory; 0\.\d MB read", result.output)
    assert (tmp_path / "graph" / "graph.json").exists()
    again = CliRunner().invoke(build_app(), ["demo", *arguments])
    assert again.exit_code == 2
    assert "exists" in again.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--fanout", "ten"],
        ["--fanout", "5,-2"],
        ["--num-workers", "0"],
        ["--dataset", "synthetic", "--nodes", "1"],
        ["--device", "tpu"],
        ["--dataset", "imagenet"],
        ["--dataset", "digits:1"],
        ["--dataset", "npz:/no/such/file.npz"],
        ["--lr", "0"],
        ["--feature-memory", "some"],
        ["--servers", "2"],
        ["--transport", "ring"],
        ["--mode", "embedded", "--transport", "network"],
        ["--mode", "graph-store", "--servers", "3"],
        ["--mode", "graph-store", "--num-workers", "0"],
        ["--mode", "graph-store", "--start-method", "fork"],
        ["--mode", "embedded", "--start-method", "spawn"],
    ],
)
def test_a_bad_argument_is_refused_in_one_line(arguments: list[str]) -> None:
    result = CliRunner().invoke(build_app(), ["demo", *arguments])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("gigl-loader: ")
    assert result.stderr.count("\n") == 1


# --- The demo's link prediction: ranks, splits without leaks, and the same outcome in every mode


DEPENDS = ("package", "depends", "package")
SMALL = ["--task", "link", "--dataset", "synthetic", "--nodes", "500", "--edges", "2500", "--dim", "64"]
SMALL += ["--batch-size", "256", "--fanout", "5,3", "--hidden", "32", "--lr", "0.02", "--device", "cpu"]


@pytest.fixture
def lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make apt's lists of 120 packages."""
    folder = write_package_list(tmp_path / "lists", count=120)
    monkeypatch.setattr("gigl_loader.demo.datasets.APT_LISTS", folder)
    return folder


def test_a_rank_counts_higher_scores_and_half_of_equal_ones() -> None:
    scores = torch.tensor([[3.0, 1, 2], [1, 3, 2], [2, 2, 2], [2, 2, 3]])
    assert ranks(scores).tolist() == [1, 3, 2, 2.5]


def test_sums_of_ranks_add_up_over_links() -> None:
    scores = torch.zeros(2, 21)
    scores[0, 0] = 1
    sums = {name: value.item() for name, value in rank_sums(scores).items()}
    assert sums == pytest.approx({"mrr": 1 + 1 / 11, "hits@1": 1, "hits@10": 1})


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_links_are_learnt_better_than_by_popularity_in_the_same_way_in_every_mode() -> None:
    inline = demo(*SMALL, "--mode", "embedded", "--epochs", "3")
    workers = demo(*SMALL, "--num-workers", "1", "--epochs", "1")
    served = demo(*SMALL, "--mode", "graph-store", "--epochs", "1")
    assert inline["test_mrr"] > 1.1 * inline["test_popularity_mrr"]
    assert inline["test_hits@10"] > 1.1 * inline["test_popularity_hits@10"]
    assert served["test_mrr"] == pytest.approx(workers["test_mrr"], rel=1e-3)
    ours = inline["reports"][0]
    for other in (workers, served):
        # Sums are rounded by the number of torch's threads, which leaves a core to each who samples.
        for name in ("loss", "val_mrr"):
            assert other["reports"][0][name] == pytest.approx(ours[name], rel=1e-3)
    parts = sum(ours[part] for part in ("waiting", "copying", "computing"))
    assert parts == pytest.approx(ours["seconds"])
    assert ours["seeds"] == inline["links"]["train"]
    assert [server["transport"] for server in served["servers"]] == ["ring", "ring"]


def test_an_edge_that_is_tested_and_its_reverse_are_in_no_batch(lists: Path, tmp_path: Path) -> None:
    outcome = demo("--task", "link", "--mode", "embedded", "--epochs", "1", "--workdir", str(tmp_path))
    assert (outcome["dataset"], outcome["edge_type"]) == ("debian", list(DEPENDS))
    assert sum(outcome["links"].values()) == 600
    assert (outcome["edges"], outcome["candidates"]) == (2 * outcome["links"]["train"], 51)
    with DistDataset.open(tmp_path / "graph") as dataset:
        messages = set(_pairs(dataset.all_edges(DEPENDS)))
        turned = {(b, a) for a, b in _pairs(dataset.all_edges(("package", "rev_depends", "package")))}
        held_out = {pair for name in ("val", "test") for pair in _pairs(dataset.all_edges(DEPENDS, name))}
    assert messages == turned
    assert held_out
    assert messages.isdisjoint(held_out)


def test_an_edge_in_both_directions_falls_into_one_split(tmp_path: Path) -> None:
    demo(*SMALL, "--mode", "embedded", "--epochs", "1", "--workdir", str(tmp_path))
    with DistDataset.open(tmp_path / "graph") as dataset:
        (edge_type,) = dataset.edge_types
        by_split = [set(_pairs(dataset.all_edges(edge_type, name))) for name in ("train", "val", "test")]
    for pairs in by_split:
        assert pairs == {(b, a) for a, b in pairs}


def test_links_are_those_of_debian_where_there_are_lists(
    lists: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (default_dataset("node"), default_dataset("link")) == ("digits", "debian")
    monkeypatch.setattr("gigl_loader.demo.datasets.APT_LISTS", tmp_path / "nothing")
    assert default_dataset("link") == "digits"


def test_the_screen_shows_the_guess_beside_the_model(lists: Path) -> None:
    arguments = ["demo", "--task", "link", "--mode", "embedded", "--epochs", "1", "--device", "cpu"]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0, result.output
    assert "packages of the Debian archive: will A depend on B?" in result.output
    assert "links a batch" in result.output
    assert "MRR popular hits@10 popular" in result.output
    assert "of 51 candidates; by popularity MRR" in result.output


def test_a_graph_with_too_few_edges_to_split_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gigl_loader.demo.datasets.APT_LISTS", tmp_path)
    (tmp_path / "archive_Packages").write_text("Package: a\nDepends: b\n\nPackage: b\n")
    result = CliRunner().invoke(build_app(), ["demo", "--json", "--task", "link", "--mode", "embedded"])
    assert (result.exit_code, result.stdout) == (2, "")
    expected = "gigl-loader: the graph is too small for the demo: split 'val' has no links\n"
    assert result.stderr == expected


def _pairs(ends: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> list[tuple[int, int]]:
    return list(zip(ends[0].tolist(), ends[1].tolist(), strict=True))
