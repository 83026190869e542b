"""What a service did, in numbers."""

from __future__ import annotations

from gigl_server.ledger import Ledger


def test_the_ledger_adds_up() -> None:
    ledger = Ledger()
    ledger.add(calls=1, bytes_in=10)
    ledger.add(calls=1, bytes_out=5)
    with ledger.timed("gathering_s"):
        sum(range(10_000))
    totals = ledger.read()
    assert (totals.calls, totals.bytes_in, totals.bytes_out, totals.refused) == (2, 10, 5, 0)
    assert totals.gathering_s > 0 == totals.sampling_s
