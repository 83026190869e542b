"""A graph larger than the memory limit is built below it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "partition_memory.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--edges", "4000000", "--skew", "6"],
        ["--edges", "4000000", "--num-partitions", "3", "--assigner", "hash", "--quantize", "uint1"],
        ["--edges", "4000000", "--num-partitions", "3", "--assigner", "ldg", "--skew", "6"],
        ["--edges", "1000000", "--edge-dim", "64"],
        ["--edges", "4000000", "--weight"],
    ],
)
def test_a_build_stays_below_its_memory_limit(tmp_path: Path, options: list[str]) -> None:
    command = [
        *(sys.executable, str(_BENCHMARK), "--json", "--verify", "--work", str(tmp_path)),
        *("--nodes", "400000", "--memory-limit", "180MB", *options),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    measured = json.loads(done.stdout)
    assert measured["verified"]
    assert 50e6 < measured["peak_held_bytes"] <= measured["limit_bytes"]
    assert measured["peak_held_bytes"] < measured["peak_rss_bytes"]
    assert measured["peak_pss_bytes"] <= measured["peak_rss_bytes"]
    assert measured["input_bytes"] > 150e6
    assert list(tmp_path.iterdir()) == []
