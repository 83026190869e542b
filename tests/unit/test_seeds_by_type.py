"""Seeds of several node types in one batch: those of the written rules, by type, in every form of input."""

from __future__ import annotations

import functools
import json
from contextlib import closing
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader import (
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistNeighborLoader,
    DistSubgraphLoader,
    NewNode,
    PPRSamplerOptions,
    RandomWalkSamplerOptions,
    write_embeddings,
)
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.graph import Graph
from gigl_loader.graph.schema import type_name
from gigl_loader.loaders.seeds_by_type import attach_seeds
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.rpc.graph_store_pb2 import SampleRequest
from gigl_loader.rpc.refusals import Refusal
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.partitioned import PartitionedStore
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans import read_plan
from gigl_loader.sampling.plans.node_types import NodeTypesPlan
from gigl_loader.sampling.request import SEED, SEED_TYPE, TIME, BatchRequest
from gigl_loader.tensors import Layout
from gigl_server.admission import Limits
from gigl_server.sessions.registry import read_request
from tests.support import oracle
from tests.support.pyg_graphs import same_batch, weighted
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

OPTIONS: dict[str, Any] = {"num_workers": 0, "device": "cpu", "seed": 9}
DATA = weighted(hetero=True)
TYPES = ("item", "tag", "user")
BUYS, BOUGHT = ("user", "buys", "item"), ("item", "rev_buys", "user")
BORN = {kind: DATA[kind].born.tolist() for kind in ("item", "user")}


@functools.cache
def graph_of(partitions: int, assigner: str, edge_dir: Any) -> Graph:
    folder = MemoryFolder()
    tables = tables_from_pyg(DATA, weight_attr="w", time_attr={"item": "born", "user": "born"})
    build_graph(tables, folder, num_partitions=partitions, assigner=assigner, edge_dir=edge_dir)
    return Graph.open(folder)


@functools.cache
def dataset() -> DistDataset:
    return DistDataset.from_pyg(
        DATA, weight_attr="w", time_attr={"item": "born", "user": "born"}, num_partitions=2
    )


@functools.cache
def edges() -> dict[Any, list[oracle.Edge]]:
    return {
        kind: [(src, dst, number) for number, (src, dst) in enumerate(DATA[kind].edge_index.t().tolist())]
        for kind in DATA.edge_types
    }


@functools.cache
def times_of_edges(edge_dir: str) -> dict[Any, dict[int, int]]:
    """Times that bound edges: those of their neighbours, where these have one."""
    neighbor = 0 if edge_dir == "in" else 1
    return {
        kind: {number: BORN[kind[2 * neighbor]][edge[neighbor]] for number, edge in enumerate(ends)}
        for kind in DATA.edge_types
        if kind[2 * neighbor] in BORN
        for ends in [DATA[kind].edge_index.t().tolist()]
    }


SEEDS = st.lists(
    st.one_of(
        *(st.tuples(st.just(n), st.integers(0, DATA[kind].num_nodes - 1)) for n, kind in enumerate(TYPES))
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=40)
@given(
    st.tuples(st.sampled_from([1, 3]), st.sampled_from(["range", "hash"]), st.sampled_from(["in", "out"])),
    st.sampled_from(["shared", "disjoint", "in time", "at given times"]),
    st.booleans(),
    SEEDS,
)
def test_any_partitioning_gives_the_batch_of_the_written_rules(
    cut: Any, trees: str, weighted: bool, entries: list[tuple[int, int]]
) -> None:
    graph, edge_dir = graph_of(*cut), cut[2]
    types = TYPES[::2] if trees == "in time" else TYPES  # Tags have no time of their own.
    entries = [entry for entry in entries if TYPES[entry[0]] in types] or [(0, 3)]
    types_of = [types.index(TYPES[kind]) for kind, _ in entries]
    hops = KHop(
        num_neighbors=dict.fromkeys(DATA.edge_types, (3, 2)),
        with_edge=True,
        weight_attr="w" if weighted else None,
        disjoint=trees != "shared",
        time_attr="born" if "time" in trees else None,
        strictly_earlier="time" in trees,
    )
    plan = NodeTypesPlan(seed_types=types, hops=hops, with_times=trees == "at given times")
    batch = BatchPlan(sampler=plan, run_seed=9)
    assert read_plan(batch.to_json(), graph.schema) == batch
    places = list(range(7, 7 + len(entries)))
    given_times = [(13 * place) % 90 for place in places]
    positions = [
        int(graph.positions(types[kind], np.array([node]))[0])
        for kind, (_, node) in zip(types_of, entries, strict=True)
    ]
    inputs: dict[str, Any] = {SEED_TYPE: np.array(types_of, np.uint16), SEED: np.array(positions)}
    if plan.with_times:
        inputs[TIME] = np.array(given_times)
    request = BatchRequest(3, 1, np.array(places), inputs)
    layout, fused = frame_of(batch.open(graph), request)
    stores = {part: LocalStore(graph, part) for part in range(cut[0])}
    with closing(PartitionedStore(graph.schema, local=stores, remote={})) as store:
        assert frame_of(batch.open(graph, store), request)[1].tobytes() == fused.tobytes()
    in_order = sorted(range(len(entries)), key=lambda entry: types_of[entry])
    counts = [types_of.count(number) for number in range(len(types))]
    ids = [entries[entry][1] for entry in in_order]
    groups = [(kind, [ids.pop(0) for _ in range(count)]) for kind, count in zip(types, counts, strict=True)]
    ends = np.cumsum(counts).tolist()
    of_trees = []
    if "time" in trees:
        own = [
            given_times[entry] if plan.with_times else BORN[types[types_of[entry]]][entries[entry][1]]
            for entry in in_order
        ]
        of_trees = own
    expected = oracle.sample(
        edges(),
        TYPES,
        fanouts=hops.num_neighbors,
        groups=groups,
        trees=None
        if trees == "shared"
        else [range(end - count, end) for count, end in zip(counts, ends, strict=True)],
        key=oracle.batch_key(
            9,
            3,
            [
                *counts,
                *(places[entry] for entry in in_order),
                *(node for _, nodes in groups for node in nodes),
            ],
        ),
        edge_dir=edge_dir,
        weights=weights() if weighted else None,
        times=times_of_edges(edge_dir) if "time" in trees else None,
        tree_times=of_trees,
        strictly_earlier="time" in trees,
    )
    assert layout.view(fused, "seeds").tolist() == [node for _, node in entries]
    assert layout.view(fused, "input_id").tolist() == places
    for node_type in TYPES:
        assert layout.view(fused, f"node/{type_name(node_type)}/n_id").tolist() == expected.nodes[node_type]
        if hops.disjoint:
            assert (
                layout.view(fused, f"node/{type_name(node_type)}/tree").tolist() == expected.trees[node_type]
            )
    for edge_type in DATA.edge_types:
        prefix = f"edge/{type_name(edge_type)}"
        assert layout.view(fused, f"{prefix}/e_id").tolist() == expected.edge_ids[edge_type]
        assert layout.view(fused, f"{prefix}/rows").tolist() == expected.rows[edge_type]


def weights() -> dict[Any, dict[int, float]]:
    return {kind: dict(enumerate(DATA[kind].w.tolist())) for kind in DATA.edge_types if "w" in DATA[kind]}


def frame_of(sampler: Any, request: BatchRequest) -> tuple[Layout, Any]:
    sampled = sampler.sample(request)
    buffer = np.zeros(sampled.layout.nbytes, np.uint8)
    sampled.write(buffer)
    return Layout.parse(buffer), buffer


# --- batches


MASK = torch.arange(120) % 7 == 0


def loader_of(
    nodes: Any, num_neighbors: Any = (4, 3), loader: Any = DistNeighborLoader, **options: Any
) -> Any:
    given = {**OPTIONS, "batch_size": 32, **options}
    return loader(dataset(), None if num_neighbors is None else list(num_neighbors), nodes, **given)


def seeds_in(batches: Sequence[Any], node_type: str) -> list[tuple[int, int]]:
    """Return place and node id of each seed of a type, in the order of the batches."""
    stores = [batch[node_type] for batch in batches]
    return [pair for each in stores for pair in zip(each.input_id.tolist(), each.batch.tolist(), strict=True)]


def test_batches_mix_the_types_and_an_epoch_has_every_seed_once() -> None:
    with loader_of({"user": MASK, "item": None}, shuffle=True) as loader:
        batches, again = list(loader), list(loader)
        assert len(loader) == len(batches) == -(-(90 + 18) // 32)
        assert len(loader.dataset) == 108
    mixed = [(batch["user"].batch_size, batch["item"].batch_size) for batch in batches]
    assert all(0 < users < 32 and users + items == 32 for users, items in mixed[:-1])
    assert sorted(seeds_in(batches, "user")) == [(place, place) for place in range(0, 120, 7)]
    assert sorted(seeds_in(batches, "item")) == [(place, place) for place in range(90)]
    assert seeds_in(again, "item") != seeds_in(batches, "item"), "another order"


def test_seeds_come_first_in_their_type_and_are_found_where_they_repeat() -> None:
    nodes = {"user": [5, 3, 5, 9], "item": [3, 3]}
    with loader_of(nodes) as loader:
        [batch] = loader
    for node_type, ids in nodes.items():
        store = batch[node_type]
        assert store.batch.tolist() == ids
        assert store.input_id.tolist() == list(range(len(ids)))
        assert store.n_id[store.seed_index].tolist() == ids
        assert store.batch_size == len(set(ids)) == store.num_sampled_nodes[0]
        assert store.n_id[: store.batch_size].tolist() == list(dict.fromkeys(ids))
    assert "batch_size" not in batch["tag"]
    with loader_of(nodes, batch_size=4) as loader:
        batches = list(loader)
    lacks = batches[0]["user"] if not len(batches[0]["user"].batch) else batches[1]["item"]
    sizes = [(batch["user"].batch_size, batch["item"].batch_size) for batch in batches]
    assert sizes == [(2, 1), (2, 0)], "items come before users without shuffle"
    assert (lacks.batch_size, lacks.input_id.tolist(), lacks.seed_index.tolist()) == (0, [], [])


def test_trees_of_a_type_follow_each_other() -> None:
    nodes = {"user": [5, 3, 5], "item": [3, 3]}
    with loader_of(nodes, disjoint=True, shuffle=True) as loader:
        [batch] = loader
    assert batch["item"].batch[:2].tolist() == [0, 1]
    assert batch["user"].batch[:3].tolist() == [2, 3, 4]
    for node_type in nodes:
        store = batch[node_type]
        ids = [nodes[node_type][place] for place in store.input_id.tolist()]
        assert store.n_id[: store.batch_size].tolist() == ids
        assert store.seed_index.tolist() == list(range(len(ids)))


def test_the_values_of_a_type_are_those_of_an_input_of_that_type() -> None:
    split = ("user", "train")
    for value, node_type in (
        (MASK, "user"),
        ("train", "user"),
        (None, "item"),
        (np.array([4, 4, 0]), "item"),
        ({0: [3, 2]}, "user"),
        (range(3), "user"),
        ([], "user"),
    ):
        other = {"tag": [1, 2]}
        with loader_of((node_type, value)) as alone, loader_of({node_type: value, **other}) as both:
            assert sorted(seeds_in(list(both), node_type)) == sorted(seeds_in(list(alone), node_type))
            assert len(both.dataset) == len(alone.dataset) + 2
    with loader_of(split) as pair, loader_of({"user": "train"}) as mapped:
        assert all(map(same_batch, pair, mapped)), "one type alone is the pair of both"
        assert same_batch(pair.sample([3, 4], epoch=0), mapped.sample({"user": [3, 4]}, epoch=0))


def test_the_order_of_the_mapping_and_how_types_alternate_change_no_batch() -> None:
    options: dict[str, Any] = {"shuffle": True, "disjoint": True}
    nodes = {"user": torch.arange(30), "item": torch.arange(40, 60)}
    turned = dict(reversed(nodes.items()))
    with loader_of(nodes, **options) as loader, loader_of(turned, **options) as other:
        batches = list(loader)
        assert all(map(same_batch, batches, other))
        loader.set_epoch(0)
        for batch in batches:
            places = {kind: batch[kind].input_id for kind in nodes}
            assert same_batch(loader(places), batch)
            numbers = [*places["item"].tolist(), *(20 + place for place in places["user"].tolist())]
            assert same_batch(loader(numbers), batch)


def test_batches_by_themselves_are_the_first_of_a_loader_over_their_seeds() -> None:
    nodes = {"user": [7, 3, 3], "item": [8]}
    with loader_of(nodes) as loader, loader_of({"user": None, "item": None, "tag": None}) as whole:
        [batch] = loader
        assert same_batch(loader.sample(nodes, epoch=0), batch)
        assert whole.sample({"tag": [2]}).num_sampled_nodes["tag"][0] == 1
        with pytest.raises(ValueError, match=r"the seeds: unknown node type 'tag'; .*: item, user"):
            loader.sample({"tag": [2]})
        with pytest.raises(TypeError, match=r"of several node types: map 'item', 'user' to nodes, got \[2\]"):
            loader.sample([2])
        with pytest.raises(ValueError, match="a batch needs at least one seed of node types 'item', 'user'"):
            loader.sample({"user": []})
        with pytest.raises(ValueError, match="3 is no place in an input of 3 entries"):
            loader({"user": [3]})
        with pytest.raises(ValueError, match="places in the input: unknown node type 'tag'"):
            loader({"tag": [0]})


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_epoch_goes_on_where_it_was_left(num_workers: int) -> None:
    options = {"shuffle": True, "num_workers": num_workers}
    nodes = {"user": MASK, "item": None}
    with loader_of(nodes, **options) as loader:
        expected = list(loader)
    with loader_of(nodes, **options) as loader:
        list(islice(loader, 2))
        state = json.loads(json.dumps(loader.state_dict()))
    with loader_of(dict(reversed(nodes.items())), shuffle=True) as loader:
        loader.load_state_dict(state)
        rest = list(loader)
    assert len(rest) == len(expected) - 2
    assert all(map(same_batch, rest, expected[2:]))
    with (
        loader_of({"user": MASK, "item": range(89)}, shuffle=True) as loader,
        pytest.raises(ValueError, match="number of seeds of type 'item' is 89 here, 90 in the state"),
    ):
        loader.load_state_dict(state)


def test_ranks_share_the_seeds_of_all_types() -> None:
    def run(_: Any) -> tuple[int, list[Any], list[Any]]:
        with loader_of(
            {"user": MASK, "item": None}, shuffle=True, batch_size=7, even_batches=False
        ) as loader:
            batches = list(loader)
            assert len(loader) == len(batches)
            return len(batches), seeds_in(batches, "user"), seeds_in(batches, "item")

    found: Any = run_ranks(3, run)
    assert sorted(pair for _, users, _ in found for pair in users) == [(p, p) for p in range(0, 120, 7)]
    assert sorted(pair for _, _, items in found for pair in items) == [(p, p) for p in range(90)]
    shares = [len(users) + len(items) for _, users, items in found]
    assert max(shares) - min(shares) <= 1


# --- times


def test_each_type_has_its_times() -> None:
    nodes = {"user": MASK, "item": [3, 1, 2]}
    times = {"user": torch.arange(120), "item": np.array([50, 60, 70])}
    options = {"time_attr": "born", "shuffle": True}
    with loader_of(nodes, **options, input_time=times) as loader:
        for batch in loader:
            assert batch["user"].seed_time.tolist() == batch["user"].input_id.tolist(), "a mask of all nodes"
            assert batch["item"].seed_time.tolist() == [
                (50, 60, 70)[p] for p in batch["item"].input_id.tolist()
            ]
            trees = torch.cat([batch["item"].seed_time, batch["user"].seed_time])
            for kind in BORN:
                store = batch[kind]
                sampled = slice(store.num_sampled_nodes[0], None)
                assert (DATA[kind].born[store.n_id] <= trees[store.batch])[sampled].all()
        alone = loader.sample({"item": [3, 1]}, time={"item": [50, 60]})
        assert alone["item"].seed_time.tolist() == [50, 60]
        with pytest.raises(ValueError, match="time lacks the times of the seeds of type 'user'"):
            loader.sample({"item": [3], "user": [0]}, time={"item": [50]})
    sampler = dataset().sampler(
        [4], ["user", "item"], time_attr="born", input_time=True, seed=9, device="cpu"
    )
    with sampler:
        found = sampler.sample({"item": [3], "user": [2]}, time={"item": [50], "user": [60]})
        assert [found[kind].seed_time.tolist() for kind in ("item", "user")] == [[50], [60]]
    with loader_of(nodes, **options) as loader:
        [batch] = loader
        for kind in BORN:
            assert (
                batch[kind].seed_time.tolist()
                == DATA[kind].born[batch[kind].n_id[: batch[kind].batch_size]].tolist()
            )


def test_what_does_not_fit_is_refused_by_name() -> None:
    nodes: dict[Any, Any] = {"user": [1], "item": [2]}
    timed: dict[str, Any] = {"time_attr": "born", "nodes": nodes}
    wrong: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"nodes": {"user": [1], 0: [2]}}, TypeError, "node types to nodes, or ranks .*, not both"),
        (
            {"nodes": {"user": [1], "shop": [2]}},
            ValueError,
            "unknown node type 'shop'; known: item, tag, user",
        ),
        ({"nodes": {"user": [120], "item": [2]}}, ValueError, "120"),
        ({"seed_weights": torch.ones(2)}, ValueError, "seed_weights draws input nodes of one type"),
        (
            {
                "num_neighbors": None,
                "sampler_options": CustomSamplerOptions("tests.support.user_samplers:Halved"),
            },
            ValueError,
            "samples around nodes of one type: seeds of several node types need",
        ),
        ({**timed, "input_time": torch.ones(2)}, TypeError, "input_time must map each node type"),
        ({**timed, "input_time": {"user": [3]}}, ValueError, "lacks the times of the seeds of type 'item'"),
        ({**timed, "input_time": {**nodes, "tag": [1]}}, ValueError, "input_time: unknown node type 'tag'"),
        (
            {**timed, "input_time": {"user": [3], "item": [4, 5]}},
            ValueError,
            "input_time of 'item' needs one",
        ),
        (
            {**timed, "nodes": {"user": [1], "tag": [2]}},
            ValueError,
            "nodes of type 'tag' have no time 'born'",
        ),
        (
            {"loader": DistABLPLoader, "supervision_edge_type": BUYS},
            ValueError,
            "these seeds are of one node type, and input_nodes has 'user', 'item'",
        ),
    ]
    for options, kind, message in wrong:
        given = {"nodes": nodes, **options}
        with pytest.raises(kind, match=message):
            loader_of(given.pop("nodes"), **given)


def test_write_embeddings_names_what_to_do(tmp_path: Any) -> None:
    with (
        loader_of({"user": [1], "item": [2]}) as loader,
        pytest.raises(
            ValueError, match=r"nodes of one type, .* is nodes of several types: build a loader for each"
        ),
    ):
        write_embeddings(loader, lambda batch: batch["user"].x, tmp_path)


# --- other samplers


def test_induced_subgraphs_map_the_seeds_of_each_type() -> None:
    nodes = {"user": [5, 3, 5], "item": [3]}
    with loader_of(nodes, loader=DistSubgraphLoader) as loader:
        [batch] = loader
    for node_type, ids in nodes.items():
        assert batch[node_type].n_id[batch[node_type].mapping].tolist() == ids


def test_pagerank_and_walks_start_at_the_seeds_of_each_type() -> None:
    nodes = {"user": [5, 3, 5], "item": [3]}
    walks = RandomWalkSamplerOptions(2, 4, metapath={"user": [BOUGHT, BUYS], "item": [BUYS, BOUGHT]})
    with loader_of(nodes, None, sampler_options=walks) as loader:
        [batch] = loader
        for node_type, ids in nodes.items():
            starts = batch[node_type].n_id[batch.walks[node_type][:, 0]]
            assert starts.tolist() == [each for each in ids for _ in range(4)], "each entry has its own"
    with loader_of(nodes, None, sampler_options=PPRSamplerOptions(max_ppr_nodes=9)) as loader:
        [batch] = loader
    with loader_of(("user", [5, 3]), None, sampler_options=PPRSamplerOptions(max_ppr_nodes=9)) as loader:
        [alone] = loader
    found, wanted = (each["user", "ppr", "item"] for each in (batch, alone))
    assert (
        batch["item"].n_id[found.edge_index[1]].tolist() == alone["item"].n_id[wanted.edge_index[1]].tolist()
    )
    assert torch.equal(found.edge_attr, wanted.edge_attr)
    assert ("item", "ppr", "item") in batch.edge_types


def test_a_sampler_takes_seeds_by_type_also_new_ones() -> None:
    nodes = {"user": [7, 3], "item": [8]}
    new = [
        NewNode("user", {"x": torch.zeros(4), "born": 3}, {BOUGHT: [1, 2]}),
        NewNode("item", {"x": torch.zeros(5), "y": 1, "born": 3}, {BUYS: [4, -1]}),
    ]
    columns: dict[str, Any] = {"edge_columns": {BUYS: []}}
    with (
        dataset().sampler([4, 3], ["user", "item"], seed=9, device="cpu", **columns) as sampler,
        loader_of(nodes, **columns) as loader,
    ):
        [batch] = loader
        assert same_batch(sampler.sample(nodes), batch)
        assert "['item', 'user']" in repr(sampler)
        added = sampler.sample(new=new)
        assert (added["user"].batch.tolist(), added["item"].batch.tolist()) == ([-1], [-1])
        assert -1 in added["user"].n_id[added[BUYS].edge_index[0]].tolist()


# --- bytes from elsewhere


def message_of(types: list[int], seeds: list[int]) -> SampleRequest:
    inputs = np.array(types, "<u2").tobytes() + np.array(seeds, "<i8").tobytes()
    return SampleRequest(epoch=0, batch=0, index=np.arange(len(seeds)).astype("<i8").tobytes(), inputs=inputs)


def test_a_server_checks_the_positions_of_each_type() -> None:
    graph = graph_of(1, "range", "in")
    hops = KHop(num_neighbors=dict.fromkeys(DATA.edge_types, (1,)))
    columns = NodeTypesPlan(seed_types=("item", "user"), hops=hops).inputs
    read = functools.partial(read_request, inputs=columns, schema=graph.schema, limits=Limits())
    found = read(message_of([1, 0], [119, 89])).inputs
    assert (found[SEED_TYPE].tolist(), found[SEED].tolist()) == ([1, 0], [119, 89])
    for types, seeds, rule in (
        ([0, 1], [90, 1], "seeds 90 to 90 lie outside of 90 nodes"),
        ([1], [120], "lie outside of 120 nodes"),
        ([1], [-1], "seeds -1 to -1 lie outside"),
        ([2], [0], "seed_type 2 of 2 node types"),
    ):
        with pytest.raises(Refusal, match=rule):
            read(message_of(types, seeds))


def test_a_plan_from_elsewhere_is_checked() -> None:
    graph = graph_of(1, "range", "in")
    hops = KHop(num_neighbors=dict.fromkeys(DATA.edge_types, (1,)))
    plan = BatchPlan(sampler=NodeTypesPlan(seed_types=("item", "user"), hops=hops), run_seed=1)
    document = json.loads(plan.to_json())
    assert (document["kind"], document["seed_types"]) == ("node_types", ["item", "user"])
    for types, rule in (
        (["user", "item"], "in ascending order"),
        (["user", "user"], "seed types are different"),
        (["user"], "at least two"),
        (["shop", "user"], "no node type 'shop'"),
        ("user", "seed_types is a list of node types"),
        ([["user"], "item"], "no node type"),
    ):
        with pytest.raises(ValueError, match=rule):
            read_plan(json.dumps({**document, "seed_types": types}), graph.schema)
    with pytest.raises(ValueError, match="nothing is sampled by 'dice'"):
        read_plan(json.dumps({**document, "around": "dice"}), graph.schema)


def test_a_frame_whose_seeds_fit_no_type_is_refused() -> None:
    with loader_of({"user": [5, 3], "item": [3]}) as loader:
        batch, plan = loader.sample({"user": [5, 3], "item": [3]}), loader.plan.sampler

    def attached(types: list[int]) -> Any:
        arrays = {"seeds": torch.tensor([3, 5, 3]), "input_id": torch.tensor([0, 0, 1])}
        frame = SimpleNamespace(array=lambda _: np.array(types))
        return attach_seeds(batch.clone(), SimpleNamespace(frame=frame, tensor=arrays.get), plan)

    assert attached([0, 1, 1])["user"].batch.tolist() == [5, 3]
    for types, rule in (([0, 1, 2], "leaves the 2 types"), ([1, 1, 1], "1 distinct seeds of item among 0")):
        with pytest.raises(FormatError, match=rule):
            attached(types)
