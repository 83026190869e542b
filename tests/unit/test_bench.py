"""``gigl-loader bench``: what it measures and prints, never how fast."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gigl_loader.bench.loading import Pass
from gigl_loader.bench.report import Report, save_plot
from gigl_loader.bench.rounds import CpuMeter, Measured, memory_of, process_tree, run_rounds
from gigl_loader.bench.store import (
    CACHED,
    DIRECT,
    NETWORK,
    RING,
    THROUGH,
    THROUGH_4,
    Setup,
    cached_setups,
    small_batches,
    store_case,
    wire_figures,
)
from gigl_loader.bench.suite import Suite
from gigl_loader.bench.workload import FULL, QUICK, Workload, prepare, training_seeds
from gigl_loader.cli.app import build_app
from gigl_loader.graph.graph import Graph

TINY = Workload(nodes=400, edges=3_000, dim=4, fanout=(3, 2), batch_size=10, batches=4)


def test_the_workload_is_fixed_by_its_seed(tmp_path: Path) -> None:
    graph = prepare(TINY, tmp_path)
    assert Graph.open(graph).schema.edges["node", "to", "node"].count == 3_000
    # The numbers that any generator of the workload must give: same draws, in the same order.
    rng = np.random.default_rng(7)
    popularity = np.cumsum(rng.pareto(1.6, 400) + 0.2)
    popularity /= popularity[-1]
    expected = np.searchsorted(popularity, rng.random(3_000))
    assert np.array_equal(np.load(tmp_path / "src.npy"), expected)
    assert prepare(TINY, tmp_path) == graph
    assert len(training_seeds(TINY, tmp_path)) == 40


def test_a_folder_of_another_workload_is_refused(tmp_path: Path) -> None:
    prepare(TINY, tmp_path)
    with pytest.raises(ValueError, match="choose another --data"):
        prepare(QUICK, tmp_path)


def test_partitions_hold_the_same_graph(tmp_path: Path) -> None:
    whole, parted = (Graph.open(prepare(TINY, tmp_path, partitions=count)) for count in (1, 2))
    assert parted.schema.num_partitions == 2
    assert parted.schema.edges == whole.schema.edges
    assert 150 < parted.bounds("node")[1] < 250


def test_more_seeds_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="exceed the 40 training seeds"):
        Workload(nodes=400, edges=10, dim=1, fanout=(1,), batch_size=41, batches=1)


def test_rounds_alternate_and_medians_are_taken() -> None:
    order: list[str] = []
    values = iter([1.0, 9.0, 2.0])

    def first() -> dict[str, dict[str, float]]:
        order.append("first")
        return {"a": {"speed": next(values)}}

    def second() -> dict[str, dict[str, float]]:
        order.append("second")
        return {"b": {"speed": 1.0}}

    measured = run_rounds({"first": first, "second": second}, rounds=3)
    assert order == ["first", "second"] * 3
    assert measured.median("a", "speed") == 2.0
    assert measured.median("a", "weight") is None
    assert measured.median("c", "speed") is None
    assert measured.others_busy() >= 0


def test_ratios_need_both_sides() -> None:
    measured = Measured()
    measured.add({"gather": {"gb_per_s": 6.0}, "memcpy, warm": {"gb_per_s": 12.0}})
    assert Report(measured).found_ratios() == {"gather over memcpy, warm": 0.5}


def test_a_plot_is_drawn_of_what_there_is(tmp_path: Path) -> None:
    measured = Measured()
    measured.add({"gather": {"gb_per_s": 6.0}, "glt_sampler_t1_seed1": {"edges_per_s": 12.0}})
    save_plot(measured, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_meter_sees_this_process() -> None:
    meter = CpuMeter()
    assert os.getpid() in process_tree(os.getpid())
    assert memory_of(os.getpid()).anonymous > 1_000_000
    assert memory_of(2**22 + 1).anonymous == 0
    assert min(meter.read()) >= 0


def test_setups_of_the_store_are_named() -> None:
    assert [str(setup) for setup in (RING, NETWORK, DIRECT, THROUGH_4)] == [
        "store, 1 server, ring",
        "store, 1 server, network",
        "store, 2 servers, network, rows direct",
        "store, 4 servers, network, rows through",
    ]
    assert list(map(str, cached_setups([20, 50], [None, 4]))) == [
        f"store, 2 servers, network, rows direct, cache {kept}"
        for kept in ("20 %", "20 %, window 4", "50 %", "50 %, window 4")
    ]
    assert CACHED.features(TINY) == {"feature_memory": 400 * 24 // 5}
    assert DIRECT.features(TINY) == {}


def test_small_batches_take_the_same_seeds_in_an_eighth() -> None:
    small = small_batches(FULL)
    assert (small.batch_size, small.batches, small.fanout) == (128, 480, (10, 5))
    assert small.num_seeds == FULL.num_seeds
    assert small_batches(TINY).fanout == (2,)


def test_what_crosses_is_compared_with_what_must() -> None:
    total = Pass(seeds=1000, nodes=1, edges=1_900_000, targets=200_000, batches=2)
    spent = {
        "between_in": 8e6,
        "between_out": 2e6,
        "bytes": 20e6,
        "wire_bytes_in": 22e6,
        "wire_bytes_out": 1e6,
    }

    def wire(setup: Setup) -> dict[str, float]:
        return wire_figures(spent, total, setup)

    assert wire(DIRECT)["received_over_frame"] == pytest.approx(1.1)
    # 100,000 lists with 950,000 edges a batch, half of them remote: a million numbers of 4 bytes.
    assert wire(DIRECT)["between_mb"] == pytest.approx(4.0)
    assert wire(DIRECT)["between_over_lists"] == pytest.approx(1.0)
    for setup in (NETWORK, THROUGH):  # No other server; rows cross, too.
        assert "between_over_lists" not in wire(setup)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_the_store_is_measured_in_every_way(tmp_path: Path) -> None:
    graphs = {count: prepare(TINY, tmp_path, partitions=count) for count in (1, 2)}
    seeds = training_seeds(TINY, tmp_path)
    for setup in (RING, NETWORK, DIRECT, THROUGH, CACHED):
        (figures,) = store_case(graphs[setup.servers], seeds, TINY, setup, epochs=1)().values()
        parts = [figures[f"cpu_{part}_s_per_kseed"] for part in ("sampling", "gathering", "wire", "rest")]
        assert sum(parts) == pytest.approx(figures["cpu_s_per_kseed"])
        assert (figures["received_mb"] < figures["frame_mb"]) == (setup is RING)
        assert (figures["between_mb"] > 0) == (setup.servers > 1)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_a_quick_run_measures_everything(tmp_path: Path) -> None:
    figures = tmp_path / "bench.json"
    arguments = ["bench", "--quick", "--rounds", "1", "--workers", "0,1", "--data", str(tmp_path / "data")]
    result = CliRunner().invoke(build_app(), [*arguments, "--json", str(figures)])
    assert result.exit_code == 0, result.output
    document = json.loads(figures.read_text())
    assert {"sampler", "gather", "loader, inline", "loader, 1 worker", "trainer, links"} <= set(
        document["subjects"]
    )
    assert not any(name.startswith("store") for name in document["subjects"])  # Not in seconds.
    assert "1 worker over inline" in document["ratios"]
    assert document["subjects"]["memory, 1 worker"]["worker_adds_mb"]["median"] < 60
    nodes = [
        document["subjects"][name]["nodes_per_batch"]["median"]
        for name in ("loader, inline", "loader, 1 worker")
    ]
    assert nodes[0] == nodes[1]


def test_loaders_that_are_measured_start_as_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []

    def opened(*_: Any, **options: Any) -> Any:
        chosen.append(options)
        return nullcontext([])

    monkeypatch.setattr("gigl_loader.bench.loading.open_loader", opened)
    suite = Suite(workload=TINY, folder=tmp_path, workers=(2,), groups=("loading",), start_method="fork")
    with pytest.raises(ZeroDivisionError):  # There are no batches.
        suite.timed()["loader, 2 workers"]()
    assert chosen == [{"multiprocessing_context": "fork"}]


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    for groups in (("sampling", "speed"), ()):
        with pytest.raises(ValueError, match="--measure takes some of sampling,loading,trainer,store,memory"):
            Suite(workload=TINY, folder=tmp_path, groups=groups)


@pytest.mark.parametrize(
    "arguments",
    [["--measure", "speed"], ["--workers", "two"], ["--workers", "-1"], ["--windows", "x"]],
)
def test_a_bad_argument_is_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(build_app(), ["bench", "--quick", *arguments])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gigl_loader.cli.bench.find_spec", lambda _: None)
    result = CliRunner().invoke(build_app(), ["bench", "--quick", "--plot", str(tmp_path / "plot.png")])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "gigl-loader: --plot needs matplotlib: pip install 'gigl-loader[bench]'\n"
