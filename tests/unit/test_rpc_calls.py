"""When a call is attempted, hedged and retried, and how often."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from gigl_loader.rpc.calls import Call, Hedging


def test_it_takes_some_requests_to_know_what_is_slow() -> None:
    hedging = Hedging()
    for _ in range(63):
        hedging.record("rows", 0.1)
    assert hedging.delay_s("rows") is None
    hedging.record("rows", 0.1)
    assert hedging.delay_s("rows") == 0.1
    assert hedging.delay_s("neighbors") is None, "every kind has its own"


def test_the_delay_is_the_95th_percentile_of_the_latest() -> None:
    hedging = Hedging()
    for number in range(100):
        hedging.record("rows", 0.1 if number % 10 else 0.5)
    assert hedging.delay_s("rows") == 0.5
    for _ in range(300):
        hedging.record("rows", 0.2)
    assert hedging.delay_s("rows") == 0.2
    for _ in range(300):
        hedging.record("rows", 0.0001)
    assert hedging.delay_s("rows") == 0.01, "no less: threads are not that exact"


def test_a_server_is_stalled_after_a_second_or_three_times_what_is_usual() -> None:
    hedging = Hedging()
    assert hedging.stalled_s("rows") == 1.0
    for _ in range(100):
        hedging.record("rows", 2.0)
    assert hedging.stalled_s("rows") == 6.0


def test_the_budget_is_five_percent_of_the_requests() -> None:
    hedging = Hedging()
    hedged = 0
    for _ in range(1_000):
        hedging.record("rows", 0.1)
        hedged += hedging.take()
    assert 48 <= hedged <= 50
    for _ in range(10_000):
        hedging.record("rows", 0.1)
    assert sum(hedging.take() for _ in range(100)) == 8, "quiet times save no more"


@dataclass(eq=False)
class Sent:
    since: float
    heard_at: float = -math.inf

    def __post_init__(self) -> None:
        self.heard_at = max(self.heard_at, self.since)


def _known(seconds: float) -> Hedging:
    """Return the record of many calls that took so long. Its budget is full."""
    hedging = Hedging()
    for _ in range(200):
        hedging.record("rows", seconds)
    return hedging


def _call(hedging: Hedging | None = None, *, most: int = 2, deadline: float = math.inf) -> Call[Sent]:
    return Call("rows", hedging or Hedging(), most=most, deadline=deadline)


def _started(call: Call[Sent], now: float) -> Sent:
    assert call.may_start(now)
    sent = Sent(now)
    call.started(sent)
    return sent


def test_a_new_call_is_due_at_once_and_a_second_attempt_when_its_server_stalls() -> None:
    call = _call()
    assert call.due_at() == 0
    _started(call, 100.0)
    assert (call.due_at(), call.stalled_at()) == (101.0, 101.0)
    assert not call.may_start(100.9)
    _started(call, 101.0)
    assert call.due_at() == math.inf, "as many as may be are under way"
    assert not call.may_start(200.0)


def test_a_server_whose_reply_comes_slowly_is_not_stalled() -> None:
    call = _call()
    sent = _started(call, 100.0)
    for heard in (100.9, 101.8, 102.7):
        sent.heard_at = heard
        assert (call.due_at(), call.stalled_at()) == (heard + 1, heard + 1)
        assert not call.may_start(heard + 0.9)
    assert call.may_start(103.7), "nothing was heard for a second"


def test_a_slow_reply_is_hedged_only_within_the_budget() -> None:
    hedging = _known(0.1)
    call = _call(hedging)
    _started(call, 100.0).heard_at = 105.0
    assert call.due_at() == 100.1
    while hedging.take():
        pass
    assert not call.may_start(105.0)
    assert call.due_at() == 106.0


def test_a_server_that_owes_nothing_more_is_not_late() -> None:
    call = _call(_known(0.1))
    _started(call, 100.0).heard_at = math.inf
    assert call.due_at() == math.inf
    assert not call.may_start(1e9)


def test_a_late_attempt_is_hedged_within_the_budget() -> None:
    call = _call(_known(0.1))
    _started(call, 100.0)
    assert call.due_at() == 100.1
    _started(call, 100.1)


def test_without_budget_it_waits_until_its_server_stalls() -> None:
    hedging = _known(0.1)
    while hedging.take():
        pass
    call = _call(hedging)
    _started(call, 100.0)
    assert not call.may_start(100.2)
    assert call.due_at() == 101.0
    _started(call, 101.0)


def test_a_third_attempt_takes_a_second_that_stalls() -> None:
    call = _call(_known(0.1), most=3)
    _started(call, 100.0)
    _started(call, 100.1)
    assert call.due_at() == 101.1
    _started(call, 101.1)
    assert call.due_at() == math.inf


def test_the_first_that_succeeds_wins_and_its_time_alone_is_recorded() -> None:
    hedging = Hedging()
    call = _call(hedging)
    losers = []
    for _ in range(64):
        first, second = _started(call, 100.0), _started(call, 101.0)
        losers.append(call.won(second, 101.2) == [first])
    assert all(losers)
    assert hedging.delay_s("rows") == pytest.approx(0.2)


def test_pauses_double_and_end_in_time_for_a_last_attempt() -> None:
    call, now, pauses = _call(deadline=100.0), 97.0, []
    while now < 100.0:
        sent = _started(call, now)
        call.failed(sent, now, OSError("gone"))
        pauses.append(call.due_at() - now)
        now = call.due_at()
    for pause, whole in zip(pauses, (0.05, 0.1, 0.2, 0.4, 0.5, 0.5), strict=False):
        assert 0.7 * whole < pause < 1.01 * whole
    assert any(now - pause == pytest.approx(99.8) for pause in pauses[-1:]), "0.2 s are left for the last"
    assert call.failing_since == 97.0


def test_no_pause_before_another_holder_or_after_a_lost_connection() -> None:
    call = _call()
    call.failed(_started(call, 100.0), 100.5, OSError("gone"), pauses=False)
    assert call.due_at() == 0
    call.failed(_started(call, 100.5), 100.6, None)
    assert call.due_at() == 0
    assert str(call.error) == "gone"


def test_what_fails_beside_another_attempt_leaves_the_call_to_that() -> None:
    call = _call()
    first = _started(call, 100.0)
    second = _started(call, 101.0)
    call.failed(first, 101.5, OSError("gone"))
    assert call.attempts == [second]
    assert call.due_at() == 102.0
