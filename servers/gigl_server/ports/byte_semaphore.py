"""Semaphore of amounts (memory, turns, calls) with a fair share for each caller."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.identity import LOCAL

if TYPE_CHECKING:
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
        self._lent: dict[Identity, int] = {}
        self._sum = 0  # Of all loans.
        self._changed = threading.Condition()
        self._hoarder: Identity | None = None
        self._waiting = 0  # Threads in ``take``.

    @property
    def lent(self) -> int:
        """Sum of all loans."""
        with self._changed:
            return self._sum

    def lent_to(self, caller: Identity) -> int:
        """Return the sum of one caller's loans."""
        with self._changed:
            return self._lent.get(caller, 0)

    def take(self, amount: int, caller: Identity = LOCAL) -> Loan:
        """Lend an amount until the loan is released. ``Refusal`` (busy) beyond the share of the caller.

        An amount above the total is lent to one caller at a time: each request has a limit of its own.
        """
        if amount <= self._free:
            return Loan(self, caller, 0)
        amount = min(amount, self._total)
        with self._changed:
            if not self._may(amount, caller):
                self._waiting += 1
                try:
                    may = self._changed.wait_for(lambda: self._may(amount, caller), self._wait_s)
                finally:
                    self._waiting -= 1
                if not may:
                    self._note_hoarder(caller)
                    raise Refusal(RefusalKind.BUSY, self._excuse(caller))
            self._lent[caller] = self._lent.get(caller, 0) + amount
            self._sum += amount
        return Loan(self, caller, amount)

    def hoarder(self) -> Identity | None:
        """Return the largest holder, if a caller with under half as much was refused since the last call."""
        with self._changed:
            found, self._hoarder = self._hoarder, None
            return found

    def give_back(self, amount: int, caller: Identity) -> None:
        """Return an amount. Called by loans."""
        with self._changed:
            self._sum -= amount
            self._lent[caller] -= amount
            if not self._lent[caller]:
                del self._lent[caller]
            if self._waiting:
                self._changed.notify_all()

    def _may(self, amount: int, caller: Identity) -> bool:
        if not self._sum:
            return True
        left, own = self._total - self._sum - amount, self._lent.get(caller, 0)
        return left >= 0 and (own + amount <= left or (not own and amount <= self._total // _FIRST_SHARE))

    def _note_hoarder(self, refused: Identity) -> None:
        most = max(self._lent, key=lambda caller: self._lent[caller])
        if self._lent.get(refused, 0) < self._lent[most] / 2:
            self._hoarder = most

    def _excuse(self, caller: Identity) -> str:
        return (
            f"{self._what} under way take {_shown(self._sum)} of {_shown(self._total)}, "
            f"those of this caller {_shown(self._lent.get(caller, 0))}"
        )


class Loan:
    """An amount that a caller holds until ``release``, or the end of a ``with`` block."""

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

    def __enter__(self) -> Loan:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def _shown(amount: int) -> str:
    return f"{amount >> 20} MiB" if amount >= 1 << 20 else str(amount)
