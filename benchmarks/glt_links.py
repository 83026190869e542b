"""Batches of links beside graphlearn-torch (GLT), on the workload of ``gigl-loader bench``.

    python benchmarks/glt_links.py --data DIR --peer-script PATH/TO/glt_peer.sh --json glt.json

1,024 links and as many negatives a batch, the same links on both sides: ``DistLinkNeighborLoader`` beside
GLT's, and beside GLT's ``LinkNeighborLoader``, which samples in the trainer. Neither side takes an edge of
the graph for a negative. All cases take turns, once a round; figures are medians over the rounds. GLT draws
with replacement where a node has more neighbours than the fanout, so that its batches are smaller: the ratio
of sampled edges is printed, and the exit code is 1 where they differ by more than 30 %.

The peer script is called as ``SCRIPT setup``. GLT then runs on ``--peer-python``.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer_case import Case
from peer_rounds import HERE, SETUP_LIMIT_S, argument_parser, compare, our_cases, plain_case, run

TOLERANCE = 0.3
"""By how much sampled edges per link may differ between the sides: GLT draws with replacement."""

GLT_SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 0, "threads": 1},
    {"num_workers": 1},
    {"num_workers": 2},
)


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that the process of a case ends, too.
    run([str(options.peer_script), "setup"], SETUP_LIMIT_S, output=sys.stderr)
    command = ["env", f"PYTHONPATH={HERE.parent}", str(options.peer_python), str(HERE / "glt_side.py")]
    with plain_case(options, "link") as plain:
        # Even: each of GLT's two workers makes the batches of a fixed half of the links.
        case = replace(plain, batches=plain.batches + plain.batches % 2)
        ours = our_cases(replace(case, neg_sampling={"mode": "binary", "strict": True}))
        return compare(ours + glt_cases(case, options), command, options, tolerance=TOLERANCE)


def arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    home = Path(os.environ.get("PEER_HOME", Path.home() / ".cache" / "gigl-peers"))
    parser.add_argument("--peer-script", type=Path, required=True, help="makes GLT's environment")
    parser.add_argument(
        "--peer-python",
        type=Path,
        default=home / "glt" / "bin" / "python",
        help="Python of GLT's environment (default: where the script makes it, PEER_HOME/glt/bin/python)",
    )
    parser.add_argument(
        "--unseeded",
        action="store_true",
        help="measure GLT without a seed, too, as it is by default: ten times slower and more",
    )
    return parser.parse_args()


def glt_cases(case: Case, options: argparse.Namespace) -> list[Case]:
    cases = [replace(case, side="GLT", **settings) for settings in GLT_SETTINGS]
    return cases + [replace(each, random_seed=None) for each in cases if options.unseeded]


if __name__ == "__main__":
    sys.exit(main())
