"""torch.distributed.checkpoint keeps one state of all ranks, which another number of ranks goes on from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.stateful import Stateful
from torch.utils.data import IterableDataset

from gigl_loader import DistDataset
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.elastic_training import described, open_loader
from tests.support.leftovers import wait_until
from tests.support.pyg_graphs import homogeneous, same_batch
from tests.support.torchrun import Torchrun

pytestmark = pytest.mark.usefixtures("no_leftovers")
SECONDS = 150.0
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("stop_after", [0, 3, 13])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_has_the_place_of_a_loader(stop_after: int, tmp_path: Path) -> None:
    dataset = DistDataset.from_pyg(homogeneous())
    with open_loader("nodes", dataset, num_workers=0) as loader:
        iterator = iter(loader)
        list(islice(iterator, stop_after))
        save({"loader": loader}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
        expected = list(iterator) or list(loader)  # After the last batch, the next epoch.
        assert isinstance(loader, Stateful)
    with open_loader("nodes", dataset, num_workers=0) as loader:
        load({"loader": loader}, checkpoint_id=tmp_path / "checkpoint", no_dist=True)
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


def _has_lines(job: Torchrun, count: int) -> bool:
    return len(job.output(0).splitlines()) >= count


@pytest.mark.slow
def test_the_example_goes_on_where_ranks_were_lost_with_those_that_there_are(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "elastic.py")
    options = [script, "--json", "--checkpoints", str(tmp_path / "checkpoints"), "--batch-size", "20"]
    lines: list[tuple[int, dict[str, Any]]] = []
    for run, (ranks, lost) in enumerate([(4, 2), (3, 0), (2, None)]):
        with Torchrun(*options, ranks_per_host=ranks, folder=tmp_path) as job:
            if lost is not None:
                wanted = partial(_has_lines, job, 7 * ranks)
                assert wait_until(wanted, seconds=SECONDS), job.errors(0)
                job.ranks()[lost].kill()
            (status,) = job.finish(seconds=SECONDS)
            assert (status == 0) == (lost is None), job.errors(0)
            lines += [(run, json.loads(line)) for line in job.output(0).splitlines() if line.endswith("}")]

    assert {each["ranks"] for _, each in lines} == {4, 3, 2}
    last = {each["step"]: run for run, each in lines}
    for epoch in range(2):
        seen = Counter(
            seed
            for run, each in lines
            if each["epoch"] == epoch and last[each["step"]] == run
            for seed in each["seeds"]
        )
        assert seen == Counter(range(4_000))


class Batches(IterableDataset[Any]):
    """A loader as docs/scale.md shows it to torchdata."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()  # type: ignore[no-any-return]

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.loader.load_state_dict(state)


@pytest.mark.parametrize("stop_after", [0, 3, 13])
@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_torchdata_keeps_the_place_of_a_loader(stop_after: int) -> None:
    from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-untyped]

    dataset = DistDataset.from_pyg(homogeneous())
    with (
        open_loader("nodes", dataset, num_workers=0) as whole,
        open_loader("nodes", dataset, num_workers=0) as resumed,
    ):
        before = StatefulDataLoader(Batches(whole), batch_size=None)
        iterator = iter(before)
        assert len(list(islice(iterator, stop_after))) == stop_after
        state = before.state_dict()
        after = StatefulDataLoader(Batches(resumed), batch_size=None)
        after.load_state_dict(state)
        if stop_after == len(whole):  # Nothing is left: the next epoch begins.
            assert list(iterator) == []
            iterator = iter(before)
        for _ in range(2):  # The rest of the epoch, and the next.
            expected, found = list(iterator), list(after)
            assert len(found) == len(expected) > 0
            assert all(map(same_batch, found, expected))
            iterator = iter(before)
