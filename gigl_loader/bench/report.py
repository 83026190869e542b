"""Report of a benchmark run: medians, ratios, a table, a JSON document, a plot."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import gigl_loader
from gigl_loader.bench.ranks import BARE, BARE_WARM, CACHED, HOSTS
from gigl_loader.bench.rounds import Measured
from gigl_loader.bench.store import (
    DIRECT,
    DIRECT_4,
    FRAMES,
    FRAMES_WARM,
    NETWORK,
    RING,
    THROUGH,
    THROUGH_4,
)
from gigl_loader.bench.workload import Workload


@dataclass(frozen=True, slots=True)
class Ratio:
    """How one subject compares with another in one metric, both measured in the same run."""

    title: str
    metric: str
    subject: str
    beside: str


_GLT_STORE = "glt_store_s1_w2_seed1"
_GLT_STORE_2 = "glt_store_s2_w1_seed1"

_RATIOS = (
    Ratio("sampler over GLT seeded, 1 thread", "edges_per_s", "sampler", "glt_sampler_t1_seed1"),
    Ratio("sampler over GLT seeded, 2 threads", "edges_per_s", "sampler", "glt_sampler_t2_seed1"),
    Ratio("gather over index_select, fresh", "gb_per_s", "gather", "index_select, fresh"),
    Ratio("gather over index_select, out=", "gb_per_s", "gather", "index_select, out="),
    Ratio("gather over memcpy, warm", "gb_per_s", "gather", "memcpy, warm"),
    Ratio("1 worker over inline", "seeds_per_s", "loader, 1 worker", "loader, inline"),
    Ratio("CPU of 1 worker over inline", "cpu_s_per_kseed", "loader, 1 worker", "loader, inline"),
    Ratio("2 workers over inline", "seeds_per_s", "loader, 2 workers", "loader, inline"),
    Ratio("2 workers over GLT colocated", "seeds_per_s", "loader, 2 workers", "glt_colocated_w2_seed1"),
    Ratio(
        "2 ranks over 1, of 2 workers in all", "seeds_per_s", "2 ranks, 1 worker each", "1 rank, 2 workers"
    ),
    Ratio("2 hosts over GLT store", "seeds_per_s", HOSTS, "glt_store_s2_w1_seed1"),
    Ratio("CPU of 2 hosts over GLT store", "cpu_s_per_kseed", HOSTS, "glt_store_s2_w1_seed1"),
    Ratio("2 hosts with a small cache over without", "seeds_per_s", CACHED, HOSTS),
    Ratio("bytes with a small cache over without", "wire_mb_per_batch", CACHED, HOSTS),
    Ratio("CPU of the wire over a bare transfer", "cpu_wire_s_per_kseed", HOSTS, BARE),
    Ratio("CPU of the wire over one that keeps memory", "cpu_wire_s_per_kseed", HOSTS, BARE_WARM),
    Ratio("store, ring, over GLT store", "seeds_per_s", str(RING), _GLT_STORE),
    Ratio("CPU of store, ring, over GLT store", "cpu_s_per_kseed", str(RING), _GLT_STORE),
    Ratio("store, network, over GLT store", "seeds_per_s", str(NETWORK), _GLT_STORE),
    Ratio("CPU of store, network, over GLT store", "cpu_s_per_kseed", str(NETWORK), _GLT_STORE),
    Ratio("store, ring, over 2 workers", "seeds_per_s", str(RING), "loader, 2 workers"),
    Ratio("CPU of the store's wire over a bare transfer", "cpu_wire_s_per_kseed", str(NETWORK), FRAMES),
    Ratio(
        "CPU of the store's wire over one that keeps memory",
        "cpu_wire_s_per_kseed",
        str(NETWORK),
        FRAMES_WARM,
    ),
    Ratio("store, 2 servers, direct, over GLT store", "seeds_per_s", str(DIRECT), _GLT_STORE_2),
    Ratio("store, 2 servers, through, over GLT store", "seeds_per_s", str(THROUGH), _GLT_STORE_2),
    Ratio("store, direct over through, 2 servers", "seeds_per_s", str(DIRECT), str(THROUGH)),
    Ratio("store, direct over through, 4 servers", "seeds_per_s", str(DIRECT_4), str(THROUGH_4)),
    Ratio(
        "CPU of 2 workers over GLT colocated",
        "cpu_s_per_kseed",
        "loader, 2 workers",
        "glt_colocated_w2_seed1",
    ),
)

# A table: its title, and metric, heading and format of its columns.
_TABLES = (
    (
        "batches",
        (
            ("seeds_per_s", "seeds/s", "{:,.0f}"),
            ("edges_per_s", "edges/s", "{:,.0f}"),
            ("nodes_per_batch", "nodes/batch", "{:,.0f}"),
            ("edges_per_batch", "edges/batch", "{:,.0f}"),
            ("cpu_s_per_kseed", "CPU s/kseed", "{:.4f}"),
            ("first_batch_s", "first batch s", "{:.2f}"),
            ("later_first_batch_s", "later epochs s", "{:.3f}"),
        ),
    ),
    (
        "CPU seconds per 1,000 seeds, by what they were spent on",
        (
            ("cpu_sampling_s_per_kseed", "sampling", "{:.4f}"),
            ("cpu_gathering_s_per_kseed", "gathering", "{:.4f}"),
            ("cpu_wire_s_per_kseed", "wire", "{:.4f}"),
            ("cpu_rest_s_per_kseed", "rest", "{:.4f}"),
            ("cpu_s_per_gb", "CPU s/GB", "{:.2f}"),
        ),
    ),
    (
        "network",
        (
            ("wire_mb_per_batch", "MB/batch", "{:.2f}"),
            ("remote_mb_per_batch", "of it remote rows and lists", "{:.2f}"),
            ("wire_over_remote", "times", "{:.3f}"),
            ("calls_per_batch", "calls/batch", "{:.1f}"),
        ),
    ),
    (
        "network of the store, MB per batch",
        (
            ("frame_mb", "frame", "{:.2f}"),
            ("received_mb", "received", "{:.2f}"),
            ("received_over_frame", "times", "{:.3f}"),
            ("sent_mb", "sent", "{:.3f}"),
            ("between_mb", "between servers", "{:.2f}"),
            ("between_out_mb", "asks of it", "{:.2f}"),
            ("between_over_lists", "over remote lists", "{:.3f}"),
        ),
    ),
    (
        "what a server bears",
        (
            ("kill_to_batch_s", "SIGKILL to batch s", "{:.2f}"),
            ("idle_channels", "idle channels", "{:,.0f}"),
            ("idle_channels_add_mb", "they add MB", "{:,.1f}"),
            ("idle_server_mb", "server MB", "{:,.1f}"),
            ("idle_threads", "threads", "{:,.0f}"),
            ("loaders", "loaders", "{:,.0f}"),
            ("mean_batches", "mean batches", "{:,.0f}"),
            ("fewest_batches", "fewest", "{:,.0f}"),
            ("slowest_over_mean", "slowest over mean", "{:.2f}"),
        ),
    ),
    ("feature rows", (("gb_per_s", "GB/s", "{:.2f}"),)),
    (
        "memory",
        (
            ("peak_pss_gb", "peak PSS GB", "{:.2f}"),
            ("peak_anonymous_gb", "of it anonymous", "{:.2f}"),
            ("worker_private_mb", "worker's own MB", "{:.1f}"),
            ("bare_interpreter_mb", "bare interpreter MB", "{:.1f}"),
            ("worker_adds_mb", "worker adds MB", "{:.1f}"),
        ),
    ),
    (
        "memory that no file of the graph backs",
        (
            ("before_mb", "before loaders MB", "{:,.0f}"),
            ("start_adds_mb", "start adds MB", "{:,.0f}"),
            ("in_flight_adds_mb", "with batches in flight MB", "{:,.0f}"),
        ),
    ),
)


def ratios(measured: Measured) -> dict[str, float]:
    """Return every ratio whose two sides were measured, of the medians of the rounds."""
    found = {}
    for ratio in _RATIOS:
        ours = measured.median(ratio.subject, ratio.metric)
        other = measured.median(ratio.beside, ratio.metric)
        if ours is not None and other:
            found[ratio.title] = ours / other
    return found


def to_json(measured: Measured, workload: Workload) -> dict[str, Any]:
    """Return everything measured, the medians, the ratios and the machine."""
    return {
        "version": gigl_loader.__version__,
        "machine": _machine(),
        "workload": asdict(workload),
        "subjects": {
            name: {
                metric: {"median": subject.median(metric), "rounds": values}
                for metric, values in subject.samples.items()
            }
            for name, subject in measured.subjects.items()
        },
        "ratios": ratios(measured),
        "others_busy_cores": {
            "all": measured.others_busy(),
            **{case: measured.others_busy(case) for case in measured.loads},
        },
    }


def _machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_name(),
        "cpus": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def show(measured: Measured, console: Console) -> None:
    """Print medians and ratios, and whether something else kept the machine busy."""
    for title, columns in _TABLES:
        medians = _medians(measured, title, columns)
        if medians.row_count:
            console.print(medians)
    table = _table("ratios", ["times"])
    for name, value in ratios(measured).items():
        table.add_row(name, f"{value:.2f}")
    console.print(table)
    busy = measured.others_busy()
    colour = "red" if busy > 0.2 else "green"
    console.print(
        f"[{colour}]other processes used {busy:.2f} cores while this ran[/{colour}] "
        "(above 0.2 the figures are noisy)"
    )


def _table(title: str, headings: Iterable[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _medians(measured: Measured, title: str, columns: Iterable[tuple[str, str, str]]) -> Table:
    table = _table(title, [heading for _, heading, _ in columns])
    for name in measured.subjects:
        values = [(measured.median(name, metric), form) for metric, _, form in columns]
        if any(value is not None for value, _ in values):
            table.add_row(name, *("" if value is None else form.format(value) for value, form in values))
    return table


_OURS = ("sampler", "gather", "loader", "1 rank", "2 ranks", "2 hosts", "store")


def save_plot(measured: Measured, path: Path) -> None:
    """Draw the speeds of samplers, gathers and loaders side by side. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    subjects = measured.subjects
    loaders = [name for name in subjects if "seeds_per_s" in subjects[name].samples and "sampler" not in name]
    samplers = [name for name in subjects if "sampler" in name]
    gathers = [name for name in subjects if "gb_per_s" in subjects[name].samples]
    _bars(left, measured, samplers, ("edges_per_s", 1e6), "sampler: million edges/s")
    _bars(middle, measured, gathers, ("gb_per_s", 1.0), "feature rows: GB/s")
    _bars(right, measured, loaders, ("seeds_per_s", 1e3), "loader: thousand seeds/s")
    figure.savefig(path, dpi=120)


def _bars(
    axes: Any, measured: Measured, names: Iterable[str], metric_and_unit: tuple[str, float], title: str
) -> None:
    metric, unit = metric_and_unit
    shown = list(names)
    values = [(measured.median(name, metric) or 0.0) / unit for name in shown]
    colours = ["tab:blue" if name.startswith(_OURS) else "tab:gray" for name in shown]
    bars = axes.barh(shown, values, height=0.6, color=colours)
    axes.bar_label(bars, [f"{value:,.1f}" for value in values], padding=3, fontsize=8)
    axes.set_xlim(0, 1.25 * max(values, default=0.0) or 1.0)
    axes.set_xticks([])
    axes.invert_yaxis()
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=8)
