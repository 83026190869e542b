from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.loaders.stream import IdleCores
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import homogeneous


class _Trainer:
    """A trainer whose batches take 1 s each, of which it waits a part, while some cores idle."""

    def __init__(self, *, num_workers: int, waiting: float, idle: float, most: int = 7) -> None:
        self.now = 100.0
        self._waiting, self._idle = waiting, idle
        self.cores = IdleCores(
            "loader",
            num_workers=num_workers,
            most=most,
            clock=lambda: self.now,
            idle=lambda: self._idle * self.now,
        )

    def train(self, batches: int) -> None:
        for _ in range(batches):
            self.now += 1
            self.cores.look(self._waiting * self.now)


def test_cores_that_idle_while_the_trainer_waits_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    trainer = _Trainer(num_workers=1, waiting=0.6, idle=5.5)
    trainer.train(20)
    assert (trainer.cores.advice, caplog.records) == ("", [])
    trainer.train(100)
    assert trainer.cores.advice == (
        'waiting 60% of the time while 5.5 cores idle: num_workers=7 ("auto") would use them, in place of 1'
    )
    assert [record.getMessage() for record in caplog.records] == [f"loader: {trainer.cores.advice}"]


@pytest.mark.parametrize(
    "given",
    [
        {"num_workers": 7, "waiting": 0.6, "idle": 5.5},
        {"num_workers": 1, "waiting": 0.2, "idle": 5.5},
        {"num_workers": 1, "waiting": 0.6, "idle": 0.9},
        {"num_workers": 1, "waiting": 0.6, "idle": float("nan")},
        {"num_workers": 1, "waiting": 0.6, "idle": 5.5, "most": 0},
    ],
    ids=["enough workers", "little waiting", "busy cores", "unknown", "graph store"],
)
def test_else_nothing_is_told(caplog: pytest.LogCaptureFixture, given: dict[str, Any]) -> None:
    trainer = _Trainer(**given)
    trainer.train(200)
    assert (trainer.cores.advice, caplog.records) == ("", [])


def test_cores_of_the_trainer_s_host_are_no_advice_for_a_graph_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gigl_loader.options.usable_cores", lambda: 16)
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=1)
    with (
        servers_of(tmp_path / "graph", 1) as servers,
        RemoteDistDataset.connect(addresses_of(servers)) as store,
    ):
        for dataset, done in ((store, True), (DistDataset.open(tmp_path / "graph"), False)):
            with DistNeighborLoader(dataset, [2], num_workers=1, batch_size=64, device="cpu") as loader:
                next(iter(loader))
                assert loader._idle_cores._is_done is done
