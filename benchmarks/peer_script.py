"""Another system on the same workload: a script that measures it and prints lines of JSON.

The script is called as ``SCRIPT setup`` once, then as ``SCRIPT DATA MODE`` with the mode ``sampler``,
``colocated`` or ``store``. Environment variables give the settings: NB (batches), NW (workers of each
host), S (hosts that hold a part each), SEED and REPS. docs/internals/measuring.md describes the output.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gigl_loader.bench.rounds import Case, Figures, workers_in_words
from gigl_loader.bench.workload import Workload

_SETUP_LIMIT_S = 3600
_RUN_LIMIT_S = 900

# Metrics as the script prints them, and as this package names them.
_METRICS = {
    "seeds_s": "seeds_per_s",
    "edges_s": "edges_per_s",
    "cpu_per_kseed": "cpu_s_per_kseed",
    "nodes_batch": "nodes_per_batch",
    "edges_batch": "edges_per_batch",
    "first_batch_s": "first_batch_s",
    "epoch_first_batch_s": "later_first_batch_s",
}


def set_up_peer(script: Path) -> None:
    """Let the script make its environment. Quick if it exists already."""
    _run([str(script), "setup"], {}, _SETUP_LIMIT_S)


def peer_case(
    script: Path, folder: Path, workload: Workload, mode: str, *, num_workers: int, hosts: int = 1
) -> Case:
    """Measure one mode of the peer. Subjects have the names that the script prints."""

    def case() -> dict[str, Figures]:
        settings = _settings(workload, num_workers) | {"REPS": "2", "S": str(hosts)}
        output = _run([str(script), str(folder), mode], settings, _RUN_LIMIT_S)
        results = {
            str(record["tag"]): {
                ours: record[theirs] for theirs, ours in _METRICS.items() if record.get(theirs) is not None
            }
            for record in _records(output)
            if "tag" in record
        }
        if not results:
            raise RuntimeError(f"{script.name} {mode} printed no result: {output[-500:]!r}")
        return results

    return case


def peer_memory_case(script: Path, folder: Path, workload: Workload, *, num_workers: int) -> Case:
    """Run the peer's loader for an epoch while its script measures the memory of its process tree."""

    def case() -> dict[str, Figures]:
        settings = _settings(workload, num_workers) | {"REPS": "1", "METER": "1"}
        output = _run([str(script), str(folder), "colocated"], settings, _RUN_LIMIT_S)
        peaks = [record["meter"]["peak_pss_GB"] for record in _records(output) if "meter" in record]
        return {f"memory, peer {workers_in_words(num_workers)}": {"peak_pss_gb": peak} for peak in peaks}

    return case


def _settings(workload: Workload, num_workers: int) -> dict[str, str]:
    settings = {"NB": workload.batches, "NW": num_workers, "SEED": 1, "LIMIT": _RUN_LIMIT_S - 60}
    return {name: str(value) for name, value in settings.items()}


def _run(command: list[str], settings: Mapping[str, str], limit_s: int) -> str:
    """Return the standard output of a command. Its own session lets all its children be ended."""
    process = subprocess.Popen(
        command,
        env=os.environ | dict(settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    if process.returncode:
        raise RuntimeError(
            f"{' '.join(command)} ended with exit code {process.returncode}: {output[-500:]!r}"
        )
    return output


def _records(output: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects among the lines."""
    for line in output.splitlines():
        try:
            record = json.loads(line) if line.startswith("{") else None
        except ValueError:
            continue
        if record is not None:
            yield record
