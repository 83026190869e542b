"""Trainers whose disk hangs while features are read from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.hanging_disk import hanging_disk
from tests.support.pyg_graphs import homogeneous

PROGRAM = """
import sys, time
from functools import partial

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.sampling import window

path, engine = sys.argv[1:]
window.DiskRows = partial(window.DiskRows, engine=engine)
loader = DistNeighborLoader(
    DistDataset.open(path), [3, 2], batch_size=20, num_workers=0, feature_memory="60KB", window=2, timeout=1
)
batches = iter(loader)
next(batches)
print("hang", flush=True)
sys.stdin.readline()
try:
    for batch in batches:
        pass
except TimeoutError as error:
    print(error, flush=True)
began = time.monotonic()
loader.shutdown()
print(time.monotonic() - began, flush=True)
"""


@pytest.mark.slow  # 8 s: it waits as long as threads may take to end.
@pytest.mark.parametrize("engine", ["io_uring", "threads"])
def test_a_trainer_ends_while_its_disk_hangs(engine: str, tmp_path: Path) -> None:
    data = homogeneous(20_000, 80_000)
    data.x = data.x.repeat(1, 40)
    build_graph(tables_from_pyg(data), tmp_path / "graph")
    with hanging_disk(tmp_path / "graph", tmp_path / "disk") as disk:
        arguments = [sys.executable, "-c", PROGRAM, str(disk.path), engine]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(arguments, text=True, **pipes) as trainer:  # type: ignore[call-overload]
            try:
                assert trainer.stdout.readline() == "hang\n", trainer.stderr.read()
                disk.hang()
                told, errors = trainer.communicate("\n", timeout=60)
            finally:
                trainer.kill()
    assert trainer.returncode == 0, errors
    waited, seconds = told.splitlines()
    assert "no batch within 1 s: reading rows" in waited
    assert float(seconds) < 7
