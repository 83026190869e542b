"""What is particular to a partition on this host. What all stores promise is in contract/."""

from __future__ import annotations

import numpy as np
import pytest

from gigl_loader.errors import FormatError
from gigl_loader.graph.graph import Graph
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.store import DrawRule, NeighborRequest
from tests.support.stores import store_graphs

EDGE = ("item", "similar", "item")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return store_graphs()[0].graph


def _ask(graph: Graph) -> NeighborRequest:
    return NeighborRequest(
        edge_type=EDGE,
        targets=np.arange(*graph.bounds("item")[1:3]),
        key=1,
        hop=0,
        rule=DrawRule(fanout=-1),
        with_edge_ids=True,
        with_slots=True,
    )


def test_one_partition_is_enough(graph: Graph) -> None:
    alone = LocalStore(Graph.open(graph.folder, parts=[1]), 1).sample(_ask(graph))
    among_others = LocalStore(graph, 1).sample(_ask(graph))
    assert alone.positions.tolist() == among_others.positions.tolist()
    assert alone.slots is not None
    assert alone.slots.tolist() == list(range(len(alone.positions)))


def test_a_partition_that_is_not_opened_is_refused(graph: Graph) -> None:
    with pytest.raises(ValueError, match="not among the opened partitions"):
        LocalStore(Graph.open(graph.folder, parts=[1]), 0)


def test_damaged_lists_are_told(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    topologies = {each: dict(graph.topology(each, 1)) for each in graph.schema.edges}
    topologies[EDGE]["indices"] = topologies[EDGE]["indices"] + 10**6
    monkeypatch.setattr(graph, "topology", lambda edge_type, _: topologies[edge_type])
    with pytest.raises(FormatError, match="a neighbour lies outside its node type"):
        LocalStore(graph, 1).sample(_ask(graph))
