"""A peer on the same files: a script that runs another system and prints JSON lines.

The script is called as ``SCRIPT setup`` once, then as ``SCRIPT DATA sampler``, ``SCRIPT DATA colocated`` and
``SCRIPT DATA store`` with the environment variables NB (batches), NW (workers), S (hosts that hold a part
each), SEED and REPS; it prints a JSON line per result.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gigl_loader.bench.rounds import Case, Figures, workers_in_words
from gigl_loader.bench.workload import Workload

__all__ = ["peer_case", "peer_memory_case", "set_up_peer"]

_SETUP_LIMIT_S = 3600
_RUN_LIMIT_S = 900

# What the peer calls its metrics, and what we call them.
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
    """Let the script make its environment. Quick when it is there already."""
    _run([str(script), "setup"], dict(os.environ), _SETUP_LIMIT_S)


def peer_case(
    script: Path,
    folder: Path,
    workload: Workload,
    mode: str,
    *,
    num_workers: int,
    hosts: int = 1,
    repeats: int = 2,
) -> Case:
    """Run one mode of the peer, seeded, and return what it measured under the names that it prints.

    ``num_workers`` are those of each host.
    """
    environment = _environment(workload, num_workers, repeats) | {"S": str(hosts)}

    def case() -> dict[str, Figures]:
        output = _run([str(script), str(folder), mode], environment, _RUN_LIMIT_S)
        results = _results(output)
        if not results:
            raise RuntimeError(f"{script.name} {mode} printed no result: {output[-500:]!r}")
        return results

    return case


def peer_memory_case(script: Path, folder: Path, workload: Workload, *, num_workers: int) -> Case:
    """Run the peer's loader for an epoch while its script watches the memory of its process tree."""
    environment = _environment(workload, num_workers, 1) | {"METER": "1"}

    def case() -> dict[str, Figures]:
        records = map(
            _record, _run([str(script), str(folder), "colocated"], environment, _RUN_LIMIT_S).splitlines()
        )
        peaks = [record["meter"]["peak_pss_GB"] for record in records if "meter" in record]
        return {f"memory, peer {workers_in_words(num_workers)}": {"peak_pss_gb": peak} for peak in peaks}

    return case


def _environment(workload: Workload, num_workers: int, repeats: int) -> dict[str, str]:
    settings = {
        "NB": workload.batches,
        "NW": num_workers,
        "SEED": 1,
        "REPS": repeats,
        "LIMIT": _RUN_LIMIT_S - 60,
    }
    return dict(os.environ) | {name: str(value) for name, value in settings.items()}


def _run(command: list[str], environment: Mapping[str, str], limit_s: int) -> str:
    """Return what a command prints. It gets a session of its own, so that all of it can be ended."""
    process = subprocess.Popen(
        command,
        env=environment,
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


def _results(output: str) -> dict[str, Figures]:
    results: dict[str, Figures] = {}
    for line in output.splitlines():
        record = _record(line)
        if "tag" in record:
            known = {
                ours: record[theirs] for theirs, ours in _METRICS.items() if record.get(theirs) is not None
            }
            results[str(record["tag"])] = known
    return results


def _record(line: str) -> dict[str, Any]:
    if not line.startswith("{"):
        return {}
    try:
        record = json.loads(line)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
