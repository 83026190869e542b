"""``benchmarks/device.py`` and ``device_copies.py``, as far as they go without a CUDA device."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from gigl_loader import DistDataset
from gigl_loader.bench.loading import open_loader
from gigl_loader.bench.workload import Workload, prepare, training_seeds
from gigl_loader.channel.ring import slot_of
from gigl_loader.loaders.transfer import SynchronousTransfer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

TABLE = Path(__file__).parents[2] / "benchmarks" / "device.py"
COPIES = TABLE.with_name("device_copies.py")
TINY = Workload(nodes=800, edges=3_000, dim=4, fanout=(3, 2, 2), batch_size=8, batches=10)


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("device_copies", COPIES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(COPIES.parent)
        spec.loader.exec_module(module)
        yield module


def run(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(script), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "arguments"), [(TABLE, ()), (COPIES, ("--quick",))], ids=["table", "copies"]
)
def test_without_a_device_one_line_says_so(script: Path, arguments: tuple[str, ...]) -> None:
    done = run(script, *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "needs a CUDA device" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)  # Training on a busy CPU.
def test_the_table_is_complete_on_the_cpu(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    done = run(TABLE, "--quick", "--data", str(tmp_path / "data"), "--json", str(figures))
    assert done.returncode == 0, done.stderr
    document = json.loads(figures.read_text())
    cases = {each["case"]: each for each in document["cases"]}
    assert document["device"] == "CPU"
    assert [name for name in cases if f"| {name} |" not in done.stdout] == []
    expected = ("model alone", "without features", "to the CPU, 1", "training, 1", "all rows", "int8", "ring")
    assert [words for words in expected if not any(words in name for name in cases)] == []
    assert all(each["seeds_per_s"] > 0 for each in document["cases"])
    assert all("share_of_model" in each for name, each in cases.items() if name.startswith("training"))


@pytest.mark.slow
def test_cases_beyond_the_limit_are_named(tmp_path: Path) -> None:
    done = run(TABLE, "--quick", "--limit", "0", "--parts", "limits,train", "--data", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "left out: model alone" in done.stdout
    assert "left out: training, 1 worker" in done.stdout


def test_everything_but_the_device_runs(script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same steps on the CPU: frames in slots, batches one ahead, training, alternating rounds."""
    graph = prepare(TINY, tmp_path)
    seeds = training_seeds(TINY, tmp_path)
    loader = open_loader(DistDataset.open(graph), TINY, seeds, 0)
    cpu = torch.device("cpu")
    frames = script.sampled_frames(loader, script.FRAMES)
    assert len(frames) == 8
    assert all(slot_of(frame.buffer) is not None for frame in frames)
    model, optimizer = script.make_model(loader, cpu)
    batches = list(script.batches_of(loader, SynchronousTransfer(cpu), frames))
    assert [batch.input_id[0] for batch in batches] == [8 * number for number in range(8)]
    before = [weight.clone() for weight in model.parameters()]
    for batch in batches:
        script.train(model, optimizer, batch)
    assert not all(map(torch.equal, before, model.parameters()))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    ways = {"copy": lambda: script.copy_all(SynchronousTransfer(cpu), frames)}
    assert script.alternating(ways, cpu, rounds=2)["copy"] > 0


def test_waits_are_counted_without_the_profilers_own(script: Any) -> None:
    events = [("cudaStreamSynchronize", 4), ("cudaDeviceSynchronize", 1), ("cudaMemcpyAsync", 40)]
    assert script.waits_per_batch(events, 20) == {
        "cudaStreamSynchronize per batch": 0.2,
        "cudaDeviceSynchronize per batch": 0.0,
        "cudaEventSynchronize per batch": 0.0,
        "synchronisations per batch": 0.2,
    }
