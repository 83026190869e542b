"""Frames on their way to a device, and the memory that they land in."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.channel.ring import RingLayout
from gigl_loader.loaders.transfer import (
    HostTransfer,
    PinnedSlots,
    ReusedMemory,
    StreamTransfer,
    SynchronousTransfer,
    transfer_to,
)
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.loaders.transfer import Transfer


CPU = torch.device("cpu")


def _loader(kind: str, **options: Any) -> DistNeighborLoader:
    data = heterogeneous() if kind == "heterogeneous" else homogeneous()
    nodes = ("item", None) if kind == "heterogeneous" else "train"
    quantize = {"x": "int8", "edge_attr": "uint2:per-row"} if kind == "quantised" else None
    defaults: dict[str, Any] = {
        "batch_size": 16,
        "seed": 2,
        "num_workers": 0,
        "with_edge": True,
        "device": "cpu",
    }
    dataset = DistDataset.from_pyg(data, quantize=quantize)
    return DistNeighborLoader(dataset, [4, 3], nodes, **{**defaults, **options})


def _loading_by(transfer: Transfer, kind: str, **options: Any) -> DistNeighborLoader:
    """Return a loader that takes ``transfer`` for the way to its device."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gigl_loader.loaders.base.transfer_to", lambda *_, **__: transfer)
        return _loader(kind, **options)


def test_each_device_has_its_way() -> None:
    assert isinstance(transfer_to(CPU, non_blocking=True), HostTransfer)
    assert isinstance(transfer_to(torch.device("cuda:0"), non_blocking=False), SynchronousTransfer)


@pytest.mark.parametrize("kind", ["homogeneous", "heterogeneous", "quantised"])
def test_a_packed_copy_gives_the_same_batches(kind: str) -> None:
    expected = list(_loader(kind))
    batches = list(_loading_by(SynchronousTransfer(CPU), kind))
    assert len(batches) == len(expected)
    assert all(map(same_batch, batches, expected))


def test_a_packed_copy_shares_nothing_with_the_frame() -> None:
    loader = _loading_by(SynchronousTransfer(CPU), "homogeneous")
    batch = next(loader)
    pointers = {batch.x.untyped_storage().data_ptr(), batch.n_id.untyped_storage().data_ptr()}
    assert len(pointers) == 1
    other = next(loader)
    assert other.x.untyped_storage().data_ptr() not in pointers


class _Device:
    """A stand-in for a CUDA device: what was asked of it, in order, and what it says."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.events = 0
        self.done = False
        """Whether copies are done when they are asked about."""
        self.registered: dict[int, int] = {}
        self.refuses = False

    def event(self) -> Any:
        self.events += 1
        return _FakeEvent(self, f"event {self.events - 1}")

    def said(self, start: str) -> list[str]:
        return [entry for entry in self.log if entry.startswith(start)]

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
        overlaps = any(begin < address + size and address < begin + n for begin, n in self.registered.items())
        assert not overlaps
        assert flags == 0
        if self.refuses:
            return 801
        self.registered[address] = size
        self.log.append(f"register {size} bytes")
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.log.append(f"unregister {self.registered.pop(address)} bytes")
        return 0


class _FakeEvent:
    def __init__(self, device: _Device, name: str) -> None:
        self._device = device
        self.name = name

    def query(self) -> bool:
        return self._device.done

    def synchronize(self) -> None:
        self._device.log.append(f"host waits for {self.name}")

    def record(self, stream: _FakeStream) -> None:
        self._device.log.append(f"{stream.name} records {self.name}")


class _FakeStream:
    def __init__(self, device: _Device, name: str) -> None:
        self._device = device
        self.name = name

    def wait_event(self, event: _FakeEvent) -> None:
        self._device.log.append(f"{self.name} waits for {event.name}")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> _Device:
    """Stand-ins for streams, events, pinned memory and CUDA's runtime."""
    device = _Device()
    empty = torch.empty

    @contextmanager
    def on_stream(stream: _FakeStream) -> Iterator[None]:
        device.log.append(f"enter {stream.name}")
        yield
        device.log.append(f"leave {stream.name}")

    def pinned(*size: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory:
            device.log.append(f"pin {size[0]} bytes")
        return empty(*size, **options)

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: _FakeStream(device, "side"))
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: _FakeStream(device, "consumer"))
    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: device)
    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda _, stream: device.log.append(f"buffer is used by {stream.name}")
    )
    return device


def _streaming(**options: Any) -> DistNeighborLoader:
    return _loading_by(StreamTransfer(CPU), "homogeneous", **options)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_copy_runs_on_the_side_and_only_the_consumer_waits(device: _Device, num_workers: int) -> None:
    expected = list(_loader("homogeneous"))
    with _streaming(num_workers=num_workers) as loader:
        assert same_batch(next(loader), expected[0])
        assert [entry for entry in device.log if not entry.startswith("register")] == [
            "enter side",
            "side records event 0",
            "leave side",
            "consumer waits for event 0",
            "buffer is used by consumer",
        ]
        assert same_batch(next(loader), expected[1])
        assert not device.said("host waits")
        assert same_batch(next(loader), expected[2])
        assert device.said("host waits") == ["host waits for event 0"]
        assert not device.said("pin")


def test_the_host_never_waits_for_copies_that_are_done(device: _Device) -> None:
    device.done = True
    loader = _streaming()
    assert len(list(loader)) == len(loader)
    assert not device.said("host waits")


def test_a_slot_is_kept_until_its_copy_is_done(device: _Device) -> None:
    loader = _streaming()
    next(loader), next(loader), next(loader)
    assert len(device.registered) == 3  # Two are under way while the third is filled.
    device.done = True
    list(loader)
    assert len(device.registered) == 3


def test_only_touched_pages_are_registered_and_once(device: _Device) -> None:
    with _streaming(num_workers=1, channel_size="1GB") as loader:
        largest = max(next(loader).x.untyped_storage().nbytes() for _ in range(len(loader)))
        list(loader)
    assert 0 < len(device.registered) <= 4 + 3  # In flight, and what two copies and the consumer keep.
    assert max(device.registered.values()) < largest * 9 / 8 + 4096
    assert len(device.said("register")) <= 2 * len(device.registered)


def test_a_slot_that_is_outgrown_is_registered_anew(device: _Device) -> None:
    memory = np.zeros(1 << 20, np.uint8)
    slot, slots = memory[4096:600_000], PinnedSlots(CPU)
    assert slots.pin(slot, 10_000)
    assert slots.pin(slot, 11_000)
    assert slots.pin(slot, 400_000)
    assert slots.pin(slot, 595_000)
    assert device.log == [
        "register 12288 bytes",
        "unregister 12288 bytes",
        "register 450560 bytes",
        "unregister 450560 bytes",
        "register 595904 bytes",  # To the end of the slot and no further.
    ]


def test_what_was_registered_is_given_back_before_the_ring_is_unmapped(device: _Device) -> None:
    with _streaming(num_workers=1) as loader:
        batch = next(loader)
        assert device.registered
    del loader
    gc.collect()
    ends = [entry for entry in device.log if entry.startswith(("host waits", "unregister"))]
    assert ends[0] == "host waits for event 0"  # The copy might still read what is unmapped next.
    assert batch.x is not None  # On the device: it keeps no slot.
    assert device.registered == {}
    assert device.said("unregister")


def test_memory_that_cannot_be_registered_is_copied_through_pinned_memory(
    device: _Device, caplog: pytest.LogCaptureFixture
) -> None:
    device.refuses = True
    expected = list(_loader("homogeneous"))
    loader = _streaming()
    batches = [next(loader) for _ in expected]
    assert all(map(same_batch, batches, expected))
    for _ in range(3):
        list(loader)
    assert 1 <= len(device.said("pin")) <= 4  # Used again.
    assert len(caplog.records) == 1
    assert "cannot page-lock" in caplog.text


def test_frames_beyond_channel_size_are_registered_where_they_lie(device: _Device) -> None:
    expected = list(_loader("homogeneous"))
    with _streaming(num_workers=1, channel_size="1MB", worker_concurrency=100) as loader:
        batches = [next(loader) for _ in expected]
        assert not loader.stats()["oversize"]
    assert all(map(same_batch, batches, expected))
    assert not device.said("pin")


def test_a_frame_outside_the_ring_is_copied_through_pinned_memory(
    device: _Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(_loader("homogeneous"))
    page = RingLayout(request_slots=2, request_bytes=4096, slots=1, slot_bytes=4096)
    monkeypatch.setattr(RingLayout, "fit", lambda *_, **__: page)
    with _streaming(num_workers=1, worker_concurrency=2) as loader:
        batches = [next(loader) for _ in expected]
        assert loader.stats()["oversize"]
    assert all(map(same_batch, batches, expected))
    assert device.said("pin")


# --- With a CUDA device


@pytest.mark.device
@pytest.mark.parametrize("kind", ["homogeneous", "heterogeneous", "quantised"])
@pytest.mark.parametrize("non_blocking", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_on_cuda_equal_those_on_the_cpu(kind: str, non_blocking: bool, num_workers: int) -> None:
    expected = list(_loader(kind))
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


@pytest.mark.device
def test_slots_are_page_locked_while_the_ring_is_mapped() -> None:
    with _loader("homogeneous", num_workers=1, device="cuda") as loader:
        list(loader)
        transfer = loader._pipeline.transfer
        assert isinstance(transfer, StreamTransfer)
        slots = transfer._slots
        (pinned,) = slots._memories.values()
        assert pinned
        assert not slots._refused
        source = loader._frames.source
        source.start_epoch(0)
        frame = source.receive(60)
        transfer.load(frame)
        assert torch.from_numpy(frame.buffer).is_pinned()
        del frame, transfer
    del loader, source
    gc.collect()
    assert not slots._memories


@pytest.mark.device
def test_a_frame_in_several_slots_arrives_through_pinned_memory() -> None:
    expected = list(_loader("homogeneous"))
    with _loader(
        "homogeneous", num_workers=1, channel_size="1MB", worker_concurrency=100, device="cuda"
    ) as loader:
        batches = [next(loader).cpu() for _ in expected]
        transfer = loader._pipeline.transfer
        assert isinstance(transfer, StreamTransfer)
        assert len(transfer._staging[0])
    assert all(map(same_batch, batches, expected))


# --- Memory that frames land in


def test_memory_comes_again_when_the_last_tensor_made_from_it_dies() -> None:
    memory = ReusedMemory()
    tensor = torch.from_numpy(memory.lend(1 << 20).view(np.int64).reshape(2, -1))
    place, row = tensor.data_ptr(), tensor[1]
    del tensor
    other = memory.lend(1 << 20)
    assert other.ctypes.data != place
    del row
    assert memory.lend(1000).ctypes.data == place


def test_who_keeps_all_gets_more() -> None:
    memory = ReusedMemory()
    kept = [memory.lend(4096) for _ in range(20)]
    for number, array in enumerate(kept):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(kept))


def test_larger_memory_leaves_what_was_lent_alone() -> None:
    memory = ReusedMemory()
    small = memory.lend(100)
    small[:] = 7
    large = memory.lend(10 << 20)
    large[:] = 1
    assert (small == 7).all()
    assert len(large) == 10 << 20
    assert large.ctypes.data % 8 == 0


def test_nothing_may_be_asked_for() -> None:
    assert len(ReusedMemory().lend(0)) == 0
