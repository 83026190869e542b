"""Arguments in the forms that scripts for torch, PyG, GLT and GiGL have them."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
from torch.utils.data import DataLoader
from torch_geometric.loader import DataLoader as PyGDataLoader

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader, NegativeSampling
from gigl_loader.options import flag, start_method_from_environment
from gigl_loader.sampling.plans.ppr import PPRSamplerOptions
from gigl_loader.splits import split_nodes
from tests.support.pyg_graphs import homogeneous

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader import BaseDistLoader


@pytest.fixture(scope="module")
def homo() -> Iterator[DistDataset]:
    with DistDataset.from_pyg(homogeneous()) as dataset:
        yield dataset


def start_method_of(loader: BaseDistLoader) -> str:
    """Return how the sampling processes of a loader start."""
    return loader._options.workers.start_method


# How sampling processes start


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("module", [multiprocessing, torch.multiprocessing], ids=["python", "torch"])
def test_a_context_of_multiprocessing_names_a_start_method(
    homo: DistDataset, module: Any, method: str
) -> None:
    context = module.get_context(method)
    with DistNeighborLoader(homo, [2], num_workers=0, multiprocessing_context=context) as loader:
        assert start_method_of(loader) == method


def test_a_context_of_another_kind_is_refused_by_its_name(homo: DistDataset) -> None:
    class Context:
        def get_start_method(self) -> str:
            return "loky"

    with pytest.raises(ValueError, match="must be one of spawn, forkserver, fork, got 'loky'"):
        DistNeighborLoader(homo, [2], multiprocessing_context=Context())  # type: ignore[arg-type]


def test_a_context_that_forks_is_refused_after_cuda(
    homo: DistDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(ValueError, match=r"fork.* after CUDA was initialised"):
        DistNeighborLoader(homo, [2], multiprocessing_context=multiprocessing.get_context("fork"))


def test_the_environment_says_how_processes_start_where_the_program_does_not(
    homo: DistDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIGL_START_METHOD", "forkserver")
    for given, method in ((None, "forkserver"), ("spawn", "spawn"), ("fork", "fork")):
        with DistNeighborLoader(homo, [2], num_workers=0, multiprocessing_context=given) as loader:
            assert start_method_of(loader) == method
    with DistNeighborLoader(homo, [2], num_workers=0) as loader:
        assert start_method_of(loader) == "forkserver"


def test_a_start_method_of_the_environment_that_there_is_not_is_refused_by_the_name_of_the_variable() -> None:
    assert start_method_from_environment({}) == "spawn"
    assert start_method_from_environment({"GIGL_START_METHOD": ""}) == "spawn"
    with pytest.raises(ValueError, match=r"^GIGL_START_METHOD must be one of spawn, .*, got 'thread'$"):
        start_method_from_environment({"GIGL_START_METHOD": "thread"})


# Flags and numbers


@pytest.mark.parametrize(
    "value", [True, False, 1, 0, np.True_, np.False_, np.int64(1), np.uint8(0), np.array(True)], ids=repr
)
def test_a_flag_is_a_bool_or_a_number_that_stands_for_one(value: Any) -> None:
    assert flag("shuffle", value) is bool(value)


@pytest.mark.parametrize(
    "value", [2, -1, 1.0, "True", None, np.float32(1), np.array([True]), torch.tensor(1), [1]], ids=repr
)
def test_what_is_no_flag_is_refused(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^shuffle must be True or False, got "):
        flag("shuffle", value)


def test_flags_of_every_kind_of_options_are_read_alike(homo: DistDataset) -> None:
    yes: Any = np.True_
    three: Any = np.int64(3)
    one: Any = np.float32(1)
    negatives = NegativeSampling("binary", one, strict=yes)
    flags = {"shuffle": 1, "drop_last": yes, "even_batches": yes, "in_order": 1, "replace": yes}
    with DistLinkNeighborLoader(
        homo, [2], num_workers=0, neg_sampling=negatives, exclude_targets=yes, with_edge=yes, **flags
    ) as loader:
        assert loader.shuffle is True
        loader.plan.to_json()  # Has nothing of NumPy.
        next(loader)
    options = PPRSamplerOptions(enable_residual_topup=yes, include_sampled_edges=np.False_)  # type: ignore[arg-type]
    with DistNeighborLoader(homo, None, num_workers=0, batch_size=4, sampler_options=options) as loader:
        next(loader)
    with homo.sampler([2], weight_attr=None, input_time=np.False_) as sampler:
        sampler.sample([0])
    assert {*split_nodes(torch.arange(9), [np.float32(0.5)], seed=three)} == {"train"}


# Torch's DataLoader


def test_defaults_of_torch_mean_the_defaults_here(homo: DistDataset) -> None:
    given: Any = {"timeout": 0, "shuffle": None, "pin_memory_device": "", "prefetch_factor": 2}
    with DistNeighborLoader(homo, [2], num_workers=0, **given) as loader:
        assert loader.shuffle is False
        assert loader._placement.options.timeout_s == 300


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"timeout": False}, "timeout must be a number of seconds, got False"),
        ({"prefetch_factor": 4}, "use worker_concurrency="),
        ({"drop_last": None}, "drop_last must be True or False"),
    ],
    ids=str,
)
def test_what_would_change_something_is_still_refused(
    homo: DistDataset, options: dict[str, Any], rule: str
) -> None:
    with pytest.raises(TypeError, match=rule):
        DistNeighborLoader(homo, [2], **options)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.parametrize("kind", ["torch", "torchdata", "torch_geometric"])
def test_a_loader_in_a_loader_is_told_to_be_iterated_itself(homo: DistDataset, kind: str) -> None:
    if kind == "torchdata":
        wrapper = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    else:
        wrapper = DataLoader if kind == "torch" else PyGDataLoader
    with DistNeighborLoader(homo, [2], num_workers=0, name="Train") as loader:
        for options in ({}, {"batch_size": None}):
            with pytest.raises(TypeError, match=r"^Train makes batches by itself: iterate it in place of"):
                next(iter(wrapper(loader, **options)))
