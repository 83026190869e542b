"""Frames without rows, completed where they arrive, have the bytes of whole ones."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.channel.frame import Frame
from gigl_loader.errors import FormatError
from gigl_loader.sampling.frame_writer import Completion
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.request import SEED, BatchRequest
from gigl_loader.sampling.schedule import Schedule
from gigl_loader.tensors import Layout
from tests.support.plans import neighbor_plan, seed_request
from tests.support.remote_sources import served
from tests.support.sources import PLANS as PLANS_BY_INPUT
from tests.support.sources import small_graph, small_schedule
from tests.support.stores import StoreGraph, store_graphs

if TYPE_CHECKING:
    from gigl_loader.sampling.plan import BatchSampler

EDGE_TYPES = [("item", "similar", "item"), ("user", "likes", "item"), ("user", "trusts", "user")]


def _plan(**changes: Any) -> BatchPlan:
    options: dict[str, Any] = {
        "seed_type": "item",
        "num_neighbors": {each: (3, 2) for each in EDGE_TYPES},  # noqa: C420 - each its own
        "run_seed": 5,
        "with_edge": True,
        "node_columns": {"item": ("x", "y", "none"), "user": ("flag",)},
        "edge_columns": {EDGE_TYPES[0]: ("w",), EDGE_TYPES[1]: ("w",)},
    }
    return neighbor_plan(**{**options, **changes})


PLANS = [
    _plan(),
    _plan(replace=True),
    _plan(with_edge=False, edge_columns={}),
    _plan(node_columns={"user": ("none",)}, edge_columns={EDGE_TYPES[2]: ("w",)}),
    _plan(node_columns={}, edge_columns={}),
    _plan(num_neighbors={EDGE_TYPES[0]: (3,)}, edge_columns={}),
]


def _open(graph: StoreGraph) -> PartitionedStore:
    parts = range(graph.graph.schema.num_partitions)
    return PartitionedStore(
        graph.graph.schema, local={part: LocalStore(graph.graph, part) for part in parts}, remote={}
    )


def _frame(sampler: BatchSampler, request: BatchRequest, edge_dir: str = "in") -> Frame:
    sampled = sampler.sample(request)
    buffer = np.zeros(sampled.layout.nbytes, np.uint8)
    sampled.write(buffer)
    return Frame(buffer, Layout.parse(buffer))


def _request(count: int = 20) -> BatchRequest:
    return seed_request(3, 1, np.arange(count) * 3)


@pytest.mark.parametrize("graph", store_graphs(), ids=str)
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("count", [0, 20])
def test_a_completed_frame_has_the_bytes_of_a_whole_one(
    graph: StoreGraph, plan: BatchPlan, count: int
) -> None:
    edge_dir = graph.graph.schema.edge_dir
    whole = _frame(plan.open(graph.graph), _request(count), edge_dir)
    with closing(_open(graph)) as store:
        completion = Completion(graph.graph.schema, plan)
        samplers: list[BatchSampler] = [
            plan.open(graph.graph, deferred=True),
            plan.open(graph.graph, store, deferred=True),
        ]
        skeletons = [_frame(each, _request(count), edge_dir) for each in samplers]
        assert skeletons[0].buffer.tobytes() == skeletons[1].buffer.tobytes()
        layout = completion.layout(skeletons[0])
        buffer = np.zeros(layout.nbytes, np.uint8)
        completion.write(skeletons[0], layout, buffer, store)
    assert buffer.tobytes() == whole.buffer.tobytes()


@pytest.mark.some(8)
@pytest.mark.parametrize("transport", ["ring", "network"])
@pytest.mark.parametrize("kind", ["heterogeneous", *PLANS_BY_INPUT])
def test_frames_of_servers_may_come_without_features(
    kind: str, transport: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "heterogeneous":
        graph, plan = store_graphs()[2].graph, _plan()
        schedule = Schedule(
            {SEED: np.arange(70)}, batch_size=20, shuffle=True, drop_last=False, run_seed=plan.run_seed
        )
        monkeypatch.setattr("tests.support.remote_sources.small_graph", lambda _: graph)
        monkeypatch.setattr("tests.support.remote_sources._warm", lambda _: None)
    else:
        graph, plan, schedule = small_graph(2), PLANS_BY_INPUT[kind], small_schedule(kind)
    completion, sampler = Completion(graph.schema, plan), plan.open(graph)
    with (
        served(graph.schema.num_partitions, monkeypatch) as small,
        closing(small.cluster.open_store(timeout_s=20)) as store,
        closing(small.open(plan=plan, schedule=schedule, transport=transport, complete=False)) as source,
    ):
        source.start_epoch(1)
        for batch in range(source.num_batches):
            skeleton = source.receive(20)
            layout = completion.layout(skeleton)
            buffer = np.zeros(layout.nbytes, np.uint8)
            completion.write(skeleton, layout, buffer, store)
            assert buffer.tobytes() == _frame(sampler, schedule.request(1, batch)).buffer.tobytes()
        assert (source.stats()["transport"], source.stats()["rows_come"]) == (transport, "direct")


def test_a_skeleton_names_rows_and_has_no_columns() -> None:
    graph = store_graphs()[0]
    skeleton = _frame(_plan().open(graph.graph, deferred=True), _request())
    names = {name for name in skeleton.names if name.count("/") == 2}
    assert {name.rpartition("/")[2] for name in names if name.startswith("node")} == {"n_id", "position"}
    without_columns = "edge/user+trusts+user"
    assert {name for name in names if name.startswith(without_columns)} == {
        f"{without_columns}/{each}" for each in ("rows", "colptr", "e_id")
    }
    assert skeleton.array("node/item/position")[:20].tolist() == (np.arange(20) * 3).tolist()


def _refused(completion: Completion, frame: Frame, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        completion.parse(frame.buffer)


@pytest.mark.parametrize("value", [-1, 70, 2**62])
def test_places_that_do_not_exist_are_refused(value: int) -> None:
    graph = store_graphs()[0]
    deferred = _frame(_plan().open(graph.graph, deferred=True), _request())
    deferred.array("node/item/position")[4] = value
    completion = Completion(graph.graph.schema, _plan())
    _refused(completion, deferred, "'node/item/position' leaves the 70")


@pytest.mark.parametrize("other", [_plan(with_edge=False), _plan(node_columns={"item": ("x",)})])
def test_a_frame_of_another_plan_is_refused(other: BatchPlan) -> None:
    graph = store_graphs()[0]
    completion = Completion(graph.graph.schema, _plan())
    deferred = _frame(other.open(graph.graph, deferred=True), _request())
    _refused(completion, deferred, "is missing")


def test_a_frame_of_other_types_is_refused() -> None:
    graph = store_graphs()[0]
    completion = Completion(graph.graph.schema, _plan())
    few = _plan(num_neighbors={EDGE_TYPES[0]: (3, 2)}, edge_columns={})
    _refused(completion, _frame(few.open(graph.graph, deferred=True), _request()), "has types")
    empty = np.frombuffer(Layout.plan({}, {"epoch": "0", "batch": "0"}).header, np.uint8)
    with pytest.raises(FormatError, match="lacks seed_type"):
        completion.parse(empty)
