"""Semaphore of amounts (memory, turns, calls) with a fair share for each caller."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.identity import LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_server.identity import Identity

__all__ = ["ByteSemaphore", "Loan"]

_FIRST_SHARE = 12
"""A caller that holds nothing gets a twelfth, if that much is left."""


class ByteSemaphore:
    """Lends amounts of one resource to callers. Thread-safe.

    A caller may hold as much as is free, hence at most half of everything: the dynamic threshold of
    shared-memory switches (Choudhury and Hahne, 1998) with factor 1. Several greedy callers in a row leave
    little to the next caller; ``hoarder`` then names the caller that holds most.
    """

    def __init__(
        self, total: int, *, free: int = 0, wait_s: float = 0.5, what: str = "large requests"
    ) -> None:
        """Amounts up to ``free`` are lent without being counted.

        A caller that would wait longer than ``wait_s`` is refused, and retries later. ``what`` names the
        resource in messages.
        """
        self._total = total
        self._free = free
        self._wait_s = wait_s
        self._what = what
        self._lent: Counter[Identity] = Counter()
        self._changed = threading.Condition()
        self._hoarder: Identity | None = None

    @property
    def lent(self) -> int:
        """Sum of all loans."""
        with self._changed:
            return self._lent.total()

    def lent_to(self, caller: Identity) -> int:
        """Return the sum of one caller's loans."""
        with self._changed:
            return self._lent[caller]

    def take(self, amount: int, caller: Identity = LOCAL) -> Loan:
        """Lend an amount until the loan is released. ``Refusal`` (busy) beyond the share of the caller.

        An amount above the total is lent to one caller at a time: each request has a limit of its own.
        """
        if amount <= self._free:
            return Loan(self, caller, 0)
        amount = min(amount, self._total)
        with self._changed:
            if not self._changed.wait_for(lambda: self._may(amount, caller), self._wait_s):
                self._note_hoarder(caller)
                raise Refusal(RefusalKind.BUSY, self._excuse(caller))
            self._lent[caller] += amount
        return Loan(self, caller, amount)

    @contextmanager
    def lend(self, amount: int, caller: Identity = LOCAL) -> Iterator[None]:
        """Lend an amount while the context lasts."""
        loan = self.take(amount, caller)
        try:
            yield
        finally:
            loan.release()

    def hoarder(self) -> Identity | None:
        """Return the largest holder, if a caller with under half as much was refused since the last call."""
        with self._changed:
            found, self._hoarder = self._hoarder, None
            return found

    def give_back(self, amount: int, caller: Identity) -> None:
        """Return an amount. Called by loans."""
        with self._changed:
            self._lent[caller] -= amount
            if not self._lent[caller]:
                del self._lent[caller]
            self._changed.notify_all()

    def _may(self, amount: int, caller: Identity) -> bool:
        lent, own = self._lent.total(), self._lent[caller]
        left = self._total - lent - amount
        if not lent:
            return True
        return left >= 0 and (own + amount <= left or (not own and amount <= self._total // _FIRST_SHARE))

    def _note_hoarder(self, refused: Identity) -> None:
        ((most, held),) = self._lent.most_common(1)
        if self._lent[refused] < held / 2:
            self._hoarder = most

    def _excuse(self, caller: Identity) -> str:
        return (
            f"{self._what} under way take {_shown(self._lent.total())} of {_shown(self._total)}, "
            f"those of this caller {_shown(self._lent[caller])}"
        )


class Loan:
    """An amount that a caller holds until it is released."""

    def __init__(self, budget: ByteSemaphore, caller: Identity, amount: int) -> None:
        """Use ``ByteSemaphore.take``."""
        self._budget = budget
        self._caller = caller
        self._amount = amount

    def shrink(self, amount: int) -> None:
        """Return everything beyond ``amount``."""
        spare, self._amount = max(self._amount - amount, 0), min(self._amount, amount)
        if spare:
            self._budget.give_back(spare, self._caller)

    def release(self) -> None:
        """Return everything. Releasing twice is fine."""
        self.shrink(0)


def _shown(amount: int) -> str:
    return f"{amount >> 20} MiB" if amount >= 1 << 20 else str(amount)
