"""Frames on their way to a device. Without CUDA, copies stay on the CPU and streams are fakes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.loaders.transfer import HostTransfer, StreamTransfer, SynchronousTransfer, transfer_to
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU = torch.device("cpu")


def _loader(kind: str, **options: Any) -> DistNeighborLoader:
    data = homogeneous() if kind == "homogeneous" else heterogeneous()
    nodes = "train" if kind == "homogeneous" else ("item", None)
    defaults: dict[str, Any] = {"batch_size": 16, "seed": 2, "num_workers": 0, "with_edge": True}
    return DistNeighborLoader(DistDataset.from_pyg(data), [4, 3], nodes, **{**defaults, **options})


def test_each_device_has_its_way() -> None:
    assert isinstance(transfer_to(CPU, non_blocking=True), HostTransfer)
    assert isinstance(transfer_to(torch.device("cuda:0"), non_blocking=False), SynchronousTransfer)


@pytest.mark.parametrize("kind", ["homogeneous", "heterogeneous"])
def test_a_packed_copy_gives_the_same_batches(kind: str) -> None:
    expected = list(_loader(kind))
    loader = _loader(kind)
    loader._transfer = SynchronousTransfer(CPU)
    batches = list(loader)
    assert len(batches) == len(expected)
    assert all(map(same_batch, batches, expected))


def test_a_packed_copy_shares_nothing_with_the_frame() -> None:
    loader = _loader("homogeneous")
    loader._transfer = SynchronousTransfer(CPU)
    batch = next(loader)
    pointers = {batch.x.untyped_storage().data_ptr(), batch.n_id.untyped_storage().data_ptr()}
    assert len(pointers) == 1
    other = next(loader)
    assert other.x.untyped_storage().data_ptr() not in pointers


class _Log(list[str]):
    """What was asked of the fake device, in order."""

    def event(self) -> Any:
        name = f"event {sum(entry.startswith('new') for entry in self)}"
        self.append(f"new {name}")
        return _FakeEvent(self, name)


class _FakeEvent:
    def __init__(self, log: _Log, name: str) -> None:
        self._log = log
        self.name = name

    def synchronize(self) -> None:
        self._log.append(f"host waits for {self.name}")

    def record(self, stream: _FakeStream) -> None:
        self._log.append(f"{stream.name} records {self.name}")


class _FakeStream:
    def __init__(self, log: _Log, name: str) -> None:
        self._log = log
        self.name = name

    def wait_event(self, event: _FakeEvent) -> None:
        self._log.append(f"{self.name} waits for {event.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> _Log:
    """Stand-ins for streams, events and pinned memory."""
    log = _Log()
    empty = torch.empty

    @contextmanager
    def on_stream(stream: _FakeStream) -> Iterator[None]:
        log.append(f"enter {stream.name}")
        yield
        log.append(f"leave {stream.name}")

    def pinned(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory:
            log.append(f"pin {size[0]} bytes")
        return empty(*size, **options)

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: _FakeStream(log, "side"))
    monkeypatch.setattr(torch.cuda, "Event", log.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: _FakeStream(log, "consumer"))
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda _, stream: log.append(f"buffer is used by {stream.name}")
    )
    return log


def test_a_copy_runs_on_the_side_and_only_the_consumer_waits(log: _Log) -> None:
    loader = _loader("homogeneous")
    expected = list(_loader("homogeneous"))
    loader._transfer = StreamTransfer(CPU)
    log.clear()
    assert same_batch(next(loader), expected[0])
    first = [entry for entry in log if not entry.startswith("pin")]
    assert first == [
        "host waits for event 0",
        "enter side",
        "side records event 0",
        "leave side",
        "consumer waits for event 0",
        "buffer is used by consumer",
    ]
    assert same_batch(next(loader), expected[1])
    assert same_batch(next(loader), expected[2])
    waits = [entry for entry in log if entry.startswith("host waits")]
    assert waits == ["host waits for event 0", "host waits for event 1", "host waits for event 0"]


def test_pinned_memory_is_used_again(log: _Log) -> None:
    loader = _loader("homogeneous")
    loader._transfer = StreamTransfer(CPU)
    for _ in range(4):
        list(loader)
    assert sum(entry.startswith("pin") for entry in log) <= 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["homogeneous", "heterogeneous"])
@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_on_cuda_equal_those_on_the_cpu(kind: str, non_blocking: bool, num_workers: int) -> None:
    expected = list(_loader(kind, device="cpu"))
    options: dict[str, Any] = {"device": "cuda", "non_blocking_transfers": non_blocking}
    with _loader(kind, num_workers=num_workers, **options) as loader:
        batches = list(loader)
    assert all(
        value.is_cuda
        for batch in batches
        for store in batch.stores
        for value in store.values()
        if isinstance(value, torch.Tensor)
    )
    assert len(batches) == len(expected)
    assert all(same_batch(batch.cpu(), other) for batch, other in zip(batches, expected, strict=True))
