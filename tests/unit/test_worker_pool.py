"""Housekeeping of a sampling service, and what it does after the process stood still."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from gigl_server.sampling.worker_pool import Housekeeper
from tests.support.leftovers import wait_until
from tests.support.made import record_made
from tests.support.store_service import JOB, Clock, Trainer, service_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def test_a_late_turn_tells_by_how_much_and_the_next_ones_work() -> None:
    worked: list[float] = []
    pauses: list[float] = []
    release = threading.Event()

    def work() -> None:
        worked.append(time.monotonic())
        if len(worked) == 1:
            release.wait(0.6)  # Stands for a process that was stopped.

    keeper = Housekeeper(work, paused=pauses.append, every_s=0.05)
    keeper.start()
    assert wait_until(lambda: len(worked) >= 3, seconds=20)
    keeper.close()
    assert pauses[0] > 0.25


class _Told:
    """A housekeeper whose turns are those that the test takes."""

    def __init__(self, work: Callable[[], None], *, paused: Callable[[float], None]) -> None:
        self.work, self.paused = work, paused

    def start(self) -> None:
        """No turn comes by itself."""

    def close(self) -> None:
        """Nothing runs."""


def test_leases_begin_anew_after_a_long_pause_and_go_on_after_a_short_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gigl_server.sampling.service.Housekeeper", _Told)
    keepers = record_made(monkeypatch, _Told)
    clock = Clock()
    with service_of(clock=clock, lease_s=30.0) as service:
        trainer = Trainer(service)
        clock.now += 100
        keepers[0].paused(100.0)
        clock.now += 29
        keepers[0].work()
        assert service.heartbeat(JOB, [trainer.channel.id]) == [trainer.channel.id]
        clock.now += 31
        keepers[0].paused(1.0)
        assert service.heartbeat(JOB, [trainer.channel.id]) == []
