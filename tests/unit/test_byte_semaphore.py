"""What callers hold together, and what one caller may hold of it."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from itertools import islice

import pytest

from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.admission import Identity
from gigl_server.ports.shares import ByteSemaphore, Loan
from tests.support.leftovers import wait_until

CALLERS = [Identity(address=f"10.0.0.{number}") for number in range(20)]
ONE, TWO, THREE = islice(CALLERS, 3)


def filled(budget: ByteSemaphore, caller: Identity, grain: int) -> int:
    """Take as many grains as are given, and return what the caller holds then."""
    with suppress(Refusal):
        while True:
            budget.take(grain, caller)
    return budget.lent_to(caller)


def test_large_requests_share_what_there_is() -> None:
    budget = ByteSemaphore(100, free=10, wait_s=0.01, what="large requests")
    with budget.take(50, ONE), budget.take(25, TWO):
        busy = "large requests under way take 75 of 100, those of this caller 50"
        with pytest.raises(Refusal, match=busy) as raised, budget.take(11, ONE):
            pass
        assert raised.value.kind is RefusalKind.BUSY
        with budget.take(10, ONE):  # Small ones are not held up by large ones.
            assert budget.lent == 75
    assert budget.lent == 0


def test_a_caller_holds_as_much_as_it_leaves() -> None:
    budget = ByteSemaphore(900, wait_s=0.0)
    assert filled(budget, ONE, 1) == 450
    assert filled(budget, TWO, 1) == 225
    assert filled(budget, ONE, 1) == 450  # It does not get what another one gave back, beyond its share.
    assert filled(budget, THREE, 1) == 112


def test_greedy_callers_that_come_together_leave_as_much_to_the_next_one() -> None:
    budget = ByteSemaphore(900, wait_s=0.0)
    for _ in range(900):
        for caller in CALLERS[:8]:
            with suppress(Refusal):
                budget.take(1, caller)
    assert {budget.lent_to(caller) for caller in CALLERS[:8]} == {100}
    assert filled(budget, CALLERS[8], 1) == 50


def test_who_holds_most_is_named_where_a_smaller_one_is_refused() -> None:
    budget = ByteSemaphore(900, wait_s=0.0)
    filled(budget, ONE, 150)
    assert budget.hoarder() is None  # Its own refusal is no reason.
    assert filled(budget, TWO, 75) == 225
    assert budget.hoarder() is None  # It has more than half as much.
    with pytest.raises(Refusal):
        budget.take(200, THREE)
    assert budget.hoarder() == ONE
    assert budget.hoarder() is None


def test_whoever_holds_nothing_gets_a_small_amount_if_it_is_there() -> None:
    budget = ByteSemaphore(1200, wait_s=0.0)
    for caller in CALLERS[:4]:
        filled(budget, caller, 90)
    spare = 1200 - budget.lent
    budget.take(min(spare, 100), CALLERS[4])
    with pytest.raises(Refusal):
        budget.take(101, CALLERS[5])


def test_more_than_there_is_goes_alone() -> None:
    budget = ByteSemaphore(100, free=10, wait_s=0.01)
    with budget.take(1000):
        assert budget.lent == 100
        with pytest.raises(Refusal), budget.take(11):
            pass
    with budget.take(50), pytest.raises(Refusal), budget.take(1000):
        pass
    assert budget.lent == 0


def test_what_comes_back_is_lent_again_at_once() -> None:
    budget = ByteSemaphore(100, free=0, wait_s=10)
    leave = threading.Event()

    def hold() -> None:
        with budget.take(80):
            leave.wait(10)

    holder = threading.Thread(target=hold)
    holder.start()
    assert wait_until(lambda: budget.lent == 80)
    threading.Timer(0.05, leave.set).start()
    with budget.take(80):
        assert leave.is_set()
    holder.join(5)


def test_a_request_that_fails_gives_back_what_it_had() -> None:
    budget = ByteSemaphore(100, free=0)
    with pytest.raises(ZeroDivisionError), budget.take(80):
        raise ZeroDivisionError
    assert budget.lent == 0


def test_a_loan_is_given_back_once_whatever_is_done_with_it() -> None:
    budget = ByteSemaphore(100, wait_s=0.0)
    loan, other = budget.take(40, ONE), budget.take(20, TWO)
    loan.shrink(70)
    assert budget.lent == 60
    loan.shrink(10)
    assert (budget.lent_to(ONE), budget.lent) == (10, 30)
    for _ in range(3):
        loan.release()
    assert (budget.lent_to(ONE), budget.lent) == (0, 20)
    other.release()
    assert budget.lent == 0


def test_no_order_of_loans_exceeds_the_total_or_loses_any() -> None:
    draw, budget = random.Random(5), ByteSemaphore(1000, wait_s=0.0)
    loans: list[Loan] = []
    for _ in range(3000):
        if loans and draw.random() < 0.5:
            loans.pop(draw.randrange(len(loans))).release()
        else:
            caller, amount = draw.choice(CALLERS), draw.randrange(1, 1000)
            alone = budget.lent == 0
            with suppress(Refusal):
                loans.append(budget.take(amount, caller))
                assert alone or budget.lent_to(caller) <= max(1000 - budget.lent, 1000 // 12)
        assert budget.lent <= 1000
    for loan in loans:
        loan.release()
    assert budget.lent == 0
