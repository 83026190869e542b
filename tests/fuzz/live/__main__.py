"""Command line: ``python -m tests.fuzz.live --requests 1000000 --seed 1 --json report.json``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.fuzz.live.run import run


def main() -> int:
    """Attack, print what came of it, and return 1 if anything broke."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.live", description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report = run(options.requests, options.seed)
    if options.json is not None:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    for kind, count in report["sent"].items():
        print(f"{count:>9,}  {kind}")
    print(f"{report['requests']:>9,}  in {report['seconds']:.0f} s, {report['per_second']:,} a second")
    for name, figures in report["honest"].items():
        print(f"{name}: {figures['right']} right answers, longest wait {figures['worst_gap_s']:.1f} s")
        if name in report["after"]:
            print(f"  fresh  {report['fresh'][name]}")
            print(f"  before {report['before'][name]}\n  after  {report['after'][name]}")
    for defect in report["defects"]:
        print(f"DEFECT {defect}")
    return 1 if report["defects"] else 0


if __name__ == "__main__":
    sys.exit(main())
