"""Cost of copying batches to a GPU, and the part that a model hides. Needs a CUDA device.

    python benchmarks/device_copies.py --data DIR --trace trace.json

Measures, on the workload of ``gigl-loader bench``:

- the bandwidth of the loader's copies (straight out of the ring), beside one plain copy of as many bytes
  from memory that PyTorch pinned, and beside the loader's own synchronous way;
- how much of the copies' time a GraphSAGE of 3 layers, hidden size 256, hides: the time of copying and
  training together, beside that of each alone, over frames that were sampled before;
- synchronisations per batch of a training loop with sampling processes, counted in a profiler's trace.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import harness
import torch
from torch.nn.functional import cross_entropy

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.bench.loading import open_loader
from gigl_loader.bench.workload import Workload, prepare, training_seeds
from gigl_loader.channel.frame import Frame
from gigl_loader.demo.model import HomogeneousSAGE
from gigl_loader.loaders.transfer import StreamTransfer, SynchronousTransfer, Transfer

FRAMES = 8
"""Sampled before. As many as an inline source keeps in slots, where the ring's frames lie, too."""
LABELS = 64
HIDDEN = 256
WAITS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
GIGA = 1e9


def main() -> int:
    """Measure, print a table, and write it where that was asked for."""
    options = arguments()
    if not torch.cuda.is_available():
        print(f"needs a CUDA device: torch {torch.__version__} sees none", file=sys.stderr)
        return 1
    with harness.folder(options.data) as data:
        figures = measure(harness.workload_of(options), data, options)
    width = max(map(len, figures))
    for name, value in figures.items():
        print(f"{name:{width}}  {value:.3f}" if isinstance(value, float) else f"{name:{width}}  {value}")
    harness.write_json(options, figures)
    return 0


def arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__, rounds=5)
    parser.add_argument("--workers", type=int, default=2, help="sampling processes of the traced run")
    parser.add_argument("--trace", type=Path, help="write the profiler's trace (Chrome format) to this file")
    return parser.parse_args()


def measure(workload: Workload, data: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return every figure by name."""
    graph = prepare(workload, data)
    seeds = training_seeds(workload, data)
    dataset, device = DistDataset.open(graph), torch.device("cuda", torch.cuda.current_device())
    loader = open_loader(dataset, workload, seeds, num_workers=0)
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name(device), "torch": torch.__version__}
    figures |= overlap(loader, device, rounds=options.rounds)
    workers = open_loader(dataset, workload, seeds, num_workers=options.workers, device=str(device))
    with workers:
        figures |= traced(workers, device, trace=options.trace)
    return figures


def overlap(loader: DistNeighborLoader, device: torch.device, *, rounds: int) -> dict[str, float]:
    """Time copies alone, training alone, and both, over the same frames again and again."""
    frames = sampled_frames(loader, FRAMES)
    nbytes = sum(frame.nbytes for frame in frames)
    model, optimizer = make_model(loader, device)
    stream, synchronous = StreamTransfer(device), SynchronousTransfer(device)
    pinned = torch.empty(max(frame.nbytes for frame in frames), dtype=torch.uint8, pin_memory=True)
    resident = [loader.collate(stream.load(frame)) for frame in frames]

    def train_all(batches: Iterable[Any]) -> None:
        for batch in batches:
            train(model, optimizer, batch)

    def copy_plainly() -> None:
        for frame in frames:
            pinned[: frame.nbytes].to(device, non_blocking=True)

    ways: dict[str, Callable[[], None]] = {
        "plain pinned copy": copy_plainly,
        "copy": lambda: copy_all(stream, frames),
        "copy, synchronous": lambda: copy_all(synchronous, frames),
        "train": lambda: train_all(resident),
        "copy and train": lambda: train_all(batches_of(loader, stream, frames)),
        "copy and train, synchronous": lambda: train_all(batches_of(loader, synchronous, frames)),
    }
    seconds = alternating(ways, device, rounds=rounds)
    figures = {f"{name}, ms per batch": value / len(frames) * 1e3 for name, value in seconds.items()}
    figures |= {
        f"{name}, GB/s": nbytes / seconds[name] / GIGA
        for name in ("plain pinned copy", "copy", "copy, synchronous")
    }
    figures["bandwidth over a plain pinned copy"] = seconds["plain pinned copy"] / seconds["copy"]
    shown = seconds["copy and train"] - seconds["train"]
    figures["share of copy time hidden"] = 1 - max(shown, 0.0) / seconds["copy"]
    return figures


def sampled_frames(loader: DistNeighborLoader, count: int) -> list[Frame]:
    """Return frames of an epoch, each in a slot of its own."""
    source = loader._frames.source
    source.start_epoch(0)
    return [source.receive(60) for _ in range(min(count, len(loader)))]


def batches_of(loader: DistNeighborLoader, transfer: Transfer, frames: Iterable[Frame]) -> Iterator[Any]:
    """Yield batches one ahead: the next copy begins before the batch at hand is used."""
    ahead = None
    for frame in frames:
        batch = loader.collate(transfer.load(frame))
        if ahead is not None:
            yield ahead
        ahead = batch
    if ahead is not None:
        yield ahead


def copy_all(transfer: Transfer, frames: Iterable[Frame]) -> None:
    for frame in frames:
        transfer.load(frame)


def make_model(loader: DistNeighborLoader, device: torch.device) -> tuple[Any, Any]:
    (columns,) = (nodes.columns for nodes in loader.dataset.schema.nodes.values())
    channels = columns["x"].shape[0]
    hops = loader.plan.frame(loader.dataset.schema).num_hops
    model = HomogeneousSAGE(dim=channels, hidden=HIDDEN, out=LABELS, hops=hops).to(device)
    return model, torch.optim.Adam(model.parameters())


def train(model: Any, optimizer: Any, batch: Any) -> None:
    """Take one step. Nothing in it makes the host wait for the device."""
    optimizer.zero_grad()
    cross_entropy(model(batch), batch.y[batch.seed_index] % LABELS).backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def alternating(
    ways: dict[str, Callable[[], None]], device: torch.device, *, rounds: int
) -> dict[str, float]:
    """Return the median seconds of each way, timed in turns, after a round that warms everything."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            torch.cuda.synchronize(device)
            began = time.perf_counter()
            way()
            torch.cuda.synchronize(device)
            if turn:
                taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in taken.items()}


def traced(
    loader: DistNeighborLoader, device: torch.device, *, trace: Path | None, batches: int = 20
) -> dict[str, float]:
    """Train on batches of sampling processes under the profiler, and count what made the host wait."""
    model, optimizer = make_model(loader, device)
    epoch = iter(loader)
    for batch in islice(epoch, 5):  # Slots are pinned, kernels loaded.
        train(model, optimizer, batch)
    torch.cuda.synchronize(device)
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    seen = 0
    with torch.profiler.profile(activities=kinds) as profiler:
        for batch in islice(epoch, batches):
            train(model, optimizer, batch)
            seen += 1
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    return waits_per_batch(((event.key, event.count) for event in profiler.key_averages()), seen)


def waits_per_batch(events: Iterable[tuple[str, int]], batches: int) -> dict[str, float]:
    """Return how often a batch made the host wait, by call. The profiler's own last one is not counted."""
    counts = dict.fromkeys(WAITS, 0)
    for name, count in events:
        if name in counts:
            counts[name] += count
    counts["cudaDeviceSynchronize"] = max(counts["cudaDeviceSynchronize"] - 1, 0)
    figures = {f"{name} per batch": count / max(batches, 1) for name, count in counts.items()}
    return {**figures, "synchronisations per batch": sum(counts.values()) / max(batches, 1)}


if __name__ == "__main__":
    sys.exit(main())
