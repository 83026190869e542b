"""Print what ``gigl-loader bench --json`` measured as tables for docs/benchmarks.md.

python benchmarks/to_markdown.py bench.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLES = (
    {
        "seeds_per_s": ("seeds/s", "{:,.0f}"),
        "edges_per_s": ("edges/s", "{:,.0f}"),
        "nodes_per_batch": ("nodes/batch", "{:,.0f}"),
        "edges_per_batch": ("edges/batch", "{:,.0f}"),
        "cpu_s_per_kseed": ("CPU s per 1,000 seeds", "{:.4f}"),
        "first_batch_s": ("first batch, s", "{:.2f}"),
        "later_first_batch_s": ("first batch of later epochs, s", "{:.3f}"),
    },
    {
        "cpu_sampling_s_per_kseed": ("CPU s per 1,000 seeds: sampling", "{:.4f}"),
        "cpu_gathering_s_per_kseed": ("gathering", "{:.4f}"),
        "cpu_wire_s_per_kseed": ("wire", "{:.4f}"),
        "cpu_rest_s_per_kseed": ("rest", "{:.4f}"),
        "cpu_s_per_gb": ("CPU s per GB", "{:.2f}"),
    },
    {
        "wire_mb_per_batch": ("MB on the wire per batch", "{:.2f}"),
        "remote_mb_per_batch": ("remote rows and lists, MB", "{:.2f}"),
        "wire_over_remote": ("times", "{:.3f}"),
        "calls_per_batch": ("calls per batch", "{:.1f}"),
    },
    {
        "frame_mb": ("a frame, MB", "{:.2f}"),
        "received_mb": ("received per batch, MB", "{:.2f}"),
        "received_over_frame": ("times", "{:.3f}"),
        "sent_mb": ("sent, MB", "{:.3f}"),
        "between_mb": ("between servers, MB", "{:.2f}"),
        "between_out_mb": ("for asks between servers, MB", "{:.2f}"),
        "between_over_lists": ("over remote lists", "{:.3f}"),
    },
    {
        "kill_to_batch_s": ("SIGKILL to next batch, s", "{:.2f}"),
        "idle_channels": ("idle channels", "{:,.0f}"),
        "idle_channels_add_mb": ("they add, MB", "{:,.1f}"),
        "idle_server_mb": ("server, MB", "{:,.1f}"),
        "idle_threads": ("its threads", "{:,.0f}"),
        "loaders": ("loaders", "{:,.0f}"),
        "mean_batches": ("batches each, mean", "{:,.0f}"),
        "fewest_batches": ("fewest", "{:,.0f}"),
        "slowest_over_mean": ("slowest over mean", "{:.2f}"),
    },
    {"gb_per_s": ("GB/s", "{:.2f}")},
    {
        "peak_pss_gb": ("peak PSS, GB", "{:.2f}"),
        "peak_anonymous_gb": ("anonymous, GB", "{:.2f}"),
        "worker_private_mb": ("a worker's own, MB", "{:.1f}"),
        "worker_adds_mb": ("beyond a bare interpreter, MB", "{:.1f}"),
    },
    {
        "before_mb": ("before the loaders, MB", "{:,.0f}"),
        "start_adds_mb": ("their start adds, MB", "{:,.0f}"),
        "in_flight_adds_mb": ("and with batches in flight, MB", "{:,.0f}"),
    },
)


def markdown(document: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of all tables. Figures are medians, with the lowest and highest round."""
    for columns in TABLES:
        if not any(columns.keys() & metrics.keys() for metrics in document["subjects"].values()):
            continue
        yield "| | " + " | ".join(heading for heading, _ in columns.values()) + " |"
        yield "|---|" + "---:|" * len(columns)
        for name, metrics in document["subjects"].items():
            cells = [cell(metrics.get(metric), form) for metric, (_, form) in columns.items()]
            if any(cells):
                yield f"| {name} | " + " | ".join(cells) + " |"
        yield ""
    yield "| ratio | |"
    yield "|---|---:|"
    for title, value in document["ratios"].items():
        yield f"| {title} | {value:.2f} |"
    yield ""
    machine = document["machine"]
    yield (
        f"{machine['cpu']}, {machine['cpus']} cores, kernel {machine['kernel']}, Python {machine['python']}, "
        f"torch {machine['torch']}; other processes used {document['others_busy_cores']['all']:.2f} cores."
    )


def cell(figure: dict[str, Any] | None, form: str) -> str:
    if figure is None:
        return ""
    median, rounds = form.format(figure["median"]), figure["rounds"]
    spread = f" ({form.format(min(rounds))} to {form.format(max(rounds))})" if len(rounds) > 1 else ""
    return median + (spread if min(rounds) != max(rounds) else "")


if __name__ == "__main__":
    print("\n".join(markdown(json.loads(Path(sys.argv[1]).read_text()))))
