"""The benchmark: what it measures and prints, never how fast."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gigl_loader.bench.meter import CpuMeter, memory_of, process_tree
from gigl_loader.bench.peer import peer_case, peer_memory_case
from gigl_loader.bench.report import ratios, save_plot
from gigl_loader.bench.rounds import Measured, run_rounds
from gigl_loader.bench.workload import QUICK, Workload, prepare
from gigl_loader.cli import build_app
from gigl_loader.graph.graph import Graph

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
    assert "sampler over GLT seeded, 1 thread" in document["ratios"]
    assert document["subjects"]["memory, 1 worker"]["worker_adds_mb"]["median"] < 60
    nodes = [
        document["subjects"][name]["nodes_per_batch"]["median"]
        for name in ("loader, inline", "loader, 1 worker")
    ]
    assert nodes[0] == nodes[1]


@pytest.mark.parametrize("arguments", [["--workers", "two"], ["--workers", "-1"], ["--peer-script", "/nope"]])
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
