"""The benchmark of the graph store: what it measures and how it reckons, never how fast."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_client import RemoteDistDataset
from gigl_loader.bench import store
from gigl_loader.bench import store as store_module
from gigl_loader.bench.loading import Pass
from gigl_loader.bench.store import CROWDED, IDLE, crowd_case, idle_case, kill_case, recovered
from gigl_loader.bench.workload import FULL, Workload, prepare

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TINY = Workload(nodes=400, edges=3_000, dim=4, fanout=(3, 2), batch_size=10, batches=4)

SPENT = {
    "sampling_s": 0.1,
    "gathering_s": 0.2,
    "between_in": 8e6,
    "between_out": 2e6,
    "bytes": 20e6,
    "wire_bytes_in": 22e6,
    "wire_bytes_out": 1e6,
}


def test_setups_are_named() -> None:
    names = [str(setup) for setup in (store.RING, store.NETWORK, store.DIRECT, store.THROUGH_4)]
    assert names == [
        "store, 1 server, ring",
        "store, 1 server, network",
        "store, 2 servers, network, rows direct",
        "store, 4 servers, network, rows through",
    ]


def test_small_batches_take_the_same_seeds_in_an_eighth() -> None:
    small = store.small_batches(FULL)
    assert (small.batch_size, small.batches, small.fanout) == (128, 480, (10, 5))
    assert small.num_seeds == FULL.num_seeds
    assert store.small_batches(TINY).fanout == (2,)


TOTAL = Pass(seeds=1000, nodes=1, edges=1_900_000, targets=200_000, batches=2)


class _Spending:
    """A dataset, and a loader of it, whose counters are first 0 and then ``SPENT``."""

    def __init__(self) -> None:
        self._loads, self._stats = (iter([dict.fromkeys(SPENT, 0.0), SPENT]) for _ in range(2))

    def server_stats(self, *, timeout: float) -> dict[str, Any]:
        spent = next(self._loads)
        totals = {name: spent[name] for name in ("sampling_s", "gathering_s")}
        peer = {"bytes_in": spent["between_in"], "bytes_out": spent["between_out"]}
        return {"": {"totals": totals, "peers": [peer]}}

    def stats(self) -> dict[str, float]:
        return next(self._stats)


def _figures(setup: store.Setup) -> Mapping[str, float]:
    """Return the figures of an epoch that costs ``SPENT`` and gives ``TOTAL``, in 1 s of CPU, 0.3 s own."""
    spending, own = _Spending(), iter([0.0, 0.3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "LocalCluster", lambda *_, **__: nullcontext(SimpleNamespace(addresses=[])))
        patch.setattr(RemoteDistDataset, "connect", lambda *_, **__: nullcontext(spending))
        patch.setattr(store, "open_loader", lambda *_: nullcontext(spending))
        patch.setattr(Pass, "over", lambda _: TOTAL)
        patch.setattr(store, "CpuMeter", lambda: SimpleNamespace(read=lambda: (1.0, 0.0)))
        patch.setattr("time.thread_time", lambda: next(own))
        patch.setattr(store, "bare_transfer", lambda **_: 1.0)
        return store.store_case(Path(), None, TINY, setup, epochs=1)()[str(setup)]


def test_all_cpu_seconds_are_told_apart() -> None:
    figures = _figures(store.DIRECT)
    assert figures["cpu_wire_s_per_kseed"] == pytest.approx(0.4)
    parts = [figures[f"cpu_{name}_s_per_kseed"] for name in ("sampling", "gathering", "wire", "rest")]
    assert sum(parts) == pytest.approx(figures["cpu_s_per_kseed"]) == pytest.approx(1.0)


def test_what_crosses_is_compared_with_what_must() -> None:
    wire = _figures(store.DIRECT)
    assert wire["received_over_frame"] == pytest.approx(1.1)
    # 100,000 lists with 950,000 edges a batch, half of them elsewhere: a million numbers of 4 bytes.
    assert wire["between_mb"] == pytest.approx(4.0)
    assert wire["between_over_lists"] == pytest.approx(1.0)
    for setup in (store.NETWORK, store.THROUGH):  # No other server; rows cross, too.
        assert "between_over_lists" not in _figures(setup)


def test_recovery_is_from_the_kill_to_the_end_of_the_longest_wait() -> None:
    """Whatever was in hand, and however slow a batch is later."""
    assert recovered(10.0, [10.1, 10.2, 12.0, 13.5]) == pytest.approx(2.0)
    assert recovered(10.0, [11.5, 11.6]) == pytest.approx(1.5)


def test_a_loader_that_fails_ends_the_race_with_its_error() -> None:
    assert _crowd([_Stub(), _Stub()], 0.2)["fewest_batches"] > 0
    with pytest.raises(ZeroDivisionError):
        _crowd([_Stub(), _Stub(broken=True)], 60)


class _Stub:
    """A loader whose epochs have one batch, or fail."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.is_open = True

    def __iter__(self) -> Iterator[int]:
        if self.broken:
            raise ZeroDivisionError
        time.sleep(0.001)  # Lets the other one run.
        yield 1

    def shutdown(self) -> None:
        self.is_open = False


def _crowd(loaders: list[_Stub], seconds: float) -> Mapping[str, float]:
    """Return what the case of many loaders finds of these."""
    left = list(loaders)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            store_module, "LocalCluster", lambda *_, **__: nullcontext(SimpleNamespace(addresses=[]))
        )
        patch.setattr(RemoteDistDataset, "connect", lambda *_, **__: nullcontext())
        patch.setattr(store_module, "open_loader", lambda *_, **__: left.pop(0))
        try:
            return crowd_case(Path(), None, TINY, loaders=len(loaders), seconds=seconds)()[CROWDED]
        finally:
            assert not any(each.is_open for each in loaders)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_the_store_is_measured_in_every_way(tmp_path: Path) -> None:
    seeds = np.load(prepare(TINY, tmp_path).parent / "train.npy")[: TINY.num_seeds]
    parted = prepare(TINY, tmp_path, partitions=2)
    for setup in (store.RING, store.NETWORK, store.DIRECT, store.THROUGH):
        graph = tmp_path / "graph" if setup.servers == 1 else parted
        figures = store.store_case(graph, seeds, TINY, setup, epochs=1)()
        ours = figures[str(setup)]
        parts = [ours[f"cpu_{part}_s_per_kseed"] for part in ("sampling", "gathering", "wire", "rest")]
        assert sum(parts) == pytest.approx(ours["cpu_s_per_kseed"])
        assert (ours["received_mb"] < ours["frame_mb"]) == (setup is store.RING)
        assert (ours["between_mb"] > 0) == (setup.servers > 1)
        assert (store.FRAMES in figures) == (setup is store.NETWORK)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_what_a_server_bears_is_measured(tmp_path: Path) -> None:
    graph = prepare(TINY, tmp_path)
    seeds = np.load(tmp_path / "train.npy")[: TINY.num_seeds]
    (killed,) = kill_case(graph, seeds, TINY, store.NETWORK)().values()
    assert 0 < killed["kill_to_batch_s"] < 60
    idle = idle_case(graph, TINY, channels=50)()[IDLE]
    assert idle["idle_channels_add_mb"] < 50
    assert idle["idle_threads"] < 60
    crowd = crowd_case(graph, seeds, TINY, loaders=3, prefetch=2, seconds=0.5)()[CROWDED]
    assert crowd["loaders"] == 3
    assert 0 < crowd["slowest_over_mean"] <= 1
