"""Calls, bytes and seconds of a graph store of many servers and ranks, computed from a checked model.

    python benchmarks/cluster_simulation.py               # the table is for 120 servers and 480 ranks
    python benchmarks/cluster_simulation.py --cluster 60x240 --loaders 3
    python benchmarks/cluster_simulation.py --check 4x1,4x4 --json calls.json

1. Real servers and trainers run in network namespaces of this machine (root, iproute2): 1 and 2 servers give
   the constants of the model, such as the bytes of a message.
2. The model predicts what clusters of other sizes count, and the same real code counts it. The exit code is 1
   where calls differ by more than 10 %, or bytes by more than 15 %.
3. The table: calls and bytes per server at start, per batch, per heartbeat interval and at the end; how each
   grows; which limit is met first; rough seconds.

Calls and bytes are those that the servers count: requests and replies without headers and framing. What the
network devices received beside them is given per call.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cluster_model as model
import harness
from cluster_lab import Lab, Measured, Run, missing_for_hosts
from cluster_model import Amount, Batch, Cluster, Constants, Line
from cluster_table import Rates, print_table, table

from gigl_loader.bench.workload import Workload, prepare

if TYPE_CHECKING:
    pass

CALLS_BOUND, BYTES_BOUND = 0.10, 0.15
"""Largest share by which a prediction may differ."""
WORKLOAD = Workload(nodes=40_000, edges=400_000, dim=32, fanout=(10, 5, 3), batch_size=64, batches=60)
_LEASE_S = 3.0
"""Of the lab's servers, so that there are many heartbeats in few seconds."""


@dataclass(frozen=True, slots=True)
class Check:
    """One prediction beside what was counted."""

    cluster: str
    phase: str
    method: str
    calls: tuple[float, float]
    """Predicted, measured."""
    nbytes: tuple[float, float]
    slack: float | None
    """Calls by which the measured number may differ in any case: a timer may fire once more or less.
    ``None``: the prediction is a lower bound."""

    @property
    def calls_error(self) -> float:
        return _error(*self.calls)

    @property
    def bytes_error(self) -> float:
        return _error(*self.nbytes)

    @property
    def holds(self) -> bool:
        predicted, measured = self.calls
        if self.slack is None:
            return measured >= predicted
        if abs(predicted - measured) <= self.slack:
            per_call = [total / calls for total, calls in zip(self.nbytes, self.calls, strict=True) if calls]
            return len(per_call) < 2 or _error(*per_call) <= BYTES_BOUND
        return self.calls_error <= CALLS_BOUND and self.bytes_error <= BYTES_BOUND


def main() -> int:
    """Measure, check and print. Return 1 where a prediction is off."""
    options = _arguments()
    reason = missing_for_hosts()
    if reason:
        print(f"cluster_simulation: {reason}", file=sys.stderr)
        return 2
    with harness.folder(options.data) as folder:
        constants = _constants(folder, options)
        checks, rates = _checks(folder, options, constants)
    _print_checks(checks)
    servers, ranks = options.cluster
    cluster = Cluster(
        servers=servers,
        ranks=ranks,
        partitions=servers * options.partitions_per_server,
        loaders=options.loaders,
    )
    cluster = replace(cluster, split_nodes=options.split_nodes)
    figures = table(cluster, _batch_of(options), constants, rates)
    print_table(figures)
    if options.json is not None:
        document = {
            "checks": [asdict(check) | {"holds": check.holds} for check in checks],
            "constants": {
                "fixed_bytes": {" ".join(key): values for key, values in constants.fixed.items()},
                "member_bytes": constants.member_bytes,
                "partition_bytes": constants.partition_bytes,
            },
            "rates": asdict(rates),
            "table": figures,
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if all(check.holds for check in checks) else 1


def _constants(folder: Path, options: argparse.Namespace) -> Constants:
    """Measure 1 and 2 servers, and return the constants."""
    one = Cluster(servers=1, ranks=1, partitions=2)
    alone = _measured(folder, one, idle_s=0.0)[1][0]
    wide = _described(Cluster(servers=2, ranks=2, partitions=4))
    join, [run] = _measured(folder, wide, idle_s=options.idle_seconds)
    constants = Constants()
    views = [each.phases["connect"].total["control", "Cluster"] for each in (alone, run)]
    manifests = [each.phases["connect"].total["data", "manifest"] for each in (alone, run)]
    constants.member_bytes = views[1].bytes_out / views[1].calls - views[0].bytes_out / views[0].calls
    constants.partition_bytes = (
        manifests[1].bytes_out / manifests[1].calls - manifests[0].bytes_out / manifests[0].calls
    ) / (wide.partitions - one.partitions)
    wide = replace(wide, batches=run.batches)
    lines = [line for lines in _by_phase(wide, run, constants).values() for line in lines]
    counted = _sums(run.phases.values())
    counted["data", "ping"] = _sums([run.phases["connect"]])["data", "ping"]
    at_join = [line for line in model.calls_at_join(wide, constants) if line.key == ("control", "Describe")]
    for line in [*lines, *at_join]:
        amount = join.total[line.key] if line in at_join else counted[line.key]
        calls = amount.calls
        scale = calls / line.calls if line.key[1] in ("Heartbeat", "Cluster by servers") else 1.0
        constants.fixed[line.key] = (
            (amount.bytes_in - line.varying_in * scale) / calls,
            (amount.bytes_out - line.varying_out * scale) / calls,
        )
    return constants


def _checks(folder: Path, options: argparse.Namespace, constants: Constants) -> tuple[list[Check], Rates]:
    """Run the chosen clusters, and compare. The rates are of the last cluster, the largest."""
    found: list[Check] = []
    for servers in sorted({servers for servers, _ in options.check}):
        ranks = sorted(ranks for each, ranks in options.check if each == servers)
        cluster = _described(Cluster(servers=servers, ranks=max(ranks), partitions=servers))
        join, runs = _measured(folder, cluster, idle_s=options.idle_seconds, ranks=ranks)
        found += _compared(
            f"{servers} servers", "join", model.calls_at_join(cluster, constants), join, constants
        )
        for number, run in zip(ranks, runs, strict=True):
            name = f"{servers}x{number}"
            each = replace(cluster, ranks=number, batches=_num_batches(number))
            predicted = _by_phase(each, run, constants)
            for phase in ("connect", "open", "epoch", "close"):
                found += _compared(name, phase, predicted[phase], run.phases[phase], constants)
            found += _compared(name, "timers", predicted["timers"], _joined(run), constants, timers=each)
    return found, Rates.of(runs[-1].phases, join)


def _by_phase(c: Cluster, run: Run, k: Constants) -> dict[str, list[Line]]:
    """Return the calls that the model predicts of a run, by sizes of the cluster and of its batches."""
    seconds = {name: measured.seconds for name, measured in run.phases.items()}
    open_s = seconds["epoch"] + seconds["idle"]
    timed = model.calls_by_time(c, sum(seconds.values()), k, open_s=open_s)
    return {
        "connect": model.calls_at_connect(c, k),
        "open": model.calls_at_open(c, k),
        "epoch": model.calls_of_batches(c, _shape(run), k),
        "timers": [line for line in timed if line.key != ("data", "ping")],
        "close": model.calls_at_close(c, k),
    }


def _compared(
    cluster: str,
    phase: str,
    lines: Sequence[Line],
    measured: Measured,
    constants: Constants,
    *,
    timers: Cluster | None = None,
) -> list[Check]:
    total, found = measured.total, []
    for line in lines:
        predicted, counted = line.amount(constants), total.get(line.key, Amount())
        slack: float | None = 0.0
        if timers is not None and line.key[1] == "Heartbeat":
            slack = timers.ranks * timers.servers_per_rank
        elif timers is not None:  # On a busy machine a look takes long, and the next one begins later.
            slack = max(timers.servers * min(timers.servers - 1, model.WATCHED), predicted.calls / 2)
        elif phase == "join" and line.key[1] == "Cluster by servers":
            slack = None  # Servers ask again until all have come.
        elif line.key == ("data", "ping"):  # Servers probe their own ports in between.
            probes = len(measured.servers) * measured.seconds / model.WATCH_S
            slack = 3 * max(probes, 1) ** 0.5 + probes
        found.append(
            Check(
                cluster,
                phase,
                line.key[1],
                (predicted.calls, counted.calls),
                (predicted.nbytes, counted.nbytes),
                slack,
            )
        )
    return found


def _measured(
    folder: Path, c: Cluster, *, idle_s: float, ranks: Sequence[int] = ()
) -> tuple[Measured, list[Run]]:
    """Run a cluster with each number of ranks, one after the other."""
    graph = prepare(WORKLOAD, folder, partitions=c.partitions)
    runs = []
    _progress(f"{c.servers} servers: start")
    with Lab.running(
        graph, folder, servers=c.servers, partitions=c.partitions, ranks=c.ranks, lease_s=_LEASE_S
    ) as lab:
        for number in ranks or [c.ranks]:
            _progress(f"{c.servers} servers, {number} ranks")
            runs.append(
                lab.run(
                    ranks=number,
                    loaders=c.loaders,
                    fanout=WORKLOAD.fanout,
                    batch_size=WORKLOAD.batch_size,
                    idle_s=idle_s,
                )
            )
        return lab.join, runs


def _described(c: Cluster) -> Cluster:
    return replace(c, split_nodes=WORKLOAD.nodes // 10, lease_s=_LEASE_S)


def _num_batches(ranks: int) -> int:
    share = -(-(WORKLOAD.nodes // 10) // ranks)
    return ranks * -(-share // WORKLOAD.batch_size)


def _shape(run: Run) -> Batch:
    return Batch(
        seeds=WORKLOAD.batch_size,
        nodes_per_hop=run.nodes_per_hop,
        edges_per_hop=run.edges_per_hop,
        row_bytes=WORKLOAD.row_bytes,
    )


def _joined(run: Run) -> Measured:
    """Return all phases as one."""
    return Measured(
        seconds=sum(each.seconds for each in run.phases.values()), servers=[_sums(run.phases.values())]
    )


def _sums(phases: Any) -> dict[model.Key, Amount]:
    found: dict[model.Key, Amount] = {}
    for phase in phases:
        for key, amount in phase.total.items():
            found[key] = found.get(key, Amount()) + amount
    return found


def _error(predicted: float, measured: float) -> float:
    """Return the difference as a share of what was measured."""
    if measured == predicted:
        return 0.0
    return abs(predicted - measured) / measured if measured else float("inf")


def _print_checks(checks: Sequence[Check]) -> None:
    print(f"{'cluster':10} {'phase':8} {'method':20} {'calls: model':>12} {'real':>8} {'off':>6}", end="")
    print(f" {'bytes: model':>14} {'real':>12} {'off':>6}")
    for each in checks:
        print(
            f"{each.cluster:10} {each.phase:8} {each.method:20} {each.calls[0]:12,.0f} {each.calls[1]:8,.0f} "
            f"{each.calls_error:6.1%} {each.nbytes[0]:14,.0f} {each.nbytes[1]:12,.0f} {each.bytes_error:6.1%}"
            f"{'' if each.holds else '  OFF'}"
        )
    off = sum(not each.holds for each in checks)
    print(
        f"{len(checks)} predictions, {off} off by more than {CALLS_BOUND:.0%} (calls) or "
        f"{BYTES_BOUND:.0%} (bytes)"
    )


def _progress(text: str) -> None:
    print(f"cluster_simulation: {text}", file=sys.stderr, flush=True)


def _batch_of(options: argparse.Namespace) -> Batch:
    return Batch(
        seeds=round(options.nodes_per_hop[0]),
        nodes_per_hop=options.nodes_per_hop,
        edges_per_hop=options.edges_per_hop,
        row_bytes=options.row_bytes,
        edge_id_bytes=4,
    )


def _sizes(text: str) -> list[tuple[int, int]]:
    """Parse ``SERVERSxRANKS,...``."""
    found = []
    for each in text.split(","):
        servers, _, ranks = each.partition("x")
        try:
            pair = (int(servers), int(ranks))
        except ValueError:
            pair = (0, 0)
        if min(pair) < 1:
            raise argparse.ArgumentTypeError(f"expected SERVERSxRANKS, such as 120x480, got {each!r}")
        found.append(pair)
    return found


def _size(text: str) -> tuple[int, int]:
    """Parse ``SERVERSxRANKS``."""
    first, *more = _sizes(text)
    if more:
        raise argparse.ArgumentTypeError(f"expected one cluster, got {text!r}")
    return first


def _numbers(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from None


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return int(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cluster", type=_size, default=(120, 480), help="SERVERSxRANKS of the table (120x480)"
    )
    parser.add_argument("--loaders", type=_positive, default=1, help="of each rank, in the table (1)")
    parser.add_argument("--partitions-per-server", type=_positive, default=1, help="in the table (1)")
    parser.add_argument(
        "--nodes-per-hop",
        type=_numbers,
        default=[1024.0, 10_000.0, 61_000.0, 147_000.0],
        help="new nodes of each hop of a batch, seeds first, in the table",
    )
    parser.add_argument(
        "--edges-per-hop",
        type=_numbers,
        default=[10_800.0, 82_000.0, 288_000.0],
        help="edges of each hop of a batch, in the table",
    )
    parser.add_argument(
        "--row-bytes", type=_positive, default=520, help="features and labels of a node (520)"
    )
    parser.add_argument(
        "--split-nodes", type=_positive, default=10_000_000, help="seeds of all ranks (10,000,000)"
    )
    parser.add_argument(
        "--check",
        type=_sizes,
        default=[(4, 1), (4, 4), (8, 2), (8, 4)],
        help="SERVERSxRANKS,... that are run and compared (4x1,4x4,8x2,8x4)",
    )
    parser.add_argument(
        "--idle-seconds", type=float, default=12.0, help="of each run, to count heartbeats (12)"
    )
    parser.add_argument("--data", type=Path, help="where the lab's graphs are kept for the next run")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    options = parser.parse_args()
    if len(options.nodes_per_hop) != len(options.edges_per_hop) + 1:
        parser.error("--nodes-per-hop has one number more than --edges-per-hop: the seeds come first")
    return options


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, TimeoutError) as failure:
        sys.exit(f"cluster_simulation: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
