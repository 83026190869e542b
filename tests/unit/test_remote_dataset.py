"""A dataset on storage servers is to a loader what a dataset in its own process is."""

from __future__ import annotations

import gc
import inspect
import json
import multiprocessing
import pickle
import time
import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_client import Caller, RemoteDistDataset
from gigl_client.discovery import read_addresses
from gigl_loader import Dataset, DistDataset, DistNeighborLoader, SharedTensors, StorageUnavailable
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.rpc import certificates
from gigl_loader.rpc.credentials import Credentials
from gigl_server.config import ServeOptions
from gigl_server.server import build_storage_server
from tests.support.clusters import addresses_of, check_same, servers_of
from tests.support.leftovers import wait_until
from tests.support.ports import free_port
from tests.support.pyg_graphs import homogeneous
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gigl_loader.group import RankGroup

OPTIONS: dict[str, Any] = {"batch_size": 30, "shuffle": True, "seed": 9, "timeout": 20}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of three partitions, in which node ids are not positions."""
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=3, assigner="hash")
    return path


@pytest.fixture(scope="module")
def here(graph: Path) -> DistDataset:
    return DistDataset.open(graph)


@pytest.fixture(scope="module")
def addresses(graph: Path) -> Iterator[list[str]]:
    """Of two servers: the first holds the partitions 0 and 2, the other 1."""
    with servers_of(graph, 2, lease_s=3.0) as servers:
        yield addresses_of(servers)


@pytest.fixture(scope="module")
def there(addresses: list[str]) -> Iterator[RemoteDistDataset]:
    with RemoteDistDataset.connect(addresses[1], timeout=20) as dataset:
        yield dataset


def loader(dataset: Any, input_nodes: Any = "train", **options: Any) -> DistNeighborLoader:
    return DistNeighborLoader(dataset, [3, 2], input_nodes, **OPTIONS | options)


# What it says of the graph


def test_it_describes_the_same_graph(here: DistDataset, there: RemoteDistDataset) -> None:
    names = "schema node_types edge_types edge_dir num_nodes num_edges splits graph_digest num_features"
    for name in (*names.split(), "num_classes", "node_feature_info", "edge_feature_info"):
        assert getattr(there, name) == getattr(here, name)
    assert there.metadata() == here.metadata()
    assert torch.equal(there.val_node_ids, here.val_node_ids)
    assert there.splits["node"].keys() == {"train", "val", "test"}
    assert (here.num_servers, there.num_servers) == (0, 2)
    assert repr(there) == (
        "RemoteDistDataset(2 servers, 300 nodes of 1 types, 2,400 edges of 1 types, edge_dir='in')"
    )


def test_it_has_the_names_of_gigl(here: DistDataset, there: RemoteDistDataset, addresses: list[str]) -> None:
    assert (there.fetch_node_types(), there.fetch_edge_types(), there.fetch_edge_dir()) == (None, None, "in")
    assert there.fetch_node_feature_info() == here.node_feature_info == (6, torch.float32)
    assert there.fetch_edge_feature_info() == (3, torch.float32)
    assert there.fetch_node_quantization_metadata() is there.fetch_edge_quantization_metadata() is None
    assert there.fetch_edge_weights_registered() is False
    assert torch.equal(there.fetch_node_partition_book(), here.partition_of(torch.arange(300)))
    owners = here.partition_of(homogeneous().edge_index[1])
    assert torch.equal(there.fetch_edge_partition_book(), owners)
    for ask, rule in (
        (there.fetch_node_partition_book, "unknown node type 'shop'"),
        (there.fetch_edge_partition_book, "edge_type must be one of"),
    ):
        with pytest.raises(ValueError, match=rule):
            ask("shop")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="leave the call out"):
        there.fetch_free_ports_on_storage_cluster(2)
    info = there.cluster_info
    assert (info.num_storage_nodes, info.num_compute_nodes, info.num_processes_per_compute) == (2, 1, 1)
    assert (info.num_cluster_nodes, info.compute_cluster_world_size, info.compute_node_rank) == (3, 1, 0)
    assert sorted(info.storage_addresses) == sorted(addresses)


def test_nodes_are_found_as_in_the_graph_itself(here: DistDataset, there: RemoteDistDataset) -> None:
    ids = np.array([7, 299, 0, 7])
    positions = there.positions("node", ids)
    assert np.array_equal(positions, here.positions("node", ids))
    assert there.node_ids("node", positions).tolist() == ids.tolist()
    assert np.array_equal(there.all_positions("node"), here.all_positions("node"))
    assert np.array_equal(there.split_positions("node", "val"), here.split_positions("node", "val"))


@pytest.mark.parametrize(
    ("ask", "rule"),
    [
        (lambda d: d.positions("node", np.array([1, 300, -1])), "2 unknown node ids of type 'node': 300, -1"),
        (lambda d: d.positions("shop", np.array([1])), "unknown node type 'shop'; known: 'node'"),
        (lambda d: d.all_positions("shop"), "unknown node type 'shop'"),
        (lambda d: d.split_positions("node", "dev"), "no split 'dev'; known: 'test', 'train', 'val'"),
        (lambda d: d.fetch_node_ids("dev"), "no split 'dev'"),
        (lambda d: d.fetch_node_ids(node_type="shop"), "unknown node type 'shop'"),
        (lambda d: d.fetch_node_ids(rank=1), "rank and world_size come together or not at all"),
        (lambda d: d.partition_of(torch.tensor([300])), "1 unknown node ids of type 'node': 300"),
    ],
    ids=range(8),
)
def test_what_the_graph_has_not_is_refused(
    here: DistDataset, there: RemoteDistDataset, ask: Any, rule: str
) -> None:
    for dataset in (here, there):
        with pytest.raises(ValueError, match=rule):
            ask(dataset)


def test_both_kinds_of_dataset_have_one_face(here: DistDataset, there: RemoteDistDataset) -> None:
    datasets: list[Dataset] = [here, there]
    names = {name for name in dir(Dataset) if not name.startswith("_")}
    assert {"fetch_node_ids", "partition_of", "splits", "close"} <= names
    for name in names:
        faces = [getattr(type(dataset), name) for dataset in datasets]
        if callable(faces[0]):
            assert inspect.signature(faces[0]) == inspect.signature(faces[1])


@pytest.mark.parametrize("split", ["train", None])
def test_node_lists_are_by_the_server_that_holds_the_nodes(
    here: DistDataset, there: RemoteDistDataset, split: str | None
) -> None:
    lists = there.fetch_node_ids(split)
    assert list(lists) == [0, 1]
    owners = {server: set(there.partition_of(ids).tolist()) for server, ids in lists.items()}
    assert owners == {0: {0, 2}, 1: {1}}
    positions = here.all_positions("node") if split is None else here.split_positions("node", split)
    assert sorted(torch.cat(list(lists.values())).tolist()) == sorted(
        here.node_ids("node", positions).tolist()
    )


@pytest.mark.parametrize("balance", ["servers", "seeds"])
@pytest.mark.parametrize("where", ["here", "there"])
def test_ranks_share_node_lists(
    here: DistDataset, there: RemoteDistDataset, where: str, balance: Any
) -> None:
    dataset = {"here": here, "there": there}[where]
    whole = dataset.fetch_node_ids("train")
    shares = [
        dataset.fetch_node_ids("train", "node", rank=rank, world_size=3, balance=balance) for rank in range(3)
    ]
    for server, ids in whole.items():
        assert torch.equal(torch.cat([share[server] for share in shares]), ids)
    if balance == "seeds" or where == "here":
        sizes = [sum(map(len, share.values())) for share in shares]
        assert max(sizes) - min(sizes) <= 1


# Loaders


@pytest.mark.parametrize(
    ("num_workers", "input_nodes"), [(0, "train"), (2, None), (1, torch.tensor([5, 299, 17] * 20))]
)
def test_a_loader_gives_the_same_batches(
    here: DistDataset, there: RemoteDistDataset, num_workers: int, input_nodes: Any
) -> None:
    expected = list(loader(here, input_nodes, num_workers=0))
    with loader(there, input_nodes, num_workers=num_workers) as batches:
        check_same(list(batches), expected)
        assert batches.stats()["batches"] == len(expected)


def test_node_lists_of_any_dataset_are_the_input_of_a_loader(
    here: DistDataset, there: RemoteDistDataset
) -> None:
    ids = here.fetch_node_ids("val", rank=1, world_size=2)
    assert list(ids) == [0]
    expected = list(loader(here, ids[0], num_workers=0))
    check_same(list(loader(here, ids, num_workers=0, sharding="none")), expected)
    assert torch.equal(here.partition_of(ids[0]), there.partition_of(ids[0]))


def test_input_by_server_comes_in_the_order_of_the_servers(
    here: DistDataset, there: RemoteDistDataset
) -> None:
    by_server = there.fetch_node_ids("val")
    expected = list(loader(here, torch.cat([by_server[0], by_server[1]]), num_workers=0))
    with loader(there, dict(reversed(by_server.items()))) as batches:
        check_same(list(batches), expected)
    with pytest.raises(ValueError, match="input_nodes has 2 for the rank of a server; there are 2"):
        loader(there, {2: torch.tensor([1])})


def test_seeds_are_drawn_by_weights_of_the_trainer(here: DistDataset, there: RemoteDistDataset) -> None:
    nodes = torch.arange(300)
    weights = SharedTensors.create({"weight": torch.arange(300.0)})
    options: dict[str, Any] = {"seed_weights": weights, "shuffle": False}
    expected = list(loader(here, nodes, num_workers=0, **options))
    with loader(there, nodes, **options) as batches:
        check_same(list(batches), expected)


def test_a_state_goes_from_one_kind_of_dataset_to_the_other(
    here: DistDataset, there: RemoteDistDataset
) -> None:
    whole = list(loader(here, num_workers=0))
    for first, second in ((here, there), (there, here)):
        with loader(first) as batches:
            seen = list(islice(batches, 2))
            state = json.loads(json.dumps(batches.state_dict()))
        with loader(second) as batches:
            batches.load_state_dict(state)
            check_same([*seen, *batches], whole)


def test_prefetching_for_nobody_is_refused(there: RemoteDistDataset) -> None:
    with pytest.raises(ValueError, match=r"prefetch_size=8 with num_workers=0, .* leave one of them out"):
        loader(there, num_workers=0, prefetch_size=8)


def test_a_share_that_no_server_grants_is_refused_and_leaves_nothing(there: RemoteDistDataset) -> None:
    with pytest.raises(ValueError, match=r"num_workers=65.*64"):
        loader(there, num_workers=65)
    assert [load["producers"] for load in there.server_stats().values()] == [0, 0]


def test_loaders_of_one_worker_key_must_be_alike(there: RemoteDistDataset) -> None:
    with loader(there, worker_key="shared") as one, loader(there, worker_key="shared") as other:
        check_same(list(one), list(other))
        with pytest.raises(ValueError, match=r"storage server .*'shared'.*run_seed") as raised:
            loader(there, worker_key="shared", seed=10)
        assert "\n" not in str(raised.value)
        assert there.server_stats()[0]["producers"] == 1


def test_nothing_is_left_on_servers_by_loaders_that_ended(there: RemoteDistDataset) -> None:
    for _ in range(3):
        with loader(there) as batches:
            next(batches)
    assert wait_until(lambda: all(not load["producers"] for load in there.server_stats().values()))


# Ranks


def _digests(batches: Any) -> list[list[int]]:
    return [batch.n_id.tolist() for batch in batches]


def test_ranks_get_what_they_get_of_a_graph_in_each_of_them(here: DistDataset, addresses: list[str]) -> None:
    def embedded(_: RankGroup) -> Any:
        return [_digests(loader(here, name, num_workers=0, name=name)) for name in ("train", "val")]

    def remote(group: RankGroup) -> Any:
        with RemoteDistDataset.connect(addresses, timeout=20) as dataset:
            names = ["train", "val"]
            loaders = {
                name: loader(dataset, name, name=name, max_concurrent_producer_inits=1)
                for name in (reversed(names) if group.rank else names)
            }
            found = [_digests(loaders[name]) for name in names]
            for each in loaders.values():
                each.shutdown()
        return found

    assert run_ranks(3, remote) == run_ranks(3, embedded)


def test_a_producer_that_is_refused_fails_on_every_rank(there: RemoteDistDataset) -> None:
    def program(group: RankGroup) -> None:
        with loader(there, seed=20, name="one", worker_key="same"):
            group.publish("built", "yes")
            group.collect("built", timeout=20, what="build the first loader")
            loader(there, seed=21, name="two", worker_key="same")

    texts = [str(error) for error in run_ranks(2, program)]
    assert all("run_seed" in text for text in texts)
    leader = [text.startswith("storage server") for text in texts].index(True)
    # The other heard of it as its follower, or, where the leader was done before it came, as its peer.
    heard = f"rank {leader}: storage server", f"rank {leader} could not build two:"
    assert texts[1 - leader].startswith(heard)


# Life and death


@pytest.mark.slow
def test_what_a_job_has_outlives_its_lease_while_the_job_lives(there: RemoteDistDataset) -> None:
    """The lease is 3 s."""
    with loader(there, prefetch_size=1) as batches:
        next(batches)
        time.sleep(4)  # Without any call of ours.
        rest = list(batches)
        assert batches.stats()["reconnects"] == 0
    assert rest


def test_collected_without_close_it_leaves_nothing(addresses: list[str], there: RemoteDistDataset) -> None:
    def channels() -> int:
        return sum(len(load["channels"]) for load in there.server_stats().values())

    dataset = RemoteDistDataset.connect(addresses, timeout=20)
    batches = loader(dataset)
    next(batches)
    assert channels() == 2
    alive = weakref.ref(dataset)
    del dataset, batches
    gc.collect()
    assert alive() is None
    assert wait_until(lambda: channels() == 0)


def test_a_closed_dataset_says_so(addresses: list[str]) -> None:
    dataset = RemoteDistDataset.connect(addresses, timeout=20)
    batches = loader(dataset)
    kept = next(batches)
    dataset.close()
    dataset.close()
    assert len(kept.n_id)
    for ask in (dataset.fetch_node_ids, lambda: loader(dataset), lambda: next(batches)):
        with pytest.raises((ValueError, RuntimeError), match="closed"):
            ask()
    batches.shutdown()


def test_it_stays_in_its_process(there: RemoteDistDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="cannot be pickled: connect in the process that uses it"):
        pickle.dumps(there)
    monkeypatch.setattr("os.getpid", lambda: 1)
    with pytest.raises(RuntimeError, match=r"belongs to process \d+: .* connect in the process that uses it"):
        there.fetch_node_ids()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_children_that_end_disturb_nothing(there: RemoteDistDataset) -> None:
    """Many, because gRPC's own handlers of forks abort one in six."""
    with loader(there) as batches:
        for number in range(20):
            next(batches, None)
            child = multiprocessing.get_context("fork").Process(target=int if number else gc.collect)
            child.start()
            child.join(60)
            assert child.exitcode == 0
    with loader(there) as batches:
        assert list(batches)


# Mistakes


@pytest.mark.parametrize(
    ("wrong", "error", "rule"),
    [
        ({"addresses": []}, ValueError, r"addresses must be 'HOST:PORT' of storage servers, got \[\]"),
        ({"addresses": 7070}, ValueError, "addresses must be 'HOST:PORT' of storage servers, got 7070"),
        ({"addresses": "nowhere"}, ValueError, "'nowhere' is not an address: write HOST:PORT"),
        ({"addresses": "0.0.0.0:7070"}, ValueError, r"0\.0\.0\.0:7070 cannot be asked"),
        ({"addresses": "127.0.0.1:0"}, ValueError, r"127\.0\.0\.1:0 cannot be asked"),
        ({"timeout": 0}, ValueError, "timeout must be a positive number of seconds, got 0"),
        ({"transport": "mail"}, ValueError, "transport must be one of auto, ring, network, got 'mail'"),
        ({"rows": "no"}, ValueError, "rows must be one of auto, direct, through, got 'no'"),
        ({"credentials": "token"}, TypeError, r"credentials must be a gigl_client\.Caller, got a str"),
    ],
    ids=range(9),
)
def test_arguments_that_cannot_be_right(wrong: dict[str, Any], error: type[Exception], rule: str) -> None:
    with pytest.raises(error, match=rule):
        RemoteDistDataset.connect(**{"addresses": "127.0.0.1:7070"} | wrong)


def test_addresses_may_be_one_text() -> None:
    assert list(map(str, read_addresses("a:1, [::1]:2"))) == ["a:1", "[::1]:2"]


def test_addresses_of_two_clusters_are_refused(graph: Path, addresses: list[str]) -> None:
    with (
        servers_of(graph, 1) as others,
        pytest.raises(
            ValueError, match=r"^storage server at .* is of another cluster, of .*: give addresses of"
        ),
    ):
        RemoteDistDataset.connect([addresses[0], *addresses_of(others)], timeout=20)


def test_one_of_several_addresses_may_be_down(addresses: list[str]) -> None:
    RemoteDistDataset.connect([f"127.0.0.1:{free_port()}", addresses[0]], timeout=20).close()


def test_a_server_that_waits_for_others_is_waited_for(graph: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = ServeOptions(graph_dir=graph, partitions=(0,), listen="127.0.0.1:0", workers=1)
    with build_storage_server(options) as server:
        address = server.endpoint.control_address
        with pytest.raises(StorageUnavailable) as raised:
            RemoteDistDataset.connect(address, timeout=0.3)
    said = str(raised.value)
    assert said.startswith("no storage cluster that is ready within 0.3 s: ")
    assert f"{address} is not ready: waits for partitions [1, 2]" in said
    assert "\n" not in said
    assert "waiting for storage servers" in caplog.text


def test_tls_tokens_and_certificates(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = Credentials.ephemeral(["127.0.0.1"])
    options = ServeOptions(graph_dir=graph, listen="127.0.0.1:0", workers=1)
    trust = credentials.certificate.decode()
    good = Caller(token=credentials.token, authority=trust)
    with build_storage_server(options, credentials=credentials) as server:
        server.wait_ready(20)
        address = server.endpoint.control_address
        with (
            RemoteDistDataset.connect(address, credentials=good, timeout=20) as dataset,
            loader(dataset) as batches,
        ):
            next(batches)
        other = Credentials.ephemeral(["127.0.0.1"]).certificate.decode()
        wrong = [
            (None, "it uses TLS, and is asked without: name the authority"),
            (Caller(token="x" * 20, authority=trust), "token"),
            (Caller(authority=trust), "token"),
            (Caller(token=credentials.token, authority=other), "certificate"),
        ]
        for caller, rule in wrong:
            _refused(address, caller, rule)
    monkeypatch.setattr(certificates, "_VALID", -certificates._BACKDATED / 2)
    expired = Credentials.ephemeral(["127.0.0.1"])
    monkeypatch.undo()
    caller = Caller(token=expired.token, authority=expired.certificate.decode())
    monkeypatch.setattr(Credentials, "check_certificate", lambda *_: None)
    with build_storage_server(options, credentials=expired) as server:
        server.wait_ready(20)
        _refused(server.endpoint.control_address, caller, "expired at ")


def _refused(address: str, caller: Caller | None, rule: str) -> None:
    """Check that waiting is not even tried, though there would be time."""
    with pytest.raises(Exception, match=rule) as raised:
        RemoteDistDataset.connect(address, credentials=caller, timeout=60)
    assert not isinstance(raised.value, StorageUnavailable)
    assert "\n" not in str(raised.value)
    assert address in str(raised.value)
