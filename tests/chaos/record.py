"""Record of one leg of a campaign: which batches came, when, after which fault, and what was raised."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.faults import Fault

HANG_S = 30.0
"""Deadline between two batches, whatever the fault. A longer gap counts as a hang."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Seconds between two batches, and the last fault that was committed before they ended."""

    seconds: float
    fault: Fault | None


@dataclass(slots=True)
class Record:
    """What happened in a leg. ``defects`` are failures of the library, each a line with its reproducer."""

    mode: str
    leg: int
    faults: list[Fault] = field(default_factory=list)
    batches: int = 0
    lost: int = 0
    duplicated: int = 0
    differing: int = 0
    hangs: int = 0
    worst: Gap = Gap(0.0, None)
    raised: Counter[str] = field(default_factory=Counter)
    """Errors that the trainer saw and that consumed nothing, by type."""
    defects: list[str] = field(default_factory=list)
    _last: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Count the next gap from now on."""
        self._last = time.monotonic()

    def committed(self, fault: Fault) -> None:
        self.faults.append(fault)

    def arrived(self, count: int = 1) -> None:
        """Count batches that came just now, and the gap before them."""
        now = time.monotonic()
        gap = Gap(now - self._last, self.faults[-1] if self.faults else None)
        self._last = now
        self.batches += count
        if gap.seconds > self.worst.seconds:
            self.worst = gap
        if gap.seconds > HANG_S:
            self.hangs += 1
            self.defect(f"hang: no batch for {gap.seconds:.1f} s")

    def raised_to_trainer(self, error: BaseException | str) -> None:
        name = error if isinstance(error, str) else type(error).__name__
        self.raised[name] += 1

    def defect(self, what: str) -> None:
        """Note a failure of the library, with the last fault."""
        last = self.faults[-1] if self.faults else f"{self.mode} leg {self.leg}, before any fault"
        self.defects.append(f"{what} [{last}]")

    def compare(self, seen: Sequence[int], expected: Sequence[int]) -> None:
        """Count what is lost, duplicated and differing in an epoch: digests as seen, and as they must be."""
        missing = Counter(expected) - Counter(seen)
        extra = Counter(seen) - Counter(expected)
        known = set(expected)
        differing = sum(count for value, count in extra.items() if value not in known)
        self.differing += differing
        self.duplicated += sum(extra.values()) - differing
        self.lost += max(sum(missing.values()) - differing, 0)
        if list(seen) != list(expected):
            at = next(
                (i for i, pair in enumerate(zip(seen, expected, strict=False)) if pair[0] != pair[1]), -1
            )
            self.defect(
                f"batches differ from the undisturbed run: {len(seen)} of {len(expected)}, first at {at}; "
                f"lost {sum(missing.values())}, differing {differing}"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "mode": self.mode,
            "leg": self.leg,
            "faults": [fault.to_json() for fault in self.faults],
            "batches": self.batches,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "differing": self.differing,
            "hangs": self.hangs,
            "worst_gap_s": round(self.worst.seconds, 3),
            "worst_gap_fault": None if self.worst.fault is None else str(self.worst.fault),
            "raised": dict(self.raised),
            "defects": self.defects,
        }
