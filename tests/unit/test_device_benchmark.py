"""``benchmarks/device.py``, as far as it goes without a CUDA device."""

from __future__ import annotations

import importlib.util
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

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "device.py"
TINY = Workload(nodes=800, edges=3_000, dim=4, fanout=(3, 2, 2), batch_size=8, batches=10)


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("device_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        spec.loader.exec_module(module)
        yield module


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is missing, and here it is not")
def test_without_a_device_one_line_says_so() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--quick"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "needs a CUDA device" in done.stderr


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
