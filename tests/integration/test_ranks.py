"""Real processes as ranks of one host, with a graph that lies there whole."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.torchrun import run_torchrun

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
import json
from torch import distributed
from gigl_loader import DistDataset, DistNeighborLoader
from tests.support.pyg_graphs import homogeneous

distributed.init_process_group("gloo")
dataset = DistDataset.from_pyg(homogeneous())
with DistNeighborLoader(dataset, [3, 2], batch_size=16, shuffle=True, num_workers=1) as loader:
    epoch = [batch.input_id.tolist() for batch in loader]
print(json.dumps([loader.topology.rank, loader.topology.local_rank, loader.seed, epoch]), flush=True)
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_torchrun_on_one_host_shares_the_input(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    (printed,) = run_torchrun(str(script), ranks_per_host=2, seconds=90, folder=tmp_path)
    first, second = sorted(json.loads(line) for line in printed.splitlines())
    assert (first[:2], second[:2]) == ([0, 0], [1, 1])
    assert first[2] == second[2]
    assert len(first[3]) == len(second[3]) == 10
    seen = [seed for rank in (first, second) for batch in rank[3] for seed in batch]
    assert sorted(seen) == list(range(300))
