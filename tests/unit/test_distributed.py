"""Sampling hop by hop from partitions gives the fused sampler's bytes, whatever the partitioning."""

from __future__ import annotations

import functools
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import type_name
from gigl_loader.partition import build_graph
from gigl_loader.partition.assigners import ASSIGNERS, Assigner, GraphAssigner
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.request import BatchRequest
from gigl_loader.tensors import Layout
from tests.support import oracle
from tests.support.plans import neighbor_plan, seed_request
from tests.support.stores import random_tables

if TYPE_CHECKING:
    from gigl_loader.arrays import BoolArray
    from gigl_loader.sampling.plan import BatchSampler
    from gigl_loader.sampling.store import (
        EdgeRequest,
        FeatureRequest,
        InducedRequest,
        NeighborRequest,
        Neighbors,
    )


class Lopsided:
    """Leaves partitions empty, and all users in another one than most items."""

    name = "lopsided"
    ascending = False

    def assign(
        self, node_type: str, ids: npt.NDArray[np.int64], num_partitions: int
    ) -> npt.NDArray[np.int64]:
        last = num_partitions - 1
        return np.where(np.arange(len(ids)) % 5 == 0, 0, last) if node_type == "item" else ids * 0


KNOWN_ASSIGNERS: dict[str, Assigner | GraphAssigner] = {
    **{name: make() for name, make in ASSIGNERS.items()},
    Lopsided.name: Lopsided(),
}
EDGE_TYPES = [("item", "similar", "item"), ("user", "likes", "item"), ("user", "trusts", "user")]
NUMBER = 10


@functools.cache
def _graph(partitions: int, assigner: str, edge_dir: Literal["in", "out"], *, sparse: bool) -> Graph:
    folder = MemoryFolder()
    tables, _ = random_tables(sparse=sparse)
    chosen = KNOWN_ASSIGNERS[assigner]
    build_graph(tables, folder, num_partitions=partitions, assigner=chosen, edge_dir=edge_dir)
    return Graph.open(folder)


@dataclass(frozen=True)
class Elsewhere:
    """A store that counts as remote: it is asked in the pool. Records what it was asked for."""

    store: LocalStore
    rows: list[tuple[Any, list[int]]]

    def sample(self, ask: NeighborRequest) -> Neighbors:
        return self.store.sample(ask)

    def induced(self, ask: InducedRequest) -> Neighbors:
        return self.store.induced(ask)

    def contains(self, ask: EdgeRequest) -> BoolArray:
        raise AssertionError("nobody asks for edges here")

    def gather(self, ask: FeatureRequest, places: Any, out: Any) -> None:
        self.rows.append((ask.kind, ask.rows.tolist()))
        self.store.gather(ask, places, out)

    def close(self) -> None:
        self.store.close()


@dataclass(frozen=True)
class FeaturesElsewhere(Elsewhere):
    """One that is asked for rows alone."""

    def sample(self, ask: NeighborRequest) -> Neighbors:
        raise AssertionError("all adjacency lies here")

    def induced(self, ask: InducedRequest) -> Neighbors:
        raise AssertionError("all adjacency lies here")


def _with_all_topology(graph: Graph, *, home: int) -> tuple[Graph, PartitionedStore]:
    """The adjacency of all partitions, and features of one; the others are asked for theirs."""
    parts = range(graph.schema.num_partitions)
    here = home % len(parts)
    held = Graph.open(graph.folder, parts=[here], topology="all")
    others = [part for part in parts if part != here]
    store = PartitionedStore(
        graph.schema,
        local={here: LocalStore(held, here)},
        remote={part: FeaturesElsewhere(LocalStore(graph, part), []) for part in others},
        lists={part: LocalStore(held, part) for part in others},
    )
    return held, store


def _opened(graph: Graph, *, home: int = 0) -> PartitionedStore:
    """Each partition behind its own store over a graph that holds no other; one of them is local."""
    parts = range(graph.schema.num_partitions)
    stores = {part: LocalStore(Graph.open(graph.folder, parts=[part]), part) for part in parts}
    here = home % len(stores)
    remote = {part: Elsewhere(store, []) for part, store in stores.items() if part != here}
    return PartitionedStore(graph.schema, local={here: stores[here]}, remote=remote)


def _frame(sampler: BatchSampler, request: BatchRequest) -> tuple[Layout, npt.NDArray[np.uint8]]:
    sampled = sampler.sample(request)
    buffer = np.zeros(sampled.layout.nbytes, np.uint8)
    sampled.write(buffer)
    return Layout.parse(buffer), buffer


def _request(graph: Graph, node_type: str, seed_ids: list[int]) -> BatchRequest:
    seeds = graph.positions(node_type, np.array(seed_ids, np.int64))
    return replace(seed_request(3, 1, seeds, np.arange(7, 7 + len(seeds))), number=NUMBER)


def _plan(seed_type: str, fanouts: dict[Any, tuple[int, ...]], **options: Any) -> BatchPlan:
    given: dict[str, Any] = {
        "with_edge": True,
        "node_columns": {"item": ("x", "y", "none"), "user": ("flag",)},
        "edge_columns": {each: ("w",) for each in fanouts},  # noqa: C420 - each its own
    }
    return neighbor_plan(seed_type=seed_type, num_neighbors=fanouts, run_seed=5, **{**given, **options})


_VARIANTS = [
    {"replace": replace, "disjoint": disjoint, "labor": labor > 0, "subgraph_type": subgraph_type}
    | {"batch_dependency": max(labor, 1)}
    for replace, disjoint in product([False, True], repeat=2)
    for labor in (0, 1, 4)
    for subgraph_type in ("directional", "induced")
    if not labor or not (replace or disjoint)
    if not disjoint or subgraph_type == "directional"
]


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    hops = draw(st.integers(0, 3))
    fanout = st.sampled_from([-1, 0, 1, 2, 3, 8])
    seed_type = draw(st.sampled_from(["item", "user"]))
    return {
        "partitions": draw(st.sampled_from([1, 2, 4])),
        "assigner": draw(st.sampled_from(sorted(KNOWN_ASSIGNERS))),
        "edge_dir": draw(st.sampled_from(["in", "out"])),
        "sparse": draw(st.booleans()),
        **draw(st.sampled_from(_VARIANTS)),
        "with_edge": draw(st.booleans()),
        "edge_columns": draw(st.booleans()),
        "home": draw(st.integers(0, 3)),
        "seed_type": seed_type,
        "fanouts": {each: draw(st.tuples(*[fanout] * hops)) for each in EDGE_TYPES},
        "seeds": draw(st.lists(st.integers(0, 40), max_size=8)),
    }


@settings(max_examples=60)
@given(cases())
def test_any_partitioning_gives_the_bytes_of_one_partition(case: dict[str, Any]) -> None:
    """Against the oracle, and, frame by frame, against the fused sampler over a single partition."""
    cut = (case["edge_dir"],)
    graph = _graph(case["partitions"], case["assigner"], *cut, sparse=case["sparse"])
    whole = _graph(1, "range", *cut, sparse=case["sparse"])
    columns: dict[str, Any] = {} if case["edge_columns"] else {"edge_columns": {}}
    plan = _plan(
        case["seed_type"],
        case["fanouts"],
        replace=case["replace"],
        disjoint=case["disjoint"],
        labor=case["labor"],
        batch_dependency=case["batch_dependency"],
        subgraph_type=case["subgraph_type"],
        with_edge=case["with_edge"],
        **columns,
    )
    seed_ids = whole.all_positions(case["seed_type"])[case["seeds"]]
    ids = whole.node_ids(case["seed_type"])
    seeds = (seed_ids if ids is None else ids[seed_ids]).tolist()
    with closing(_opened(graph, home=case["home"])) as store:
        _, stepped = _frame(plan.open(graph, store), _request(graph, case["seed_type"], seeds))
    layout, fused = _frame(plan.open(whole), _request(whole, case["seed_type"], seeds))
    assert stepped.tobytes() == fused.tobytes()
    held, store = _with_all_topology(graph, home=case["home"])
    with closing(store):
        _, here = _frame(plan.open(held, store), _request(graph, case["seed_type"], seeds))
        places = _frame(plan.open(held, store, deferred=True), _request(graph, case["seed_type"], seeds))[1]
    assert here.tobytes() == fused.tobytes()
    _, alone = _frame(plan.open(graph, deferred=True), _request(graph, case["seed_type"], seeds))
    assert places.tobytes() == alone.tobytes()
    _check_oracle(case, plan, layout, fused, seeds)


def _check_oracle(
    case: dict[str, Any], plan: BatchPlan, layout: Layout, buffer: Any, seeds: list[int]
) -> None:
    expected = oracle.sample(
        random_tables(sparse=case["sparse"])[1],
        ["item", "user"],
        fanouts=case["fanouts"],
        seed_type=case["seed_type"],
        seeds=seeds,
        key=oracle.request_key(plan.run_seed, 3, range(7, 7 + len(seeds)), seeds),
        edge_dir=case["edge_dir"],
        replace=case["replace"],
        labor=case["labor"],
        dependency=None
        if case["batch_dependency"] == 1
        else oracle.Dependency(case["batch_dependency"], oracle.batch_key(plan.run_seed, 3, []), NUMBER),
        trees=[range(len(seeds))] if case["disjoint"] else None,
    )
    if case["subgraph_type"] == "induced":
        edges = random_tables(sparse=case["sparse"])[1]
        oracle.induce(expected, edges, fanouts=case["fanouts"], edge_dir=case["edge_dir"])
    for node_type, nodes in expected.nodes.items():
        if case["disjoint"]:
            assert layout.view(buffer, f"node/{node_type}/tree").tolist() == expected.trees[node_type]
        assert layout.view(buffer, f"node/{node_type}/n_id").tolist() == nodes
    for edge_type in EDGE_TYPES:
        prefix = f"edge/{type_name(edge_type)}"
        assert layout.view(buffer, f"{prefix}/rows").tolist() == expected.rows[edge_type]
        if case["with_edge"]:
            assert layout.view(buffer, f"{prefix}/e_id").tolist() == expected.edge_ids[edge_type]


@pytest.mark.parametrize(("partitions", "assigner"), list(product([2, 4], KNOWN_ASSIGNERS)))
def test_batches_follow_each_other_in_the_same_memory(partitions: int, assigner: str) -> None:
    graph, whole = (_graph(n, a, "in", sparse=True) for n, a in ((partitions, assigner), (1, "range")))
    plan = _plan("item", dict.fromkeys(EDGE_TYPES, (4, -1)))
    ids = whole.node_ids("item")
    assert ids is not None
    with closing(_opened(graph)) as store:
        samplers: list[BatchSampler] = [
            plan.open(graph, store),
            plan.open(whole),
            plan.open(graph),
        ]
        for seeds in (ids[:50], ids[60:61], ids[:0], ids[10:40]):
            frames = [
                _frame(sampler, _request(each, "item", seeds.tolist()))[1].tobytes()
                for sampler, each in zip(samplers, (graph, whole, graph), strict=True)
            ]
            assert len(set(frames)) == 1


def test_no_row_is_asked_for_twice() -> None:
    """Not even those of edges that were drawn several times."""
    graph = _graph(4, "hash", "in", sparse=False)
    plan = _plan("item", dict.fromkeys(EDGE_TYPES, (20, 20)), replace=True)
    with closing(_opened(graph)) as store:
        _frame(plan.open(graph, store), _request(graph, "item", list(range(30))))
        asked = [
            (part, kind, rows)
            for part, each in store.remote.items()
            if isinstance(each, Elsewhere)
            for kind, rows in each.rows
        ]
    assert asked
    assert all(len(rows) == len(set(rows)) for _, _, rows in asked)
    assert len(asked) == len({(part, kind) for part, kind, _ in asked})


def test_edge_ids_wide_in_one_partition_alone_change_no_frame() -> None:
    """Whether a partition stores its edge ids narrow depends on what lies there."""
    graph, whole = (_graph(n, "range", "in", sparse=False) for n in (2, 1))
    plan = _plan("item", dict.fromkeys(EDGE_TYPES, (5, 5)))
    narrow = LocalStore(graph, 1)

    class Wide(Elsewhere):
        def sample(self, ask: NeighborRequest) -> Neighbors:
            found = super().sample(ask)
            assert found.edge_ids is not None
            return replace(
                found, positions=found.positions.astype(np.int64), edge_ids=found.edge_ids.astype(np.int64)
            )

    store = PartitionedStore(graph.schema, local={0: LocalStore(graph, 0)}, remote={1: Wide(narrow, [])})
    seeds = list(range(30))
    with closing(store):
        _, stepped = _frame(plan.open(graph, store), _request(graph, "item", seeds))
    _, fused = _frame(plan.open(whole), _request(whole, "item", seeds))
    assert stepped.tobytes() == fused.tobytes()


@dataclass(frozen=True)
class Liar(Elsewhere):
    """A store whose answers are wrong in one way."""

    change: Any = None

    def sample(self, ask: NeighborRequest) -> Neighbors:
        return self.change(super().sample(ask))  # type: ignore[no-any-return]

    def induced(self, ask: InducedRequest) -> Neighbors:
        return self.change(super().induced(ask))  # type: ignore[no-any-return]


def _minus_one(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.full_like(array, -1)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (lambda found: replace(found, counts=found.counts[:-1]), "other neighbours than its counts"),
        (lambda found: replace(found, counts=np.append(found.counts, np.int32(0))), "other targets"),
        (lambda found: replace(found, counts=_minus_one(found.counts)), "negative number"),
        (lambda found: replace(found, positions=_minus_one(found.positions)), "outside its node type"),
        (lambda found: replace(found, positions=found.positions + 10**6), "outside its node type"),
        (lambda found: replace(found, slots=_minus_one(found.slots)), "a slot that no edge has"),
        (lambda found: replace(found, slots=found.slots + 2**40), "a slot that no edge has"),
    ],
)
def test_an_answer_that_cannot_be_is_refused_and_the_next_batch_is_right(change: Any, rule: str) -> None:
    _check_liar(_plan("item", dict.fromkeys(EDGE_TYPES, (5, 5))), change, rule)


def test_induced_edges_of_nodes_that_the_batch_lacks_are_refused() -> None:
    plan = _plan("item", dict.fromkeys(EDGE_TYPES, (2,)), subgraph_type="induced")
    _check_liar(plan, lambda found: replace(found, positions=found.positions * 0 + 64), "does not have")


def _check_liar(plan: BatchPlan, change: Any, rule: str) -> None:
    graph = _graph(2, "range", "in", sparse=False)
    truth = {"active": True}

    def answer(found: Neighbors) -> Neighbors:
        drawn = found.slots is None  # Of hops whose edges are not kept.
        return change(found) if truth["active"] and not drawn else found

    liar = Liar(LocalStore(graph, 1), [], answer)
    request = _request(graph, "item", list(range(50)))
    with closing(PartitionedStore(graph.schema, local={0: LocalStore(graph, 0)}, remote={1: liar})) as store:
        sampler = plan.open(graph, store)
        with pytest.raises(FormatError, match=rule):
            sampler.sample(request)
        truth["active"] = False
        assert _frame(sampler, request)[1].tobytes() == _frame(plan.open(graph), request)[1].tobytes()
