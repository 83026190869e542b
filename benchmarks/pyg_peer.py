"""gigl_loader beside PyG's own loaders, on the workload of ``gigl-loader bench``.

    python benchmarks/pyg_peer.py --data DIR --json pyg.json
    python benchmarks/pyg_peer.py --data DIR --task link

Both sides get the same graph, features, labels, seeds, batch size and fanout, and return edge ids. PyG gets
all settings that may be its best on two cores: no worker (with one thread and with torch's default), one
worker and two, rows gathered by the workers or by the trainer, persistent workers; ratios are over the
fastest. Every case is a process of its own: it loads the data, takes an epoch to warm up, and measures the
next ones. All cases take turns, once a round; figures are medians over the rounds. Returns 1 where the two
sides did not sample equally many edges.

``--task link`` measures batches of 1,024 links and as many random pairs (``neg_sampling="binary"``): PyG's
``LinkNeighborLoader`` beside ``DistLinkNeighborLoader``.
"""

from __future__ import annotations

import argparse
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer_case import Case
from peer_rounds import HERE, SETUP_LIMIT_S, argument_parser, compare, our_cases, plain_case, run

TOLERANCE = 0.01
"""By how much sampled edges per seed or link may differ between the sides."""

PYG_SETTINGS: tuple[dict[str, Any], ...] = (
    {"num_workers": 0},
    {"num_workers": 0, "threads": 1},
    *({"num_workers": count, "filter_per_worker": place} for count in (1, 2) for place in (True, False)),
)


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # So that the process of a case ends, too.
    run([str(options.peer_script), "setup"], SETUP_LIMIT_S, output=sys.stderr)
    with plain_case(options, options.task) as case:
        cases = our_cases(case) + pyg_cases(case, options.backend)
        return compare(cases, [str(options.peer_script)], options, tolerance=TOLERANCE)


def arguments() -> argparse.Namespace:
    parser = argument_parser(__doc__)
    parser.add_argument("--task", choices=("node", "link"), default="node", help="around what batches are")
    parser.add_argument(
        "--backend",
        choices=("auto", "pyg-lib", "torch-sparse"),
        default="auto",
        help="what PyG samples by (default: pyg-lib where PyG's environment has it)",
    )
    parser.add_argument(
        "--peer-script", type=Path, default=HERE / "pyg_peer.sh", help="runs PyG's side (see its head)"
    )
    return parser.parse_args()


def pyg_cases(case: Case, backend: str) -> list[Case]:
    plain = replace(case, side="PyG", backend=backend)
    cases = [replace(plain, **settings) for settings in PYG_SETTINGS]
    return [*cases, replace(plain, sampler_only=True)] if case.task == "node" else cases


if __name__ == "__main__":
    sys.exit(main())
