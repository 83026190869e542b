"""What a service did, in numbers."""

from __future__ import annotations

from gigl_server.counters import Counters


def test_counters_add_up() -> None:
    counters = Counters()
    counters.add(calls=1, bytes_in=10)
    counters.add(calls=1, bytes_out=5)
    with counters.timed("gathering_s"):
        sum(range(10_000))
    totals = counters.read()
    assert (totals.calls, totals.bytes_in, totals.bytes_out, totals.refused) == (2, 10, 5, 0)
    assert totals.gathering_s > 0 == totals.sampling_s
