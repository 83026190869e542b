"""The Slurm script of ``deploy`` on Slurm's own daemons: how a job ends, and what is left of it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.learnable import learnable_graph
from tests.support.leftovers import wait_until
from tests.support.ports import free_port
from tests.support.slurm import Slurm, missing_for_slurm

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "deploy/slurm/gigl.sbatch"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("no_leftovers"),
    pytest.mark.skipif(not SCRIPT.exists(), reason="the tests were copied without deploy/"),
    pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl"),
    pytest.mark.skipif(bool(missing_for_slurm()), reason=missing_for_slurm() or "Slurm is here"),
]

SLEEPING = "import time\nprint('training', flush=True)\ntime.sleep(600)\n"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_graph(tmp_path_factory.mktemp("graphs") / "graph", num_partitions=1)


@dataclass(frozen=True)
class Job:
    """A job that was submitted, with its folder."""

    slurm: Slurm
    folder: Path
    sbatch: subprocess.Popen[str]

    @property
    def output(self) -> str:
        path = self.folder / "output"
        return path.read_text() if path.exists() else ""

    def wait_for(self, words: str) -> None:
        assert wait_until(lambda: words in self.output, seconds=120), self.output

    def code(self) -> int:
        """Wait until the job has ended and nothing of it is left. Return its exit code."""
        self.sbatch.communicate(timeout=200)
        assert wait_until(lambda: not self.slurm.processes(), seconds=60), self.slurm.processes()
        assert not list(self.folder.glob("gigl-*")), "the token of the job outlived it"
        return self.sbatch.returncode


def submit(slurm: Slurm, folder: Path, graph: Path, *command: str) -> Job:
    job = {"GRAPH": str(graph), "SERVERS": "1", "RANKS": "1", "PORT": str(free_port())}
    there = {"GIGL_DATA_PORT": "0", "OMP_NUM_THREADS": "1"}
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    sbatch = subprocess.Popen(
        ["sbatch", "--wait", "--nodes", "2", "--output", str(folder / "output"), str(SCRIPT), *command],
        cwd=folder,
        env=os.environ | slurm.environment | job | there | path,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    return Job(slurm, folder, sbatch)


def that_trains(slurm: Slurm, folder: Path, graph: Path) -> Job:
    """Submit a job that would train for minutes. Returns when its servers and its trainer are up."""
    (folder / "train.py").write_text(SLEEPING)
    job = submit(slurm, folder, graph, "train.py")
    job.wait_for("training")
    job.wait_for("ready: storage server 0")
    return job


@pytest.mark.slow
def test_a_job_trains_and_its_servers_are_drained(slurm: Slurm, graph: Path, tmp_path: Path) -> None:
    script = str(ROOT / "examples/graph_store.py")
    job = submit(slurm, tmp_path, graph, script, "--epochs", "2", "--batch-size", "64")
    assert job.code() == 0, job.output
    accuracies = [float(found) for found in re.findall(r"test accuracy ([\d.]+)%", job.output)]
    assert len(accuracies) == 2
    assert accuracies[-1] > 70
    check_drained(job)


@pytest.mark.slow
def test_servers_are_drained_after_training_that_fails(slurm: Slurm, graph: Path, tmp_path: Path) -> None:
    """Its own exit code is torchrun's, which is 1 whatever the script's was."""
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n")
    job = submit(slurm, tmp_path, graph, "train.py")
    assert job.code() == 1, job.output
    assert "exitcode" in job.output
    check_drained(job)


@pytest.mark.slow
def test_a_server_that_cannot_start_ends_the_job_with_its_reason(slurm: Slurm, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SLEEPING)
    job = submit(slurm, tmp_path, tmp_path / "nowhere", "train.py")
    assert job.code() == 2, job.output
    assert f"gigl-loader: no graph at {tmp_path / 'nowhere'}" in job.output
    assert "the storage servers ended before the training, with exit code 2" in job.output


@pytest.mark.slow
def test_a_server_that_dies_ends_the_job(slurm: Slurm, graph: Path, tmp_path: Path) -> None:
    job = that_trains(slurm, tmp_path, graph)
    slurm.kill("gigl-loader serve")
    assert job.code() == 137, job.output
    assert "Killed" in job.output
    assert "the storage servers ended before the training, with exit code 137" in job.output


@pytest.mark.slow
def test_nothing_is_left_of_a_job_that_is_cancelled(slurm: Slurm, graph: Path, tmp_path: Path) -> None:
    job = that_trains(slurm, tmp_path, graph)
    slurm.run("scancel", "--user", "root")
    job.code()  # sbatch may have asked before the end was recorded, and then tells 0.
    assert "CANCELLED" in job.output


def check_drained(job: Job) -> None:
    for words in ("SIGTERM: ending", "draining: ", "stopped", "the storage servers ended with exit code 0"):
        assert words in job.output, job.output
