"""What users are shown runs as it is: the examples, and the first script of the README."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from pathlib import Path

import pytest

from tests.support.learnable import learnable_graph
from tests.support.packages import write_package_list
from tests.support.torchrun import run_torchrun

ROOT = Path(__file__).parents[2]
GIGL_LOADER = ("-c", "from gigl_loader.cli import main; main()")

pytestmark = [
    pytest.mark.usefixtures("no_leftovers"),
    pytest.mark.skipif(not (ROOT / "examples").exists(), reason="the tests were copied without the examples"),
]


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1"},  # threads that wait for each other on a busy machine
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("name", "least"), [("homogeneous", 70.0), ("heterogeneous", 70.0), ("ppr", 75.0)])
def test_a_training_script_learns(name: str, least: float, tmp_path: Path) -> None:
    output = run(str(ROOT / "examples" / f"{name}.py"), "4", cwd=tmp_path)
    accuracies = [float(found) for found in re.findall(r"test accuracy ([\d.]+)%", output)]
    assert len(accuracies) == 4
    assert max(accuracies) > least


@pytest.mark.slow
def test_walks_alone_predict_links(tmp_path: Path) -> None:
    output = run(str(ROOT / "examples" / "node_embeddings.py"), "2", cwd=tmp_path)
    found, guess = map(
        float, re.findall(r"AUC of held-out links ([\d.]+) \(by degree ([\d.]+)\)", output)[-1]
    )
    assert found > 0.85 > guess


MRR = r"MRR ([\d.]+) \(by popularity ([\d.]+)\)"
RECALL = r"recall@30 ([\d.]+)% \(by popularity ([\d.]+)%\)"
PREDICTING = [
    pytest.param("link_prediction", ["--epochs", "3", "--apt-lists", "no-lists"], MRR, id="link_prediction"),
    pytest.param("retrieval", ["--epochs", "5"], RECALL, id="retrieval"),
]


def check_that_it_beats_popularity(output: str, metric: str) -> None:
    ours, guess = map(float, re.findall(metric, output)[-1])
    assert ours > 1.2 * guess > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "metric"), PREDICTING)
def test_links_are_predicted_the_same_with_and_without_servers(
    name: str, options: list[str], metric: str, tmp_path: Path
) -> None:
    script = [str(ROOT / "examples" / f"{name}.py"), "graph", *options, "--batch-size", "100"]
    alone = run(*script, cwd=tmp_path)
    check_that_it_beats_popularity(alone, metric)
    assert run(*GIGL_LOADER, "local-cluster", "graph", "--", sys.executable, *script, cwd=tmp_path) == alone


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options", "metric"), PREDICTING)
def test_links_are_predicted_by_two_ranks(name: str, options: list[str], metric: str, tmp_path: Path) -> None:
    script = [str(ROOT / "examples" / f"{name}.py"), str(tmp_path / "graph"), *options, "--batch-size", "50"]
    (output,) = run_torchrun(*script, ranks_per_host=2, seconds=100, folder=tmp_path)
    check_that_it_beats_popularity(output, metric)


@pytest.mark.slow
@pytest.mark.parametrize("with_changelogs", [False, True])
def test_what_comes_next_is_predicted(with_changelogs: bool, tmp_path: Path) -> None:
    docs = tmp_path / "doc"
    began = datetime(2000, 1, 1, tzinfo=timezone.utc)
    for number in range(60 if with_changelogs else 0):
        entries = [
            f"p{number} (1-{i}) unstable; urgency=low\n\n  * Text.\n\n -- M <m{number // 3}@example.org>  "
            f"{format_datetime(began + timedelta(days=30 * i + number))}\n"
            for i in reversed(range(40))
        ]
        (docs / f"p{number}").mkdir(parents=True)
        (docs / f"p{number}" / "changelog.Debian.gz").write_bytes(gzip.compress("\n".join(entries).encode()))
    output = run(str(ROOT / "examples" / "temporal.py"), "--epochs", "2", "--docs", str(docs), cwd=tmp_path)
    counts = (
        "20 maintainers, 60 packages 2400 uploads" if with_changelogs else "150 maintainers, 900 packages"
    )
    assert output.startswith(counts)
    check_that_it_beats_popularity(output, MRR)


@pytest.mark.slow
def test_dependencies_of_debian_are_predicted(tmp_path: Path) -> None:
    lists = write_package_list(tmp_path / "lists", count=600)
    script = [str(ROOT / "examples" / "link_prediction.py"), "--apt-lists", str(lists)]
    output = run(*script, "--epochs", "3", "--batch-size", "50", cwd=tmp_path)
    check_that_it_beats_popularity(output, MRR)


@pytest.mark.slow
def test_the_same_script_trains_with_and_without_servers(tmp_path: Path) -> None:
    graph = str(learnable_graph(tmp_path / "graph", num_partitions=2))
    script = [str(ROOT / "examples" / "graph_store.py"), "--epochs", "2", "--batch-size", "64"]
    alone = run(*script, "--graph", graph, cwd=tmp_path)
    cluster = [*GIGL_LOADER, "local-cluster", graph, "--", sys.executable]
    served = run(*cluster, *script, cwd=tmp_path)
    assert len(re.findall(r"test accuracy", alone)) == 2
    assert served == alone


@pytest.mark.slow
def test_a_graph_larger_than_memory_trains(tmp_path: Path) -> None:
    script = [str(ROOT / "examples" / "beyond_memory.py"), str(tmp_path / "graph"), "--epochs", "1"]
    lines = r"test accuracy ([\d.]+)%, rows: cache ([\d,]+), memory ([\d,]+), disk ([\d,]+), wire 0"
    ((accuracy, *rows),) = re.findall(lines, run(*script, cwd=tmp_path))
    cache, memory, disk = (int(number.replace(",", "")) for number in rows)
    ((same, *others),) = re.findall(lines, run(*script, "--feature-memory", "1GB", cwd=tmp_path))
    assert memory == 0 < min(cache, disk)
    assert others == ["0", f"{cache + disk:,}", "0"]
    assert same == accuracy
    assert float(accuracy) > 60


@pytest.mark.slow
def test_quantised_features_train_as_well(tmp_path: Path) -> None:
    output = run(str(ROOT / "examples" / "quantised.py"), "4", cwd=tmp_path)
    found = re.findall(r"(\w+) +(\d+) bytes a row, test accuracy ([\d.]+)%", output)
    assert [(kind, int(row_bytes)) for kind, row_bytes, _ in found] == [
        ("float32", 256),
        ("int8", 64),
        ("uint4", 32),
        ("uint2", 16),
    ]
    exact, int8, uint4, uint2 = (float(accuracy) for _, _, accuracy in found)
    assert exact > 90
    assert abs(int8 - exact) < 1.5
    assert min(uint4, uint2) > exact - 4


@pytest.mark.slow
def test_resuming_shows_the_batches_still_to_come(tmp_path: Path) -> None:
    assert "6 after it: none lost, none twice" in run(str(ROOT / "examples" / "resume.py"), cwd=tmp_path)


@pytest.mark.slow
def test_workers_change_probabilities_without_overlap(tmp_path: Path) -> None:
    output = run(str(ROOT / "examples" / "changing_probabilities.py"), cwd=tmp_path)
    assert "each drawn 2 times in 6 visits by 2 processes; set back 40 times" in output


def test_the_first_script_of_the_readme_runs(tmp_path: Path) -> None:
    script = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    (tmp_path / "script.py").write_text(script)
    output = run("script.py", cwd=tmp_path)
    assert re.findall(r"epoch \d: (\d+) batches", output) == ["10", "10"]
