"""When a request is sent to a second holder, and how often."""

from __future__ import annotations

from gigl_loader.rpc.attempts import Hedging


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
