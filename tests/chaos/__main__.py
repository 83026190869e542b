"""Command line of a campaign: ``python -m tests.chaos --faults 1000 --seed 1 --json report.json``.

``--bursts`` commits faults of a moment only, of which none may be raised. ``--mode NAME --leg N`` repeats one
leg, which is what a defect names.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.campaign import BURSTS, LEG_FAULTS, MODES, run_campaign, run_leg
from tests.chaos.ground import Ground
from tests.chaos.record import Record
from tests.chaos.report import to_json, to_markdown

_EVERY = 50
_LEG_S = 900.0
"""A leg that takes longer has hung: all stacks are printed, and the campaign ends."""


def main() -> int:
    """Run a campaign. Returns 1 if a batch was lost, came twice or differed, or something hung or broke."""
    options = _arguments()
    logging.basicConfig(level=logging.CRITICAL)
    os.environ["GRPC_VERBOSITY"] = "NONE"  # Of faults that are ours, gRPC's core writes a line each.
    faulthandler.dump_traceback_later(_LEG_S, exit=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gigl-chaos-") as folder, Ground.of(Path(folder)) as ground:
        if options.mode is None:
            progress = _Progress(options)
            records = run_campaign(
                ground,
                seed=options.seed,
                faults=options.faults,
                modes=BURSTS if options.bursts else MODES,
                said=progress.said,
            )
        else:
            count = min(options.faults, LEG_FAULTS)
            records = [run_leg(ground, options.mode, seed=options.seed, leg=options.leg, count=count)]
    report = _write(options, records, time.monotonic() - began)
    print(to_markdown(records))
    print(f"\nseed {options.seed}, {report['seconds']:.0f} s; raised to trainers: {report['raised']}")
    for defect in report["defects"]:
        print(f"DEFECT {defect}")
    return 1 if report["defects"] else 0


def _write(options: argparse.Namespace, records: list[Record], seconds: float) -> dict[str, Any]:
    report = to_json(records, seed=options.seed, seconds=seconds)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return report


class _Progress:
    """Prints a line every fifty faults, and one for every leg that shows a defect. Keeps the report."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._faults, self._next = options, options.faults, _EVERY
        self._records: list[Record] = []
        self._began = time.monotonic()

    def said(self, record: Record, done: int) -> None:
        faulthandler.dump_traceback_later(_LEG_S, exit=True)
        self._records.append(record)
        _write(self._options, self._records, time.monotonic() - self._began)
        for defect in record.defects:
            print(f"{record.mode} leg {record.leg}: {defect}", file=sys.stderr, flush=True)
        if done >= self._next or done == self._faults:
            self._next = done - done % _EVERY + _EVERY
            seconds = time.monotonic() - self._began
            print(f"{done} of {self._faults} faults, {seconds:.0f} s", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bursts", action="store_true")
    parser.add_argument("--mode", choices=[*MODES, *BURSTS])
    parser.add_argument("--leg", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
