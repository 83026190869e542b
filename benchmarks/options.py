"""Options that benchmarks over the common workload share."""

from __future__ import annotations

import argparse
from pathlib import Path


def read_options(description: str | None) -> argparse.Namespace:
    """Read ``data``, ``rounds``, ``quick`` and ``json`` from the command line."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    parser.add_argument("--data", type=Path, required=True, help="folder of the workload, made where missing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a small graph")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    return parser.parse_args()
