"""Stop flags: what kernels do once work is to stop, and how often they look."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gigl_loader import native
from gigl_loader.native import StopFlag, Stopped, check_stop, current_stop_flag

NODES = 100_000
HUB_DEGREE = 1_000_000
EVERYONE = np.arange(NODES, dtype=np.int64)
HUB = np.zeros(1, np.int64)
DEGREES = np.where(EVERYONE == 0, HUB_DEGREE, 4)
NUM_EDGES = int(DEGREES.sum())


def hub_graph() -> native.Adjacency:
    """Return lists, the first of a million entries, with times and weights that dwarf each other."""
    rng = np.random.default_rng(0)
    indptr = np.concatenate([[0], np.cumsum(DEGREES)]).astype(np.int64)
    neighbors = rng.integers(0, NODES, NUM_EDGES)
    owners = np.repeat(EVERYONE, DEGREES)
    indices = neighbors[np.lexsort((neighbors, owners))].astype(np.int32)
    weights = 10 ** rng.integers(0, 6, NUM_EDGES)
    sums = np.cumsum(weights)
    sums -= np.repeat(np.concatenate([[0], sums])[indptr[:-1]], DEGREES)
    ids = np.arange(NUM_EDGES, dtype=np.int32)
    within = ids - np.repeat(indptr[:-1], DEGREES)
    return native.Adjacency(
        np.array([0, NODES]),
        [indptr],
        [indices],
        [ids],
        [sums],
        [DEGREES.astype(np.int64)],
        times=[within.astype(np.int64)],
        time_slots=[ids],
        time_sums=[sums],
    )


@pytest.fixture(scope="module")
def lists() -> native.Adjacency:
    return hub_graph()


def draw(targets: Any, *, disjoint: bool = False, **rule: Any) -> Callable[[native.Adjacency], Any]:
    def run(lists: native.Adjacency) -> Any:
        return native.draw_hop(
            lists,
            None,
            NODES,
            targets,
            key=1,
            address=1,
            hop=0,
            rule=native.DrawRule(**rule),
            with_edge_ids=True,
            with_slots=True,
            disjoint=disjoint,
            tree_times=np.full(1, HUB_DEGREE, np.int64) if disjoint else None,
        )

    return run


def fused(*, induced: bool = False, **rule: Any) -> Callable[[native.Adjacency], Any]:
    def run(lists: native.Adjacency) -> Any:
        sampler = native.NeighborSampler(
            adjacencies=[lists],
            target_types=[0],
            neighbor_types=[0],
            addresses=[1],
            rules=[[native.DrawRule(**rule)] * 2],
            node_ids=[None],
            num_nodes=[NODES],
            with_edge_ids=True,
            with_slots=True,
            induced=induced,
        )
        return sampler.sample([(0, EVERYONE[:1000])], key=1)

    return run


def stitched(lists: native.Adjacency) -> Any:
    builder = native.BatchBuilder(
        target_types=[0],
        neighbor_types=[0],
        node_ids=[None],
        num_nodes=[NODES],
        bounds=[np.array([0, NODES])],
        with_edge_ids=False,
        with_slots=False,
    )
    builder.begin([(0, HUB)])
    builder.split(0)
    neighbors = np.arange(HUB_DEGREE, dtype=np.int64) % NODES
    builder.append(0, [(np.array([HUB_DEGREE], np.int32), neighbors, None, None)])


def pagerank(lists: native.Adjacency) -> Any:
    rule = native.PPRRule(
        alpha=0.15,
        eps=1e-7,
        max_nodes=50,
        top_up=True,
        max_neighbors=1 << 20,
        max_rounds=1 << 20,
        weighted=False,
        states=[(0, True)],
        edges=[(0, 0, 0)],
        starts=[[0]],
        shares=[50],
    )
    sampler = native.PPRSampler(
        adjacencies=[lists], addresses=[1], node_ids=[None], num_nodes=[NODES], rule=rule
    )
    return sampler.sample([(0, EVERYONE[:2])])


def rows(lists: native.Adjacency) -> Any:
    source = np.zeros((NODES, 64), np.uint8)
    native.copy_rows(source, EVERYONE, EVERYONE, np.empty_like(source))


def ordered_rows(lists: native.Adjacency) -> Any:
    source = np.zeros((NODES, 64), np.uint8)
    native.copy_rows(
        source, EVERYONE[::-1].copy(), None, np.empty_like(source), order=native.ReadOrder.ASCENDING
    )


def words(lists: native.Adjacency) -> Any:
    out = np.empty((2, NODES), np.uint64)
    native.philox_words(1, EVERYONE, EVERYONE, out[0], out[1])


KERNELS: dict[str, Callable[[native.Adjacency], Any]] = {
    "all of a hub": draw(HUB, fanout=-1),
    "many of a hub": draw(HUB, fanout=HUB_DEGREE // 2),
    "some of a hub": draw(HUB, fanout=60_000),
    "some of each": draw(EVERYONE, fanout=2),
    "many of a hub with replacement": draw(HUB, fanout=1 << 20, replace=True),
    "labor": draw(HUB, fanout=10, labor=True),
    "all by weight": draw(HUB, fanout=-1, weighted=True),
    "by weight": draw(HUB, fanout=2000, weighted=True),
    "by weight with replacement": draw(HUB, fanout=1 << 18, weighted=True, replace=True),
    "the latest": draw(HUB, fanout=HUB_DEGREE // 2, timed=True, last=True, disjoint=True),
    "by weight in time": draw(HUB, fanout=2000, timed=True, weighted=True, disjoint=True),
    "two hops": fused(fanout=-1),
    "induced": fused(fanout=2, induced=True),
    "induced of a partition": lambda lists: native.induced_edges(
        lists, None, NODES, EVERYONE, EVERYONE, weighted=False, with_edge_ids=True, with_slots=True
    ),
    "stitched": stitched,
    "pagerank": pagerank,
    "edges looked up": lambda lists: native.find_edges(
        lists, None, NODES, np.repeat(HUB, NODES), EVERYONE, np.empty(NODES, np.uint8)
    ),
    "rows": rows,
    "rows in ascending order": ordered_rows,
    "words": words,
    "distinct numbers": lambda _: native.draw_distinct(1, 2, 3, 10**9, np.empty(100_000, np.int64)),
    "relabelled": lambda _: native.relabel(EVERYONE, EVERYONE),
    "most visited": lambda _: native.most_visited(np.zeros(100, np.int32), 1, EVERYONE, None, 10),
    "lists sorted": lambda _: native.sort_lists(np.array([NODES]), None, EVERYONE[::-1].copy()),
}


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS.keys())
def test_a_kernel_ends_early_under_a_flag_that_is_set(
    lists: native.Adjacency, kernel: Callable[[native.Adjacency], Any]
) -> None:
    flag = StopFlag()
    if kernel is not pagerank:  # It would take minutes.
        with flag:
            kernel(lists)
    flag.stop("the caller is gone")
    with flag, pytest.raises(Stopped, match="the caller is gone"):
        kernel(lists)
    assert current_stop_flag() is None
    if kernel is not pagerank:
        kernel(lists)  # Nothing looks at it any more.


def test_a_flag_stops_work_of_another_thread(lists: native.Adjacency) -> None:
    flag, begun, seen = StopFlag(), threading.Event(), []

    def work() -> None:
        try:
            with flag:
                begun.set()
                pagerank(lists)
        except Stopped as stopped:
            seen.append(str(stopped))

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(10)
    time.sleep(0.05)
    flag.stop("closed")
    flag.stop("a later reason")
    thread.join(30)
    assert seen == ["closed"]
    assert flag.reason == "closed"
    assert not flag.timed_out


def test_time_counts_from_the_first_entry(lists: native.Adjacency) -> None:
    flag = StopFlag(0.2)
    time.sleep(0.3)
    assert not flag.reason
    with flag:
        check_stop()
        with pytest.raises(Stopped, match=r"it took more than 0\.2 s"):
            pagerank(lists)
    assert flag.timed_out
    with flag, pytest.raises(Stopped):
        check_stop()


def test_flags_nest_and_belong_to_their_thread() -> None:
    outer, inner = StopFlag(), StopFlag()
    outer.stop("outer")
    with outer:
        with inner:
            check_stop()
            thread = threading.Thread(target=check_stop)
            thread.start()
            thread.join()
        with pytest.raises(Stopped, match="outer"):
            check_stop()


# --- pauses


class Paused:
    """Work of another thread under a flag that was paused before."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.flag = StopFlag()
        self.flag.pause()
        self.ended: list[Any] = []
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def parked(self) -> bool:
        """Wait until the work has parked. ``False`` where it ended without."""
        deadline = time.monotonic() + 60
        while not self.flag.parked and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.flag.parked

    def join(self) -> Any:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.ended[0]

    def _run(self) -> None:
        try:
            with self.flag:
                self._work()
            self.ended.append(None)
        except Stopped as stopped:
            self.ended.append(str(stopped))


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "pagerank"])
def test_a_paused_kernel_waits_without_the_gil_and_goes_on(lists: native.Adjacency, name: str) -> None:
    paused = Paused(lambda: KERNELS[name](lists))
    assert paused.parked()
    time.sleep(0.02)
    assert paused.flag.parked
    paused.flag.resume()
    assert paused.join() is None
    assert not paused.flag.parked


def test_paused_work_can_be_stopped(lists: native.Adjacency) -> None:
    paused = Paused(lambda: pagerank(lists))
    assert paused.parked()
    paused.flag.stop("closed")
    assert paused.join() == "closed"


def test_python_code_is_paused_where_it_looks() -> None:
    paused = Paused(check_stop)
    assert paused.parked()
    paused.flag.resume()
    assert paused.join() is None


def test_a_pause_that_ends_before_it_began_holds_nothing_up() -> None:
    flag = StopFlag()
    flag.pause()
    flag.resume()
    with flag:
        check_stop()
    assert not flag.parked
