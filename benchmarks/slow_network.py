"""What a cache of rows gains where the network is the bottleneck: two storage servers behind a slow network.

    python benchmarks/slow_network.py --data FOLDER [--mbit 1000,2500] [--rounds 3] [--json FILE]

The common workload (1 M nodes, 30 M edges, 128 features, fanout 15, 10, 5) in two partitions. Servers and
trainer are processes of one network namespace, whose loopback carries so many Mbit/s (``tc``, as root),
nearly all for the trainer. It fetches all rows from their owners, or has memory for 20 % of the features;
both take turns. Figures are medians over rounds.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import harness

from gigl_loader.bench.rounds import run_rounds
from gigl_loader.bench.store import CACHED, DIRECT, store_case
from gigl_loader.bench.workload import prepare, training_seeds

_BATCHES = 24
"""Of an epoch: one of 121 MB takes a second at 1 Gbit/s."""


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument(
        "--mbit", default="1000,2500,10000", help="rates of the network, Mbit/s (%(default)s)"
    )
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not options.inside:
        if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "ip", "tc"))):
            parser.error("needs root, and the programs unshare, ip and tc (packages util-linux and iproute2)")
        command = ["unshare", "--net", sys.executable, *sys.argv, "--inside"]
        sys.exit(subprocess.run(command, check=False).returncode)
    with harness.folder(options.data) as data:
        workload = harness.workload_of(options)
        workload = replace(workload, batches=min(workload.batches, _BATCHES))
        graph, seeds = prepare(workload, data, partitions=2), training_seeds(workload, data)
        cases = {
            str(setup): store_case(graph, seeds, workload, setup, epochs=1) for setup in (DIRECT, CACHED)
        }
        found = {}
        for mbit in map(int, options.mbit.split(",")):
            limit(mbit)
            measured = run_rounds(cases, rounds=options.rounds)
            found[mbit] = {
                setup: {
                    name: measured.subjects[setup].median(name) for name in measured.subjects[setup].samples
                }
                for setup in cases
            }
            _print(mbit, found[mbit], measured.others_busy())
    harness.write_json(options, found)


def limit(mbit: int) -> None:
    """Have the loopback of this network namespace carry so many Mbit/s."""
    for command in (
        "ip link set lo up",
        f"tc qdisc replace dev lo root tbf rate {mbit}mbit burst 4mb latency 100ms",
    ):
        subprocess.run(command.split(), check=True)


_COLUMNS = {"seeds_per_s": "seeds/s", "received_mb": "MB a batch", "cpu_s_per_kseed": "CPU s per 1,000 seeds"}


def _print(mbit: int, found: dict[str, dict[str, float]], busy: float) -> None:
    print(f"{mbit:,} Mbit/s (other processes: {busy:.2f} cores)")
    whole = found[str(DIRECT)]
    for setup, each in found.items():
        cells = [
            f"{each[name]:,.3f} {text} ({each[name] / whole[name]:.2f})" for name, text in _COLUMNS.items()
        ]
        print(f"  {setup}: {', '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
