"""The backoff that every retry uses, and the driver of attempts."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader import retry
from gigl_loader.retry import FOREVER, Backoff, Deadline, attempts, retried

if TYPE_CHECKING:
    from collections.abc import Callable


def test_pauses_double_up_to_the_longest_and_are_never_longer() -> None:
    backoff = Backoff(first_s=0.1, longest_s=0.5)
    pauses = [backoff.next_s() for _ in range(6)]
    for pause, whole in zip(pauses, (0.1, 0.2, 0.4, 0.5, 0.5, 0.5), strict=True):
        assert 0.75 * whole <= pause <= whole


def test_callers_that_fail_together_do_not_come_back_together() -> None:
    assert len({Backoff().next_s() for _ in range(20)}) > 1


def test_it_begins_again_when_told() -> None:
    backoff = Backoff(first_s=0.1, longest_s=1.0)
    for _ in range(4):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 0.1


@pytest.mark.parametrize(("first_s", "longest_s"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.5)])
def test_pauses_that_do_not_grow_are_refused(first_s: float, longest_s: float) -> None:
    with pytest.raises(ValueError, match="pauses must grow"):
        Backoff(first_s=first_s, longest_s=longest_s)


# --- the driver


class Clock:
    """Stands for the module ``time``: it passes in pauses, and as far as attempts say."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(retry, "time", found)
    return found


def begun(clock: Clock, *, each_s: float, **options: Any) -> list[float]:
    """Return when attempts begin, of which each takes so long, within 10 s."""
    found: list[float] = []
    for number in attempts(Deadline.after(10), **options):
        assert number == len(found)
        found.append(clock.now - 100)
        clock.now += each_s
    return found


@pytest.mark.parametrize("each_s", [0.0, 0.3, 4.0, 11.0])
@pytest.mark.parametrize("least_s", [0.0, 0.5])
def test_attempts_begin_at_once_and_the_last_one_in_time(clock: Clock, each_s: float, least_s: float) -> None:
    times = begun(clock, each_s=each_s, least_s=least_s, longest_s=2.0)
    assert times[0] == 0.0
    assert times[-1] <= 10 - least_s + 1e-9
    assert clock.now - 100 <= 10 - least_s + each_s + 1e-9
    assert all(pause <= 2.0 for pause in clock.pauses)
    if each_s < 1:
        assert times[-1] == pytest.approx(10 - least_s, abs=each_s + 1e-9)


def test_a_wait_may_end_the_attempts(clock: Clock) -> None:
    ends = iter([False, False, True])
    assert begun(clock, each_s=0.0, wait=lambda _: next(ends)) == [0.0, 0.0, 0.0]
    assert not clock.pauses


def failing(*outcomes: Any) -> Callable[[], Any]:
    left = iter(outcomes)

    def attempt() -> Any:
        outcome = next(left)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return attempt


def test_the_first_success_is_returned_and_failures_are_told(clock: Clock) -> None:
    told: list[Exception] = []
    busy = OSError("busy")
    found = retried(failing(busy, busy, 7), OSError, attempts(Deadline.after(10)), failed=told.append)
    assert (found, told, len(clock.pauses)) == (7, [busy, busy], 2)


def test_other_errors_are_raised_at_once_and_the_last_one_at_the_end(clock: Clock) -> None:
    with pytest.raises(ValueError, match="wrong"):
        retried(failing(OSError(), ValueError("wrong")), OSError, attempts(Deadline.after(10)))
    ends = iter([False, True])
    with pytest.raises(OSError, match="second"):
        retried(
            failing(OSError("first"), OSError("second")),
            OSError,
            attempts(FOREVER, wait=lambda _: next(ends)),
        )


def test_after_a_failed_attempt_a_pause_comes_first(clock: Clock) -> None:
    assert retried(failing(1), OSError, attempts(Deadline.after(10)), after=OSError()) == 1
    assert len(clock.pauses) == 1
    with pytest.raises(OSError, match="before"):
        retried(failing(1), OSError, attempts(Deadline.after(0)), after=OSError("before"))


def test_an_error_that_is_raised_keeps_nothing_of_its_caller() -> None:
    class Kept(list[int]):
        pass

    def fail() -> None:
        raise OSError

    def call() -> weakref.ref[Kept]:
        kept = Kept()
        with suppress(OSError):
            retried(fail, OSError, attempts(Deadline.after(0)))
        return weakref.ref(kept)

    gc.disable()
    try:
        assert call()() is None
    finally:
        gc.enable()
