"""Report of a benchmark run: medians, ratios, a table, a JSON document, a plot."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import gigl_loader
from gigl_loader.bench.rounds import Measured
from gigl_loader.bench.store import CACHED, DIRECT, DIRECT_4, RING, THROUGH, THROUGH_4
from gigl_loader.bench.workload import Workload

NOISY_CORES = 0.2
"""Cores used by other processes above which figures are noisy."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """One metric of two subjects of the same run, ``subject`` over ``beside``."""

    title: str
    metric: str
    subject: str
    beside: str


RATIOS = (
    Ratio("gather over index_select, fresh", "gb_per_s", "gather", "index_select, fresh"),
    Ratio("gather over index_select, out=", "gb_per_s", "gather", "index_select, out="),
    Ratio("gather over memcpy, warm", "gb_per_s", "gather", "memcpy, warm"),
    Ratio("1 worker over inline", "seeds_per_s", "loader, 1 worker", "loader, inline"),
    Ratio("CPU of 1 worker over inline", "cpu_s_per_kseed", "loader, 1 worker", "loader, inline"),
    Ratio("2 workers over inline", "seeds_per_s", "loader, 2 workers", "loader, inline"),
    Ratio("store, ring, over 2 workers", "seeds_per_s", str(RING), "loader, 2 workers"),
    Ratio("store, direct over through, 2 servers", "seeds_per_s", str(DIRECT), str(THROUGH)),
    Ratio("store, direct over through, 4 servers", "seeds_per_s", str(DIRECT_4), str(THROUGH_4)),
    Ratio("store, cache of 20 % over direct", "seeds_per_s", str(CACHED), str(DIRECT)),
    Ratio("bytes of store, cache of 20 % over direct", "received_mb", str(CACHED), str(DIRECT)),
    Ratio("CPU of store, cache of 20 % over direct", "cpu_s_per_kseed", str(CACHED), str(DIRECT)),
)

Columns = tuple[tuple[str, str, str], ...]
"""Metric, heading and format of each column of a table."""

TABLES: dict[str, Columns] = {
    "batches": (
        ("seeds_per_s", "seeds/s", "{:,.0f}"),
        ("edges_per_s", "edges/s", "{:,.0f}"),
        ("nodes_per_batch", "nodes/batch", "{:,.0f}"),
        ("edges_per_batch", "edges/batch", "{:,.0f}"),
        ("cpu_s_per_kseed", "CPU s/kseed", "{:.4f}"),
        ("first_batch_s", "first batch s", "{:.2f}"),
        ("later_first_batch_s", "later epochs s", "{:.3f}"),
    ),
    "CPU seconds per 1,000 seeds, by what they were spent on": (
        ("cpu_sampling_s_per_kseed", "sampling", "{:.4f}"),
        ("cpu_gathering_s_per_kseed", "gathering", "{:.4f}"),
        ("cpu_wire_s_per_kseed", "wire", "{:.4f}"),
        ("cpu_rest_s_per_kseed", "rest", "{:.4f}"),
    ),
    "network of the store, MB per batch": (
        ("frame_mb", "frame", "{:.2f}"),
        ("received_mb", "received", "{:.2f}"),
        ("received_over_frame", "times", "{:.3f}"),
        ("sent_mb", "sent", "{:.3f}"),
        ("between_mb", "between servers", "{:.2f}"),
        ("between_out_mb", "requests for it", "{:.2f}"),
        ("between_over_lists", "over remote lists", "{:.3f}"),
    ),
    "feature rows": (("gb_per_s", "GB/s", "{:.2f}"),),
    "CPU of the trainer's thread, ms a batch": (
        ("trainer_ms", "without expansion", "{:.3f}"),
        ("expansion_ms", "expansion of edge_index", "{:.3f}"),
    ),
    "memory": (
        ("peak_pss_gb", "peak PSS GB", "{:.2f}"),
        ("peak_anonymous_gb", "of it anonymous", "{:.2f}"),
        ("worker_private_mb", "worker's own MB", "{:.1f}"),
        ("bare_interpreter_mb", "bare interpreter MB", "{:.1f}"),
        ("worker_adds_mb", "worker adds MB", "{:.1f}"),
    ),
}


@dataclass(slots=True)
class Report:
    """Medians and ratios of what was measured, as tables, as a JSON document and as a plot."""

    measured: Measured
    tables: Mapping[str, Columns] = field(default_factory=lambda: TABLES)
    ratios: Sequence[Ratio] = RATIOS

    def found_ratios(self) -> dict[str, float]:
        """Return every ratio of two medians whose two sides were measured."""
        found = {}
        for ratio in self.ratios:
            ours = self.measured.median(ratio.subject, ratio.metric)
            other = self.measured.median(ratio.beside, ratio.metric)
            if ours is not None and other:
                found[ratio.title] = ours / other
        return found

    def to_json(self, workload: Workload) -> dict[str, Any]:
        """Return everything measured, the medians, the ratios and the machine."""
        measured = self.measured
        return {
            "version": gigl_loader.__version__,
            "machine": machine(),
            "workload": asdict(workload),
            "subjects": subjects_json(measured),
            "ratios": self.found_ratios(),
            "others_busy_cores": {
                "all": measured.others_busy(),
                **{case: measured.others_busy(case) for case in measured.loads},
            },
        }

    def show(self, console: Console) -> None:
        """Print medians and ratios, and how much other processes kept the machine busy."""
        for title, columns in self.tables.items():
            medians = _medians(self.measured, title, columns)
            if medians.row_count:
                console.print(medians)
        table = _table("ratios", ["times"])
        for name, value in self.found_ratios().items():
            table.add_row(name, f"{value:.2f}")
        console.print(table)
        busy = self.measured.others_busy()
        colour = "red" if busy > NOISY_CORES else "green"
        console.print(
            f"[{colour}]other processes used {busy:.2f} cores while this ran[/{colour}] "
            f"(above {NOISY_CORES} the figures are noisy)"
        )


def subjects_json(measured: Measured) -> dict[str, Any]:
    """Return median and samples of each metric of each subject."""
    return {
        name: {
            metric: {"median": subject.median(metric), "rounds": values}
            for metric, values in subject.samples.items()
        }
        for name, subject in measured.subjects.items()
    }


def machine() -> dict[str, Any]:
    """Return the processor and the versions that figures depend on."""
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
