"""A script that never closes its dataset serves other hosts until they are done, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

from gigl_loader.partition import build_graph, tables_from_pyg

SCRIPT = """
import sys, time, pathlib, torch.distributed as dist
from gigl_loader import DistDataset, DistNeighborLoader

graph, folder, rank, ending = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
dataset = DistDataset.open(graph, partitions=rank, cache_size=0, timeout=30)
loader = DistNeighborLoader(dataset, [3, 2], batch_size=8, num_workers=0, sharding="none", timeout=4)
batches = iter(loader)
next(batches)
if rank == 0:
    (folder / "first").touch()
    if ending == "raises":
        raise ValueError("of the script")
else:
    while not (folder / "first").exists():
        time.sleep(0.01)
    time.sleep(1)  # Rank 0 has nothing left to do but to end.
    print(sum(1 for _ in batches) + 1, flush=True)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_a_host_whose_script_ends_first(ending: str, tmp_path: Path) -> None:
    graph = tmp_path / "graph"
    data = Data(x=torch.randn(64, 4), edge_index=torch.randint(64, (2, 600)))
    build_graph(tables_from_pyg(data), graph, num_partitions=2)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(graph), str(tmp_path), str(rank), ending],
            env=os.environ | {"GIGL_BOOT_ID": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (_, first_errors), (said, errors) = (rank.communicate(timeout=60) for rank in ranks)
    if ending == "returns":
        assert [rank.returncode for rank in ranks] == [0, 0], first_errors + errors
        assert said.strip() == "8"
    else:
        assert "ValueError: of the script" in first_errors
        assert "StorageUnavailable: host 0" in errors
