"""A loader that nobody uses, in an interactive session: its workers end, and come back when it is used."""

from __future__ import annotations

import sys
import time
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.loaders import base
from tests.support.pyg_graphs import graph_of, homogeneous, same_batch

if TYPE_CHECKING:
    from collections.abc import Callable

DATASET = DistDataset(graph_of(homogeneous()))


def _loader(**options: Any) -> DistNeighborLoader:
    return DistNeighborLoader(DATASET, [3, 2], batch_size=30, shuffle=True, seed=3, **options)


def _until(condition: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, what
        time.sleep(0.05)


def _is_asleep(loader: DistNeighborLoader) -> bool:
    return not loader._frames._close.alive


@pytest.fixture
def idle_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setattr(base, "_IDLE_S", 0.3)


@pytest.mark.usefixtures("idle_quickly")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch_goes_on_where_the_idle_loader_stood(num_workers: int) -> None:
    with _loader(num_workers=0) as whole:
        expected = list(whole)
    with _loader(num_workers=num_workers) as loader:
        batches = iter(loader)
        seen = list(islice(batches, 4))
        _until(lambda: _is_asleep(loader), "the idle loader keeps its workers")
        assert "shut down" not in repr(loader)
        assert loader.stats()["batches"] == 4
        seen += batches
        assert len(seen) == len(expected)
        assert all(map(same_batch, seen, expected))


@pytest.mark.usefixtures("idle_quickly")
def test_an_idle_loader_can_be_shut_down() -> None:
    loader = _loader(num_workers=0)
    _until(lambda: _is_asleep(loader), "the idle loader keeps its source")
    loader.shutdown()
    loader.shutdown()
    with pytest.raises(RuntimeError, match="was shut down"):
        next(loader)


def test_a_script_keeps_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "ps1", raising=False)
    monkeypatch.setattr(base, "_IDLE_S", 0.01)
    with _loader(num_workers=0) as loader:
        time.sleep(0.3)
        assert not _is_asleep(loader)
