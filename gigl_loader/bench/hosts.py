"""Two hosts of one rank each, which hold half of the graph each and sample across the loopback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gigl_loader.bench.crowd import Crowd, Job
from gigl_loader.bench.flight import KEEP_MEMORY, bare_transfer
from gigl_loader.bench.rounds import Case, Figures
from gigl_loader.bench.workload import Workload

__all__ = ["BARE", "BARE_WARM", "CACHED", "HOSTS", "hosts_case", "throughput"]

HOSTS = "2 hosts, 1 worker each"
CACHED = "2 hosts, a tenth of rows cached"
BARE = "bare Flight transfer of the same"
BARE_WARM = "bare Flight transfer, memory kept"

_LIMIT_S = 900.0


def hosts_case(graph: Path, seeds: Path, workload: Workload, *, epochs: int = 2) -> Case:
    """Measure both hosts together, then a bare transfer of as many messages of the same sizes.

    Rows that a host keeps of the other would hide the network, so none are; how much a small cache
    spares is measured beside it.

    The transfer is measured as glibc comes, and with its memory kept as our processes have it.

    The CPU seconds of all processes are told apart: *sampling* and *gathering* in kernels, wherever they
    ran; *wire*: all else that workers and peer services did; *rest*: the trainers.
    """
    job = Job(
        graph=str(graph),
        seeds=str(seeds),
        workload=workload,
        num_workers=1,
        epochs=epochs,
        partitions=((0,), (1,)),
    )

    def measured(job: Job) -> tuple[Figures, list[dict[str, Any]]]:
        with Crowd("measure", job, ranks=2, hosts=2) as crowd, crowd.within(_LIMIT_S):
            said = crowd.hear()
        return throughput(said) | _breakdown(said) | _wire(said), said

    def case() -> dict[str, Figures]:
        cached, _ = measured(replace(job, cache_bytes=workload.row_bytes * workload.nodes // 2 // 10))
        hosts, said = measured(job)
        return {HOSTS: hosts, CACHED: cached, BARE: _bare(said, {}), BARE_WARM: _bare(said, KEEP_MEMORY)}

    return case


def throughput(said: list[dict[str, Any]]) -> dict[str, float]:
    """Return what all ranks did together: a rank that is slow holds up the others, as in training."""
    seconds = max(each["seconds"] for each in said)
    total = {name: sum(each[name] for each in said) for name in ("seeds", "nodes", "edges", "batches")}
    return {
        "seeds_per_s": total["seeds"] / seconds,
        "edges_per_s": total["edges"] / seconds,
        "nodes_per_batch": total["nodes"] / total["batches"],
        "edges_per_batch": total["edges"] / total["batches"],
        "cpu_s_per_kseed": sum(each["tree_cpu"] for each in said) / total["seeds"] * 1e3,
    }


def _breakdown(said: list[dict[str, Any]]) -> dict[str, float]:
    sums = _sums(said)
    sampling = sums["workers_cpu_sampling"] + sums["service_sampling_s"]
    gathering = sums["workers_cpu_gathering"] + sums["service_gathering_s"]
    wire = sums["workers_cpu_seconds"] + sums["service_cpu_s"] - sampling - gathering
    rest = sums["tree_cpu"] - sampling - gathering - wire
    parts = {"sampling": sampling, "gathering": gathering, "wire": wire, "rest": rest}
    return {f"cpu_{name}_s_per_kseed": value / sums["seeds"] * 1e3 for name, value in parts.items()}


def _wire(said: list[dict[str, Any]]) -> dict[str, float]:
    sums = _sums(said)
    crossed = (sums["workers_wire_bytes_in"] + sums["workers_wire_bytes_out"]) / sums["batches"]
    remote = sum(each["remote_bytes_per_batch"] for each in said) / len(said)
    return {
        "wire_mb_per_batch": crossed / 1e6,
        "remote_mb_per_batch": remote / 1e6,
        "wire_over_remote": crossed / remote,
        "calls_per_batch": sums["workers_peer_calls"] / sums["batches"],
    }


def _bare(said: list[dict[str, Any]], environment: Mapping[str, str]) -> dict[str, float]:
    """Transfer a rank's share, in calls of the mean size."""
    share = {name: value / len(said) for name, value in _sums(said).items()}
    calls = max(round(share["workers_peer_calls"]), 1)
    cpu = bare_transfer(
        calls=calls,
        request_bytes=round(share["workers_wire_bytes_out"] / calls),
        reply_bytes=round(share["workers_wire_bytes_in"] / calls),
        environment=environment,
    )
    gigabytes = (share["workers_wire_bytes_in"] + share["workers_wire_bytes_out"]) / 1e9
    return {"cpu_wire_s_per_kseed": cpu / share["seeds"] * 1e3, "cpu_s_per_gb": cpu / max(gigabytes, 1e-9)}


def _sums(said: list[dict[str, Any]]) -> Mapping[str, float]:
    return {name: sum(each[name] for each in said) for name in said[0]}
