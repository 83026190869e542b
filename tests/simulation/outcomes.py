"""Outcomes of simulated calls, and the attempts that were made for them."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Attempt(NamedTuple):
    """Attempt of a call at one server."""

    at: float
    name: str
    """Of the call."""
    server: str


@dataclass(slots=True, eq=False)
class Outcome:
    """A call, or the wait for a batch, and how it ended."""

    name: str
    partition: int | None
    """``None``: it needs all partitions."""
    began: float
    timeout_s: float
    ended: float = math.inf
    result: bytes = b""
    expected: bytes = b""
    error: Exception | None = None
    stalled_s: float = 1.0
    """Longest silence after which the client counted a server as stalled."""
    attempts: list[Attempt] = field(default_factory=list)

    def __str__(self) -> str:
        what = "" if self.partition is None else f" for partition {self.partition}"
        return f"{self.name}{what} from {self.began:.3f} s"

    @property
    def deadline(self) -> float:
        return self.began + self.timeout_s

    @property
    def ended_by(self) -> float:
        """The end, or the deadline, whichever came first."""
        return min(self.ended, self.deadline)


@dataclass(slots=True, eq=False)
class Record:
    """What a client did in one run."""

    outcomes: list[Outcome] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """Times, and the silence after which a server counted as stalled from then on."""
    closed_at: float = math.inf
    """When the client was closed, while its calls were under way or after them."""

    def begin(self, name: str, partition: int | None, now: float, timeout_s: float) -> Outcome:
        """Return the outcome of a call that begins now."""
        outcome = Outcome(name, partition, now, timeout_s)
        self.outcomes.append(outcome)
        return outcome

    def finish(self) -> None:
        """Give each outcome its attempts, and the longest of the stalls that held during the call."""
        for outcome in self.outcomes:
            outcome.attempts = [each for each in self.attempts if each.name == outcome.name]
            before = [seconds for at, seconds in self.stalls if at <= outcome.began][-1:]
            during = [seconds for at, seconds in self.stalls if outcome.began < at <= outcome.ended]
            outcome.stalled_s = max([outcome.stalled_s, *before, *during])


def counts(outcomes: Iterable[Outcome]) -> Counter[str]:
    """Return how many calls ended in which way."""
    return Counter("reply" if each.error is None else type(each.error).__name__ for each in outcomes)


def describe(result: Any) -> str:
    """Return an outcome as one line, for equal runs to be compared."""
    return f"{result} to {result.ended:.6f} s: {result.error!r}"
