"""Table of a machine with a GPU: what the model takes, what PCIe bears, and what each way of loading gives.

    python benchmarks/device.py --data DIR

On the workload of ``gigl-loader bench`` (batches of 121 MB), in seeds per second:

- the model alone, a GraphSAGE of 3 layers and hidden size 256 over batches that stay on the device, and one
  copy after another from page-locked memory;
- the loader to the CPU by workers, without features, and training with defaults, with rows that stay on the
  device or are read by it, and with int8 columns;
- a storage server on this machine, through its ring and over the loopback network;
- PyG, where it is installed with pyg-lib, and how copies and training overlap (``device_copies.py``).

A case takes an epoch to warm up, then whole epochs for at least ``--seconds``. What begins after ``--limit``
seconds is left out, and said so. Without CUDA the device is the CPU: with ``--quick``, to see that it runs.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import device_copies
import harness
import numpy as np
import torch
from torch.nn.functional import cross_entropy

import gigl_loader
from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.bench.loading import open_loader
from gigl_loader.bench.workload import Workload, graph_tables, prepare, training_seeds
from gigl_loader.demo.model import HomogeneousSAGE
from gigl_loader.partition import build_graph
from gigl_loader.resources import usable_cores
from gigl_loader.rpc.credentials import Caller
from gigl_server.local_cluster import LocalCluster

PARTS = ("limits", "loader", "train", "resident", "int8", "store", "pyg", "copies")
RESULTS = Path(__file__).parent / "results"
KEPT = 12
"""Batches of the model alone: 1.5 GB of the device."""
WORKERS = (1, 2, 4, 8, 12, 16, 24, 32)
PREFETCH = 24
PYG_WORKERS = 8
HIDDEN, LABELS = 256, 64
MEGA, GIGA = 1e6, 1e9

Step = Callable[[Any], None]


@dataclass(slots=True, kw_only=True)
class Bench:
    """The machine, the workload, and the figures so far."""

    workload: Workload
    data: Path
    graph: Path
    device: torch.device
    seconds: float
    """Of each case, after its first epoch."""
    ends: float
    """No case begins later, ``time.perf_counter()``."""
    rounds: int
    """Of the copies."""
    cores: int = field(default_factory=usable_cores)
    cases: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def workers(self) -> list[int]:
        """Numbers of workers to measure: powers of two and more, up to the number of cores."""
        return [count for count in WORKERS if count <= self.cores]

    @property
    def most(self) -> int:
        """Workers that leave two cores to the trainer."""
        return max(self.cores - 2, 1)

    @property
    def model_rate(self) -> float | None:
        """Seeds per second of the model alone, where it was measured."""
        return next((case["seeds_per_s"] for case in self.cases if case["case"] == "model alone"), None)

    def say(self, case: str, **figures: Any) -> None:
        """Keep and print the figures of a case."""
        rate, model = figures.get("seeds_per_s"), self.model_rate
        if figures.get("train") and rate is not None and model:
            figures["share_of_model"] = rate / model
        self.cases.append({"case": case, **figures})
        share = f"{figures['share_of_model']:.2f}" if "share_of_model" in figures else ""
        thread = f"{figures['thread_ms']:.1f}" if "thread_ms" in figures else ""
        shown = "" if rate is None else f"{rate:,.0f}"
        print(f"| {case} | {shown} | {share} | {thread} |", flush=True)

    def is_late(self, case: str) -> bool:
        """Return whether the time is over; then note the case as left out."""
        if time.perf_counter() < self.ends:
            return False
        self.left_out.append(case)
        return True

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def training(self) -> Step:
        """Return one step of a fresh model: forward, backward, Adam."""
        hops = len(self.workload.fanout)
        model = HomogeneousSAGE(dim=self.workload.dim, hidden=HIDDEN, out=LABELS, hops=hops).to(self.device)
        optimizer = torch.optim.Adam(model.parameters())

        def step(batch: Any) -> None:
            optimizer.zero_grad()
            out, labels = model(batch)[: batch.batch_size], batch.y[: batch.batch_size] % LABELS
            cross_entropy(out, labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

        return step

    def measure(self, case: str, batches: Iterable[Any], *, train: bool = False) -> None:
        """Time whole epochs of ``batches``, whose iterators are epochs, after one that warms everything."""
        if self.is_late(case):
            return
        step = self.training() if train else _discard
        self._epoch(batches, step)
        rates, spent, thread_s, count = [], 0.0, 0.0, 0
        while not rates or spent < self.seconds:
            seeds, number, seconds, cpu_s = self._epoch(batches, step)
            rates.append(seeds / seconds)
            spent, thread_s, count = spent + seconds, thread_s + cpu_s, count + number
        self.say(
            case,
            train=train,
            seeds_per_s=float(np.median(rates)),
            epochs=[round(rate) for rate in rates],
            thread_ms=thread_s / max(count, 1) * 1e3,
        )

    def _epoch(self, batches: Iterable[Any], step: Step) -> tuple[int, int, float, float]:
        """Return seeds, batches, seconds, and CPU seconds of this thread, of one epoch."""
        self.synchronize()
        began, thread, seeds, number = time.perf_counter(), time.thread_time(), 0, 0
        for batch in batches:
            step(batch)
            seeds, number = seeds + batch.batch_size, number + 1
        thread_s = time.thread_time() - thread
        self.synchronize()
        return seeds, number, time.perf_counter() - began, thread_s

    def loader(
        self, dataset: Any, workers: int | Literal["auto"], *, to_cpu: bool = False, **options: Any
    ) -> DistNeighborLoader:
        device = "cpu" if to_cpu else str(self.device)
        seeds = training_seeds(self.workload, self.data)
        return open_loader(dataset, self.workload, seeds, workers, device=device, **options)


def _discard(_: Any) -> None:
    """Drop a batch as it comes."""


def limits(bench: Bench) -> None:
    """The model alone, and one copy after another."""
    with bench.loader(DistDataset.open(bench.graph), min(4, bench.most)) as loader:
        kept = [batch for _, batch in zip(range(KEPT), loader, strict=False)]
        nbytes = loader.stats()["bytes"] / max(len(kept), 1)
    bench.measure("model alone", kept, train=True)
    del kept
    gc.collect()
    if bench.device.type == "cuda":
        rate = pinned_copy_rate(bench, round(nbytes))
        bench.say(
            "one copy after another",
            seeds_per_s=rate / nbytes * bench.workload.batch_size,
            gb_per_s=rate / GIGA,
            mb_per_batch=nbytes / MEGA,
        )


def pinned_copy_rate(bench: Bench, nbytes: int) -> float:
    """Return the bytes per second of copies of ``nbytes`` from memory that PyTorch pinned."""
    source = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(nbytes, dtype=torch.uint8, device=bench.device)
    copies = 50
    for repeats in (1, copies):
        bench.synchronize()
        began = time.perf_counter()
        for _ in range(repeats):
            target.copy_(source, non_blocking=True)
        bench.synchronize()
    return copies * nbytes / (time.perf_counter() - began)


def loaded(bench: Bench) -> None:
    """The loader without a model, to the CPU and to the device."""
    dataset = DistDataset.open(bench.graph)
    for workers in dict.fromkeys([1, min(8, bench.most), bench.most]):
        with bench.loader(dataset, workers, to_cpu=True, node_columns=[], edge_columns=[]) as loader:
            bench.measure(f"sampling without features, {in_words(workers)}", loader)
    for workers in bench.workers:
        with bench.loader(dataset, workers, to_cpu=True) as loader:
            bench.measure(f"loader to the CPU, {in_words(workers)}", loader)
    with bench.loader(dataset, bench.most) as loader:
        bench.measure(f"loader to the device, {in_words(bench.most)}", loader)


def trained(bench: Bench) -> None:
    """Training with defaults, by workers."""
    dataset = DistDataset.open(bench.graph)
    for workers in [count for count in bench.workers if count >= 4] or bench.workers:
        with bench.loader(dataset, workers) as loader:
            bench.measure(f"training, {in_words(workers)}", loader, train=True)
    with bench.loader(dataset, "auto") as loader:
        bench.measure(f'training, num_workers="auto" ({loader.num_workers})', loader, train=True)


def resident(bench: Bench) -> None:
    """Rows that stay on the device: a fifth of them, and all. Rows that it reads from the host's memory."""
    dataset, whole = DistDataset.open(bench.graph), bench.workload.nodes * bench.workload.row_bytes
    for name, nbytes in (("a fifth of the rows", whole // 5), ("all rows", 2 * whole)):
        for workers in dict.fromkeys([min(8, bench.most), bench.most] if nbytes > whole else [bench.most]):
            case = f"training, {name} on the device, {in_words(workers)}"
            with bench.loader(dataset, workers, feature_memory_device=nbytes) as loader:
                bench.measure(case, loader, train=True)
    for name, memory in (("all rows", "host"), ("rows beside a fifth", f"{whole // 5}+host")):
        case = f"training, {name} read by the device, {in_words(bench.most)}"
        with bench.loader(dataset, bench.most, feature_memory_device=memory) as loader:
            bench.measure(case, loader, train=True)


def int8(bench: Bench) -> None:
    """Features as int8 columns."""
    dataset = DistDataset.open(quantised_graph(bench))
    with bench.loader(dataset, bench.most, to_cpu=True) as loader:
        bench.measure(f"int8 columns to the CPU, {in_words(bench.most)}", loader)
    with bench.loader(dataset, bench.most) as loader:
        bench.measure(f"int8 columns to the device, {in_words(bench.most)}", loader)
        bench.measure(f"training, int8 columns, {in_words(bench.most)}", loader, train=True)


def quantised_graph(bench: Bench) -> Path:
    """Return the graph with int8 features, built where it is missing."""
    path = bench.data / "graph-int8"
    if not path.exists():
        arrays = harness.arrays(bench.data, "src", "dst", "feat", "label", "train")
        build_graph(graph_tables(*arrays, quantize="int8"), path, assigner="range")
    return path


def store(bench: Bench) -> None:
    """A storage server of this machine, by its defaults and with a larger window of calls."""
    with LocalCluster(bench.graph, servers=1, workers=bench.most) as cluster:
        for transport in ("ring", "network"):
            for name, options in (("defaults", {}), (f"prefetch_size={PREFETCH}", by_hand(bench))):
                case = f"store, {transport}, {bench.most} threads, {name}"
                with (
                    RemoteDistDataset.connect(
                        cluster.addresses, credentials=Caller(), transport=transport
                    ) as dataset,
                    bench.loader(dataset, **{"workers": 1, **options}) as loader,
                ):
                    bench.measure(case, loader)
                    if transport == "ring" and options:
                        bench.measure(f"training, {case}", loader, train=True)


def by_hand(bench: Bench) -> dict[str, int]:
    return {"workers": bench.most, "prefetch_size": PREFETCH}


def pyg(bench: Bench) -> None:
    """PyG's loader: to the CPU, and training with pinned batches."""
    try:
        import pyg_lib  # noqa: F401
    except ImportError:
        bench.left_out.append("PyG: pyg-lib is not installed")
        return
    from torch_geometric.data import Data
    from torch_geometric.loader import NeighborLoader
    from torch_geometric.sampler import NeighborSampler

    src, dst, features, labels = harness.arrays(bench.data, "src", "dst", "feat", "label")
    edges = torch.from_numpy(np.stack([src, dst]))
    data = Data(x=torch.tensor(features), y=torch.tensor(labels), edge_index=edges)
    fanout, seeds = list(bench.workload.fanout), torch.from_numpy(training_seeds(bench.workload, bench.data))
    sampler = NeighborSampler(data, fanout, share_memory=True)
    for workers in dict.fromkeys([1, min(PYG_WORKERS, bench.most)]):
        loader = NeighborLoader(
            data,
            fanout,
            neighbor_sampler=sampler,
            input_nodes=seeds[: len(seeds) // 4] if workers == 1 else seeds,
            batch_size=bench.workload.batch_size,
            drop_last=True,
            num_workers=workers,
            persistent_workers=True,
            filter_per_worker=True,
            pin_memory=bench.device.type == "cuda",
        )
        bench.measure(f"PyG to the CPU, {in_words(workers)}", loader)
        if workers > 1:
            bench.measure(f"training, PyG, {in_words(workers)}", OnDevice(loader, bench.device), train=True)


@dataclass(slots=True)
class OnDevice:
    """Batches of PyG on the device."""

    loader: Any
    device: torch.device

    def __iter__(self) -> Iterator[Any]:
        return (batch.to(self.device, non_blocking=True) for batch in self.loader)


def copies(bench: Bench) -> None:
    """How copies and training overlap."""
    if bench.device.type != "cuda":
        bench.left_out.append("copies: no CUDA device")
    elif not bench.is_late("copies"):
        with bench.loader(DistDataset.open(bench.graph), 0, to_cpu=True) as loader:
            found = device_copies.overlap(loader, bench.device, rounds=bench.rounds)
        bench.say("bandwidth of the loader's copies", gb_per_s=found["copy, GB/s"], copies=found)
        print(
            f"copies: {found['bandwidth over a plain pinned copy']:.2f} of a plain pinned copy's bandwidth, "
        )
        print(f"  {found['share of copy time hidden']:.2f} of their time hidden by the model", flush=True)


_MEASURES = dict(zip(PARTS, (limits, loaded, trained, resident, int8, store, pyg, copies), strict=True))


def in_words(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def main() -> int:
    """Measure, print a Markdown table, and write the figures after every part."""
    options = arguments()
    device = (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    if device.type == "cpu" and not options.quick:
        print(f"needs a CUDA device (torch {torch.__version__} sees none), or --quick", file=sys.stderr)
        return 1
    with harness.folder(options.data) as data:
        bench = prepared(harness.workload_of(options), data, device, options)
        document = machine(bench)
        print(f"{document['device']}, {bench.cores} cores, gigl_loader {gigl_loader.__version__}\n")
        print("| | seeds/s | share of the model alone | trainer's thread, ms a batch |\n|---|--:|--:|--:|")
        for part in options.parts.split(","):
            _MEASURES[part](bench)
            write(options, {**document, "cases": bench.cases, "left_out": bench.left_out})
    for each in bench.left_out:
        print(f"left out: {each}")
    return 0


def arguments() -> argparse.Namespace:
    parser = harness.parser(__doc__)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of " + ",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each case, after its first epoch")
    parser.add_argument("--limit", type=float, default=220.0, help="no case begins after so many seconds")
    options = parser.parse_args()
    options.quick = options.quick or bool(os.environ.get("QUICK"))
    if unknown := [part for part in options.parts.split(",") if part not in PARTS]:
        parser.error(f"--parts: {', '.join(unknown)} is none of {', '.join(PARTS)}")
    return options


def prepared(workload: Workload, data: Path, device: torch.device, options: argparse.Namespace) -> Bench:
    """Return a bench over the graph of the workload. Making a graph that is missing counts for the limit."""
    ends = time.perf_counter() + options.limit
    graph = prepare(workload, data)
    seconds = 0.0 if options.quick else options.seconds
    return Bench(
        workload=workload,
        data=data,
        graph=graph,
        device=device,
        seconds=seconds,
        ends=ends,
        rounds=options.rounds,
    )


def machine(bench: Bench) -> dict[str, Any]:
    """Return what the figures depend on."""
    name = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "CPU"
    return {
        "device": name,
        "cores": bench.cores,
        "gigl_loader": gigl_loader.__version__,
        "torch": torch.__version__,
        "load": harness.load(),
        "workload": asdict(bench.workload),
    }


def write(options: argparse.Namespace, document: dict[str, Any]) -> None:
    """Write the figures so far: to ``--json``, else, unless they are quick ones, into ``results``."""
    if options.json is None and not options.quick:
        RESULTS.mkdir(exist_ok=True)
        name = document["device"].lower().replace(" ", "-")
        options.json = RESULTS / f"device-{name}-{document['gigl_loader']}.json"
    harness.write_json(options, document)


if __name__ == "__main__":
    sys.exit(main())
