"""The subclass of the guide, run as it stands there."""

from __future__ import annotations

import re
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader
from tests.support.pyg_graphs import heterogeneous, same_batch

GUIDE = Path(__file__).parents[2] / "docs" / "extend.md"
DATA = heterogeneous()
BUYS = ("user", "buys", "item")


@pytest.fixture(scope="module")
def loader_class() -> Any:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    [code] = [block for block in blocks if "class RelationLoader(" in block]
    names: dict[str, Any] = {}
    exec(compile(code, str(GUIDE), "exec"), names)
    return names["RelationLoader"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_loader_of_the_guide_works(loader_class: Any, num_workers: int) -> None:
    dataset = DistDataset.from_pyg(DATA)
    edges = set(map(tuple, DATA[BUYS].edge_index.t().tolist()))
    seen = []
    with loader_class(dataset, BUYS, 5, batch_size=32, num_workers=num_workers, shuffle=True) as loader:
        for seeds, neighbours, edge_index in loader:
            seen += seeds.tolist()
            pairs = zip(neighbours[edge_index[0]].tolist(), seeds[edge_index[1]].tolist(), strict=True)
            assert edges.issuperset(pairs)
    assert sorted(seen) == list(range(90))


def test_the_loader_of_the_guide_resumes(loader_class: Any) -> None:
    dataset = DistDataset.from_pyg(DATA)
    whole = list(loader_class(dataset, BUYS, 5, batch_size=32, num_workers=0, seed=1))
    loader = loader_class(dataset, BUYS, 5, batch_size=32, num_workers=0, seed=1)
    list(islice(iter(loader), 1))
    resumed = loader_class(dataset, BUYS, 5, batch_size=32, num_workers=0)
    resumed.load_state_dict(loader.state_dict())
    rest = list(resumed)
    assert len(rest) == len(whole) - 1
    assert all(
        torch.equal(a, b)
        for left, right in zip(rest, whole[1:], strict=True)
        for a, b in zip(left, right, strict=False)
    )


def test_what_the_loader_of_the_guide_refuses(loader_class: Any) -> None:
    dataset = DistDataset.from_pyg(DATA)
    with pytest.raises(ValueError, match="unknown edge type"):
        loader_class(dataset, ("user", "sells", "item"), 5)
    with pytest.raises(ValueError, match="fanout -3"):
        loader_class(dataset, BUYS, -3)
    with pytest.raises(ValueError, match="unknown node ids of type 'item': 90"):
        loader_class(dataset, BUYS, 5, torch.tensor([90]))


def test_collate_can_be_extended() -> None:
    class Signed(DistNeighborLoader):
        def collate(self, tensors: Any) -> Any:
            batch = super().collate(tensors)
            batch["item"].sign = batch["item"].x.sign()
            return batch

    dataset = DistDataset.from_pyg(DATA)
    options: dict[str, Any] = {"batch_size": 30, "seed": 1, "num_workers": 0}
    plain = list(DistNeighborLoader(dataset, [2], ("item", None), **options))
    for batch, expected in zip(Signed(dataset, [2], ("item", None), **options), plain, strict=True):
        assert torch.equal(batch["item"].sign, expected["item"].x.sign())
        del batch["item"].sign
        assert same_batch(batch, expected)
