"""torchrun with 4, 3, 2 and 4 ranks, killed in mid-epoch: every seed comes exactly once."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader import DistDataset
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_server.local_cluster import LocalCluster
from tests.support.command_line import run_here
from tests.support.elastic_training import OPTIONS, described, open_loader
from tests.support.pyg_graphs import homogeneous
from tests.support.torchrun import Torchrun

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_leftovers")
SECONDS = 150.0
RUNS = [(4, 1), (3, 1), (2, 1), (4, 99)]
"""Ranks, and the step before which a rank of this run is killed."""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=2)
    return path


@pytest.mark.slow
@pytest.mark.timeout(len(RUNS) * SECONDS)
@pytest.mark.parametrize("mode", ["colocated", "store"])
@pytest.mark.parametrize("kind", ["nodes", "links", "anchors"])
def test_every_seed_comes_once_over_runs_of_4_3_2_and_4_ranks(
    kind: str, mode: str, graph: Path, tmp_path: Path
) -> None:
    with DistDataset.open(graph) as dataset, open_loader(kind, dataset, num_workers=0) as loader:
        undisturbed = [described(batch) for batch in loader]
    job: dict[str, Any] = {"graph": str(graph), "kind": kind, "journal": str(tmp_path / "journal.json")}
    job["ledger"] = str(tmp_path / "run.jsonl")
    with ExitStack() as stack:
        is_store = mode == "store"
        addresses = stack.enter_context(LocalCluster(graph, servers=2)).addresses if is_store else []
        for ranks, killed_at in RUNS:
            options = {**job, "addresses": addresses, "killed_at": killed_at, "options": {}}
            command = ["-m", "tests.support.elastic_training", json.dumps(options)]
            with Torchrun(*command, ranks_per_host=ranks, folder=tmp_path) as run:
                (status,) = run.finish(seconds=SECONDS)
                assert (status == 0) == (killed_at == 99), run.errors(0)
    committed = json.loads((tmp_path / "journal.json").read_text())
    batches = {int(number): batch for number, batch in committed["batches"].items()}
    assert sorted(place for batch in batches.values() for place in batch["places"]) == list(range(100))
    for number, batch in batches.items():
        if len(batch["places"]) == OPTIONS["batch_size"]:
            assert batch == undisturbed[number]
    ledgers = [str(tmp_path / f"run{rank}.jsonl") for rank in ("", ".rank1", ".rank2", ".rank3")]
    replayed = run_here("replay", *ledgers, "--graph", str(graph), "--json")
    assert replayed.returncode == 0, replayed.stderr
    document = json.loads(replayed.stdout)
    assert {each["batch"] for each in document["batches"]} >= batches.keys()
    assert [each["resumed"] for each in document["ledgers"]] == [3, 3, 2, 1]
