"""What a loader was built with cannot be assigned afterwards."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

from gigl_loader import BaseDistLoader, DistDataset, DistNeighborLoader
from gigl_loader.loaders.arguments import DEFAULTS, LoaderOptions
from tests.support.pyg_graphs import homogeneous

DATASET = DistDataset.from_pyg(homogeneous())
OWN = {"dataset", "num_neighbors", "input_nodes", "replace", "with_edge"}


def _loader(**options: Any) -> DistNeighborLoader:
    return DistNeighborLoader(DATASET, [2], **{"num_workers": 0, "seed": 1, "batch_size": 5, **options})


@pytest.mark.parametrize("name", sorted({*LoaderOptions.__annotations__, *OWN}))
def test_an_argument_cannot_be_assigned(name: str) -> None:
    loader = _loader()
    with pytest.raises(AttributeError, match=rf"^DistNeighborLoader-\d+: {name} is fixed at construction: "):
        setattr(loader, name, 7)


def test_the_error_says_how_to_get_another_loader() -> None:
    loader = _loader()
    with pytest.raises(AttributeError, match=r"shut this loader down and build another, .*batch_size=\.\.\."):
        loader.batch_size = 7
    assert [loader.batch_size, next(loader).batch_size] == [5, 5]


@pytest.mark.parametrize("name", ["plan", "topology"])
def test_what_follows_from_the_arguments_cannot_be_assigned(name: str) -> None:
    with pytest.raises(
        AttributeError, match=f"{name} is fixed at construction: it follows from the arguments"
    ):
        setattr(_loader(), name, None)


def test_names_of_a_subclass_may_be_assigned() -> None:
    class Counting(DistNeighborLoader):
        def __init__(self, dataset: DistDataset, fanout: int, scale: float, **options: Any) -> None:
            self.fanout = fanout
            super().__init__(dataset, [fanout], **options)
            self.scale = scale
            self.batches = 0

        def collate(self, tensors: Any) -> Any:
            self.batches += 1
            return super().collate(tensors)

    loader = Counting(DATASET, 3, 0.5, num_workers=0, batch_size=100)
    list(loader)
    assert (loader.batches, loader.fanout, loader.scale) == (3, 3, 0.5)
    loader.note = "mine"
    for name in ("fanout", "scale", "batch_size", "num_neighbors"):
        with pytest.raises(AttributeError, match=f"{name} is fixed"):
            setattr(loader, name, 1)


def test_a_state_may_still_bring_another_random_seed() -> None:
    state = _loader(seed=9, input_nodes=torch.arange(20)).state_dict()
    loader = _loader(seed=None, input_nodes=torch.arange(20))
    loader.load_state_dict(state)
    assert loader.seed == loader.plan.run_seed == 9


def test_every_option_has_a_default_in_the_order_of_the_signature() -> None:
    names = list(inspect.signature(BaseDistLoader).parameters)
    assert names == ["dataset", *LoaderOptions.__annotations__] == ["dataset", *DEFAULTS]
