"""gigl_loader beside DGL's GraphBolt, on the workload of ``gigl-loader bench``.

    python benchmarks/graphbolt_peer.py --data DIR --peer-python PYTHON --json graphbolt.json

Both sides get the same graph, features, labels, seeds, batch size and fanouts, and return edge ids. GraphBolt
gets all settings that may be its best on two cores: no worker (with one thread and with torch's default), one
worker and two; nodes of 32 bits. Every case is a process of its own; all cases take turns, once a round;
figures are medians over the rounds.

GraphBolt draws neighbours for **all** nodes of a batch at each hop, where gigl_loader and PyG draw for those
that the hop before added, so that its batches are larger: read edges per second. The exit code is 1 where
sampled edges per seed differ by more than 60 %.
"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer_rounds import HERE, argument_parser, compare, our_cases, plain_case

TOLERANCE = 0.6
"""By how much sampled edges per seed may differ: GraphBolt draws for all nodes of a batch at each hop."""

SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 0, "threads": 1},
    {"num_workers": 1},
    {"num_workers": 2},
    {"num_workers": 0, "threads": 1, "sampler_only": True},
)


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that the process of a case ends, too.
    environment = [f"PYTHONPATH={HERE.parent}", "DGLBACKEND=pytorch"]
    command = ["env", *environment, str(options.peer_python), str(HERE / "graphbolt_side.py")]
    with plain_case(options, "node") as case:
        cases = our_cases(case) + [replace(case, side="GraphBolt", **settings) for settings in SETTINGS]
        return compare(cases, command, options, tolerance=TOLERANCE)


def arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument(
        "--peer-python",
        type=Path,
        required=True,
        help="Python of an environment with DGL (how to make it: docs/internals/measuring.md)",
    )
    options = parser.parse_args()
    if not options.peer_python.exists():
        parser.error(f"--peer-python: there is no {options.peer_python}")
    return options


if __name__ == "__main__":
    sys.exit(main())
