"""Report of an audit: what each check looked at, and what it found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from gigl_loader.arrays import Int64Array
    from gigl_loader.options import EdgeType

Check: TypeAlias = Literal["targets", "times", "splits", "seeds"]
CHECKS: tuple[Check, ...] = ("targets", "times", "splits", "seeds")

MAX_EXAMPLES = 10
"""Violations that a finding describes. The rest is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One edge, seed or node that breaks a rule."""

    check: Check
    text: str
    """The batch, the edge and the rule, in one line."""
    epoch: int | None = None
    batch: int | None = None
    """Number in its epoch, over all ranks."""
    edge_type: EdgeType | None = None
    edge: tuple[int, int] | None = None
    """Node ids of source and destination."""
    edge_id: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set, as plain values."""
        fields = ("check", "text", "epoch", "batch", "edge_type", "edge", "edge_id")
        values = {name: getattr(self, name) for name in fields}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Result of one check of one subject."""

    check: Check
    subject: str
    """Human-readable: which targets, times, splits or seeds."""
    looked_at: Mapping[str, int]
    """Number of objects of each kind, such as edges."""
    violations: int = 0
    examples: tuple[Violation, ...] = ()
    """The first ``MAX_EXAMPLES`` violations."""
    remedy: str = ""
    """What to change where there are violations."""
    unchecked: str | None = None
    """Reason why there was nothing to check; ``None``: it was checked."""

    @property
    def result(self) -> str:
        """Human-readable: ok, the number of violations, or why nothing was checked."""
        if self.unchecked is not None:
            return f"not checked: {self.unchecked}"
        if not self.violations:
            return "ok"
        count = f"{self.violations:,} violation{'s' if self.violations > 1 else ''}"
        return f"{count}: {self.remedy}" if self.remedy else count

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return {
            "check": self.check,
            "subject": self.subject,
            "looked_at": dict(self.looked_at),
            "violations": self.violations,
            "remedy": self.remedy,
            "examples": [each.to_json() for each in self.examples],
            "unchecked": self.unchecked,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """Findings of an audit. True if no check found a violation."""

    subject: str
    """Human-readable: the loader or graph, and the batches."""
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no check found a violation."""
        return not any(each.violations for each in self.findings)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The violations that findings describe, in order."""
        return tuple(found for each in self.findings for found in each.examples)

    def __bool__(self) -> bool:
        return self.ok

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "ok": self.ok,
            "subject": self.subject,
            "findings": [each.to_json() for each in self.findings],
        }

    def __str__(self) -> str:
        """Return a line for the subject, for each finding, and for each violation."""
        lines = [self.subject]
        for each in self.findings:
            counts = ", ".join(f"{count:,} {what}" for what, count in each.looked_at.items())
            lines.append(f"{each.check}: {each.subject}{f' ({counts})' if counts else ''}: {each.result}")
        return "\n".join([*lines, *(each.text for each in self.violations)])


@dataclass(slots=True)
class Tally:
    """Counts of one finding, while batches are looked at."""

    check: Check
    subject: str
    remedy: str = ""
    looked_at: dict[str, int] = field(default_factory=dict)
    violations: int = 0
    examples: list[Violation] = field(default_factory=list)

    def looked(self, **counts: int) -> None:
        """Add numbers of objects."""
        for what, count in counts.items():
            self.looked_at[what] = self.looked_at.get(what, 0) + count

    def found(self, places: Sequence[int] | Int64Array, describe: Callable[[int], Violation]) -> None:
        """Add the violations at these places. ``describe`` returns the violation at one."""
        room = MAX_EXAMPLES - len(self.examples)
        self.examples += [describe(int(place)) for place in places[: max(room, 0)]]
        self.violations += len(places)

    def finding(self, unchecked: str | None = None) -> Finding:
        """Return the finding."""
        return Finding(
            check=self.check,
            subject=self.subject,
            looked_at=self.looked_at,
            violations=self.violations,
            examples=tuple(self.examples),
            remedy=self.remedy,
            unchecked=unchecked,
        )
