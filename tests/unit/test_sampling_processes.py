"""Housekeeping of a sampling service, and the journal of batches under way."""

from __future__ import annotations

import os
import stat
import threading
import time
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.sampling.costs import TooManyEdges
from gigl_loader.sampling.plan import plan_digest
from gigl_server.sampling.journal import DEATHS, Journal, Quarantined, default_path
from gigl_server.sampling.worker_pool import Housekeeper
from tests.support.leftovers import wait_until
from tests.support.made import record_made
from tests.support.plans import seed_request
from tests.support.store_service import JOB, Clock, Trainer, service_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


def task(plan: str = "plan", batch: int = 0) -> Any:
    producer = SimpleNamespace(plan_text=plan, digest=plan_digest(plan))
    channel = SimpleNamespace(producer=producer, deferred_features=False)
    return SimpleNamespace(channel=channel, request=seed_request(0, batch, np.arange(3)))


@contextmanager
def life(path: Path) -> Iterator[Journal]:
    """A process that is killed: the file stays as it was."""
    journal = Journal.open(path)
    yield journal
    left = path.read_bytes()
    journal.close()
    path.write_bytes(left)


def die(path: Path, *tasks: Any) -> None:
    with life(path) as journal, ExitStack() as notes:
        for thread, each in enumerate(tasks):
            notes.enter_context(journal.under_way(each, thread))
        left = path.read_bytes()
    path.write_bytes(left)


def test_a_batch_that_ends_several_processes_in_a_row_is_refused(path: Path) -> None:
    for deaths in range(DEATHS):
        with life(path) as journal:
            assert journal.suspects == (2 if deaths else 0)  # Plan and batch.
        die(path, task())
    with life(path) as journal:
        with pytest.raises(
            Quarantined, match="this plan is in quarantine: it was under way the last 3"
        ) as raised:
            journal.under_way(task(), 0).__enter__()
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)
        with journal.under_way(task("another plan"), 0):
            pass


def test_what_gets_through_is_suspected_no_more(path: Path) -> None:
    for _ in range(2 * DEATHS):
        die(path, task())
        with life(path) as journal:
            with journal.under_way(task(), 1):
                pass
            assert journal.suspects == 0


def test_a_batch_is_told_from_the_others_of_its_plan(path: Path) -> None:
    for _ in range(DEATHS):
        die(path, task(batch=7))
        with life(path) as journal, journal.under_way(task(batch=1), 0):
            pass
    with life(path) as journal:
        with pytest.raises(Quarantined, match="this batch is in quarantine"):
            journal.under_way(task(batch=7), 0).__enter__()
        with journal.under_way(task(batch=1), 0):
            pass


def test_a_failure_is_not_a_death_but_a_try_with_less_memory_proves_nothing(path: Path) -> None:
    die(path, task())
    with life(path) as journal:
        with pytest.raises(TooManyEdges), journal.under_way(task(), 0):
            raise TooManyEdges
        assert journal.suspects == 2
        with pytest.raises(ZeroDivisionError), journal.under_way(task(), 0):
            raise ZeroDivisionError
        assert journal.suspects == 0


def test_an_end_in_order_leaves_no_file_unless_somebody_is_suspected(path: Path) -> None:
    journal = Journal.open(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for _ in range(2):
        journal.close()
    assert not path.exists()
    die(path, task())
    Journal.open(path).close()
    assert path.exists()
    with life(path) as journal:
        assert journal.suspects == 2  # One end, not two.
    for _ in range(DEATHS - 2):
        die(path, task())
    with life(path) as journal, journal.under_way(task(), 0):
        pass  # A second end for the one in order would have been the last that is allowed.


def test_two_processes_do_not_share_one(path: Path) -> None:
    with life(path), pytest.raises(BlockingIOError):
        Journal.open(path)
    Journal.open(path).close()


def test_a_link_and_what_is_no_file_are_refused_and_other_bytes_are_not_believed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    link = tmp_path / "link"
    link.symlink_to(victim)
    with pytest.raises(OSError, match="link"):
        Journal.open(link)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a file"):
        Journal.open(tmp_path / "fifo")
    assert victim.read_text() == "precious"
    other = tmp_path / "other"
    other.write_bytes(b"\xff" * 100_000)
    with life(other) as journal:
        assert journal.suspects == 0


def test_none_notes_nothing_and_a_chosen_port_has_none() -> None:
    journal = Journal.none()
    with journal.under_way(task(), 0):
        pass
    journal.close()
    assert default_path("127.0.0.1", 0) is None
    found = default_path("::1", 7070)
    assert found is not None
    assert found.name == f"gigl-loader-{os.geteuid()}---1-7070.journal"


# --- Housekeeping of a sampling service, and what it does after the process stood still


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
    assert wait_until(lambda: len(worked) >= 3)
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
