"""``TensorFrame`` of ``torch_frame`` in PyG objects: batches have what PyG would select of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGES = _ROOT / "build/pandas"
"""``torch_frame``, and pandas, which it needs."""

_PROGRAM = """
import torch
from torch_frame import TensorFrame, stype
from torch_frame.data import MultiEmbeddingTensor, MultiNestedTensor
from torch_geometric.data import Data, HeteroData
from gigl_loader import DistDataset, DistNeighborLoader

def frame(count):
    embedded = MultiEmbeddingTensor.from_tensor_list([torch.rand(count, 3), torch.rand(count, 4)])
    feats = {
        stype.numerical: torch.rand(count, 2),
        stype.categorical: torch.randint(0, 5, (count, 3)),
        stype.timestamp: torch.randint(0, 9, (count, 1, 7)),
        stype.embedding: embedded,
    }
    names = {stype.numerical: ["b", "a"], stype.categorical: ["c", "d", "e"], stype.timestamp: ["t"]}
    return TensorFrame(feats, {**names, stype.embedding: ["text", "image"]}, torch.rand(count))

def batches(data, nodes, **options):
    dataset = DistDataset.from_pyg(data, num_partitions=2)
    options = {"batch_size": 4, "num_workers": 1, "device": "cpu", **options}
    with DistNeighborLoader(dataset, [3, 2], nodes, **options) as loader:
        return list(loader)

index = torch.randint(0, 30, (2, 90))
data = Data(tf=frame(30), edge_tf=frame(90), edge_index=index)
for kind in ("directional", "bidirectional"):
    for batch in batches(data, None, subgraph_type=kind):
        assert batch.tf == data.tf[batch.n_id]
        assert batch.edge_tf == data.edge_tf[batch.e_id]
        assert batch.num_features == data.num_features
        assert not [key for key in batch.keys() if "." in key]
hetero = HeteroData()
hetero["user"].tf, hetero["item"].num_nodes = frame(30), 30
hetero["user", "buys", "item"].edge_index = index
nested = MultiNestedTensor.from_tensor_mat([[torch.arange(row % 4)] for row in range(30)])
hetero["user"].tf.feat_dict[stype.multicategorical] = nested
hetero["user"].tf.col_names_dict[stype.multicategorical] = ["tags"]
for batch in batches(hetero, ("item", None)):
    expected = hetero["user"].tf[batch["user"].n_id]
    for kept in (expected.feat_dict, expected.col_names_dict):
        del kept[stype.multicategorical]
    assert batch["user"].tf == expected
"""


@pytest.mark.slow
@pytest.mark.skipif(not (_PACKAGES / "torch_frame").exists(), reason="make puts it into build/pandas")
def test_batches_have_the_rows_of_a_tensor_frame() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(_PACKAGES)},
    )
    assert done.returncode == 0, done.stderr
    assert "per node or edge: tf.multicategorical;" in done.stderr
