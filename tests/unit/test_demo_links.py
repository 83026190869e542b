"""The demo's link prediction: ranks, splits without leaks, and the same outcome in every mode."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from gigl_loader import DistDataset
from gigl_loader.cli.app import build_app
from gigl_loader.demo.datasets import default_dataset
from gigl_loader.demo.tasks import rank_sums, ranks
from tests.support.packages import write_package_list

DEPENDS = ("package", "depends", "package")
SMALL = ["--task", "link", "--dataset", "synthetic", "--nodes", "500", "--edges", "2500", "--dim", "64"]
SMALL += ["--batch-size", "256", "--fanout", "5,3", "--hidden", "32", "--lr", "0.02", "--device", "cpu"]


def demo(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(build_app(), ["demo", "--json", *arguments])
    assert result.exit_code == 0, result.output
    outcome = json.loads(result.stdout)
    assert isinstance(outcome, dict)
    return outcome


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
    assert result.stderr == "gigl-loader: the input holds no link of type ('package', 'depends', 'package')\n"


def _pairs(ends: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]) -> list[tuple[int, int]]:
    return list(zip(ends[0].tolist(), ends[1].tolist(), strict=True))
