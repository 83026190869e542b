"""torch.distributed.checkpoint keeps one state of all ranks, which another number of ranks goes on from."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.stateful import Stateful

from gigl_loader import DistDataset
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.elastic_training import described, open_loader
from tests.support.pyg_graphs import homogeneous, same_batch
from tests.support.torchrun import Torchrun

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("no_leftovers")
SECONDS = 150.0


@pytest.mark.parametrize("stop_after", [0, 3])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_has_the_place_of_a_loader(stop_after: int, tmp_path: Path) -> None:
    dataset = DistDataset.from_pyg(homogeneous())
    with open_loader("nodes", dataset, num_workers=0) as loader:
        assert isinstance(loader, Stateful)
        iterator = iter(loader)
        list(islice(iterator, stop_after))
        dcp.save({"loader": loader}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
        expected = list(iterator)
    with open_loader("nodes", dataset, num_workers=0) as loader:
        dcp.load({"loader": loader}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
        found = list(loader)
    assert len(found) == len(expected)
    assert all(map(same_batch, found, expected))


@pytest.mark.slow
def test_a_checkpoint_of_four_ranks_is_gone_on_with_by_two(tmp_path: Path) -> None:
    graph = tmp_path / "graph"
    build_graph(tables_from_pyg(homogeneous()), graph, num_partitions=1)
    with DistDataset.open(graph) as dataset, open_loader("nodes", dataset, num_workers=0) as loader:
        undisturbed = [described(batch) for batch in loader]
    job: dict[str, Any] = {"graph": str(graph), "addresses": [], "kind": "nodes", "checkpoints": True}
    job |= {"journal": str(tmp_path / "journal.json"), "options": {}}
    for ranks, killed_at in [(4, 2), (2, 99)]:
        command = ["-m", "tests.support.elastic_training", json.dumps({**job, "killed_at": killed_at})]
        with Torchrun(*command, ranks_per_host=ranks, folder=tmp_path) as run:
            (status,) = run.finish(seconds=SECONDS)
            assert (status == 0) == (killed_at == 99), run.errors(0)
    batches = {
        int(number): batch
        for number, batch in json.loads((tmp_path / "journal.json").read_text())["batches"].items()
    }
    assert sorted(place for batch in batches.values() for place in batch["places"]) == list(range(100))
    assert all(batches[number] == undisturbed[number] for number in range(12))
