"""What holds for every kind of plan: the same batches in every mode, and epochs that go on elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import CustomSamplerOptions, DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.support.clusters import addresses_of, check_same, servers_of
from tests.support.pyg_graphs import weighted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HALVED = "tests.support.user_samplers:Halved"
OPTIONS: dict[str, Any] = {"batch_size": 60, "shuffle": True, "seed": 5, "device": "cpu", "timeout": 60.0}


@dataclass(frozen=True)
class Kind:
    """A kind of plan, as the loader is told of it."""

    num_neighbors: Any
    options: dict[str, Any]
    other: dict[str, Any]
    """Options that make another plan."""
    difference: str
    """Told where a state of one plan is given to the other."""


KINDS = {
    "neighbor": Kind([4, 3], {"replace": True}, {}, "replace is False here, True in the state"),
    "weighted": Kind([4, 3], {"weight_attr": "w"}, {}, "weight_attr is None here, w in the state"),
    "custom": Kind(
        None,
        {"sampler_options": CustomSamplerOptions(HALVED, fanout=6, keep=0.7)},
        {"sampler_options": CustomSamplerOptions(HALVED, fanout=3)},
        "arguments is",
    ),
}


@dataclass(frozen=True)
class Stored:
    """A graph in three partitions, and the servers that hold it."""

    path: Path
    address: str
    data: Any = field(repr=False)
    nodes: Any

    @property
    def dataset(self) -> DistDataset:
        return DistDataset.open(self.path)


def _loader(dataset: Any, nodes: Any, kind: Kind, **options: Any) -> DistNeighborLoader:
    given = {**OPTIONS, **kind.options, **options}
    return DistNeighborLoader(dataset, kind.num_neighbors, nodes, **given)


def _epochs(dataset: Any, nodes: Any, kind: Kind, **options: Any) -> list[Any]:
    with _loader(dataset, nodes, kind, **options) as loader:
        return [batch for _ in range(2) for batch in loader]


@pytest.fixture(scope="module", params=["homogeneous", "heterogeneous"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    hetero = request.param == "heterogeneous"
    path = tmp_path_factory.mktemp("kinds") / "graph"
    data = weighted(hetero=hetero)
    build_graph(tables_from_pyg(data, weight_attr="w"), path, num_partitions=3, assigner="hash")
    with servers_of(path, 3, allow_samplers=(HALVED,)) as servers:
        yield Stored(path, addresses_of(servers)[0], data, ("item", None) if hetero else None)


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(scope="module")
def expected(stored: Stored, kind: Kind) -> list[Any]:
    return _epochs(stored.dataset, stored.nodes, kind, num_workers=0)


def test_workers_give_the_batches_of_the_embedded_loader(
    stored: Stored, kind: Kind, expected: list[Any]
) -> None:
    check_same(_epochs(stored.dataset, stored.nodes, kind, num_workers=2), expected)


def test_partitioning_changes_no_batch(stored: Stored, kind: Kind, expected: list[Any]) -> None:
    whole = DistDataset.from_pyg(stored.data, weight_attr="w")
    check_same(_epochs(whole, stored.nodes, kind, num_workers=0), expected)


@pytest.mark.parametrize("transport", ["ring", "flight"])
@pytest.mark.parametrize("rows", ["through", "direct"])
def test_storage_servers_give_the_batches_of_the_embedded_loader(
    stored: Stored, kind: Kind, expected: list[Any], transport: Any, rows: Any
) -> None:
    with RemoteDistDataset.connect(stored.address, transport=transport, rows=rows, timeout=60) as dataset:
        check_same(_epochs(dataset, stored.nodes, kind), expected)


def test_an_epoch_goes_on_where_it_was_left(stored: Stored, kind: Kind, expected: list[Any]) -> None:
    with _loader(stored.dataset, stored.nodes, kind) as loader:
        list(islice(loader, 2))
        state = json.loads(json.dumps(loader.state_dict()))
    with (
        RemoteDistDataset.connect(stored.address, timeout=60) as dataset,
        _loader(dataset, stored.nodes, kind) as other,
    ):
        other.load_state_dict(state)
        check_same(list(other), expected[2 : len(other)])


def test_one_batch_by_itself_is_the_same_everywhere(stored: Stored, kind: Kind, expected: list[Any]) -> None:
    given = expected[1] if stored.nodes is None else expected[1][stored.nodes[0]]
    with RemoteDistDataset.connect(stored.address, timeout=60) as remote:
        for dataset in (stored.dataset, remote):
            with _loader(dataset, stored.nodes, kind, num_workers=0) as loader:
                batch = loader.sample(given.batch, epoch=0)
            place = batch if stored.nodes is None else batch[stored.nodes[0]]
            assert place.input_id.tolist() == list(range(len(given.batch)))
            place.input_id = given.input_id
            check_same([batch], expected[1:2])


def test_a_state_of_another_plan_is_refused(stored: Stored, kind: Kind) -> None:
    with _loader(stored.dataset, stored.nodes, kind, num_workers=0) as loader:
        state = loader.state_dict()
    options = {**OPTIONS, **kind.other, "num_workers": 0}
    with (
        DistNeighborLoader(stored.dataset, kind.num_neighbors, stored.nodes, **options) as other,
        pytest.raises(ValueError, match=kind.difference),
    ):
        other.load_state_dict(state)
