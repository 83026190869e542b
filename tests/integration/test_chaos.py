"""A short campaign of faults: nothing hangs, is lost, comes twice or differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.campaign import BURSTS, run_leg
from tests.chaos.faults import draw_faults
from tests.chaos.ground import Ground
from tests.chaos.modes import disk, hosts, replicas, resumed, store, workers
from tests.chaos.record import Record

_SEED = 20
_FAULTS = 2
"""In each mode. ``make chaos`` commits a thousand."""
_BURSTS = 3
_MODES = [
    hosts.NAME,
    workers.NAME,
    store.WAYS[0].name,
    store.WAYS[-1].name,
    *[way.name for way in replicas.WAYS],
    resumed.JOBS[0].name,
    disk.NAME,
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("no_leftovers")
def test_a_short_campaign_in_eight_modes_loses_nothing(tmp_path: Path) -> None:
    with Ground.of(tmp_path) as ground:
        records = [run_leg(ground, mode, seed=_SEED, leg=0, count=_FAULTS) for mode in _MODES]
    assert [defect for record in records for defect in record.defects] == []
    assert sum(len(record.faults) for record in records) == _FAULTS * len(_MODES)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("no_leftovers")
def test_a_few_bursts_in_every_mode_raise_nothing(tmp_path: Path) -> None:
    with Ground.of(tmp_path) as ground:
        records = [run_leg(ground, mode, seed=_SEED, leg=0, count=_BURSTS) for mode in BURSTS]
    assert [defect for record in records for defect in record.defects] == []
    assert sum(len(record.faults) for record in records) == _BURSTS * len(BURSTS)


def test_faults_repeat_by_their_seed() -> None:
    def draw(seed: int) -> object:
        return draw_faults(seed, "mode", 3, 40, kinds=("a", "b", "c"))

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_a_record_tells_lost_from_duplicated_from_differing() -> None:
    record = Record("mode", 0)
    record.compare([1, 2, 4], [1, 2, 3, 4])
    assert (record.lost, record.duplicated, record.differing) == (1, 0, 0)
    record.compare([1, 2, 2, 3, 4], [1, 2, 3, 4])
    assert (record.lost, record.duplicated, record.differing) == (1, 1, 0)
    record.compare([1, 2, 9, 4], [1, 2, 3, 4])
    assert (record.lost, record.duplicated, record.differing) == (1, 1, 1)
    assert len(record.defects) == 3
    record.compare([2, 1, 3, 4], [1, 2, 3, 4])
    assert len(record.defects) == 4, "batches that come out of order are a defect, too"
