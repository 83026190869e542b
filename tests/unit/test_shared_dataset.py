"""Hosts that hold some partitions each: threads stand for their ranks, the services are real."""

from __future__ import annotations

import pickle
import shutil
import socket
import time
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader import DistDataset, DistNeighborLoader, FormatError, StorageUnavailable
from gigl_loader.hosts.host_group import HostGroup
from gigl_loader.hosts.peers import Peers
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.host_service import HostService
from gigl_loader.rpc.tokens import new_token
from gigl_loader.sampling.store import GatherRequest
from tests.support import slow_peers
from tests.support.made import record_sources
from tests.support.ports import free_port
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gigl_loader.graph.graph import Graph
    from gigl_loader.group import RankGroup
    from gigl_loader.sampling.partitioned import PartitionedStore

TWO_HOSTS = ["a", "b"]


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions in one directory: on a real host, one of them would not lie there."""
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=2)
    return path


@pytest.fixture(scope="module")
def host_graphs(graph: Path) -> list[Path]:
    """What lies on each of two hosts."""
    paths = [graph.parent / f"host-{host}" for host in range(2)]
    for host, path in enumerate(paths):
        shutil.copytree(graph, path, ignore=shutil.ignore_patterns(f"part-{1 - host:05d}"))
    return paths


def _values(results: Sequence[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return list(results)


def _messages(
    world_size: int, opened: Callable[[int], dict[str, Any]], path: Path, hosts: Sequence[str] | None = None
) -> list[str]:
    """Return what each rank is told that opens with these arguments and must not succeed."""

    def program(group: RankGroup) -> None:
        DistDataset.open(path, timeout=10, **opened(group.rank)).close()

    results = run_ranks(world_size, program, hosts=hosts or [str(rank) for rank in range(world_size)])
    assert all(isinstance(result, Exception) for result in results), results
    return [f"{type(error).__name__}: {error}" for error in results]


# Opening and sampling


@pytest.mark.usefixtures("no_leftovers")
def test_two_hosts_sample_the_batches_of_one(graph: Path, host_graphs: list[Path]) -> None:
    whole = DistDataset.open(graph)
    options: dict[str, Any] = {
        "batch_size": 25,
        "shuffle": True,
        "seed": 4,
        "num_workers": 0,
        "name": "train",
    }
    alone = list(DistNeighborLoader(whole, [4, 3], "train", **options))

    def program(group: RankGroup) -> list[Any]:
        with DistDataset.open(host_graphs[group.rank], timeout=20) as dataset:
            assert dataset.partitions == (group.rank,)
            assert dataset.graph_digest == whole.graph_digest
            with DistNeighborLoader(dataset, [4, 3], "train", timeout=20, **options) as loader:
                batches = list(loader)
            assert dataset.peer_stats()[1 - group.rank]["calls"] > 0
        return batches

    shares = _values(run_ranks(2, program, hosts=TWO_HOSTS))
    steps = len(alone) // 2
    assert steps >= 2
    together = [share[step] for step in range(steps) for share in shares]
    assert all(map(same_batch, together, alone[: 2 * steps]))


@pytest.mark.some(1)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize(
    ("num_workers", "cache_size"), [(0, 0), (0, "1KB"), pytest.param(1, 0, marks=pytest.mark.slow)]
)
def test_a_row_of_another_host_crosses_once_while_it_is_in_the_cache(
    host_graphs: list[Path], num_workers: int, cache_size: int | str
) -> None:
    options: dict[str, Any] = {"batch_size": 20, "shuffle": True, "seed": 4, "edge_columns": []}
    options |= {"sharding": "none", "timeout": 20, "num_workers": num_workers}

    def program(group: RankGroup) -> tuple[Any, ...]:
        with DistDataset.open(host_graphs[group.rank], timeout=20, cache_size=cache_size) as dataset:
            with DistNeighborLoader(dataset, [4, 3], "train", **options) as plain:
                expected = [batch for _ in range(3) for batch in plain]
            with DistNeighborLoader(dataset, [4, 3], "train", feature_memory="1MB", **options) as loader:
                seen = [*loader, *loader, *islice(loader, 2)]
                loader.load_state_dict(loader.state_dict())
                seen += loader
                stats = (loader.stats(), plain.stats(), repr(loader))
            wanted = dataset.positions("node", np.concatenate([batch.n_id.numpy() for batch in seen]))
            local = (wanted >= dataset.schema.nodes["node"].bounds[1]) == group.rank
            return seen, expected, wanted, local, dataset._open_store().holds("node", wanted), *stats

    for seen, expected, wanted, local, held, stats, plain, shown in _values(
        run_ranks(2, program, hosts=TWO_HOSTS)
    ):
        assert len(seen) == len(expected)
        assert all(map(same_batch, seen, expected))
        assert held[local].all()
        assert held[~local].any() == bool(cache_size)
        rows = stats["rows"]
        assert rows["wire"] == len(np.unique(wanted[~held])) > 0
        assert rows["memory"] >= held.sum()
        assert rows["wanted"] == rows["cache"] + rows["memory"] + rows["wire"] >= len(wanted)
        assert 0 < stats["wire_bytes_in"] < plain["wire_bytes_in"]
        assert "features from owners (cache of" in shown


def test_ranks_of_a_host_share_its_service(host_graphs: list[Path]) -> None:
    def program(group: RankGroup) -> tuple[tuple[int, ...], int]:
        with DistDataset.open(host_graphs[group.rank // 2], timeout=20) as dataset:
            return dataset.partitions, len(dataset.peer_stats())

    found = _values(run_ranks(4, program, hosts=["a", "a", "b", "b"]))
    assert found == [((0,), 2), ((0,), 2), ((1,), 2), ((1,), 2)]


def test_a_partition_may_lie_on_several_hosts(graph: Path) -> None:
    def program(group: RankGroup) -> list[int]:
        with DistDataset.open(graph, partitions=[[0], [0], [1]][group.rank], timeout=20) as dataset:
            return sorted(dataset.split_positions("node", "train").tolist())

    expected = DistDataset.open(graph).split_positions("node", "train").tolist()
    assert _values(run_ranks(3, program, hosts=["a", "b", "c"])) == [sorted(expected)] * 3


@pytest.mark.some(1)
@pytest.mark.parametrize("assigner", ["range", "hash"])
def test_splits_come_from_everywhere_in_order(tmp_path: Path, assigner: Any) -> None:
    build_graph(tables_from_pyg(heterogeneous()), tmp_path / "g", num_partitions=2, assigner=assigner)
    expected = DistDataset.open(tmp_path / "g").split_positions("user", "train").tolist()

    def program(group: RankGroup) -> list[int]:
        with DistDataset.open(tmp_path / "g", partitions=group.rank, timeout=20) as dataset:
            with pytest.raises(ValueError, match="have no split 'nothing'"):
                dataset.split_positions("user", "nothing")
            positions: list[int] = dataset.split_positions("user", "train").tolist()
            return positions

    assert _values(run_ranks(2, program, hosts=TWO_HOSTS)) == [expected, expected]


def test_several_datasets_may_be_open(graph: Path, host_graphs: list[Path]) -> None:
    def program(group: RankGroup) -> int:
        with ExitStack() as stack:
            for path in (graph, host_graphs[group.rank], host_graphs[group.rank]):
                stack.enter_context(DistDataset.open(path, timeout=20))
            return group.rank

    assert _values(run_ranks(2, program, hosts=TWO_HOSTS)) == [0, 1]


def test_a_rank_that_closes_first_serves_until_the_others_have_closed(host_graphs: list[Path]) -> None:
    def program(group: RankGroup) -> int:
        dataset = DistDataset.open(host_graphs[group.rank], timeout=20)
        options: dict[str, Any] = {"batch_size": 50, "num_workers": 0, "sharding": "none", "timeout": 20}
        with DistNeighborLoader(dataset, [4, 3], "train", **options) as loader:
            batches = iter(loader) if group.rank else islice(loader, 0)
            count = 0
            for _ in batches:
                count += 1
                if count == 1:
                    group.collect("closing", timeout=10, what="close", ranks=[0])
        group.publish("closing", "yes")
        dataset.close()
        dataset.close()
        return count

    first, second = _values(run_ranks(2, program, hosts=TWO_HOSTS))
    assert first == 0
    assert second > 1


@pytest.mark.some(1)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("memory", ["auto", "4KB"])
def test_a_loader_that_samples_in_this_process_lets_go_of_its_peers(
    host_graphs: list[Path], monkeypatch: pytest.MonkeyPatch, memory: str
) -> None:
    options: dict[str, Any] = {"batch_size": 50, "num_workers": 0, "sharding": "none", "timeout": 20}
    options["feature_memory"] = memory
    each = 1 if memory == "auto" else 2
    stores: list[list[PartitionedStore]] = [[], []]
    open_store = Peers.open_store

    def opening(peers: Peers, graph: Graph, **given: Any) -> PartitionedStore:
        stores[peers.host_index].append(open_store(peers, graph, **given))
        return stores[peers.host_index][-1]

    monkeypatch.setattr(Peers, "open_store", opening)

    def program(group: RankGroup) -> list[int]:
        opened = stores[group.rank]
        with DistDataset.open(host_graphs[group.rank], timeout=20) as dataset:
            opened.clear()  # That of the cache has had its use.
            asked = []
            loader = DistNeighborLoader(dataset, [2], "train", **options)
            next(loader)
            asked.append(_open_among(opened))
            loader.load_state_dict({**loader.state_dict(), "run_seed": loader.seed + 1})
            next(loader)
            asked.append(_open_among(opened))
            loader.shutdown()
            asked.append(_open_among(opened))
            left = DistNeighborLoader(dataset, [2], "train", **options)  # Nobody shuts it down.
        assert len(opened) == 3 * each
        assert _open_among(opened) == 0
        del left
        return asked

    assert _values(run_ranks(2, program, hosts=TWO_HOSTS)) == [[each, each, 0]] * 2
    stores.clear()  # They keep files of the graph open.


def _open_among(stores: Iterable[PartitionedStore]) -> int:
    """Return how many stores can still be asked."""
    return sum(map(_answers, stores))


def _answers(store: PartitionedStore) -> bool:
    rows = store.bounds("node")[:-1].copy()  # One of each partition.
    out = [np.zeros((len(rows), 24), np.uint8)]
    try:
        store.gather([GatherRequest(kind="node", columns=("x",), rows=rows, distinct=True, out=out)])
    except RuntimeError:  # Its threads have ended. What a peer cannot answer is another error.
        return False
    return True


# Mistakes


def test_missing_partitions_without_a_group(host_graphs: list[Path]) -> None:
    rule = r"^of 2 partitions, .* has only 1 here, and there is no process group .*init_process_group"
    with pytest.raises(ValueError, match=rule):
        DistDataset.open(host_graphs[1])


@pytest.mark.parametrize(("partitions", "absent"), [(0, "0"), ([0, 1], "0"), (2, "2"), ([-1], "-1")])
def test_partitions_that_do_not_lie_there(host_graphs: list[Path], partitions: Any, absent: str) -> None:
    with pytest.raises(ValueError, match=f"^partitions {absent} do not lie at .*: of 2, it has 1$"):
        DistDataset.open(host_graphs[1], partitions=partitions)


@pytest.mark.parametrize("partitions", ["0", [], [0.5], [True]])
def test_partitions_that_are_none(graph: Path, partitions: Any) -> None:
    with pytest.raises(TypeError, match="partitions must be a whole number or a list of some"):
        DistDataset.open(graph, partitions=partitions)


def test_a_partition_that_lies_there_in_part_is_damage(host_graphs: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "half"
    shutil.copytree(host_graphs[0], path)
    shutil.rmtree(path / "part-00000" / "nodes")
    with pytest.raises(FormatError):
        DistDataset.open(path)


def test_a_partition_that_nobody_holds_is_told_everywhere(graph: Path) -> None:
    for message in _messages(3, lambda _: {"partitions": 0}, graph):
        assert message.startswith(
            "ValueError: no host holds partition 1 of 2: host 0 holds 0; host 1 holds 0"
        )
        assert "copy what is missing to a host" in message


def test_ranks_of_a_host_with_different_partitions(graph: Path) -> None:
    for message in _messages(2, lambda rank: {"partitions": rank}, graph, hosts=["a", "a"]):
        assert "ranks of host 0 opened different partitions: partitions 0 on rank 0, partitions 1" in message


def test_different_graphs_on_hosts(graph: Path, tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous(seed=1)), tmp_path / "other", num_partitions=2)

    def program(group: RankGroup) -> None:
        path = graph if group.rank else tmp_path / "other"
        DistDataset.open(path, partitions=group.rank, timeout=10).close()

    for error in run_ranks(2, program, hosts=TWO_HOSTS):
        assert isinstance(error, ValueError)
        assert "hosts have different graphs:" in str(error)


def test_a_host_that_cannot_open_its_graph_tells_the_others(graph: Path, tmp_path: Path) -> None:
    def program(group: RankGroup) -> None:
        DistDataset.open(graph if group.rank else tmp_path / "nothing", partitions=group.rank, timeout=10)

    first, second = run_ranks(2, program, hosts=TWO_HOSTS)
    assert isinstance(first, FileNotFoundError)
    assert isinstance(second, FileNotFoundError)
    assert str(second).startswith("rank 0: no graph at ")


def test_ranks_meet_again_after_a_failure(graph: Path, host_graphs: list[Path], tmp_path: Path) -> None:
    def program(group: RankGroup) -> int:
        if group.rank:
            DistDataset.open(graph, timeout=20)  # Whole here: it waits for nobody, and hears of nothing.
        else:
            with pytest.raises(FileNotFoundError):
                DistDataset.open(tmp_path / "nothing", timeout=20)
        with DistDataset.open(host_graphs[group.rank], timeout=20) as dataset:
            return dataset.partitions[0]

    assert _values(run_ranks(2, program, hosts=TWO_HOSTS)) == [0, 1]


def test_ranks_that_do_not_come_are_named(graph: Path) -> None:
    def program(group: RankGroup) -> None:
        DistDataset.open(graph, partitions=group.rank if group.rank else None, timeout=0.3).close()

    whole, error = run_ranks(2, program, hosts=["a", "a"])
    assert whole is None
    assert isinstance(error, TimeoutError)
    assert "rank 0 did not" in str(error)


def test_a_host_with_the_whole_graph_that_takes_no_part_is_told(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gigl_loader.hosts.host_group._GRACE_S", 0.1)

    def program(group: RankGroup) -> None:
        DistDataset.open(graph, partitions=group.rank if group.rank else None, timeout=20).close()

    whole, error = run_ranks(2, program, hosts=["a", "a"])
    assert whole is None
    assert isinstance(error, ValueError)
    assert str(error).startswith("rank 0 opened the whole graph at ")
    assert str(error).endswith("pass partitions= there, or copy all partitions here")


def test_what_a_dataset_of_several_hosts_refuses(host_graphs: list[Path]) -> None:
    """To be pickled, to be forked with workers, and to make batches when it is closed."""

    def program(group: RankGroup) -> str:
        with DistDataset.open(host_graphs[group.rank], timeout=20) as dataset:
            with pytest.raises(TypeError, match="open it in each rank"):
                pickle.dumps(dataset)
            loading: dict[str, Any] = {"sharding": "none", "multiprocessing_context": "fork"}
            with pytest.raises(ValueError, match="do not survive a fork; use 'spawn'"):
                DistNeighborLoader(dataset, [2], **loading)
        with pytest.raises(ValueError, match="was closed") as refusal:
            DistNeighborLoader(dataset, [2], "train", num_workers=0, sharding="none")
        return str(refusal.value)

    assert len(set(_values(run_ranks(2, program, hosts=TWO_HOSTS)))) == 1


def _leave_at_once(dataset: DistDataset) -> None:
    """Leave as an exception does: what this host serves ends, and nobody is waited for."""
    with suppress(ZeroDivisionError), dataset:
        raise ZeroDivisionError


def test_closing_in_a_finally_does_not_wait(host_graphs: list[Path]) -> None:
    def program(group: RankGroup) -> float:
        dataset = DistDataset.open(host_graphs[group.rank], timeout=20)
        if group.rank:
            group.collect("closed", timeout=20, what="close", ranks=[0])
            _leave_at_once(dataset)
            return 0.0
        began = time.monotonic()

        def fail() -> None:
            try:
                raise ZeroDivisionError
            finally:
                dataset.close()

        with pytest.raises(ZeroDivisionError):
            fail()
        took = time.monotonic() - began
        group.publish("closed", "yes")
        return took

    assert max(_values(run_ranks(2, program, hosts=TWO_HOSTS))) < 15


@pytest.mark.slow
def test_a_port_that_is_taken_is_told_everywhere(graph: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        opened: dict[int, dict[str, Any]] = {0: {"partitions": 0, "listen": address}, 1: {"partitions": 1}}
        first, second = _messages(2, opened.__getitem__, graph)
    assert first.startswith("OSError: cannot listen on")
    assert address in first
    assert second.startswith("OSError: rank 0: cannot listen on")


@pytest.mark.usefixtures("no_leftovers")
def test_different_tokens_are_told_everywhere(graph: Path) -> None:
    def opened(rank: int) -> dict[str, Any]:
        return {"partitions": rank, "credentials": Credentials.plaintext(token=f"{rank}" * 20)}

    for message in _messages(2, opened, graph):
        assert message.startswith("ValueError")
        assert "token" in message


@pytest.mark.slow
def test_an_address_that_nobody_reaches_is_told_everywhere(graph: Path) -> None:
    def opened(rank: int) -> dict[str, Any]:
        extra = {} if rank else {"advertise": "no.such.host.invalid", "listen": "127.0.0.1:0"}
        return {"partitions": rank, **extra}

    for message in _messages(2, opened, graph):
        assert message.startswith("StorageUnavailable")
        assert "no.such.host.invalid" in message


@pytest.mark.parametrize("timeout", [0, -1, float("inf"), "5", None])
def test_a_timeout_that_is_none(graph: Path, timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds"):
        DistDataset.open(graph, timeout=timeout)


# Faults


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["auto", "4KB"])
def test_a_host_that_is_gone_is_named_and_nothing_is_lost(host_graphs: list[Path], memory: str) -> None:
    options: dict[str, Any] = {"batch_size": 20, "num_workers": 0, "sharding": "none", "seed": 1}
    options["feature_memory"] = memory

    def program(group: RankGroup) -> str:
        dataset = DistDataset.open(host_graphs[group.rank], timeout=20)
        if group.rank == 0:
            group.collect("begun", timeout=20, what="begin", ranks=[1])
            _leave_at_once(dataset)
            group.publish("gone", "yes")
            return ""
        with DistNeighborLoader(dataset, [4, 3], "train", timeout=4, **options) as loader:
            batches = iter(loader)
            next(batches)
            group.publish("begun", "yes")
            group.collect("gone", timeout=20, what="go", ranks=[0])
            messages, states = [], [loader.state_dict()]
            for _ in range(2):
                began = time.monotonic()
                with pytest.raises(StorageUnavailable) as caught:
                    list(batches)  # Of a window, batches whose rows had come already.
                assert time.monotonic() - began < 8
                messages.append(str(caught.value))
                states.append(loader.state_dict())
            assert states[1] == states[2]
            assert states[0]["batches"] == 1 <= states[1]["batches"] < len(loader)
            assert memory != "auto" or states[0] == states[1]
        _leave_at_once(dataset)
        return messages[-1]

    _, message = _values(run_ranks(2, program, hosts=TWO_HOSTS))
    assert "host 0 at 127.0.0.1:" in message


@pytest.mark.slow
@pytest.mark.parametrize("dying_round", [5, 6], ids=["hop 1", "columns"])
def test_a_peer_that_dies_in_a_late_round_is_named_before_the_loader_gives_up(
    host_graphs: list[Path], monkeypatch: pytest.MonkeyPatch, dying_round: int
) -> None:
    sources: list[Any] = record_sources(monkeypatch)
    monkeypatch.setattr("gigl_loader.dataset._PEERS_SAMPLERS", f"{slow_peers.__name__}:open_samplers")
    monkeypatch.setenv(slow_peers.DYING_ROUND, str(dying_round))
    options: dict[str, Any] = {"batch_size": 50, "sharding": "none", "worker_concurrency": 1}

    def program(group: RankGroup) -> None:
        with DistDataset.open(host_graphs[group.rank], timeout=20) as dataset:
            if group.rank == 0:
                return
            with DistNeighborLoader(dataset, [4, 3], "train", timeout=5, **options) as loader:
                sources[0].wait_until_up(20)
                batches = iter(loader)
                next(batches)
                with pytest.raises(StorageUnavailable, match="host 0 did not answer"):
                    next(batches)

    _values(run_ranks(2, program, hosts=TWO_HOSTS))


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("memory", ["auto", "4KB"])
def test_the_epoch_goes_on_where_it_was_when_a_host_comes_back(
    graph: Path, host_graphs: list[Path], num_workers: int, memory: str
) -> None:
    options: dict[str, Any] = {"batch_size": 25, "sharding": "none", "seed": 1, "shuffle": True}
    whole = list(DistNeighborLoader(DistDataset.open(graph), [4, 3], "train", num_workers=0, **options))
    listen = f"127.0.0.1:{free_port(count=2)}"
    credentials = Credentials.plaintext(token=new_token())

    def serve(group: RankGroup) -> None:
        dataset = DistDataset.open(host_graphs[0], timeout=20, listen=listen, credentials=credentials)
        group.collect("begun", timeout=20, what="begin", ranks=[1])
        _leave_at_once(dataset)
        group.publish("gone", "yes")
        group.collect("failed", timeout=20, what="fail", ranks=[1])
        with HostService.start({"path": str(host_graphs[0])}, [0], listen=listen, credentials=credentials):
            group.publish("back", "yes")
            group.collect("done", timeout=20, what="end", ranks=[1])

    def train(group: RankGroup) -> list[Any]:
        dataset = DistDataset.open(host_graphs[1], timeout=20, credentials=credentials)
        loading: dict[str, Any] = {"timeout": 6, "num_workers": num_workers, "worker_concurrency": 1}
        loading["feature_memory"] = memory
        with DistNeighborLoader(dataset, [4, 3], "train", **loading, **options) as loader:
            batches = iter(loader)
            seen = [next(batches)]
            group.publish("begun", "yes")
            group.collect("gone", timeout=20, what="go", ranks=[0])
            with pytest.raises(StorageUnavailable):
                seen.extend(batches)
            group.publish("failed", "yes")
            group.collect("back", timeout=20, what="come back", ranks=[0])
            for _ in range(3):  # What was under way may still fail.
                with suppress(StorageUnavailable):
                    seen.extend(batches)
        group.publish("done", "yes")
        _leave_at_once(dataset)
        return seen

    _, seen = _values(
        run_ranks(2, lambda group: train(group) if group.rank else serve(group), hosts=TWO_HOSTS)
    )
    assert len(seen) == len(whole)
    assert all(map(same_batch, seen, whole))


# Leaving


def test_a_rank_that_never_closes_is_named_and_no_longer_served(
    host_graphs: list[Path], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    init: Any = HostGroup.__init__

    def impatient(joined: HostGroup, *parts: Any) -> None:
        *others, _ = parts
        init(joined, *others, 0.1)  # Seconds; opening takes more.

    monkeypatch.setattr(HostGroup, "__init__", impatient)

    def program(group: RankGroup) -> None:
        dataset = DistDataset.open(host_graphs[group.rank], timeout=20)
        if group.rank == 0:
            dataset.close()
            group.publish("closed", "yes")
        else:
            group.collect("closed", timeout=20, what="close", ranks=[0])
            _leave_at_once(dataset)

    _values(run_ranks(2, program, hosts=TWO_HOSTS))
    assert "rank 1 did not close the dataset within 0.1 s: no longer serving them" in caplog.text


def test_an_exception_leaves_at_once(host_graphs: list[Path]) -> None:
    def program(group: RankGroup) -> None:
        dataset = DistDataset.open(host_graphs[group.rank], timeout=20)
        if group.rank == 0:
            with pytest.raises(ZeroDivisionError), dataset:
                raise ZeroDivisionError
            group.publish("left", "yes")
        else:
            group.collect("left", timeout=10, what="leave", ranks=[0])
            dataset.close()

    _values(run_ranks(2, program, hosts=TWO_HOSTS))
