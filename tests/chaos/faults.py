"""Faults of a campaign as values. Each is a function of seed, mode, leg and number, so a campaign repeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. Its kind says what happens; a mode commits those kinds that it knows."""

    mode: str
    leg: int
    number: int
    """Within the leg."""
    kind: str
    at_batch: int
    """Committed before this batch of the leg is asked for."""
    target: int
    """Which server, worker or host; taken modulo their number."""
    seconds: float
    """How long what can be undone lasts."""
    choice: int
    """64 further bits: which file, which bit, which line."""

    def __str__(self) -> str:
        where = f"{self.mode} leg {self.leg} fault {self.number}"
        return f"{where}: {self.kind} of {self.target} at batch {self.at_batch} ({self.seconds:.2f} s)"

    def of_kind(self, kind: str) -> Fault:
        """Return the same fault of another kind."""
        return replace(self, kind=kind)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def pick(*address: object) -> int:
    """Return 64 bits that depend on nothing but their address."""
    text = "/".join(map(str, address)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def draw_faults(
    seed: int,
    mode: str,
    leg: int,
    count: int,
    *,
    kinds: Sequence[str],
    spacing: tuple[int, int] = (2, 8),
    most_seconds: float = 1.0,
) -> list[Fault]:
    """Return the faults of a leg, in order of their batches.

    ``spacing`` bounds the batches between two faults. ``kinds`` are equally likely.
    """
    faults: list[Fault] = []
    at_batch = 0
    for number in range(count):
        address = (seed, mode, leg, number)
        at_batch += spacing[0] + pick(*address, "batch") % (spacing[1] - spacing[0] + 1)
        faults.append(
            Fault(
                mode=mode,
                leg=leg,
                number=number,
                kind=kinds[pick(*address, "kind") % len(kinds)],
                at_batch=at_batch,
                target=pick(*address, "target") % 1000,
                seconds=most_seconds * (pick(*address, "seconds") % 1000) / 1000,
                choice=pick(*address, "choice"),
            )
        )
    return faults
