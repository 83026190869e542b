from __future__ import annotations

import threading

import pytest

from gigl_loader.rpc.refusals import Kind, Refused
from gigl_server.budget import Budget
from tests.support.leftovers import wait_until


def test_large_requests_share_what_there_is() -> None:
    budget = Budget(100, free=10, wait_s=0.01)
    with budget.lend(60), budget.lend(40):
        with pytest.raises(Refused, match="large requests under way take") as raised, budget.lend(11):
            pass
        assert raised.value.kind is Kind.BUSY
        with budget.lend(10):  # Small ones are not held up by large ones.
            assert budget.lent == 100
    assert budget.lent == 0


def test_more_than_there_is_goes_alone() -> None:
    budget = Budget(100, free=10, wait_s=0.01)
    with budget.lend(1000):
        assert budget.lent == 100
        with pytest.raises(Refused), budget.lend(11):
            pass
    with budget.lend(50), pytest.raises(Refused), budget.lend(1000):
        pass
    assert budget.lent == 0


def test_what_comes_back_is_lent_again_at_once() -> None:
    budget = Budget(100, free=0, wait_s=10)
    leave = threading.Event()

    def hold() -> None:
        with budget.lend(80):
            leave.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert wait_until(lambda: budget.lent == 80, seconds=5)
    threading.Timer(0.05, leave.set).start()
    with budget.lend(80):
        assert leave.is_set()
    holder.join(5)


def test_a_request_that_fails_gives_back_what_it_had() -> None:
    budget = Budget(100, free=0)
    with pytest.raises(ZeroDivisionError), budget.lend(80):
        raise ZeroDivisionError
    assert budget.lent == 0
