"""How the owners of nodes are asked. That the answers make the right batches is in test_distributed.py."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.arrays import BoolArray, Int64Array
from gigl_loader.errors import StorageUnavailable
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.partitioned import FrontierRequest, OwnerRows, PartitionedStore
from gigl_loader.sampling.store import (
    SLOT_BITS,
    DrawRule,
    EdgeRequest,
    FeatureRequest,
    GatherRequest,
    InducedRequest,
    NeighborRequest,
    Neighbors,
    WireCounts,
)
from gigl_loader.tensors import as_rows
from tests.support.leftovers import wait_until
from tests.support.stores import store_graphs

if TYPE_CHECKING:
    from gigl_loader.graph.graph import Graph
    from gigl_loader.options import EdgeType, NodeType

SECONDS = 20
EDGE = ("item", "similar", "item")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return store_graphs()[0].graph


def _nothing() -> None: ...


def _meeting(barrier: threading.Barrier) -> Callable[[], None]:
    def meet() -> None:
        barrier.wait()

    return meet


@dataclass
class Told:
    """A store that does something before it answers, and remembers."""

    store: LocalStore
    first: Callable[[], None] = _nothing
    finished: list[str] = field(default_factory=list)
    closed: int = 0
    counts: WireCounts = field(default_factory=WireCounts)

    def sample(self, ask: NeighborRequest) -> Neighbors:
        self.first()
        self.finished.append(threading.current_thread().name)
        return self.store.sample(ask)

    def induced(self, ask: InducedRequest) -> Neighbors:
        raise AssertionError("nobody asks for induced edges here")

    def contains(self, ask: EdgeRequest) -> BoolArray:
        raise AssertionError("nobody asks for edges here")

    def gather(self, ask: FeatureRequest, places: Any, out: Sequence[Any]) -> None:
        self.first()
        self.store.gather(ask, places, out)
        self.finished.append(threading.current_thread().name)

    def close(self) -> None:
        self.closed += 1

    def wire(self) -> WireCounts:
        return self.counts


class Keeping(Told):
    """A store of which this host has the even rows of nodes."""

    def holds(self, kind: NodeType | EdgeType, rows: Int64Array) -> BoolArray:
        held: BoolArray = (rows % 2 == 0) & isinstance(kind, str)
        return held


def _ask(graph: Graph) -> FrontierRequest:
    bounds = graph.bounds("item")
    return FrontierRequest(
        [np.arange(bounds[p], bounds[p + 1]) for p in range(3)],
        partial(
            NeighborRequest,
            edge_type=EDGE,
            key=7,
            hop=0,
            rule=DrawRule(fanout=2),
            with_edge_ids=False,
            with_slots=False,
        ),
    )


def _requested(graph: Graph, part: int) -> Any:
    """Return the request to one partition."""
    ask = _ask(graph)
    return ask.request(targets=ask.targets[part])


def _want(graph: Graph) -> GatherRequest:
    count = int(graph.bounds("item")[-1])
    out = [np.zeros((count, 64), np.uint8)]
    rows = np.arange(count)[::-1].astype(np.int64)
    return GatherRequest(kind="item", columns=("x",), rows=rows, distinct=True, out=out)


def _store(graph: Graph, first: Callable[[int], Callable[[], None]]) -> tuple[PartitionedStore, list[Told]]:
    told = [Told(LocalStore(graph, part), first(part)) for part in range(3)]
    store = PartitionedStore(graph.schema, local={1: told[1]}, remote={0: told[0], 2: told[2]})
    return store, told


@pytest.fixture
def much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the few targets of the test's graph count as many."""
    monkeypatch.setattr("gigl_loader.sampling.partitioned._FEW", 0)


@pytest.mark.parametrize("what", ["sample", "gather"])
@pytest.mark.usefixtures("much")
def test_all_owners_are_asked_at_once_and_this_host_s_in_the_caller_s_thread(graph: Graph, what: str) -> None:
    together = threading.Barrier(3, timeout=SECONDS)
    store, told = _store(graph, lambda _: _meeting(together))
    with closing(store):
        if what == "sample":
            store.sample([_ask(graph)])
        else:
            store.gather([_want(graph)])
    assert told[1].finished == [threading.current_thread().name]
    assert all(each.finished[0].startswith("ask") for each in (told[0], told[2]))


def test_where_little_is_drawn_here_the_caller_s_thread_asks_one_owner_itself(graph: Graph) -> None:
    together = threading.Barrier(2, timeout=SECONDS)
    store, told = _store(graph, lambda part: _nothing if part == 1 else _meeting(together))
    with closing(store):
        answers = store.sample([_ask(graph)])[0]
    threads = [each.finished[0].partition("_")[0] for each in told]
    own = threading.current_thread().name
    assert threads == ["ask", own, own]
    drawn = [told[part].store.sample(_requested(graph, part)) for part in range(3)]
    assert [each.positions.tolist() for each in answers] == [each.positions.tolist() for each in drawn]


def test_rows_that_all_lie_elsewhere_are_asked_for_at_once_too(graph: Graph) -> None:
    together = threading.Barrier(3, timeout=SECONDS)
    told = [Told(LocalStore(graph, part), _meeting(together)) for part in range(3)]
    store = PartitionedStore(graph.schema, local={}, remote=dict(enumerate(told)))
    with closing(store):
        store.gather([_want(graph)])
    assert sum(each.finished == [threading.current_thread().name] for each in told) == 1


def test_rows_that_lie_on_this_host_wait_for_no_owner(graph: Graph) -> None:
    """Of partition 0, which another host owns, this host has the rows of a cache."""
    (first, begin, end, _), kept = graph.bounds("item").tolist(), Keeping(LocalStore(graph, 0))
    other = Told(LocalStore(graph, 2), partial(pytest.fail, "it is asked for none of its rows"))
    store = PartitionedStore(graph.schema, local={1: LocalStore(graph, 1)}, remote={0: kept, 2: other})
    everything = np.random.default_rng(0).permutation(graph.bounds("item")[-1])
    with closing(store):
        reader = OwnerRows(store, "item", ["x"])
        held = reader.holds(everything)
        expected = (everything >= begin) & (everything < end) | (everything < begin) & (everything % 2 == 0)
        assert (held == expected).all()
        rows = np.sort(everything[held])
        out = [np.zeros((len(rows), 64), np.uint8)]
        reader.read_here(rows, np.arange(len(rows)), out)
        assert store.holds(EDGE, np.arange(3) << SLOT_BITS).tolist() == [False, True, False]
    assert kept.finished == [threading.current_thread().name]
    stored = np.concatenate([as_rows(graph.node_column("item", "x", part), 64) for part in range(3)])
    assert np.array_equal(out[0], stored[rows - first])


def test_a_closed_store_asks_nobody(graph: Graph) -> None:
    store, told = _store(graph, lambda _: _nothing)
    store.close()
    for ask in (lambda: store.sample([_ask(graph)]), lambda: store.gather([_want(graph)])):
        with pytest.raises(RuntimeError, match="after its shutdown"):
            ask()
    assert not any(each.finished for each in told)


def test_all_edge_types_of_a_hop_are_asked_at_once(graph: Graph) -> None:
    together = threading.Barrier(4, timeout=SECONDS)
    store, _ = _store(graph, lambda part: _nothing if part == 1 else _meeting(together))
    with closing(store):
        first, second = store.sample([_ask(graph), _ask(graph)])
    assert [each.positions.tolist() for each in first] == [each.positions.tolist() for each in second]


def test_rows_of_all_owners_come_in_the_order_asked(graph: Graph) -> None:
    store, _ = _store(graph, lambda _: _nothing)
    want = _want(graph)
    with closing(store):
        store.gather([want])
    stored = np.concatenate([as_rows(graph.node_column("item", "x", part), 64) for part in range(3)])
    assert np.array_equal(want.out[0], stored[want.rows])


@pytest.mark.parametrize("failing", [0, 1, 2])
@pytest.mark.parametrize("what", ["sample", "gather"])
@pytest.mark.usefixtures("much")
def test_an_error_is_raised_when_nobody_is_at_work_any_more(graph: Graph, failing: int, what: str) -> None:
    """What went on writing would write into another batch."""
    raised = threading.Event()

    def first(part: int) -> Callable[[], None]:
        def fail() -> None:
            raised.set()
            raise StorageUnavailable("as planned")

        def wait() -> None:
            assert raised.wait(SECONDS)

        return fail if part == failing else (_nothing if part == 1 else wait)

    store, told = _store(graph, first)
    with closing(store):
        with pytest.raises(StorageUnavailable, match="as planned"):
            store.sample([_ask(graph)]) if what == "sample" else store.gather([_want(graph)])
        others = [told[part] for part in (0, 2) if part != failing]
        assert all(len(each.finished) == 1 for each in others)


@pytest.mark.usefixtures("much")
def test_the_memory_of_a_failed_gather_waits_for_no_garbage_collection(graph: Graph) -> None:
    def fail() -> None:
        raise StorageUnavailable("as planned")

    store, _ = _store(graph, lambda part: _nothing if part == 1 else fail)
    gc.disable()
    try:
        with closing(store):
            want = _want(graph)
            memory = weakref.ref(want.out[0])
            with pytest.raises(StorageUnavailable, match="as planned") as caught:
                store.gather([want])
            del want, caught
            assert wait_until(lambda: memory() is None, seconds=SECONDS)
    finally:
        gc.enable()


def test_a_refusal_while_asks_go_out_is_raised_when_nobody_is_at_work_any_more(graph: Graph) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(SECONDS)

    class Unsplittable(GatherRequest):
        """Wanted rows that lie nowhere. By then, others are being fetched."""

        @property
        def columns(self) -> Any:
            assert begun.wait(SECONDS)
            threading.Timer(0.05, go_on.set).start()
            return ("x",)

    good = _want(graph)
    store, told = _store(graph, lambda part: _nothing if part == 1 else wait)
    with closing(store):
        bad = Unsplittable.__new__(Unsplittable)
        object.__setattr__(bad, "kind", "item")
        object.__setattr__(bad, "rows", np.array([-1]))
        with pytest.raises(ValueError, match="-1"):
            store.gather([good, bad])
        assert all(len(each.finished) == 1 for each in (told[0], told[2]))


def test_owners_of_nothing_that_is_wanted_are_not_asked(graph: Graph) -> None:
    store, told = _store(graph, lambda _: _nothing)
    ask = _ask(graph)
    nobody = np.empty(0, np.int64)
    with closing(store):
        alone = FrontierRequest(
            [nobody, ask.targets[1], nobody],
            partial(
                NeighborRequest,
                edge_type=EDGE,
                key=7,
                hop=0,
                rule=DrawRule(fanout=2),
                with_edge_ids=False,
                with_slots=False,
            ),
        )
        (answers,) = store.sample([alone])
    assert [len(each.counts) for each in answers] == [0, len(ask.targets[1]), 0]
    assert [len(each.finished) for each in told] == [0, 1, 0]


def test_traffic_is_added_up(graph: Graph) -> None:
    told = Told(LocalStore(graph, 0), counts=WireCounts(bytes_in=5, calls=1))
    other = Told(LocalStore(graph, 1), counts=WireCounts(bytes_in=7, bytes_out=2, calls=3, retries=1))
    store = PartitionedStore(graph.schema, local={2: LocalStore(graph, 2)}, remote={0: told, 1: other})
    with closing(store):
        assert store.wire() == WireCounts(bytes_in=12, bytes_out=2, calls=4, retries=1)


def test_closing_closes_every_store_and_twice_is_fine(graph: Graph) -> None:
    store, told = _store(graph, lambda _: _nothing)
    store.close()
    store.close()
    assert all(each.closed == 2 for each in told)


@pytest.mark.parametrize(("local", "remote"), [([0], [1]), ([0, 1], [1, 2]), ([0, 1], [3])])
def test_every_partition_needs_one_store(graph: Graph, local: list[int], remote: list[int]) -> None:
    stores = LocalStore(graph, 0)
    with pytest.raises(ValueError, match="every partition of 3 needs one store"):
        PartitionedStore(
            graph.schema, local=dict.fromkeys(local, stores), remote=dict.fromkeys(remote, stores)
        )
