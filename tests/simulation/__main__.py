"""Command line of the simulation: ``python -m tests.simulation --client rows --first 0 --count 10000``.

``--seed N`` repeats one schedule and prints it, with the end of each call. ``--trace`` also prints what the
client logs, with the simulated time.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from gigl_loader.rpc import calls
from tests.simulation.outcomes import counts, describe
from tests.simulation.run import CLIENTS, Run, simulate_seed
from tests.simulation.schedule import draw

_SHOWN = 10


def main() -> int:
    """Run schedules. Returns 1 if a rule was broken."""
    options = _arguments()
    for name in ("gigl_loader", "gigl_client"):
        logging.getLogger(name).setLevel(logging.DEBUG if options.trace else logging.CRITICAL)
    if options.trace:
        logging.basicConfig(format="%(at).6f %(name)s: %(message)s", stream=sys.stdout)
        logging.getLogger().handlers[0].addFilter(_add_time)
    if options.seed is not None:
        print(draw(options.seed))
        run = simulate_seed(options.client, options.seed)
        print("\n".join(map(describe, run.outcomes)))
        _show(run, options.client)
        return bool(run.broken)
    began, ended, broken, steps = time.monotonic(), Counter[str](), 0, 0
    for seed in range(options.first, options.first + options.count):
        run = simulate_seed(options.client, seed)
        ended += counts(run.outcomes)
        steps += run.steps
        broken += bool(run.broken)
        if run.broken and broken <= _SHOWN:
            _show(run, options.client)
    seconds = time.monotonic() - began
    listed = ", ".join(f"{count:,} {name}" for name, count in ended.most_common())
    print(
        f"{options.count:,} schedules, {steps:,} steps in {seconds:.0f} s; calls: {listed}; {broken} broken"
    )
    return bool(broken)


def _add_time(record: logging.LogRecord) -> bool:
    record.at = vars(calls)["time"].time()  # Of the simulated world, while it is installed.
    return True


def _show(run: Run, client: str) -> None:
    for each in run.broken:
        print(f"BROKEN --client {client} --seed {run.schedule.seed}: {each}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--client", choices=CLIENTS, default="rows")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=1_000, help="number of seeds")
    parser.add_argument("--seed", type=int, help="run this one, and print it")
    parser.add_argument("--trace", action="store_true", help="print the log of the client")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
