"""Housekeeping of a sampling service, and what it does after the process stood still."""

from __future__ import annotations

import threading
import time

from gigl_server.sampling.worker_pool import Housekeeper
from tests.support.leftovers import wait_until
from tests.support.store_service import JOB, Clock, Trainer, service_of


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


def test_leases_begin_anew_after_a_long_pause_and_go_on_after_a_short_one() -> None:
    clock = Clock()
    with service_of(clock=clock, lease_s=30.0) as service:
        service._housekeeper.close()
        trainer = Trainer(service)
        clock.now += 100
        service._resume(100.0)
        clock.now += 29
        service.sweep()
        assert service.heartbeat(JOB, [trainer.channel.id]) == [trainer.channel.id]
        clock.now += 31
        service._resume(1.0)
        assert service.heartbeat(JOB, [trainer.channel.id]) == []
