"""Report of a campaign: JSON for programs, Markdown for docs/internals/faults.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.chaos.record import HANG_S, Record


def to_json(records: Sequence[Record], *, seed: int, seconds: float) -> dict[str, Any]:
    """Return totals, faults by kind, and every leg."""
    worst = max(records, key=lambda record: record.worst.seconds)
    names = ("batches", "lost", "duplicated", "differing", "hangs")
    return {
        "seed": seed,
        "seconds": round(seconds, 1),
        "hang_s": HANG_S,
        "faults": sum(len(record.faults) for record in records),
        **{name: sum(getattr(record, name) for record in records) for name in names},
        "worst_gap_s": round(worst.worst.seconds, 3),
        "worst_gap_fault": str(worst.worst.fault),
        "by_kind": dict(sorted(Counter(fault.kind for record in records for fault in record.faults).items())),
        "raised": dict(sum((record.raised for record in records), Counter())),
        "defects": [defect for record in records for defect in record.defects],
        "legs": [record.to_json() for record in records],
    }


def to_markdown(records: Sequence[Record]) -> str:
    """Return a table by mode, and the faults by kind."""
    lines = [
        "| mode | faults | batches | hangs | lost | duplicated | differing | worst gap |",
        "|---|---|---|---|---|---|---|---|",
    ]
    modes = list(dict.fromkeys(record.mode for record in records))
    groups = {mode: [record for record in records if record.mode == mode] for mode in modes}
    for mode, legs in (*groups.items(), ("all", list(records))):
        worst = max(legs, key=lambda record: record.worst.seconds).worst
        after = "" if worst.fault is None else f", {worst.fault.kind}"
        counts = [sum(len(record.faults) for record in legs)]
        counts += [
            sum(getattr(record, name) for record in legs)
            for name in ("batches", "hangs", "lost", "duplicated", "differing")
        ]
        cells = [mode, *(f"{count:,}" for count in counts), f"{worst.seconds:.1f} s{after}"]
        lines.append(f"| {' | '.join(cells)} |")
    kinds = Counter(fault.kind for record in records for fault in record.faults)
    lines += ["", "| fault | times |", "|---|---|"]
    lines += [f"| {kind} | {count} |" for kind, count in sorted(kinds.items())]
    return "\n".join(lines)
