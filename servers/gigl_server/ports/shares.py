"""Shares of callers in a port: of amounts (memory, turns, calls), and of the time of calls under way."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from gigl_loader.native import StopFlag
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.admission import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gigl_loader.native import DataCall
    from gigl_server.admission import Identity

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


_UNREAD_S = 5.0
_MAKE_S = 60.0
"""Time for a reply to be made. Trainers give up after 30 s and retry."""


class _UnderWay(NamedTuple):
    """A call whose reply was not sent yet."""

    caller: Identity
    since: float


class CallsUnderWay:
    """Calls from their request to the last byte of their reply. Thread-safe.

    A call itself has a deadline. Beside it, the oldest call of a caller that holds most of a resource which
    another caller needs is cut once it has taken 5 s. Replies to callers that are gone are not made further.
    """

    def __init__(
        self,
        tell: Callable[[DataCall, str], None],
        hoarders: Callable[[], Iterable[Identity | None]] = tuple,
    ) -> None:
        """``tell`` is called with each call that is cut and the reason; ``hoarders`` returns hoarders."""
        self._tell = tell
        self._hoarders = hoarders
        self._lock = threading.Lock()
        self._calls: dict[DataCall, _UnderWay] = {}  # Oldest first.
        self._made: dict[DataCall, StopFlag] = {}
        self._making = threading.Event()

    def begins(self, call: DataCall, caller: Identity) -> None:
        """Record a call of a caller that has shown a token."""
        with self._lock:
            self._calls[call] = _UnderWay(caller, time.monotonic())

    def ends(self, call: DataCall) -> None:
        """Record the end of a call."""
        with self._lock:
            self._calls.pop(call, None)

    @contextmanager
    def making(self, call: DataCall) -> Iterator[StopFlag]:
        """Make the reply of a call in the block, with the flag that stops it."""
        flag = StopFlag(_MAKE_S)
        with self._lock:
            self._made[call] = flag
            self._making.set()
        try:
            with flag:
                yield flag
        finally:
            with self._lock:
                self._made.pop(call, None)

    def wait_for_replies(self, timeout_s: float) -> None:
        """Wait until replies are being made."""
        self._making.wait(timeout_s)

    def stop_unwanted(self) -> None:
        """Stop replies whose callers are gone."""
        with self._lock:
            made = list(self._made.items())
            if not made:
                self._making.clear()
        for call, flag in made:
            if call.gone:
                flag.stop("the caller is gone")

    def stop_all(self, reason: str) -> None:
        """Stop all replies that are being made, and let ``wait_for_replies`` return."""
        with self._lock:
            made = list(self._made.values())
            self._making.set()
        for flag in made:
            flag.stop(reason)

    def sweep(self) -> None:
        """Cut calls of hoarders."""
        now = time.monotonic()
        for hoarder in filter(None, self._hoarders()):
            with self._lock:
                held = ((call, each) for call, each in self._calls.items() if each.caller == hoarder)
                call, each = next(held, (None, None))
            if call is not None and each is not None and now - each.since > _UNREAD_S and call.cancel():
                self._tell(call, f"a reply was not read for {_UNREAD_S:g} s, and other callers wait")
