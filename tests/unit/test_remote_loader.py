"""What a loader gives when its servers fail: every batch, once, whatever was raised in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader, FormatError, StorageUnavailable
from gigl_server.sampling.scheduler import Scheduler
from gigl_server.sampling.service import SamplingService
from tests.support.clusters import addresses_of, check_same, embedded, servers_of
from tests.support.learnable import learnable_graph
from tests.support.made import record_made

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gigl_server.server import StorageServer

OPTIONS: dict[str, Any] = {"batch_size": 30, "shuffle": True, "seed": 9, "timeout": 20, "prefetch_size": 2}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learnable_graph(tmp_path_factory.mktemp("graphs") / "graph", num_partitions=2)


@pytest.fixture(scope="module")
def expected(graph: Path) -> list[Any]:
    batches = embedded(graph, [3, 2], "train", batch_size=30, shuffle=True, seed=9)
    assert len(batches) > 6
    return batches


@pytest.fixture(scope="module")
def served(graph: Path) -> Iterator[tuple[list[StorageServer], SamplingService]]:
    """One server, and what samples in it."""
    with pytest.MonkeyPatch.context() as patch:
        services = record_made(patch, SamplingService)
        with servers_of(graph, 1) as servers:
            yield servers, services[0]


@pytest.fixture
def servers(served: tuple[list[StorageServer], SamplingService]) -> list[StorageServer]:
    return served[0]


@pytest.fixture
def service(served: tuple[list[StorageServer], SamplingService]) -> SamplingService:
    return served[1]


def opened(servers: list[StorageServer], **ways: Any) -> RemoteDistDataset:
    return RemoteDistDataset.connect(addresses_of(servers), timeout=20, **ways)


def loader(dataset: Any, **options: Any) -> DistNeighborLoader:
    return DistNeighborLoader(dataset, [3, 2], "train", **OPTIONS | options)


def take(batches: Any, seen: list[Any], count: int) -> None:
    seen.extend(next(batches) for _ in range(count))


def test_a_channel_that_cannot_be_opened_again_costs_no_batch(
    servers: list[StorageServer],
    service: SamplingService,
    expected: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(servers, transport="ring") as dataset, loader(dataset) as batches:
        epoch, seen = iter(batches), list[Any]()
        take(epoch, seen, 2)
        with monkeypatch.context() as patches:
            patches.setattr(service, "ring_door", "")
            for channel in service.load().channels:
                service.destroy_producer(channel.job, channel.key)
            for _ in range(2):
                with pytest.raises(StorageUnavailable, match="hands out no rings"):
                    take(epoch, seen, len(expected))
        check_same([*seen, *epoch], expected)


def test_an_ask_that_a_server_stumbles_over_costs_no_batch(
    servers: list[StorageServer],
    service: SamplingService,
    expected: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A status that says nothing of the batch is no failure of it.

    It costs the channel, with all that it was asked for: the server may still write to the ring.
    """
    submit, calls = service.submit, list[Any]()

    def stumbling(*arguments: Any) -> Any:
        calls.append(arguments)
        return submit(*arguments) if len(calls) not in (2, 3) else 1 / 0

    monkeypatch.setattr(service, "submit", stumbling)
    with opened(servers) as dataset, loader(dataset) as batches:
        check_same(list(batches), expected)
        stats = batches.stats()
    assert stats["retries"] >= 2
    assert stats["reconnects"] in (1, 2)
    assert stats["rows"]["wire"] == stats["rows"]["wanted"] > 0


def test_a_server_that_only_stumbles_is_told_in_time_and_costs_no_batch(
    servers: list[StorageServer],
    service: SamplingService,
    expected: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with opened(servers) as dataset, loader(dataset, timeout=2) as batches:
        epoch, seen = iter(batches), list[Any]()
        take(epoch, seen, 2)
        with monkeypatch.context() as patches:
            patches.setattr(service, "submit", lambda *_: 1 / 0)
            with pytest.raises(StorageUnavailable, match=r"storage server 0 at .* log"):
                take(epoch, seen, len(expected))
        check_same([*seen, *epoch], expected)


@pytest.mark.parametrize("times", [1, 3])
def test_a_frame_that_breaks_a_rule_is_asked_for_again(
    servers: list[StorageServer],
    expected: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    times: int,
) -> None:
    """After the third time in a row the trainer is told; the next call asks again."""
    damaged = list[int]()
    finish = Scheduler.finish

    def damage(asks: Scheduler, task: Any, outcome: Any) -> None:
        if task.request.batch == 2 and len(damaged) < times:
            damaged.append(2)
            task.channel.ring.slot(task.slot)[:100] = 255
        finish(asks, task, outcome)

    monkeypatch.setattr(Scheduler, "finish", damage)
    with opened(servers, transport="ring") as dataset, loader(dataset) as batches:
        epoch, seen = iter(batches), list[Any]()
        take(epoch, seen, 2)
        if times == 3:
            with pytest.raises(FormatError, match="frame"):
                next(epoch)
        check_same([*seen, *epoch], expected)
    assert len(damaged) == times


def test_states_are_good_and_servers_are_told_of_when_they_are_gone(graph: Path, expected: list[Any]) -> None:
    """Those of all loaders, and after the dataset was closed."""
    with servers_of(graph, 2) as servers, opened(servers) as dataset:
        first = loader(dataset)
        second = DistNeighborLoader(dataset, [2], None, **OPTIONS)
        next(iter(first))
        states = first.state_dict()
        servers[1].close()
        stats = dataset.server_stats(timeout=5)
        assert stats[0]["producers"] == 2
        assert stats[1].keys() == {"error"}
        assert "storage server 1 at" in stats[1]["error"]
        servers[0].close()
        assert first.state_dict() == states
        assert second.state_dict()["batches"] == 0
        dataset.close()
        assert first.state_dict() == states
        first.shutdown()
        second.shutdown()
    with DistNeighborLoader(
        DistDataset.open(graph), [3, 2], "train", batch_size=30, shuffle=True, seed=9, num_workers=0
    ) as here:
        here.load_state_dict(states)
        check_same(list(here), expected[1:])
