"""The groups that ``benchmarks/whole.py`` has besides those of ``gigl-loader bench``, and its peers."""

from __future__ import annotations

import stat
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader.bench.store import NETWORK
from gigl_loader.bench.workload import Workload, prepare, training_seeds
from gigl_loader.graph.graph import Graph

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TINY = Workload(nodes=400, edges=3_000, dim=4, fanout=(3, 2), batch_size=10, batches=4)
PEER = """#!/bin/sh
[ "$1" = setup ] && exit 0
echo "a line that is no result"
echo '{"tag": "glt_sampler_t1_seed1", "edges_s": 10.0, "seeds_s": 2.0, "something": "else"}'
[ -z "$METER" ] || echo '{"meter": {"peak_pss_GB": 4.5}}'
"""

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").exists(), reason="the tests were copied without the benchmarks"
)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return import_module


def peer(folder: Path, text: str = PEER) -> Path:
    path = folder / "peer.sh"
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_one_group_is_measured_beside_a_peer_and_printed(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "whole.py"), "--quick", "--rounds", "1"]
    command += ["--measure", "sampling", "--peer-script", str(peer(tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "| glt_sampler_t1_seed1 | 2 | 10 |" in done.stdout
    assert "| sampler over GLT seeded, 1 thread |" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize("name", ["links", "ppr", "quantised", "variants"])
def test_a_benchmark_of_the_workload_runs(name: str, tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--quick", "--rounds", "1"]
    command += ["--json", str(tmp_path / "figures.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "figures.json").exists()


def test_a_peer_is_read_by_what_it_prints(script: Any, tmp_path: Path) -> None:
    module, path = script("peer_script"), peer(tmp_path)
    case = module.peer_case(path, tmp_path, TINY, "sampler", num_workers=2)
    assert case() == {"glt_sampler_t1_seed1": {"edges_per_s": 10.0, "seeds_per_s": 2.0}}
    case = module.peer_memory_case(path, tmp_path, TINY, num_workers=2)
    assert case() == {"memory, peer 2 workers": {"peak_pss_gb": 4.5}}


@pytest.mark.parametrize(("line", "problem"), [("exit 3", "exit code 3"), ("", "no result")])
def test_a_peer_that_fails_or_prints_nothing_is_named(
    script: Any, line: str, problem: str, tmp_path: Path
) -> None:
    path = peer(tmp_path, f"#!/bin/sh\n{line}\n")
    case = script("peer_script").peer_case(path, tmp_path, TINY, "sampler", num_workers=2)
    with pytest.raises(RuntimeError, match=problem):
        case()


def test_remote_rows_and_lists_are_counted_node_by_node(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from torch_geometric.data import Data

    crowd = script("crowd")
    monkeypatch.setenv("GROUP_RANK", "1")
    path = prepare(TINY, tmp_path, partitions=2)
    job = crowd.Job(
        graph=str(path), seeds="", workload=TINY, num_workers=1, epochs=1, partitions=((0,), (1,))
    )
    assert crowd.Job.from_json(job.to_json()) == job
    graph = Graph.open(path)
    ids = graph.node_ids("node")
    assert ids is not None
    first = int(graph.bounds("node")[1])
    there, here = torch.from_numpy(ids[[0, 3]]), torch.from_numpy(ids[[first, first + 1, first + 2]])
    # Of the five nodes the first two are remote; edges to them, three, are drawn by the other host.
    batch = Data(n_id=torch.cat([there, here]), edge_index=torch.tensor([[2, 3, 4, 0, 1], [0, 0, 1, 2, 3]]))
    share = crowd.RemoteShare.over([batch, batch], job)
    assert (share.batches, share.rows, share.neighbors) == (2, 4, 6)
    row_bytes = 4 * 4 + 8  # Features and a label.
    assert share.bytes_per_batch == 2 * row_bytes + 3 * 8


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_ranks_are_measured(script: Any, tmp_path: Path) -> None:
    ranks, graph, seeds = script("ranks"), prepare(TINY, tmp_path), tmp_path / "train.npy"
    (figures,) = ranks.ranks_case(graph, seeds, TINY, ranks=2, num_workers=1)().values()
    assert figures["nodes_per_batch"] > 10


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_the_start_of_ranks_is_measured(script: Any, tmp_path: Path) -> None:
    ranks, graph, seeds = script("ranks"), prepare(TINY, tmp_path), tmp_path / "train.npy"
    (figures,) = ranks.start_memory_case(graph, seeds, TINY, ranks=2, num_workers=1)().values()
    assert 2 * 10 < figures["start_adds_mb"] < 2 * 60
    assert figures["before_mb"] > 100


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_two_hosts_are_measured(script: Any, tmp_path: Path) -> None:
    ranks, graph, seeds = script("ranks"), prepare(TINY, tmp_path, partitions=2), tmp_path / "train.npy"
    figures = ranks.hosts_case(graph, seeds, TINY, epochs=1)()
    hosts, cached = figures[ranks.HOSTS], figures[ranks.CACHED]
    assert 1 < hosts["wire_over_remote"] < 100  # Headers are most of what so small batches send.
    assert hosts["calls_per_batch"] == 3  # Two hops, and rows.
    parts = [hosts[f"cpu_{part}_s_per_kseed"] for part in ("sampling", "gathering", "wire", "rest")]
    assert sum(parts) == pytest.approx(hosts["cpu_s_per_kseed"])
    assert cached["wire_mb_per_batch"] < hosts["wire_mb_per_batch"]
    assert cached["nodes_per_batch"] == hosts["nodes_per_batch"]


@pytest.mark.usefixtures("no_leftovers")
def test_ranks_that_take_too_long_are_ended(script: Any, tmp_path: Path) -> None:
    crowd = script("crowd")
    prepare(TINY, tmp_path)
    job = crowd.Job(
        graph=str(tmp_path / "graph"), seeds=str(tmp_path / "train.npy"), workload=TINY, num_workers=1
    )
    ranks = crowd.Crowd("start", job, ranks=1)
    with ranks, ranks.within(0.05), pytest.raises(RuntimeError, match="rank 0 of the benchmark"):
        ranks.read()


def test_recovery_is_from_the_kill_to_the_end_of_the_longest_wait(script: Any) -> None:
    """Batches that had arrived and slow batches later do not count."""
    recovered = script("server_load").recovered
    assert recovered(10.0, [10.1, 10.2, 12.0, 13.5]) == pytest.approx(2.0)
    assert recovered(10.0, [11.5, 11.6]) == pytest.approx(1.5)


@pytest.mark.slow
@pytest.mark.usefixtures("no_leftovers")
def test_the_load_of_servers_is_measured(script: Any, tmp_path: Path) -> None:
    load = script("server_load")
    graph = prepare(TINY, tmp_path)
    seeds = training_seeds(TINY, tmp_path)
    (killed,) = load.kill_case(graph, seeds, TINY, NETWORK)().values()
    assert 0 < killed["kill_to_batch_s"] < 60
    (idle,) = load.idle_case(graph, TINY, channels=50)().values()
    assert idle["idle_channels_add_mb"] < 50
    assert idle["idle_threads"] < 60
    (crowd,) = load.crowd_case(graph, seeds, TINY, loaders=3, prefetch=2, seconds=0.5)().values()
    assert crowd["loaders"] == 3
    assert 0 < crowd["slowest_over_mean"] <= 1


class _Loader:
    """A loader whose epochs have one batch, or fail."""

    def __init__(self, *, broken: bool = False) -> None:
        self._broken = broken

    def __iter__(self) -> Iterator[int]:
        if self._broken:
            raise ZeroDivisionError
        time.sleep(0.001)  # Lets the other thread run.
        yield 1


def test_a_loader_that_fails_ends_the_race_with_its_error(script: Any) -> None:
    race = script("server_load").race
    assert min(race([_Loader(), _Loader()], 0.2)) > 0
    with pytest.raises(ZeroDivisionError):
        race([_Loader(), _Loader(broken=True)], 60)
