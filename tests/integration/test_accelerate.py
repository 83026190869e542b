"""Checkpoints of Accelerate have the loaders that it was given; what they lack is told."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader
from tests.support.pyg_graphs import homogeneous

accelerate: Any = pytest.importorskip("accelerate")

DATASET = DistDataset.from_pyg(homogeneous())
BATCHES = 13


def open_loader() -> DistNeighborLoader:
    seeds = torch.arange(10 * BATCHES)
    return DistNeighborLoader(DATASET, [3, 2], seeds, batch_size=10, shuffle=True, seed=1, num_workers=0)


def nodes_of(batches: Any) -> list[list[int]]:
    return [batch.n_id.tolist() for batch in batches]


@pytest.fixture
def make_accelerator() -> Iterator[Callable[[], Any]]:
    made: list[Any] = []

    def make() -> Any:
        made.append(accelerate.Accelerator(cpu=True))
        made[-1].prepare(torch.nn.Linear(6, 4))
        return made[-1]

    yield make
    made.clear()


@pytest.mark.parametrize("way", ["prepare_data_loader", "register_for_checkpointing"])
@pytest.mark.parametrize("stop_after", [0, 5, BATCHES])
def test_a_checkpoint_goes_on_with_the_next_batch(
    stop_after: int, way: str, make_accelerator: Callable[[], Any], tmp_path: Path, caplog: Any
) -> None:
    saving, loading = make_accelerator(), make_accelerator()
    with open_loader() as before, open_loader() as after:
        getattr(saving, way)(before)
        assert saving.prepare(before) is before
        getattr(loading, way)(after)
        iterator = iter(before)
        list(islice(iterator, stop_after))
        saving.save_state(str(tmp_path))
        loading.load_state(str(tmp_path))
        expected = nodes_of(iterator) or nodes_of(before)
        assert nodes_of(after) == expected
    assert caplog.text == ""


def test_a_prepared_loader_stays_as_it_is(make_accelerator: Callable[[], Any]) -> None:
    with open_loader() as loader:
        assert make_accelerator().prepare_data_loader(loader) is loader


def test_a_loader_that_no_checkpoint_would_have_is_told(
    make_accelerator: Callable[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gigl_loader"), open_loader() as loader:
        accelerator = make_accelerator()
        assert accelerator.prepare(loader) is loader
        list(loader)
        list(loader)
    (record,) = caplog.records
    assert "accelerator.register_for_checkpointing(loader)" in record.getMessage()


def test_skipping_batches_is_refused_by_name() -> None:
    with open_loader() as loader:
        assert not hasattr(loader, "batch_sampler")
        with pytest.raises(AttributeError, match=r"skip_first_batches does not take it: load_state_dict\(\)"):
            accelerate.skip_first_batches(loader, 3)
