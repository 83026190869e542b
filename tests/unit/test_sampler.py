"""A sampler that stays open: calls of threads and coroutines, deadlines, cancellation, close."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import (
    CustomSamplerOptions,
    DistABLPLoader,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    DistSubgraphLoader,
    LaborSamplerOptions,
    PPRSamplerOptions,
    RandomWalkSamplerOptions,
    Sampler,
    SamplingError,
    StorageUnavailable,
)
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_server.local_cluster import LocalCluster
from tests.support.clusters import addresses_of, servers_of
from tests.support.leftovers import wait_until
from tests.support.pyg_graphs import graph_of, heterogeneous, homogeneous, same_batch
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gigl_loader.group import RankGroup

WAIT_S = 30.0
FANOUTS = [3, 2]
LOCAL = DistDataset(graph_of(homogeneous()))
TYPED = DistDataset(graph_of(heterogeneous()))


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=2)
    return path


@pytest.fixture(scope="module", params=["memory", "disk", "servers"])
def dataset(request: pytest.FixtureRequest, graph: Path) -> Iterator[Any]:
    if request.param == "memory":
        yield LOCAL
    elif request.param == "disk":
        yield DistDataset.open(graph)
    else:
        with ExitStack() as stack:
            servers = stack.enter_context(servers_of(graph, 2))
            yield stack.enter_context(RemoteDistDataset.connect(addresses_of(servers)))


def seeds_of(call: int) -> torch.Tensor:
    return torch.randperm(300, generator=torch.Generator().manual_seed(call))[:16]


# The batch is that of a loader


def test_a_batch_is_that_of_a_loader(dataset: Any) -> None:
    with (
        DistNeighborLoader(dataset, FANOUTS, [1], seed=3, num_workers=0) as loader,
        dataset.sampler(FANOUTS, seed=3) as sampler,
    ):
        for epoch in (0, 5):
            batch = sampler.sample(seeds_of(epoch), epoch=epoch)
            assert same_batch(batch, loader.sample(seeds_of(epoch), epoch=epoch))
            assert batch.input_id.tolist() == list(range(16))
        assert same_batch(sampler.sample(seeds_of(1)), loader.sample(seeds_of(1), epoch=0))


def test_many_threads_get_what_one_gets(dataset: Any) -> None:
    """Several at the same time, more than there are sources."""
    ids = range(8 * 6)
    with dataset.sampler(FANOUTS, seed=3, concurrency=3) as sampler, ThreadPoolExecutor(8) as threads:
        expected = [sampler.sample(seeds_of(each)) for each in ids]
        found = list(threads.map(lambda each: sampler.sample(seeds_of(each)), ids))
        assert all(map(same_batch, found, expected))
        stats = sampler.stats()
    assert (stats["calls"], stats["errors"], stats["sources"]) == (2 * len(ids), 0, 3)
    assert stats["seconds"] > 0


def test_coroutines_get_what_threads_get(dataset: Any) -> None:
    async def gathered() -> list[Any]:
        return await asyncio.gather(*(sampler.asample(seeds_of(each), epoch=each) for each in range(20)))

    with dataset.sampler(FANOUTS, seed=3) as sampler:
        found = asyncio.run(gathered())
        assert all(
            same_batch(batch, sampler.sample(seeds_of(each), epoch=each)) for each, batch in enumerate(found)
        )


@pytest.mark.parametrize(
    ("kind", "seed_type", "entries", "fanouts", "options"),
    [
        (DistNeighborLoader, "item", [3, 80, 3], FANOUTS, {"node_columns": {"user": []}}),
        (DistNeighborLoader, "user", [5], FANOUTS, {"sampler_options": LaborSamplerOptions()}),
        (DistNeighborLoader, "user", [5, 6], None, {"sampler_options": PPRSamplerOptions()}),
        (DistSubgraphLoader, "user", [5, 6, 7], [2], {}),
        (DistLinkNeighborLoader, ("user", "buys", "item"), [[1, 2], [3, 4]], FANOUTS, {}),
        (
            DistLinkNeighborLoader,
            ("user", "item"),
            [[1, 2], [3, 4]],
            FANOUTS,
            {"neg_sampling": "binary", "exclude_targets": True},
        ),
        (
            DistABLPLoader,
            None,
            [1, 2, 30],
            FANOUTS,
            {"supervision_edge_type": ("user", "buys", "item"), "num_random_negatives": 3},
        ),
    ],
)
def test_every_kind_of_batch(kind: Any, seed_type: Any, entries: Any, fanouts: Any, options: Any) -> None:
    none = torch.empty((2, 0) if kind is DistLinkNeighborLoader else 0, dtype=torch.int64)
    seeds = none if seed_type is None else (seed_type, none)
    common: dict[str, Any] = {**options, "seed": 3}
    with (
        kind(TYPED, fanouts, seeds, **common, num_workers=0) as loader,
        TYPED.sampler(fanouts, seed_type, loader_class=kind, **common) as sampler,
    ):
        for epoch in (0, 1):
            found = sampler.sample(torch.tensor(entries), epoch=epoch)
            assert same_batch(found, loader.sample(torch.tensor(entries), epoch=epoch))


def test_negatives_come_with_each_call(dataset: Any) -> None:
    links, negatives = torch.tensor([[1, 2, 3], [4, 5, 6]]), torch.tensor([[7, 8], [9, -1], [-1, -1]])
    with (
        DistLinkNeighborLoader(
            dataset, FANOUTS, links, neg_sampling=negatives, seed=3, num_workers=0
        ) as loader,
        dataset.sampler(FANOUTS, loader_class=DistLinkNeighborLoader, negatives=2, seed=3) as sampler,
    ):
        found = sampler.sample(links, negatives=negatives)
        assert same_batch(found, loader.sample(links, negatives=negatives))
        assert found.n_id[found.dst_neg_index[0]].tolist() == [7, 8]
        assert (found.dst_neg_index[2] == -1).all()
        assert same_batch(sampler.sample(links), loader.sample(links))
        with pytest.raises(ValueError, match=r"given negatives must be \[3, 2\]"):
            sampler.sample(links, negatives=negatives[:, :1])


def test_negatives_that_nobody_takes_are_refused() -> None:
    links: dict[str, Any] = {"loader_class": DistLinkNeighborLoader}
    with LOCAL.sampler(FANOUTS, **links) as sampler, pytest.raises(TypeError, match="negatives=K"):
        sampler.sample([[0], [1]], negatives=[[2]])
    with pytest.raises(TypeError, match="is for links, instead of neg_sampling"):
        LOCAL.sampler(FANOUTS, negatives=2)
    with pytest.raises(TypeError, match="instead of neg_sampling"):
        LOCAL.sampler(FANOUTS, negatives=2, neg_sampling="binary", **links)
    with pytest.raises(ValueError, match="negatives must be at least 1"):
        LOCAL.sampler(FANOUTS, negatives=0, **links)


def test_walks() -> None:
    options: dict[str, Any] = {
        "sampler_options": RandomWalkSamplerOptions(walk_length=3, walks_per_seed=2),
        "seed": 1,
    }
    with (
        DistNeighborLoader(LOCAL, None, [0], num_workers=0, **options) as loader,
        LOCAL.sampler(None, **options) as sampler,
    ):
        assert same_batch(sampler.sample([4, 5]), loader.sample([4, 5], epoch=0))


def test_times_come_with_each_call() -> None:
    data = homogeneous()
    data.when = torch.arange(data.num_edges) % 50
    edge = ("node", "to", "node")
    dataset = DistDataset.from_pyg(data, time_attr={edge: "when"}, shared=False)
    times = torch.tensor([20, 40])
    kind: Any
    for kind, name, entries in (
        (DistNeighborLoader, "input_time", torch.tensor([1, 2])),
        (DistLinkNeighborLoader, "edge_label_time", torch.tensor([[1, 2], [3, 4]])),
    ):
        options: dict[str, Any] = {"time_attr": "when", "seed": 3}
        timed: Any = {name: True}
        with (
            kind(dataset, FANOUTS, entries, num_workers=0, **{name: times}, **options) as loader,
            dataset.sampler(FANOUTS, loader_class=kind, **options, **timed) as sampler,
        ):
            found = sampler.sample(entries, time=times)
            assert same_batch(found, loader.sample(entries, time=times, epoch=0))
            with pytest.raises(ValueError, match="time, that of each seed, is needed"):
                sampler.sample(entries)
    with pytest.raises(TypeError, match=r"pass input_time=True, and the times with each call"):
        dataset.sampler(FANOUTS, input_time=times, time_attr="when")
    with pytest.raises(ValueError, match="edge_label_time has no meaning without time_attr"):
        dataset.sampler(FANOUTS, loader_class=DistLinkNeighborLoader, edge_label_time=True)
    with LOCAL.sampler(FANOUTS) as sampler, pytest.raises(ValueError, match="has no meaning here"):
        sampler.sample([1], time=[3])


def test_a_transform_sees_every_batch() -> None:
    with LOCAL.sampler(FANOUTS, device="cpu", transform=lambda batch: batch.n_id) as sampler:
        assert sampler.sample([7, 5])[:2].tolist() == [7, 5]
        assert asyncio.run(sampler.asample([7, 5]))[:2].tolist() == [7, 5]


def test_the_seed_of_a_run_is_random_by_default() -> None:
    with LOCAL.sampler(FANOUTS) as one, LOCAL.sampler(FANOUTS) as other:
        assert not same_batch(one.sample(seeds_of(0)), other.sample(seeds_of(0)))


# What is refused


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"loader_class": int}, TypeError, "loader_class must be a class of loaders, got <class 'int'>"),
        ({"batch_size": 4}, TypeError, "no argument 'batch_size': a sampler has no epochs"),
        ({"num_workers": 2}, TypeError, "no argument 'num_workers': .*concurrency="),
        ({"sharding": "none"}, TypeError, "no argument 'sharding': .*no other rank"),
        ({"worker_key": "a"}, TypeError, "no argument 'worker_key': .*producer of its own"),
        ({"input_nodes": [1]}, TypeError, r"no argument 'input_nodes': .*sample\(nodes\)"),
        ({"feature_memory": "1GB"}, TypeError, "no argument 'feature_memory'"),
        ({"fanout": 3}, TypeError, "no argument 'fanout'"),
        ({"replace": 2}, TypeError, "replace must be True or False"),
        ({"concurrency": 0}, ValueError, "concurrency must be at least 1"),
        ({"timeout": -1}, ValueError, "timeout must be finite and positive"),
        ({"node_columns": ["z"]}, ValueError, "z"),
        ({"seed_type": "page"}, ValueError, "unknown node type 'page'"),
    ],
)
def test_what_no_sampler_can_be_made_of(options: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        LOCAL.sampler(FANOUTS, **options)
    assert "\n" not in str(caught.value)


def test_several_node_types_need_the_one_of_the_seeds() -> None:
    with pytest.raises(ValueError, match="node type"):
        TYPED.sampler(FANOUTS)


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "text"),
    [
        ([[10**9]], {}, ValueError, "unknown"),
        ([[]], {}, ValueError, "at least one seed"),
        ([[1.5]], {}, TypeError, "integer"),
        ([[1]], {"epoch": -1}, ValueError, "epoch"),
        ([[1]], {"timeout": 0}, ValueError, "timeout must be finite and positive"),
        ([[1]], {"timeout": "1"}, TypeError, "timeout must be a number"),
    ],
)
def test_a_wrong_call_harms_no_other(
    dataset: Any, arguments: Any, options: Any, kind: type[Exception], text: str
) -> None:
    with dataset.sampler(FANOUTS, seed=3, concurrency=1) as sampler:
        expected = sampler.sample([1, 2])
        for use in (sampler.sample, lambda *given, **named: asyncio.run(sampler.asample(*given, **named))):
            with pytest.raises(kind, match=text):
                use(*arguments, **options)
        assert same_batch(sampler.sample([1, 2]), expected)
        assert sampler.stats()["errors"] == 2


def test_a_failing_transform_harms_no_later_call() -> None:
    fails = [True]

    def transform(batch: Any) -> Any:
        if fails[0]:
            raise KeyError("mine")
        return batch

    with LOCAL.sampler(FANOUTS, transform=transform) as sampler:
        with pytest.raises(KeyError, match="mine"):
            sampler.sample([1])
        with pytest.raises(KeyError, match="mine"):
            asyncio.run(sampler.asample([1]))
        fails[0] = False
        assert sampler.sample([1]).input_id.tolist() == [0]


# Deadlines, cancellation and close


class Gate:
    """Holds up the making of batches in the threads of a sampler, as a slow transform does."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()

    def __call__(self, batch: Any) -> Any:
        self.entered.release()
        assert self.opened.wait(WAIT_S)
        return batch


def test_a_deadline_covers_the_wait_for_a_turn() -> None:
    gate = Gate()

    async def crowded() -> None:
        first = asyncio.create_task(sampler.asample([1]))
        await asyncio.to_thread(gate.entered.acquire, timeout=WAIT_S)
        for use in (sampler.asample([2], timeout=0.05), asyncio.to_thread(sampler.sample, [2], timeout=0.05)):
            with pytest.raises(TimeoutError, match=r"no batch within 0.05 s: the call waits for its turn$"):
                await use
        gate.opened.set()
        assert (await first).input_id.tolist() == [0]

    with LOCAL.sampler(FANOUTS, transform=gate, concurrency=1) as sampler:
        asyncio.run(crowded())
        assert sampler.sample([1]).input_id.tolist() == [0]


def refuse_threads(patch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", refuse)


def test_a_sampler_that_can_start_no_thread_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with LOCAL.sampler(FANOUTS, device="cpu", concurrency=2) as sampler:
        with monkeypatch.context() as patch:
            refuse_threads(patch)
            with pytest.raises(OSError, match=r"concurrency=2: .*ulimit -u, .* or lower concurrency$"):
                sampler.sample([0])
        assert sampler.sample([0]).batch_size == 1


def test_a_sampler_goes_on_with_the_threads_that_it_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entered, gate = threading.Event(), threading.Event()

    def wait(batch: Any) -> Any:
        entered.set()
        gate.wait(60)
        return batch

    async def calls(sampler: Sampler) -> list[Any]:
        first = asyncio.create_task(sampler.asample([0]))
        while not entered.is_set():
            await asyncio.sleep(0.01)
        refuse_threads(monkeypatch)
        others = [asyncio.create_task(sampler.asample([node])) for node in (1, 2)]
        await asyncio.sleep(0)
        gate.set()
        return await asyncio.gather(first, *others)

    with LOCAL.sampler(FANOUTS, device="cpu", transform=wait, concurrency=3) as sampler:
        assert [batch.n_id[0].item() for batch in asyncio.run(calls(sampler))] == [0, 1, 2]
    assert caplog.text.count("1 threads serve its calls") == 1


def test_a_cancelled_task_takes_its_call_back() -> None:
    gate = Gate()

    async def cancelled() -> None:
        first, second = (asyncio.create_task(sampler.asample([each])) for each in (1, 2))
        await asyncio.to_thread(gate.entered.acquire, timeout=WAIT_S)
        for task in (second, first):  # Before its turn, and while it is served.
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        gate.opened.set()
        assert (await sampler.asample([3])).input_id.tolist() == [0]

    with LOCAL.sampler(FANOUTS, transform=gate, concurrency=1) as sampler:
        asyncio.run(cancelled())
        assert sampler.stats()["errors"] == 2
        assert gate.entered.acquire(blocking=False)  # Of the third call: the second was never served.
        assert not gate.entered.acquire(blocking=False)


def test_a_closed_sampler_refuses_calls(dataset: Any) -> None:
    sampler = dataset.sampler(FANOUTS, seed=3)
    batch = sampler.sample([1, 2])
    kept = batch.x.clone()
    sampler.close()
    sampler.close()
    with pytest.raises(RuntimeError, match=r"was closed; make another with dataset.sampler\(...\)"):
        sampler.sample([1])
    with pytest.raises(RuntimeError, match="was closed"):
        asyncio.run(sampler.asample([1]))
    assert torch.equal(batch.x, kept)
    assert "closed" in repr(sampler)
    assert sampler.stats()["sources"] == 0


def test_a_close_ends_the_calls_under_way() -> None:
    gate = Gate()

    async def closed() -> None:
        tasks = [asyncio.create_task(sampler.asample([each])) for each in (1, 2)]
        await asyncio.to_thread(gate.entered.acquire, timeout=WAIT_S)
        closing = asyncio.create_task(asyncio.to_thread(sampler.close))
        for task in tasks:  # The one that is served, and the one that waits for its turn.
            with pytest.raises(RuntimeError, match=r"^Sampler-\d+ was closed$"):
                await task
        gate.opened.set()
        await closing

    sampler = LOCAL.sampler(FANOUTS, transform=gate, concurrency=1)
    asyncio.run(closed())


@pytest.mark.usefixtures("no_leftovers")
def test_a_sampler_that_is_collected_ends_its_threads(dataset: Any) -> None:
    sampler = dataset.sampler(FANOUTS, concurrency=2)
    sampler.sample([1])
    threads = list(sampler._turns._threads)
    assert threads
    alive = weakref.ref(sampler)
    del sampler
    gc.collect()
    assert alive() is None
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_a_forked_child_opens_sources_of_its_own() -> None:
    with LOCAL.sampler(FANOUTS, seed=3) as sampler:
        expected = sampler.sample([1, 2])
        pid = os.fork()
        if not pid:
            status = 1
            try:
                status = 0 if same_batch(sampler.sample([1, 2]), expected) else 2
                sampler.close()
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert same_batch(sampler.sample([1, 2]), expected)


def test_a_sampler_tells_what_it_is() -> None:
    with TYPED.sampler(FANOUTS, "item", seed=3, device="cpu", concurrency=2) as sampler:
        assert repr(sampler) == (
            "Sampler(DistNeighborLoader, seeds of type 'item', concurrency 2, seed 3, on cpu)"
        )
        assert isinstance(sampler, Sampler)
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(sampler)


def test_an_input_of_nothing_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    LOCAL.sampler(FANOUTS).close()
    assert not caplog.records


def test_sources_open_when_they_are_needed(dataset: Any) -> None:
    with dataset.sampler(FANOUTS, concurrency=4) as sampler:
        assert sampler.stats()["sources"] == 0
        for _ in range(3):
            sampler.sample([1])
        assert sampler.stats()["sources"] == 1


# Ranks


def test_no_rank_waits_for_another(graph: Path) -> None:
    """Samplers of ranks have producers of their own, with seeds that may differ."""
    with servers_of(graph, 1) as servers:

        def program(group: RankGroup) -> tuple[int, bool]:
            if group.rank == 0:
                return 0, True
            with (
                RemoteDistDataset.connect(addresses_of(servers)) as there,
                there.sampler(FANOUTS) as sampler,
                LOCAL.sampler(FANOUTS, seed=sampler._loader.seed) as here,
            ):
                return sampler._loader.seed, same_batch(sampler.sample([1, 2]), here.sample([1, 2]))

        found = run_ranks(3, program)
    assert [each[1] for each in found if isinstance(each, tuple)] == [True] * 3, found
    assert len({seed for seed, _ in found}) == 3  # type: ignore[misc]


# Batches that fail, or never end

USERS = "tests.support.user_samplers"


def test_a_batch_that_fails_is_the_error_of_its_call(graph: Path) -> None:
    wrong = CustomSamplerOptions(f"{USERS}:Wrong", mistake="raises")
    with servers_of(graph, 1, allow_samplers=(f"{USERS}:Wrong",)) as servers:
        there = RemoteDistDataset.connect(addresses_of(servers))
        for dataset in (LOCAL, there):
            with dataset.sampler(None, sampler_options=wrong, concurrency=1) as sampler:
                for _ in range(2):
                    with pytest.raises(SamplingError, match="ZeroDivisionError"):
                        sampler.sample([1])
                assert sampler.stats()["sources"] == 1
        there.close()


def test_a_cancelled_task_ends_the_request_at_its_server(graph: Path) -> None:
    endless = CustomSamplerOptions(f"{USERS}:Endless")

    async def cancelled() -> None:
        task = asyncio.create_task(sampler.asample([1]))
        await asyncio.to_thread(wait_until, lambda: sampler.stats()["sources"] == 1, seconds=WAIT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with (
        servers_of(graph, 1, allow_samplers=(f"{USERS}:Endless",)) as servers,
        RemoteDistDataset.connect(addresses_of(servers)) as dataset,
        dataset.sampler(None, sampler_options=endless, concurrency=1) as sampler,
    ):
        for _ in range(2):
            asyncio.run(cancelled())
            assert wait_until(lambda: not sampler._turns._served, seconds=WAIT_S)
            assert sampler.stats()["sources"] == 0  # The next call opens another.
        with pytest.raises(TimeoutError, match=r"no batch within 0\.[23]\d* s"):
            sampler.sample([1], timeout=0.3)


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_batch_on_request_waits_for_no_batch_of_a_trainer(graph: Path, share: float) -> None:
    """The only thread of the server makes a batch that never ends, of the same owner."""
    endless = CustomSamplerOptions(f"{USERS}:Endless")
    with (
        servers_of(graph, 1, allow_samplers=(f"{USERS}:Endless",), interactive_share=share) as servers,
        RemoteDistDataset.connect(addresses_of(servers)) as dataset,
        dataset.sampler(FANOUTS, seed=3) as sampler,
        LOCAL.sampler(FANOUTS, seed=3) as here,
        DistNeighborLoader(dataset, None, sampler_options=endless) as loader,
    ):
        sampler.sample([7])
        iter(loader)
        assert wait_until(lambda: dataset.server_stats()[0]["busy"] == 1, seconds=WAIT_S)
        if share:
            for epoch in range(5):
                assert same_batch(sampler.sample([1], epoch=epoch), here.sample([1], epoch=epoch))
        else:
            with pytest.raises(TimeoutError):
                sampler.sample([1], timeout=0.5)


# Servers that stand still


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_server_that_stands_still_costs_a_call_its_deadline_and_no_more(graph: Path) -> None:
    with (
        LocalCluster(graph, servers=1) as cluster,
        RemoteDistDataset.connect(cluster.addresses, timeout=WAIT_S) as dataset,
        dataset.sampler(FANOUTS, seed=3, concurrency=2) as sampler,
    ):
        expected = sampler.sample(np.arange(8))
        fresh = dataset.sampler(FANOUTS, seed=3)

        async def cancelled() -> None:
            task = asyncio.create_task(sampler.asample(np.arange(8)))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        with stopped(cluster.pids[0]):
            for _ in range(3):
                began = time.monotonic()
                with pytest.raises((TimeoutError, StorageUnavailable), match=r"0\.[45]\d* s") as caught:
                    sampler.sample(np.arange(8), timeout=0.5)
                assert time.monotonic() - began < 5
                assert "\n" not in str(caught.value)
            asyncio.run(cancelled())
            with pytest.raises(TimeoutError, match="the call waits for a source to open"):
                fresh.sample(np.arange(8), timeout=0.3)
        assert same_batch(sampler.sample(np.arange(8)), expected)
        assert same_batch(fresh.sample(np.arange(8)), expected)
        fresh.close()
        assert wait_until(lambda: not sampler._turns._served, seconds=WAIT_S)


@pytest.mark.slow
def test_a_close_frees_the_calls_that_wait_for_a_server(graph: Path) -> None:
    with (
        LocalCluster(graph, servers=1) as cluster,
        RemoteDistDataset.connect(cluster.addresses, timeout=WAIT_S) as dataset,
        ThreadPoolExecutor(1) as threads,
    ):
        sampler = dataset.sampler(FANOUTS, concurrency=1)
        sampler.sample([1])
        with stopped(cluster.pids[0]):
            call = threads.submit(partial(sampler.sample, [1]))
            assert wait_until(lambda: bool(sampler._turns._served), seconds=WAIT_S)
            time.sleep(0.2)
            began = time.monotonic()
            sampler.close()
            with pytest.raises(RuntimeError, match=r"was closed$"):
                call.result(WAIT_S)
            assert time.monotonic() - began < 10


SLOW_TO_CLOSE = """
import sys, time
import gigl_loader.loaders.single_batches as single
from gigl_loader import DistDataset
close = single.SingleBatches.close
single.SingleBatches.close = lambda self: (time.sleep(0.2), close(self))[1]
print(DistDataset.open(sys.argv[1]).sampler([3], device="cpu").sample([0]).batch_size)
sampler = DistDataset.open(sys.argv[1]).sampler([3], device="cpu")
print(sampler.sample([0]).batch_size)
"""


@pytest.mark.slow  # It imports torch anew.
def test_a_script_that_ends_leaves_no_source_open(graph: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SLOW_TO_CLOSE, str(graph)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("1\n1\n", "")
