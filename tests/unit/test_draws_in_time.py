"""Draws in time: those of the written rules, wherever the graph lies, and nothing later than its tree."""

from __future__ import annotations

import functools
import logging
from contextlib import closing
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data, HeteroData

from gigl_loader import (
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    LaborSamplerOptions,
    NegativeSampling,
    RandomWalkSamplerOptions,
)
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import type_name
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans.neighbor import NeighborPlan
from gigl_loader.sampling.request import SEED, TIME, TIME_START, BatchRequest
from gigl_loader.tensors import Layout
from tests.support import oracle

if TYPE_CHECKING:
    import numpy.typing as npt

    from gigl_loader.sampling.plan import PlanSampler

NODES = 40
EDGE_TYPES = [("a", "likes", "a"), ("a", "sees", "b"), ("b", "near", "a")]
WEIGHTED = EDGE_TYPES[:2]
OPTIONS: dict[str, Any] = {"num_workers": 0, "device": "cpu", "seed": 9}

Direction = Literal["in", "out"]


@dataclass(frozen=True)
class Times:
    """A graph with times, as the rules see it."""

    edges: dict[Any, list[oracle.Edge]]
    weights: dict[Any, dict[int, float]]
    of_edges: dict[Any, dict[int, int]]
    of_nodes: dict[str, list[int]]

    def bounding(self, by: str, edge_dir: Direction) -> dict[Any, dict[int, int]]:
        """The time that bounds each edge: by ``"t"``, its own; by ``"born"``, its neighbour's."""
        if by == "t":
            return {kind: self.of_edges[kind] for kind in EDGE_TYPES[:2]}
        found: dict[Any, dict[int, int]] = {}
        for kind, rows in self.edges.items():
            neighbor = 0 if edge_dir == "in" else 1
            if kind[0 if edge_dir == "in" else 2] == "a":  # Only nodes of this type have times.
                found[kind] = {edge[2]: self.of_nodes["a"][edge[neighbor]] for edge in rows}
        return found


@functools.cache
def _times() -> Times:
    """Hubs, equal times, times at both ends of int64, lists without weight."""
    random = np.random.default_rng(0)
    edges: dict[Any, list[oracle.Edge]] = {}
    weights, times = {}, {}
    for edge_type in EDGE_TYPES:
        count = 600
        src, dst = ((random.random(count) ** 3 * NODES).astype(int) for _ in range(2))
        ids = random.permutation(count).tolist()
        edges[edge_type] = list(zip(src.tolist(), dst.tolist(), ids, strict=True))
        given_weights = random.choice([0.0, 0.0, 1.0, 2.5, 1e6], count)
        given_weights[dst < 3] = 0
        weights[edge_type] = dict(zip(ids, given_weights.tolist(), strict=True))
        when = random.integers(0, 12, count)
        when[:3] = -(2**63), 2**63 - 1, 2**62
        times[edge_type] = dict(zip(ids, when.tolist(), strict=True))
    return Times(edges, weights, times, {"a": random.integers(0, 12, NODES).tolist()})


@functools.cache
def _graph(partitions: int, assigner: str, edge_dir: Direction) -> Graph:
    graph = _times()
    tables = {}
    for edge_type, rows in graph.edges.items():
        src, dst, ids = (np.array(column) for column in zip(*rows, strict=True))
        columns = {
            "w": np.array([graph.weights[edge_type][number] for number in ids.tolist()]),
            "t": np.array([graph.of_edges[edge_type][number] for number in ids.tolist()]),
        }
        tables[edge_type] = ArrayTable("edges", {"src": src, "dst": dst, "id": ids, **columns})
    nodes = {
        "a": NodeTable(ArrayTable("a", {"born": np.array(graph.of_nodes["a"])})),
        "b": NodeTable(count=NODES),
    }
    folder = MemoryFolder()
    build_graph(
        GraphTables(
            edges=tables,
            nodes=nodes,
            weights=dict.fromkeys(WEIGHTED, ("w",)),
            times={**dict.fromkeys(EDGE_TYPES[:2], ("t",)), "a": ("born",)},
        ),
        folder,
        num_partitions=partitions,
        assigner=assigner,
        edge_dir=edge_dir,
    )
    return Graph.open(folder)


def _frame(sampler: PlanSampler, request: BatchRequest) -> tuple[Layout, npt.NDArray[np.uint8]]:
    sampled = sampler.sample(request)
    buffer = np.zeros(sampled.layout.nbytes, np.uint8)
    sampled.write(buffer)
    return Layout.parse(buffer), buffer


@settings(max_examples=150)
@given(
    st.tuples(st.sampled_from([1, 3]), st.sampled_from(["range", "hash"]), st.sampled_from(["in", "out"])),
    st.tuples(
        st.sampled_from(["t", "born"]),
        st.sampled_from(["uniform", "replace", "last", "monotone", "monotone, replace"]),
        st.booleans(),
        st.sampled_from([None, 0, 4, 2**63 - 1, (3, 8), (-(2**63), 2**62), "starts"]),
        st.booleans(),
    ),
    st.lists(st.lists(st.sampled_from([-1, 0, 1, 2, 5, 40]), min_size=2, max_size=2), min_size=3, max_size=3),
    st.lists(
        st.tuples(st.integers(0, NODES - 1), st.sampled_from([-(2**63), -1, 0, 3, 7, 11, 2**63 - 1])),
        min_size=1,
        max_size=6,
    ),
)
def test_any_partitioning_gives_the_draws_of_the_written_rules(
    cut: tuple[int, str, Direction],
    draws: tuple[str, str, bool, Any, bool],
    fanouts: list[list[int]],
    entries: list[tuple[int, int]],
) -> None:
    partitions, _, edge_dir = cut
    by, way, weighted, window, strictly = draws
    if strictly and window == 0:
        window = 1
    graph, times = _graph(*cut), _times()
    hops = dict(zip(EDGE_TYPES, map(tuple, fanouts), strict=True))
    plan = NeighborPlan(
        seed_type="a",
        num_neighbors=hops,
        replace="replace" in way,
        with_edge=True,
        weight_attr="w" if weighted else None,
        disjoint=True,
        time_attr=by,
        last=way == "last",
        monotone="monotone" in way,
        strictly_earlier=strictly,
        time_window=None if window == "starts" else window,
        with_starts=window == "starts",
        with_times=True,
    )
    ids, when = [node for node, _ in entries], [time for _, time in entries]
    starts = [max(time - 1 - place, -(2**63)) for place, time in enumerate(when)]
    batch = BatchPlan(sampler=plan, run_seed=9)
    inputs = {SEED: graph.positions("a", np.array(ids)), TIME: np.array(when)}
    if window == "starts":
        inputs[TIME_START] = np.array(starts)
    places = list(range(7, 7 + len(ids)))
    request = BatchRequest(3, 1, np.array(places), inputs)
    layout, fused = _frame(batch.open(graph), request)
    stores = {part: LocalStore(graph, part) for part in range(partitions)}
    with closing(PartitionedStore(graph.schema, local=stores, remote={})) as store:
        assert _frame(batch.open(graph, store), request)[1].tobytes() == fused.tobytes()
    bounding = times.bounding(by, edge_dir)
    ends = when
    if isinstance(window, tuple):
        starts, ends = [window[0]] * len(when), [min(time, window[1]) for time in when]
    elif window != "starts":
        starts = [max(time - (2**64 if window is None else window), -(2**63)) for time in when]
    expected = oracle.sample(
        times.edges,
        ["a", "b"],
        fanouts=hops,
        seed_type="a",
        seeds=ids,
        trees=[range(len(ids))],
        key=oracle.request_key(9, 3, places, ids),
        edge_dir=edge_dir,
        replace="replace" in way,
        weights={kind: times.weights[kind] for kind in WEIGHTED} if weighted else None,
        times=bounding,
        tree_times=ends,
        tree_starts=starts,
        last=way == "last",
        monotone="monotone" in way,
        strictly_earlier=strictly,
    )
    assert layout.view(fused, "seed_time").tolist() == when
    for edge_type in EDGE_TYPES:
        prefix = f"edge/{type_name(edge_type)}"
        found = layout.view(fused, f"{prefix}/e_id").tolist()
        assert found == expected.edge_ids[edge_type]
        assert layout.view(fused, f"{prefix}/rows").tolist() == expected.rows[edge_type]
        target_type = graph.schema.target_type(edge_type)
        for number, target in zip(found, expected.targets[edge_type], strict=True):
            tree = expected.trees[target_type][target]
            if edge_type in bounding:
                time = bounding[edge_type][number]
                assert starts[tree] <= time <= ends[tree] - strictly


# --- loaders


def _bipartite() -> tuple[HeteroData, dict[str, torch.Tensor]]:
    random = torch.Generator().manual_seed(2)
    data = HeteroData()
    born = {"user": torch.randint(0, 50, (60,), generator=random)}
    born["item"] = torch.randint(5, 50, (40,), generator=random)
    for node_type, times in born.items():
        data[node_type].born = times
    for source, relation, target in (("user", "buys", "item"), ("item", "rev_buys", "user")):
        ends = [torch.randint(0, len(born[each]), (500,), generator=random) for each in (source, target)]
        data[source, relation, target].edge_index = torch.stack(ends)
    return data, born


BUYS, REVERSE = ("user", "buys", "item"), ("item", "rev_buys", "user")
EDGE = ("node", "to", "node")


def _check_trees(batch: Any, born: dict[str, torch.Tensor], times: torch.Tensor) -> None:
    """Nothing but seeds is later than its tree."""
    for node_type, of_type in born.items():
        store = batch[node_type]
        found, sampled = of_type[store.n_id], slice(store.num_sampled_nodes[0], None)
        assert (found[sampled] <= times[store.batch][sampled]).all()


@pytest.mark.parametrize("given_times", [False, True])
def test_seeds_have_their_own_time_unless_one_is_given(given_times: bool) -> None:
    data, born = _bipartite()
    dataset = DistDataset.from_pyg(data, time_attr="born", num_partitions=2)
    times = torch.arange(60) if given_times else born["user"]
    with DistNeighborLoader(
        dataset,
        [4, 3],
        ("user", None),
        batch_size=20,
        shuffle=True,
        time_attr="born",
        input_time=times if given_times else None,
        **OPTIONS,
    ) as loader:
        for batch in loader:
            assert batch["user"].seed_time.dtype == torch.int64
            assert batch["user"].seed_time.tolist() == times[batch["user"].input_id].tolist()
            assert len(batch["user"].batch) == batch["user"].num_nodes, "trees are disjoint"
            _check_trees(batch, born, batch["user"].seed_time)
        alone = {"time": times[:20]} if given_times else {}
        again = loader.sample(torch.arange(20), epoch=0, **alone)
        assert again["user"].seed_time.tolist() == times[:20].tolist()


def test_a_mask_may_have_a_time_for_each_of_its_places() -> None:
    data, _ = _bipartite()
    dataset = DistDataset.from_pyg(data, time_attr="born")
    mask = torch.arange(60) % 3 == 0
    found = []
    for times in (torch.arange(60), torch.arange(60)[mask]):
        options = {"time_attr": "born", "input_time": times, **OPTIONS}
        with DistNeighborLoader(dataset, [2], ("user", mask), batch_size=7, **options) as loader:
            found.append([batch["user"].seed_time.tolist() for batch in loader])
    assert found[0] == found[1]


FORMS: list[Any] = [
    lambda each: each.int(),
    lambda each: each.to(torch.uint8),
    lambda each: each.view(-1, 1),
    lambda each: each.to(torch.uint64).view(-1, 1),
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["born", "t"])
def test_times_and_weights_of_other_forms_draw_the_same(form: Any, name: str) -> None:
    found = []
    for convert in (lambda each: each, form):
        data, _ = _bipartite()
        for store in data.node_stores:
            store.born = convert(store.born)
        data[BUYS].t = convert(torch.arange(500) % 50)
        data[BUYS].w = convert(torch.arange(500) % 5)
        dataset = DistDataset.from_pyg(
            data, time_attr="born" if name == "born" else {BUYS: "t"}, weight_attr="w", num_partitions=2
        )
        given = {"time_attr": name, "input_time": convert(torch.arange(60) % 40), "weight_attr": "w"}
        with DistNeighborLoader(dataset, [4, 3], ("user", None), batch_size=60, **given, **OPTIONS) as loader:
            [batch] = loader
        assert batch["user"].born.dtype == data["user"].born.dtype
        found.append([batch["user"].n_id, batch["item"].n_id, batch[BUYS].e_id, batch["user"].seed_time])
    assert all(map(torch.equal, *found))


def test_a_time_beyond_int64_is_refused() -> None:
    data, _ = _bipartite()
    data["user"].born = torch.full((60,), 2**63, dtype=torch.uint64)
    with pytest.raises(FormatError, match=r"users?.*, born: the time 9223372036854775808 does not fit"):
        DistDataset.from_pyg(data, time_attr="born")


# Forking a process with threads (those of torch) is what somebody who asks for fork gets.
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.parametrize("num_workers", [0, 1])
def test_seeds_that_are_drawn_by_weight_keep_their_times(num_workers: int) -> None:
    data, born = _bipartite()
    dataset = DistDataset.from_pyg(data, time_attr="born")
    times = torch.arange(60) * 7 % 50
    options = {**OPTIONS, "num_workers": num_workers, "multiprocessing_context": "fork"}
    options["seed_weights"] = torch.arange(60).float()
    with DistNeighborLoader(
        dataset, [3], ("user", None), batch_size=20, time_attr="born", input_time=times, **options
    ) as loader:
        for batch in loader:
            users = batch["user"]
            assert users.seed_time.tolist() == times[users.n_id[users.seed_index]].tolist()
            _check_trees(batch, born, users.seed_time)


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(0, 59), st.integers(0, 39)), min_size=1, max_size=12),
    st.data(),
)
def test_negatives_are_those_of_the_written_rules(links: list[tuple[int, int]], data: st.DataObject) -> None:
    graph, born = _bipartite()
    mode = data.draw(st.sampled_from(["binary", "triplet"]))
    amount = data.draw(st.sampled_from([1, 2]))
    strict = data.draw(st.booleans())
    times = data.draw(st.lists(st.integers(-1, 51), min_size=len(links), max_size=len(links)))
    strictly = data.draw(st.booleans())
    weight = st.none() | st.just([float(number % 4) for number in range(40)])
    dst_weight = data.draw(weight)
    dataset = DistDataset.from_pyg(
        graph,
        time_attr="born",
        num_partitions=data.draw(st.integers(1, 3)),
        assigner=data.draw(st.sampled_from(["range", "hash"])),
    )
    given_weight = None if dst_weight is None else torch.tensor(dst_weight)
    with DistLinkNeighborLoader(
        dataset,
        [3, 2],
        (BUYS, torch.tensor(links).t()),
        edge_label_time=torch.tensor(times),
        time_attr="born",
        temporal_comparison="<" if strictly else "<=",
        neg_sampling=NegativeSampling(mode, amount, strict=strict, dst_weight=given_weight),
        batch_size=len(links),
        **OPTIONS,
    ) as loader:
        [batch] = loader
        stats = loader.stats()
    key = oracle.request_key(9, 0, range(len(links)), *zip(*links, strict=True))
    index = graph[BUYS].edge_index
    expected, not_strict = oracle.negatives(
        key,
        links,
        mode=mode,
        amount=amount,
        src_ids=range(60),
        dst_ids=range(40),
        strict_against=set(map(tuple, index.t().tolist())) if strict else None,
        dst_weight=dst_weight,
        src_times=born["user"].tolist(),
        dst_times=born["item"].tolist(),
        link_times=times,
        strictly_earlier=strictly,
    )
    if mode == "binary":
        local = batch[BUYS].edge_label_index[:, len(links) :]
        found = list(
            zip(batch["user"].n_id[local[0]].tolist(), batch["item"].n_id[local[1]].tolist(), strict=True)
        )
        assert found == expected
        owners = [*times, *(times[number % len(links)] for number in range(len(expected)))]
        assert batch[BUYS].edge_label_time.tolist() == owners
    else:
        local = batch["item"].dst_neg_index.reshape(len(links), -1).t().reshape(-1)
        assert batch["item"].n_id[local].tolist() == [dst for _, dst in expected]
    timed = [batch[BUYS]] if mode == "binary" else [batch["user"], batch["item"]]
    assert [store.seed_time.tolist() for store in timed] == [times] * len(timed)
    assert ("edge_label_time" in batch[BUYS], "seed_time" in batch[BUYS]) == (mode == "binary",) * 2
    assert stats["negatives_not_strict"] == not_strict
    late = 0
    for number, (src, dst) in enumerate(expected):
        bound = times[number % len(links)] - strictly
        late += int(born["item"][dst] > bound or (mode == "binary" and int(born["user"][src]) > bound))
    assert stats["negatives_too_late"] == late
    _check_trees(batch, born, torch.tensor(times) - int(strictly))


def test_labels_share_the_tree_and_the_time_of_their_anchor() -> None:
    data, born = _bipartite()
    dataset = DistDataset.from_pyg(data, time_attr="born")
    with DistABLPLoader(
        dataset,
        [4, 3],
        supervision_edge_type=BUYS,
        batch_size=15,
        time_attr="born",
        temporal_strategy="last",
        **OPTIONS,
    ) as loader:
        for batch in loader:
            times = born["user"][batch["user"].n_id[: batch["user"].batch_size]]
            assert batch["user"].seed_time.tolist() == times.tolist()
            _check_trees(batch, born, times)
            anchors, labels = batch.y_positive
            assert batch["item"].batch[labels].tolist() == batch["user"].batch[anchors].tolist()


def test_a_monotone_path_gets_no_later() -> None:
    # 0 <- 1 (at 5) <- 2 (at 7, too late; at 3) <- 3 (at 4, too late; at 3), and 0 <- 2 at 9 for a later tree.
    src, dst, when = [1, 2, 2, 3, 3, 2], [0, 1, 1, 2, 2, 0], [5, 7, 3, 4, 3, 9]
    data = Data(edge_index=torch.tensor([src, dst]), t=torch.tensor(when), num_nodes=4)
    dataset = DistDataset.from_pyg(data, time_attr="t", num_partitions=2)
    options = {**OPTIONS, "time_attr": "t", "temporal_strategy": "monotone", "with_edge": True}
    found = {}
    for time in (8, 9):
        with DistNeighborLoader(
            dataset, [-1, -1, -1], torch.tensor([0]), input_time=torch.tensor([time]), **options
        ) as loader:
            found[time] = next(iter(loader)).e_id.tolist()
    assert found == {8: [0, 2, 4], 9: [0, 5, 2, 4, 3]}


def test_a_span_of_time_needs_no_time_of_seeds() -> None:
    dataset = _edge_timed()
    options = {**OPTIONS, "time_attr": "t", "with_edge": True, "batch_size": 40}
    with DistNeighborLoader(
        dataset, {BUYS: [-1], REVERSE: [0]}, ("item", None), time_window=(100, 199), **options
    ) as loader:
        [batch] = loader
    assert sorted(batch[BUYS].e_id.tolist()) == list(range(100, 200))
    assert batch["item"].seed_time.tolist() == [199] * 40


def test_seeds_drawn_by_weight_and_single_batches_keep_their_windows() -> None:
    data, born = _bipartite()
    dataset = DistDataset.from_pyg(data, time_attr="born")
    starts = torch.arange(60) % 20
    options = {**OPTIONS, "time_attr": "born", "input_time_start": starts, "batch_size": 20}
    with DistNeighborLoader(
        dataset, [9, 9], ("user", None), seed_weights=torch.arange(60).float(), **options
    ) as loader:
        batch = next(iter(loader))
        other = loader.sample(torch.arange(20), time_start=starts[:20])
        with pytest.raises(ValueError, match=r"time_start, that of each seed, is needed"):
            loader.sample(torch.arange(20))
    for each in (batch, other):
        first = starts[each["user"].input_id]
        for node_type, store in (("user", each["user"]), ("item", each["item"])):
            sampled = slice(store.num_sampled_nodes[0], None)
            assert (born[node_type][store.n_id][sampled] >= first[store.batch][sampled]).all()
            assert len(store.n_id[sampled])


@pytest.mark.parametrize("num_workers", [0, 1])
def test_times_of_another_magnitude_warn_once_and_are_counted(
    num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**OPTIONS, "num_workers": num_workers, "batch_size": 25}
    with (
        caplog.at_level(logging.WARNING),
        DistNeighborLoader(
            _edge_timed(), [3, 2], ("item", None), time_attr="t", input_time=torch.arange(-40, 0), **options
        ) as loader,
    ):
        assert loader.stats()["seeds_without_past"] == 0
        assert [batch.num_edges for batch in loader] == [0, 0]
        assert loader.stats()["seeds_without_past"] == 40
        list(loader)
    assert loader.stats()["seeds_without_past"] == 80
    [warning] = [each.getMessage() for each in caplog.records if "early enough" in each.getMessage()]
    assert "the unit of 't' (numbers without a unit)" in warning


def test_seeds_of_a_batch_with_some_past_are_not_counted() -> None:
    data, _ = _bipartite()
    dataset = DistDataset.from_pyg(data, time_attr="born")
    for loader in (
        DistNeighborLoader(dataset, [3], ("user", None), batch_size=60, time_attr="born", **OPTIONS),
        DistNeighborLoader(dataset, [3], ("user", None), batch_size=60, **OPTIONS),
        DistLinkNeighborLoader(dataset, [3], BUYS, batch_size=500, **OPTIONS),
    ):
        with loader:
            list(loader)
            assert loader.stats()["seeds_without_past"] == 0


DAYS = np.arange("2020-01-01", "2020-01-21", dtype="datetime64[D]")


@pytest.mark.parametrize("of", ["nodes", "edges"])
def test_dates_are_times_of_columns_that_have_a_unit(of: str) -> None:
    data = Data(edge_index=torch.stack([torch.arange(20), torch.zeros(20, dtype=torch.int64)]), num_nodes=20)
    data["when"] = DAYS
    if of == "edges":  # PyG takes an array of one entry for each node for nodes.
        data = HeteroData()
        data["node"].num_nodes = 21
        data["node", "to", "node"].edge_index = torch.stack([torch.arange(20), torch.full((20,), 20)])
        data["node", "to", "node"].when = DAYS
    dataset = DistDataset.from_pyg(data, time_attr="when")
    columns = dataset.schema.nodes["node"].columns if of == "nodes" else dataset.schema.edges[EDGE].columns
    assert columns["when"].unit == "ns"
    target = torch.tensor([0 if of == "nodes" else 20])
    tenth = datetime(2020, 1, 10, 1, tzinfo=timezone(timedelta(hours=1)))
    for time in (np.array(["2020-01-10"], "M8[s]"), [tenth], [date(2020, 1, 10)], [1578614400 * 10**9]):
        for window, count in ((timedelta(days=3), 4), (np.timedelta64(48, "h"), 3), (None, 10)):
            with DistNeighborLoader(
                dataset, [-1], target, time_attr="when", input_time=time, time_window=window, **OPTIONS
            ) as loader:
                assert next(iter(loader)).num_edges == count
    span = (np.datetime64("2020-01-05"), datetime(2020, 1, 7))
    with DistNeighborLoader(
        dataset, [-1], target, time_attr="when", input_time=time, time_window=span, **OPTIONS
    ) as loader:
        assert next(iter(loader)).num_edges == 3
        late = loader.sample(target, time=np.array(["2030"], "M8[Y]"))
        assert late.seed_time.numpy().view("M8[ns]") == np.datetime64("2030")
    for wrong in ("NaT", "3000-01-01"):
        with pytest.raises(
            ValueError, match=rf"input_time: {wrong}.* \(entry 0\) is missing, or lies outside"
        ):
            DistNeighborLoader(
                dataset, [1], target, time_attr="when", input_time=np.array([wrong], "M8[s]"), **OPTIONS
            )
    months: dict[str, Any] = {"time_window": np.timedelta64(1, "M"), **OPTIONS}
    with pytest.raises(ValueError, match="time_window is 1 months, and their length differs"):
        DistNeighborLoader(dataset, [1], target, time_attr="when", input_time=time, **months)


# --- mistakes


def _edge_timed() -> DistDataset:
    data, _ = _bipartite()
    for kind in data.edge_types:
        data[kind].t = torch.arange(500)
    return DistDataset.from_pyg(data, time_attr={BUYS: "t", "user": "born"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_attr": "x"}, r"time_attr 'x' is not declared as a time; known: born, t\. .*index GRAPH"),
        ({"time_attr": "t"}, r"time of edges .*'buys'.*: pass input_time"),
        ({"time_attr": "born", "nodes": "item"}, "nodes of type 'item' have no time 'born': pass input_time"),
        ({"input_time": torch.arange(60)}, "input_time has no meaning without time_attr"),
        ({"input_time_start": torch.arange(60)}, "input_time_start has no meaning without time_attr"),
        ({"time_window": 3}, "time_window has no meaning without time_attr"),
        ({"time_attr": "born", "time_window": -1}, "time_window must be at least 0, got -1"),
        ({"time_attr": "born", "time_window": (3, 1)}, "ends before it begins"),
        ({"time_attr": "born", "time_window": (1, 2, 3)}, "a pair of points in time"),
        (
            {"time_attr": "born", "time_window": timedelta(1)},
            "a duration, and the column of times has no unit",
        ),
        ({"time_attr": "born", "input_time": np.array(["2020"] * 60, "M8[s]")}, "is dates, .* has no unit"),
        ({"time_attr": "born", "time_window": 3, "input_time_start": torch.arange(60)}, "no meaning with"),
        (
            {"time_attr": "born", "input_time": torch.arange(60), "input_time_start": torch.full((60,), 7)},
            "input_time_start is later than input_time for entry 0 of the input: 7, 0",
        ),
        ({"temporal_strategy": "last"}, "temporal_strategy 'last' needs time_attr"),
        ({"temporal_strategy": "monotone"}, "temporal_strategy 'monotone' needs time_attr"),
        ({"time_attr": "born", "temporal_strategy": "newest"}, "'last' or 'monotone', got 'newest'"),
        (
            {"time_attr": "born", "temporal_comparison": ">"},
            "temporal_comparison must be '<=' or '<', got '>'",
        ),
        ({"time_attr": "born", "temporal_comparison": None}, "must be '<=' or '<', got None"),
        ({"temporal_comparison": "<"}, "temporal_comparison '<' needs time_attr"),
        ({"time_attr": "born", "temporal_comparison": "<", "time_window": 0}, "time_window 0 is empty with"),
        ({"time_attr": "born", "temporal_comparison": "<", "time_window": (3, 3)}, r"\(3, 3\) is empty with"),
        ({"time_attr": "born", "temporal_strategy": "last", "replace": True}, "no replace"),
        ({"time_attr": "born", "input_time": torch.arange(9)}, "each of the 60 entries of the input, got 9"),
        ({"time_attr": "born", "input_time": torch.zeros(60, 2, dtype=torch.int64)}, "must be 1-D"),
        ({"time_attr": "born", "sampler_options": LaborSamplerOptions()}, "LABOR .* leave time_attr out"),
        (
            {
                "time_attr": "born",
                "num_neighbors": None,
                "sampler_options": RandomWalkSamplerOptions(2, metapath=[("item", "rev_buys", "user"), BUYS]),
            },
            "time_attr has no meaning for random walks",
        ),
        (
            {
                "time_attr": "born",
                "num_neighbors": None,
                "sampler_options": CustomSamplerOptions("tests.support.user_samplers:Halved"),
            },
            "time_attr has no meaning for a sampler of one's own",
        ),
    ],
)
def test_a_mistake_is_named(options: dict[str, Any], message: str) -> None:
    given = {"num_neighbors": [2], "nodes": "user", **options, **OPTIONS}
    nodes = given.pop("nodes")
    with pytest.raises(ValueError, match=message):
        DistNeighborLoader(_edge_timed(), input_nodes=(nodes, None), **given)


def test_times_are_integers() -> None:
    with pytest.raises(TypeError, match=r"input_time must hold integers, got torch\.float32"):
        DistNeighborLoader(
            _edge_timed(), [2], ("user", None), time_attr="born", input_time=torch.rand(60), **OPTIONS
        )


def test_links_need_times_and_anchors_have_no_random_negatives() -> None:
    dataset = _edge_timed()
    with pytest.raises(ValueError, match="'edge_label_time' is not set"):
        DistLinkNeighborLoader(dataset, [2], BUYS, time_attr="t", **OPTIONS)
    with pytest.raises(ValueError, match="num_random_negatives has no meaning with time_attr"):
        DistABLPLoader(
            dataset, [2], supervision_edge_type=BUYS, time_attr="born", num_random_negatives=3, **OPTIONS
        )


def test_what_cannot_be_a_time_is_refused_when_the_graph_is_built() -> None:
    data, _ = _bipartite()
    data["user"].score = torch.rand(60)
    with pytest.raises(ValueError, match=r"column 'score' holds F32 \[\]: a time is one integer"):
        DistDataset.from_pyg(data, time_attr="score")
    with pytest.raises(ValueError, match="no node or edge type has a column 'when'"):
        DistDataset.from_pyg(data, time_attr="when")
    data[BUYS].born = torch.arange(500)
    with pytest.raises(ValueError, match=r"'born' is declared as a time of edges .* and of their neighbours"):
        DistDataset.from_pyg(data, time_attr={BUYS: "born", "user": "born"})
