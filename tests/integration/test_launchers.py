"""Launchers that start ranks anew or form other groups: every seed of an epoch comes once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from tests.support.leftovers import wait_until
from tests.support.torchrun import Torchrun

ROOT = Path(__file__).parents[2]
TORCHFT = ROOT / "build/torchft"
SECONDS = 150.0

LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=2000, heartbeat_timeout_ms=3000)
print(server.address(), flush=True)
sys.stdin.read()
"""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("no_leftovers"), pytest.mark.timeout(3 * SECONDS)]


def lines_of(output: str) -> list[dict[str, Any]]:
    """Return the JSON lines that are whole."""
    return [json.loads(line) for line in output.splitlines() if line.startswith("{") and line.endswith("}")]


def test_torchrun_starts_ranks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else ranks of the second attempt find the addresses of the first in torchrun's store (torch 2.13).
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    launch = ["--max-restarts", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    script = [str(ROOT / "examples/elastic.py"), "--json", "--batch-size", "20", "--checkpoints"]
    with Torchrun(*launch, *script, str(tmp_path / "kept"), ranks_per_host=3, folder=tmp_path) as job:
        assert wait_until(lambda: len(lines_of(job.output(0))) >= 21, seconds=SECONDS), job.errors(0)
        before = len(lines_of(job.output(0)))
        job.ranks()[1].kill()
        (status,) = job.finish(seconds=SECONDS)
        assert status == 0, job.errors(0)
        lines = lines_of(job.output(0))
    steps = {(each["epoch"], each["step"], each["rank"]): each["seeds"] for each in lines}
    assert len(steps) < len(lines) > before  # Steps after the last checkpoint came twice.
    for epoch in range(2):
        seen = Counter(seed for (of, _, _), seeds in steps.items() if of == epoch for seed in seeds)
        assert seen == Counter(range(4_000))


class Replicas:
    """Processes of the example with TorchFT, whose lines go to files."""

    def __init__(self, lighthouse: str, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        threads = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TORCHFT)}
        self._environment = os.environ | threads | {"TORCHFT_LIGHTHOUSE": lighthouse}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def _file(self, name: str, mode: str) -> IO[Any]:
        return self._stack.enter_context((self._folder / name).open(mode))

    def start(self, name: str) -> None:
        command = [sys.executable, str(ROOT / "examples/fault_tolerant.py"), "--json", "--pause", "0.1"]
        self.processes[name] = process = subprocess.Popen(
            [*command, "--name", name],
            stdout=self._file(f"{name}.out", "wb"),
            stderr=self._file(f"{name}.err", "wb"),
            env=self._environment,
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)

    def said(self, name: str, word: str) -> list[dict[str, Any]]:
        """Return the lines of a process so far that begin with a word."""
        text = (self._folder / f"{name}.out").read_text()
        return [each[word] for each in lines_of(text) if word in each]

    def has_committed(self, name: str, steps: int) -> bool:
        return len(self.said(name, "commits")) >= steps

    def errors(self) -> str:
        return "\n".join(path.read_text()[-2_000:] for path in sorted(self._folder.glob("*.err")))


@pytest.mark.skipif(not TORCHFT.exists(), reason="needs TorchFT, which make puts into build/torchft")
def test_torchft_goes_on_with_the_processes_that_are_there(tmp_path: Path) -> None:
    """Of three, one is killed in mid-epoch and another joins: who takes part shares what is left."""
    with ExitStack() as stack:
        lighthouse = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", LIGHTHOUSE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=os.environ | {"PYTHONPATH": str(TORCHFT)},
            )
        )
        assert lighthouse.stdout is not None
        replicas = Replicas(lighthouse.stdout.readline().strip(), tmp_path, stack)
        for name in "abc":
            replicas.start(name)
        for name, steps in (("b", 6), ("d", 12)):
            wanted = partial(replicas.has_committed, "a", steps)
            assert wait_until(wanted, seconds=SECONDS), replicas.errors()
            if name == "b":
                replicas.processes["b"].kill()
            else:
                replicas.start("d")
        for name in "acd":
            assert replicas.processes[name].wait(SECONDS) == 0, replicas.errors()
        assert lighthouse.stdin is not None
        lighthouse.stdin.close()
        committed = {
            each["step"]: (each["epoch"], each["ranks"])
            for name in "abcd"
            for each in replicas.said(name, "commits")
        }
        tried = {
            (each["step"], each["ranks"], each["rank"]): each["seeds"]
            for name in "abcd"
            for each in replicas.said(name, "tries")
        }
    assert {ranks for _, ranks in committed.values()} >= {2, 3}
    for epoch in range(2):
        seen = Counter(
            seed
            for step, (of, ranks) in committed.items()
            if of == epoch
            for rank in range(ranks)
            for seed in tried[step, ranks, rank]
        )
        assert seen == Counter(range(4_000))
