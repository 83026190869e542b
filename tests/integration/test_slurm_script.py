"""The Slurm script of ``deploy``, whole, with stand-ins for what Slurm brings: servers, ranks and the end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.learnable import learnable_graph
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy/slurm/gigl.sbatch"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_leftovers"),
    pytest.mark.skipif(not SCRIPT.exists(), reason="the tests were copied without deploy/"),
    pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl"),
]

SCONTROL = """\
#!/usr/bin/env bash
printf '%s\\n' localhost localhost
"""
SRUN = """\
#!/usr/bin/env bash
# Runs the one task of the step here. Options come first, each with its value. The step's number is its pid.
while [[ $1 == --* ]]; do
  [[ $1 == *=* ]] && { shift; continue; }
  echo "$1 $2" >>"$STEPS"
  shift 2
done
SLURM_PROCID=0 SLURM_STEP_ID=$$ SLURMD_NODENAME=localhost exec "$@"
"""
SCANCEL = """\
#!/usr/bin/env bash
kill -TERM "${2#*.}"
"""


def run_job(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    for name, text in (("scontrol", SCONTROL), ("srun", SRUN), ("scancel", SCANCEL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "localhost[0-1]"}
    ours = {
        "GRAPH": str(learnable_graph(tmp_path / "graph", num_partitions=1)),
        "SERVERS": "1",
        "RANKS": "2",
        "PORT": str(free_port()),
    }
    there = {"GIGL_DATA_PORT": "0", "OMP_NUM_THREADS": "1", "STEPS": str(tmp_path / "steps")}
    path = {"PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.run(
        ["bash", str(SCRIPT), *command],
        cwd=tmp_path,
        env=os.environ | slurm | ours | there | path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_a_job_serves_trains_and_cleans_up(tmp_path: Path) -> None:
    done = run_job(tmp_path, str(ROOT / "examples/graph_store.py"), "--epochs", "2", "--batch-size", "64")
    assert done.returncode == 0, done.stderr
    accuracies = [float(found) for found in re.findall(r"test accuracy ([\d.]+)%", done.stdout)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 70
    steps = (tmp_path / "steps").read_text()
    assert steps.count("--nodelist localhost\n") == 2
    assert "the storage servers ended with exit code 0" in done.stderr
    assert not list(tmp_path.glob("gigl-7-*")), "the token of the job outlived it"


@pytest.mark.slow
def test_a_job_that_fails_ends_its_servers_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    done = run_job(tmp_path, "train.py")
    assert done.returncode != 0
    assert "exitcode" in done.stderr
    assert "the storage servers ended with exit code 0" in done.stderr
    assert not list(tmp_path.glob("gigl-7-*"))
