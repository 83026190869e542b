"""The benchmark: what it measures and prints, never how fast."""

from __future__ import annotations

import json
import os
import stat
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data
from typer.testing import CliRunner

from gigl_loader.bench import ranks
from gigl_loader.bench.flight import KEEP_MEMORY, bare_transfer
from gigl_loader.bench.rank import RemoteShare
from gigl_loader.bench.ranks import Crowd, Job, ranks_case, start_memory_case
from gigl_loader.bench.report import ratios, save_plot
from gigl_loader.bench.rounds import CpuMeter, Measured, memory_of, process_tree, run_rounds
from gigl_loader.bench.suite import Suite, peer_case, peer_memory_case
from gigl_loader.bench.workload import QUICK, Workload, prepare
from gigl_loader.cli.app import build_app
from gigl_loader.graph.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

TINY = Workload(nodes=400, edges=3_000, dim=4, fanout=(3, 2), batch_size=10, batches=4)

PEER = """#!/bin/sh
[ "$1" = setup ] && exit 0
echo "a line that is no result"
echo '{"tag": "glt_sampler_t1_seed1", "edges_s": 10.0, "seeds_s": 2.0, "something": "else"}'
[ -z "$METER" ] || echo '{"meter": {"peak_pss_GB": 4.5}}'
"""


def script(folder: Path, text: str) -> Path:
    path = folder / "peer.sh"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


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
    assert ratios(measured) == {"gather over memcpy, warm": 0.5}


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


def test_a_peer_is_read_by_what_it_prints(tmp_path: Path) -> None:
    case = peer_case(script(tmp_path, PEER), tmp_path, TINY, "sampler", num_workers=2)
    assert case() == {"glt_sampler_t1_seed1": {"edges_per_s": 10.0, "seeds_per_s": 2.0}}


def test_the_memory_of_a_peer_is_what_its_script_saw(tmp_path: Path) -> None:
    case = peer_memory_case(script(tmp_path, PEER), tmp_path, TINY, num_workers=2)
    assert case() == {"memory, peer 2 workers": {"peak_pss_gb": 4.5}}


def test_a_peer_that_fails_is_named(tmp_path: Path) -> None:
    case = peer_case(script(tmp_path, "#!/bin/sh\nexit 3\n"), tmp_path, TINY, "sampler", num_workers=2)
    with pytest.raises(RuntimeError, match="exit code 3"):
        case()


def test_a_peer_that_says_nothing_is_named(tmp_path: Path) -> None:
    case = peer_case(script(tmp_path, "#!/bin/sh\n"), tmp_path, TINY, "sampler", num_workers=2)
    with pytest.raises(RuntimeError, match="no result"):
        case()


def job_of(folder: Path, **options: Any) -> Job:
    partitions: Any = options.get("partitions")
    graph = prepare(TINY, folder, partitions=1 if partitions is None else 2)
    seeds = folder / "train.npy"
    return Job(graph=str(graph), seeds=str(seeds), workload=TINY, num_workers=1, epochs=1, **options)


def test_a_job_survives_json(tmp_path: Path) -> None:
    for job in (job_of(tmp_path), job_of(tmp_path, partitions=((0,), (1,)))):
        assert Job.from_json(job.to_json()) == job


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_a_rank_that_fails_is_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    expected = "rank 0 of the benchmark ended without a result"
    with (
        Crowd("no such task", job_of(tmp_path), ranks=1) as crowd,
        pytest.raises(RuntimeError, match=expected),
    ):
        crowd.hear()
    assert "no such task" in capfd.readouterr().err


@pytest.mark.usefixtures("no_leftovers")
def test_a_crowd_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    crowd = Crowd("start", job_of(tmp_path), ranks=1)
    with crowd, crowd.within(0.05), pytest.raises(RuntimeError, match="rank 0"):
        crowd.hear()


def said(**changes: float) -> dict[str, float]:
    figures = {"seconds": 2.0, "seeds": 1000, "nodes": 5000, "edges": 8000, "batches": 10, "tree_cpu": 4.0}
    workers = {"cpu_seconds": 3.0, "cpu_sampling": 0.5, "cpu_gathering": 0.25, "peer_calls": 40}
    wire = {"wire_bytes_in": 19e6, "wire_bytes_out": 1e6}
    service = {"cpu_s": 0.5, "sampling_s": 0.1, "gathering_s": 0.2}
    figures |= {f"workers_{name}": value for name, value in (workers | wire).items()}
    figures |= {f"service_{name}": value for name, value in service.items()}
    return figures | {"remote_bytes_per_batch": 1.6e6} | changes


def test_the_slowest_rank_decides() -> None:
    figures = ranks.throughput([said(), said(seconds=4.0)])
    assert figures["seeds_per_s"] == 2000 / 4
    assert figures["nodes_per_batch"] == 500
    assert figures["cpu_s_per_kseed"] == pytest.approx(4.0)


def figures_of(*told: dict[str, float]) -> Mapping[str, float]:
    """Return the figures of two hosts whose ranks told this."""

    class Scripted:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.hear = lambda: list(told)

        def within(self, _: float) -> AbstractContextManager[None]:
            return nullcontext()

        def __enter__(self) -> Scripted:
            return self

        def __exit__(self, *_: object) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "Crowd", Scripted)
        patch.setattr(ranks, "bare_transfer", lambda **_: 1.0)
        return ranks.hosts_case(Path(), Path(), TINY)()[ranks.HOSTS]


def test_all_cpu_seconds_are_told_apart() -> None:
    parts = figures_of(said(), said())
    expected = {"sampling": 0.6, "gathering": 0.45, "wire": 2.45, "rest": 0.5}
    for name, value in expected.items():
        assert parts[f"cpu_{name}_s_per_kseed"] == pytest.approx(value)
    assert sum(parts[f"cpu_{name}_s_per_kseed"] for name in expected) == pytest.approx(4.0)


def test_the_wire_is_compared_with_what_is_really_remote() -> None:
    wire = figures_of(said(), said())
    assert wire["wire_mb_per_batch"] == pytest.approx(2.0)
    assert wire["wire_over_remote"] == pytest.approx(1.25)
    assert wire["calls_per_batch"] == 4


def test_what_is_remote_is_counted_node_by_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROUP_RANK", "1")
    job = job_of(tmp_path, partitions=((0,), (1,)))
    graph = Graph.open(job.graph)
    ids = graph.node_ids("node")
    assert ids is not None
    first = int(graph.bounds("node")[1])
    there, here = torch.from_numpy(ids[[0, 3]]), torch.from_numpy(ids[[first, first + 1, first + 2]])
    # Of the five nodes the first two are elsewhere; edges to them, three, are drawn there.
    batch = Data(n_id=torch.cat([there, here]), edge_index=torch.tensor([[2, 3, 4, 0, 1], [0, 0, 1, 2, 3]]))
    share = RemoteShare.over([batch, batch], job)
    assert (share.batches, share.rows, share.neighbors) == (2, 4, 6)
    row_bytes = 4 * 4 + 8  # Features and a label.
    assert share.bytes_per_batch == 2 * row_bytes + 3 * 8


def test_a_bare_transfer_costs_something() -> None:
    cost = bare_transfer(calls=20, request_bytes=1000, reply_bytes=3_000_000, environment=KEEP_MEMORY)
    assert 0 < cost < 60


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_share_the_seeds(ranks: int, tmp_path: Path) -> None:
    prepare(TINY, tmp_path)
    case = ranks_case(tmp_path / "graph", tmp_path / "train.npy", TINY, ranks=ranks, num_workers=1)
    ((name, figures),) = case().items()
    assert name == ("1 rank, 1 worker" if ranks == 1 else "2 ranks, 1 worker each")
    assert figures["nodes_per_batch"] > 10
    assert figures["seeds_per_s"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_two_hosts_are_measured_with_what_crosses_between_them(tmp_path: Path) -> None:
    graph = prepare(TINY, tmp_path, partitions=2)
    figures = ranks.hosts_case(graph, tmp_path / "train.npy", TINY, epochs=1)()
    ours = figures[ranks.HOSTS]
    assert ours["remote_mb_per_batch"] > 0
    assert 1 < ours["wire_over_remote"] < 100  # Headers are most of what so small batches send.
    assert ours["calls_per_batch"] == 3  # Two hops, and rows.
    parts = [ours[f"cpu_{part}_s_per_kseed"] for part in ("sampling", "gathering", "wire", "rest")]
    assert sum(parts) == pytest.approx(ours["cpu_s_per_kseed"])
    assert figures[ranks.BARE]["cpu_wire_s_per_kseed"] > 0
    cached = figures[ranks.CACHED]
    assert cached["wire_mb_per_batch"] < ours["wire_mb_per_batch"]
    assert cached["nodes_per_batch"] == ours["nodes_per_batch"]


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_a_start_is_weighed(tmp_path: Path) -> None:
    prepare(TINY, tmp_path)
    case = start_memory_case(tmp_path / "graph", tmp_path / "train.npy", TINY, ranks=2, num_workers=1)
    ((name, figures),) = case().items()
    assert name == "start-up, 2 ranks, 1 worker each"
    assert 2 * 10 < figures["start_adds_mb"] < 2 * 60
    assert figures["before_mb"] > 100


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_a_quick_run_measures_everything(tmp_path: Path) -> None:
    figures = tmp_path / "bench.json"
    arguments = ["bench", "--quick", "--rounds", "1", "--workers", "0,1", "--data", str(tmp_path / "data")]
    arguments += ["--json", str(figures), "--peer-script", str(script(tmp_path, PEER))]
    result = CliRunner().invoke(build_app(), arguments)
    assert result.exit_code == 0, result.output
    document = json.loads(figures.read_text())
    assert {"sampler", "gather", "loader, inline", "loader, 1 worker"} <= set(document["subjects"])
    assert not {"1 rank, 2 workers", "2 hosts, 1 worker each"} & set(document["subjects"])  # Not in seconds.
    assert "sampler over GLT seeded, 1 thread" in document["ratios"]
    assert document["subjects"]["memory, 1 worker"]["worker_adds_mb"]["median"] < 60
    nodes = [
        document["subjects"][name]["nodes_per_batch"]["median"]
        for name in ("loader, inline", "loader, 1 worker")
    ]
    assert nodes[0] == nodes[1]


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    for groups in (("sampling", "speed"), ()):
        with pytest.raises(
            ValueError, match="--measure takes some of sampling,loading,ranks,hosts,store,memory"
        ):
            Suite(workload=TINY, folder=tmp_path, groups=groups)


@pytest.mark.parametrize(
    "arguments",
    [["--measure", "speed"], ["--workers", "two"], ["--workers", "-1"], ["--peer-script", "/nope"]],
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
