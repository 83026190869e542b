"""Command line of a campaign: ``python -m tests.chaos --faults 1000 --seed 1 --json report.json``.

``--mode NAME --leg N`` repeats one leg, which is what a defect names.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.campaign import LEG_FAULTS, MODES, run_campaign, run_leg
from tests.chaos.ground import Ground
from tests.chaos.record import Record
from tests.chaos.report import to_json, to_markdown

_EVERY = 50


def main() -> int:
    """Run a campaign. Returns 1 if a batch was lost, came twice or differed, or something hung or broke."""
    options = _arguments()
    logging.basicConfig(level=logging.CRITICAL)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gigl-chaos-") as folder, Ground.of(Path(folder)) as ground:
        if options.mode is None:
            progress = _Progress(options.faults)
            records = run_campaign(ground, seed=options.seed, faults=options.faults, said=progress.said)
        else:
            count = min(options.faults, LEG_FAULTS)
            records = [run_leg(ground, options.mode, seed=options.seed, leg=options.leg, count=count)]
    report = to_json(records, seed=options.seed, seconds=time.monotonic() - began)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(to_markdown(records))
    print(f"\nseed {options.seed}, {report['seconds']:.0f} s; raised to trainers: {report['raised']}")
    for defect in report["defects"]:
        print(f"DEFECT {defect}")
    return 1 if report["defects"] else 0


class _Progress:
    """Prints a line every fifty faults, and one for every leg that shows a defect."""

    def __init__(self, faults: int) -> None:
        self._faults, self._next = faults, _EVERY
        self._began = time.monotonic()

    def said(self, record: Record, done: int) -> None:
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
    parser.add_argument("--mode", choices=list(MODES))
    parser.add_argument("--leg", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
