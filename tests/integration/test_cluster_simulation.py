"""``benchmarks/cluster_simulation.py``: its model holds for servers and trainers that really run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.hosts import missing_for_hosts

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "cluster_simulation.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, timeout=280
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.skipif(bool(missing_for_hosts()), reason=missing_for_hosts() or "hosts can be made")
def test_three_servers_count_what_the_model_says(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = run("--check", "3x2", "--idle-seconds", "4", "--cluster", "60x240", "--json", str(figures))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 off by more than 10% (calls) or 15% (bytes)" in done.stdout
    assert "60 servers, 60 partitions, 240 ranks" in done.stdout
    found = json.loads(figures.read_text())
    assert {check["method"] for check in found["checks"]} >= {
        "sample",
        "neighbors",
        "rows",
        "Heartbeat",
    }
    [close] = found["table"]["lines"]["loaders close"]
    assert close["calls"] == 240 * 16


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--check", "4"], "expected SERVERSxRANKS, such as 120x480, got '4'"),
        (["--cluster", "0x4"], "expected SERVERSxRANKS, such as 120x480, got '0x4'"),
        (["--loaders", "0"], "expected a positive number, got '0'"),
        (["--nodes-per-hop", "1,2"], "--nodes-per-hop has one number more than --edges-per-hop"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
