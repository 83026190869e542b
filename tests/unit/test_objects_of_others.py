"""Objects and attributes of PyG, GLT and GiGL: taken, or refused in a line that says what to use.

The classes here have the fields of theirs; neither GLT nor GiGL is installed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch_geometric.sampler import EdgeSamplerInput as PyGEdgeSamplerInput
from torch_geometric.sampler import NegativeSampling as PyGNegativeSampling
from torch_geometric.sampler import NodeSamplerInput as PyGNodeSamplerInput

from gigl_loader import (
    BaseDistLoader,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
)
from gigl_loader.topology import Topology
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS: dict[str, Any] = {"num_workers": 0, "seed": 1, "batch_size": 4, "device": "cpu"}


@dataclass
class NodeSamplerInput:
    """GLT's and GiGL's."""

    node: torch.Tensor
    input_type: str | None = None

    def __len__(self) -> int:
        return self.node.numel()

    def __getitem__(self, index: Any) -> NodeSamplerInput:
        return NodeSamplerInput(self.node[index], self.input_type)


@dataclass
class ABLPNodeSamplerInput(NodeSamplerInput):
    """GiGL's."""

    positive_label_by_edge_types: Any = None
    negative_label_by_edge_types: Any = None


@dataclass
class EdgeSamplerInput:
    """GLT's."""

    row: torch.Tensor
    col: torch.Tensor
    label: torch.Tensor | None = None
    input_type: Any = None
    neg_sampling: Any = None


class Split(Enum):
    """GLT's."""

    train = "train"
    valid = "valid"


class RemoteNodeSplitSamplerInput:
    """GLT's."""

    def __init__(self, split: Split, input_type: str | None) -> None:
        self.split, self.input_type = split, input_type

    def to_local_sampler_input(self, dataset: Any) -> Any: ...


class RemoteNodePathSamplerInput:
    """GLT's."""

    def __init__(self, node_path: str, input_type: str | None) -> None:
        self.node_path, self.input_type = node_path, input_type

    def to_local_sampler_input(self, dataset: Any) -> Any: ...


class RemoteSamplerInput:
    """A subclass of GLT's."""

    def to_local_sampler_input(self, dataset: Any) -> Any: ...


class SamplingType(Enum):
    """GLT's."""

    NODE = 0
    LINK = 1


@dataclass
class SamplingConfig:
    """GLT's."""

    sampling_type: SamplingType = SamplingType.NODE
    num_neighbors: Any = (15, 10)
    batch_size: int = 64
    shuffle: bool = True
    drop_last: bool = False
    with_edge: bool = False
    collect_features: bool = True
    with_neg: bool = False
    with_weight: bool = False
    edge_dir: str = "out"
    seed: int | None = None


SEEDS = torch.tensor([3, 30, 4, 11, 5])


@pytest.fixture(scope="module")
def homo() -> Iterator[DistDataset]:
    with DistDataset.from_pyg(homogeneous()) as dataset:
        yield dataset


@pytest.fixture(scope="module")
def hetero() -> Iterator[DistDataset]:
    with DistDataset.from_pyg(heterogeneous()) as dataset:
        yield dataset


def same_batches(one: BaseDistLoader, other: BaseDistLoader) -> bool:
    with one, other:
        return all(same_batch(*pair) for pair in zip(one, other, strict=True))


# Inputs of samplers


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (NodeSamplerInput(SEEDS), SEEDS),
        (NodeSamplerInput(SEEDS, "node"), SEEDS),
        (PyGNodeSamplerInput(None, SEEDS), SEEDS),
        (("node", SEEDS), PyGNodeSamplerInput(None, SEEDS, input_type="node")),
        (RemoteNodeSplitSamplerInput(Split.train, None), "train"),
        (RemoteNodeSplitSamplerInput(Split.valid, "node"), ("node", "val")),
        ([RemoteNodeSplitSamplerInput(Split.train, "node")] * 3, "train"),
        ([NodeSamplerInput(SEEDS)], SEEDS),
    ],
    ids=lambda value: type(value).__name__,
)
def test_inputs_of_nodes(homo: DistDataset, given: Any, plain: Any) -> None:
    assert same_batches(
        DistNeighborLoader(homo, [2], given, **OPTIONS), DistNeighborLoader(homo, [2], plain, **OPTIONS)
    )


def test_inputs_of_links(homo: DistDataset, hetero: DistDataset) -> None:
    links = torch.stack([SEEDS, SEEDS.flip(0)])
    for given in (EdgeSamplerInput(*links), PyGEdgeSamplerInput(None, *links)):
        assert same_batches(
            DistLinkNeighborLoader(homo, [2], given, **OPTIONS),  # type: ignore[arg-type]
            DistLinkNeighborLoader(homo, [2], links, **OPTIONS),
        )
    kind = ("user", "buys", "item")
    of_type: Any = EdgeSamplerInput(links[0], links[1], input_type=kind)
    assert same_batches(
        DistLinkNeighborLoader(hetero, [2], of_type, **OPTIONS),
        DistLinkNeighborLoader(hetero, [2], (kind, links), **OPTIONS),
    )


REFUSED_NODES: list[tuple[Any, str]] = [
    (PyGNodeSamplerInput(None, SEEDS, SEEDS), "NodeSamplerInput: pass its time as input_time="),
    (PyGNodeSamplerInput(SEEDS, SEEDS), "NodeSamplerInput: pass the seeds alone: batches have input_id"),
    (
        ABLPNodeSamplerInput(SEEDS, "node", {}),
        "ABLPNodeSamplerInput: pass its node alone, and supervision_",
    ),
    (RemoteNodePathSamplerInput("seeds.pt", "node"), r"read the file and .* torch\.load\('seeds\.pt'\)"),
    (RemoteSamplerInput(), "RemoteSamplerInput, which a server of GLT loads"),
    ([NodeSamplerInput(SEEDS), NodeSamplerInput(SEEDS)], "list of inputs by server: pass all nodes at once"),
]


@pytest.mark.parametrize(("given", "rule"), REFUSED_NODES, ids=range(len(REFUSED_NODES)))
def test_inputs_that_hold_more_say_what_to_pass(homo: DistDataset, given: Any, rule: str) -> None:
    for kind in (DistNeighborLoader, DistABLPLoader):
        with pytest.raises(TypeError, match=rf"^input_nodes is a .*{rule}") as caught:
            kind(homo, [2], given, **OPTIONS)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"label": SEEDS}, "pass its label as edge_label="),
        ({"neg_sampling": PyGNegativeSampling("binary")}, "pass its neg_sampling as neg_sampling="),
    ],
    ids=str,
)
def test_inputs_of_links_that_hold_more_say_what_to_pass(
    homo: DistDataset, fields: dict[str, Any], rule: str
) -> None:
    given: Any = EdgeSamplerInput(SEEDS, SEEDS, **fields)
    with pytest.raises(TypeError, match=f"^edge_label_index is a EdgeSamplerInput: {rule}$"):
        DistLinkNeighborLoader(homo, [2], given, **OPTIONS)


# Configurations


def test_a_sampling_configuration_is_told_by_its_fields(homo: DistDataset) -> None:
    told = (
        r"for SamplingConfig, pass num_neighbors=\(15, 10\), batch_size=64, shuffle=True, drop_last=False, "
        r"with_edge=False, seed=None; leave out sampling_type .*, edge_dir .*, with_neg .* and collect_"
    )
    given: Any = {"sampling_config": SamplingConfig()}
    with pytest.raises(TypeError, match=rf"has no argument 'sampling_config': {told}"):
        DistNeighborLoader(homo, [2], **given)
    of_place: Any = SamplingConfig(SamplingType.LINK, with_weight=True)
    with pytest.raises(
        TypeError, match=r"^num_neighbors must be .* weight_attr= .* to DistLinkNeighborLoader;"
    ):
        DistNeighborLoader(homo, of_place)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        (
            "sampler_input",
            "pass its nodes as input_nodes; a subclass of BaseDistLoader returns them from seed",
        ),
        ("input_data", "pass its nodes as input_nodes"),
        ("dataset_schema", "the dataset has it"),
        ("sampling_config", "use num_neighbors=, batch_size="),
        ("sampling_type", "the class of the loader says it"),
        ("runtime", "the place of this process .* is found"),
        ("node_rank", "the place of this process .* is found"),
        ("node_world_size", "the place of this process .* is found"),
        ("master_ip_address", "hosts are found"),
        ("producer", "the dataset starts"),
        ("backend_key", "use worker_key="),
    ],
)
def test_arguments_of_the_base_loader_of_gigl(homo: DistDataset, name: str, rule: str) -> None:
    class Mine(BaseDistLoader):
        def __init__(self, dataset: DistDataset, **given: Any) -> None:
            super().__init__(dataset, **given)

    with pytest.raises(TypeError, match=rf"^Mine\(\) has no argument '{name}': {rule}"):
        Mine(homo, **{name: 3})


# Attributes


def test_attributes_of_loaders_of_glt(homo: DistDataset) -> None:
    with DistNeighborLoader(homo, [2, 1], "train", with_edge=False, **OPTIONS) as loader:
        old: Any = loader
        assert old.edge_dir == homo.edge_dir
        assert old.num_neighbors == [2, 1]
        assert (old.with_edge, old.with_weight) == (False, False)
        assert old.to_device == loader.device
        assert old.num_data_partitions == 1
        assert old.data == loader.data
        assert not hasattr(old, "edge_direction")
        with pytest.raises(AttributeError, match=r"num_neighbors is fixed at construction"):
            old.num_neighbors = [3]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("worker_options", "loader.num_workers; the other fields are arguments of the loader"),
        ("sampling_config", "its fields are attributes of the loader"),
        ("sampling_type", "the class of the loader says it"),
        ("input_data", r"len(loader.dataset) counts it"),
        ("collect_features", "loader.columns names"),
        ("create_sampling_config", "a subclass defines seed_nodes(), sampling_plan() and collate()"),
        ("create_mp_producer", "a subclass defines seed_nodes()"),
    ],
)
def test_attributes_that_have_no_equal_say_what_to_use(homo: DistDataset, name: str, rule: str) -> None:
    with DistNeighborLoader(homo, [2], "train", **OPTIONS) as loader:
        rule = rf"^'DistNeighborLoader' object has no attribute '{name}': {re.escape(rule)}"
        with pytest.raises(AttributeError, match=rule) as caught:
            getattr(loader, name)
    assert "\n" not in str(caught.value)


def test_names_of_gigl_for_the_place_of_a_process() -> None:
    place = Topology(rank=3, world_size=4, local_rank=1, local_world_size=2, host_index=1, num_hosts=2)
    assert (place.node_rank, place.node_world_size, place.master_ip_address) == (1, 2, "localhost")


def test_other_objects_with_such_names_are_no_inputs(homo: DistDataset) -> None:
    with pytest.raises(TypeError, match="must be a tensor of node ids"):
        DistNeighborLoader(homo, [2], SimpleNamespace(node=SEEDS), **OPTIONS)
