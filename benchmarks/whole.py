"""All measurements on the common workload, and tables for docs/benchmarks.md.

    python benchmarks/whole.py --data DIR --json FILE [--measure GROUPS] [--peer-script SCRIPT]
    python benchmarks/whole.py --tables FILE

The groups sampling, loading, store and memory are those of ``gigl-loader bench``. ``ranks`` are two ranks
of one host, ``hosts`` two hosts that hold half of the graph each, ``load`` is what storage servers bear. A
peer script measures another system on the same files in the same rounds (see README.md). Prints Markdown:
medians, with the lowest and highest round. ``--tables`` prints the tables of an earlier ``--json`` file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import ranks
import server_load
from peer_script import peer_case, peer_memory_case, set_up_peer

from gigl_loader.bench.report import RATIOS, TABLES, Ratio, Report, save_plot
from gigl_loader.bench.rounds import Case, run_rounds
from gigl_loader.bench.store import DIRECT, NETWORK, RING, THROUGH
from gigl_loader.bench.suite import GROUPS, Suite, one_thread
from gigl_loader.bench.workload import Workload, prepare, training_seeds

ALL_GROUPS = (*GROUPS, "ranks", "hosts", "load")

_GLT_STORE, _GLT_STORE_2 = "glt_store_s1_w2_seed1", "glt_store_s2_w1_seed1"
_GLT_COLOCATED = "glt_colocated_w2_seed1"

ALL_RATIOS = (
    Ratio("sampler over GLT seeded, 1 thread", "edges_per_s", "sampler", "glt_sampler_t1_seed1"),
    Ratio("sampler over GLT seeded, 2 threads", "edges_per_s", "sampler", "glt_sampler_t2_seed1"),
    *RATIOS,
    Ratio("2 workers over GLT colocated", "seeds_per_s", "loader, 2 workers", _GLT_COLOCATED),
    Ratio("CPU of 2 workers over GLT colocated", "cpu_s_per_kseed", "loader, 2 workers", _GLT_COLOCATED),
    Ratio("2 ranks over 1, of 2 workers in all", "seeds_per_s", ranks.name(2, 1), ranks.name(1, 2)),
    Ratio("2 hosts over GLT store", "seeds_per_s", ranks.HOSTS, _GLT_STORE_2),
    Ratio("CPU of 2 hosts over GLT store", "cpu_s_per_kseed", ranks.HOSTS, _GLT_STORE_2),
    Ratio("2 hosts with a small cache over without", "seeds_per_s", ranks.CACHED, ranks.HOSTS),
    Ratio("bytes with a small cache over without", "wire_mb_per_batch", ranks.CACHED, ranks.HOSTS),
    Ratio("store, ring, over GLT store", "seeds_per_s", str(RING), _GLT_STORE),
    Ratio("CPU of store, ring, over GLT store", "cpu_s_per_kseed", str(RING), _GLT_STORE),
    Ratio("store, network, over GLT store", "seeds_per_s", str(NETWORK), _GLT_STORE),
    Ratio("CPU of store, network, over GLT store", "cpu_s_per_kseed", str(NETWORK), _GLT_STORE),
    Ratio("store, 2 servers, direct, over GLT store", "seeds_per_s", str(DIRECT), _GLT_STORE_2),
    Ratio("store, 2 servers, through, over GLT store", "seeds_per_s", str(THROUGH), _GLT_STORE_2),
)

ALL_TABLES = TABLES | {
    "network of two hosts": (
        ("wire_mb_per_batch", "MB on the wire per batch", "{:.2f}"),
        ("remote_mb_per_batch", "remote rows and lists MB", "{:.2f}"),
        ("wire_over_remote", "times", "{:.3f}"),
        ("calls_per_batch", "calls per batch", "{:.1f}"),
    ),
    "load on servers": (
        ("kill_to_batch_s", "SIGKILL to next batch s", "{:.2f}"),
        ("idle_channels", "idle channels", "{:,.0f}"),
        ("idle_channels_add_mb", "they add MB", "{:,.1f}"),
        ("idle_server_mb", "server MB", "{:,.1f}"),
        ("idle_threads", "its threads", "{:,.0f}"),
        ("loaders", "loaders", "{:,.0f}"),
        ("mean_batches", "batches each, mean", "{:,.0f}"),
        ("fewest_batches", "fewest", "{:,.0f}"),
        ("slowest_over_mean", "slowest over mean", "{:.2f}"),
    ),
    "memory that no file of the graph backs": (
        ("before_mb", "before the loaders MB", "{:,.0f}"),
        ("start_adds_mb", "their start adds MB", "{:,.0f}"),
        ("in_flight_adds_mb", "and with batches in flight MB", "{:,.0f}"),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSuite:
    """The suite of ``gigl-loader bench``, further groups, and a peer."""

    workload: Workload
    folder: Path
    groups: tuple[str, ...]
    script: Path | None

    def timed(self) -> dict[str, Case]:
        """Return the cases that take turns, by name."""
        graph, parted = (prepare(self.workload, self.folder, partitions=count) for count in (1, 2))
        file, seeds = self.folder / "train.npy", training_seeds(self.workload, self.folder)
        cases = {name: case for suite in self._suite() for name, case in suite.timed().items()}
        if "ranks" in self.groups:
            for count, workers in ((1, 2), (2, 1)):
                name = ranks.name(count, workers)
                cases[name] = ranks.ranks_case(graph, file, self.workload, ranks=count, num_workers=workers)
        if "hosts" in self.groups:
            cases["hosts"] = ranks.hosts_case(parted, file, self.workload)
        if "load" in self.groups:
            for setup, path in ((NETWORK, graph), (DIRECT, parted)):
                cases[f"kill, {setup}"] = server_load.kill_case(path, seeds, self.workload, setup)
            cases["idle"] = server_load.idle_case(graph, self.workload)
            cases["crowd"] = server_load.crowd_case(graph, seeds, self.workload)
        return cases | self._peer_cases()

    def weighed(self) -> Iterator[Case]:
        """Yield the cases of memory, which run after those of time."""
        for suite in self._suite():
            yield from suite.weighed()
        graph, file = prepare(self.workload, self.folder), self.folder / "train.npy"
        if {"ranks", "memory"} <= set(self.groups):
            yield ranks.start_memory_case(graph, file, self.workload, ranks=4, num_workers=2)
        if self.script is not None and "memory" in self.groups:
            yield peer_memory_case(self.script, self.folder, self.workload, num_workers=2)

    def _suite(self) -> list[Suite]:
        groups = tuple(group for group in self.groups if group in GROUPS)
        return [Suite(workload=self.workload, folder=self.folder, groups=groups)] if groups else []

    def _peer_cases(self) -> dict[str, Case]:
        if self.script is None:
            return {}
        modes = {  # Of each group: mode of the script, hosts, and workers of each.
            "sampling": (("sampler", 1, 2),),
            "loading": (("colocated", 1, 2),),
            "store": (("store", 1, 2), ("store", 2, 1)),
            "hosts": (("store", 2, 1),),
        }
        wanted = {mode for group in self.groups for mode in modes.get(group, ())}
        return {
            f"peer, {mode}, {hosts} hosts": peer_case(
                self.script, self.folder, self.workload, mode, num_workers=workers, hosts=hosts
            )
            for mode, hosts, workers in sorted(wanted)
        }


def markdown(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of all tables of a ``--json`` document."""
    for columns in ALL_TABLES.values():
        metrics = [metric for metric, _, _ in columns]
        if not any(metric in figures for figures in document["subjects"].values() for metric in metrics):
            continue
        yield "| | " + " | ".join(heading for _, heading, _ in columns) + " |"
        yield "|---|" + "---:|" * len(columns)
        for name, figures in document["subjects"].items():
            cells = [
                harness.spread(figures[metric], form) if metric in figures else ""
                for metric, _, form in columns
            ]
            if any(cells):
                yield f"| {name} | " + " | ".join(cells) + " |"
        yield ""
    yield from ("| ratio | |", "|---|---:|")
    yield from (f"| {title} | {value:.2f} |" for title, value in document["ratios"].items())
    machine = document["machine"]
    yield ""
    yield (
        f"{machine['cpu']}, {machine['cpus']} cores, kernel {machine['kernel']}, Python {machine['python']}, "
        f"torch {machine['torch']}; other processes used {document['others_busy_cores']['all']:.2f} cores."
    )


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--measure", default=",".join(ALL_GROUPS), help="some of the groups (all)")
    parser.add_argument("--peer-script", type=Path, help="script that runs a peer on the same files")
    parser.add_argument("--plot", type=Path, help="draw the medians into this PNG file")
    parser.add_argument("--tables", type=Path, help="print the tables of this file, measure nothing")
    options = parser.parse_args()
    if options.tables is not None:
        print("\n".join(markdown(json.loads(options.tables.read_text()))))
        return
    groups = tuple(options.measure.split(","))
    if not set(groups) <= set(ALL_GROUPS):
        parser.error(f"--measure takes some of {','.join(ALL_GROUPS)}, got {options.measure!r}")
    script = None if options.peer_script is None else options.peer_script.absolute()
    if script is not None:
        set_up_peer(script)
    workload = harness.workload_of(options)
    with harness.folder(options.data) as folder, one_thread():
        whole = WholeSuite(workload=workload, folder=folder, groups=groups, script=script)
        measured = run_rounds(whole.timed(), rounds=options.rounds)
        for case in whole.weighed():
            measured.add(case())
    document = Report(measured, ALL_TABLES, ALL_RATIOS).to_json(workload)
    print("\n".join(markdown(document)))
    harness.write_json(options, document)
    if options.plot is not None:
        save_plot(measured, options.plot)


if __name__ == "__main__":
    main()
