"""Graphs with text ids from two public archives: built from tables, then trained on.

    apt-get install apt-file && apt-file update       Debian's Contents lists, below /var/lib/apt/lists
    npm pack all-the-package-repos                    names and repositories of all packages of npm
    python benchmarks/real_data.py --work DIR [--npm all-the-package-repos-*.tgz] [--json real.json]

Debian: packages, the names of their files and the directories in which those lie; two edge types with a row
per file. A model learns the section of a package. npm: packages, the words of their names, and their scopes;
a model learns whether a package has a repository.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rich.console import Console
from rich.table import Table
from torch_geometric.nn import HeteroConv, SAGEConv

from gigl_loader import DistDataset, DistNeighborLoader

_LISTS = Path("/var/lib/apt/lists")
_ROWS = 1 << 20
_FANOUT = [10, 10]
_HIDDEN = 32
_BUILD_S = 1800.0


def rows_of_contents(lists: Iterable[Path]) -> Iterator[tuple[str, str, str, str]]:
    """Yield package, section, file name and directory of each file of each package."""
    for path in lists:
        with subprocess.Popen(["lz4", "-dc", str(path)], stdout=subprocess.PIPE, text=True) as lines:
            assert lines.stdout is not None
            for line in lines.stdout:
                file, _, owners = line.rstrip("\n").rpartition(" ")
                folder, _, name = file.rstrip().rpartition("/")
                for owner in owners.split(","):
                    section, _, package = owner.rpartition("/")
                    yield package, section.rpartition("/")[2], name, folder


def rows_of_npm(archive: Path) -> Iterator[tuple[str, str | None]]:
    """Yield name and repository of each package."""
    with tarfile.open(archive) as files:
        found = files.extractfile("package/data/packages.json")
        assert found is not None
        yield from json.load(found).items()


def write(path: Path, names: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> int:
    """Write rows as Parquet and return their number."""
    count, writer, rows = 0, None, iter(rows)
    while block := list(islice(rows, _ROWS)):
        table = pa.table(dict(zip(names, map(pa.array, zip(*block, strict=True)), strict=True)))
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
        count += len(block)
    assert writer is not None, f"no rows for {path.name}"
    writer.close()
    return count


def debian_tables(folder: Path) -> int:
    """Write the tables of Debian's Contents lists. Return the number of package-file pairs."""
    if shutil.which("lz4") is None:
        raise SystemExit("Contents lists are compressed: apt-get install lz4")
    lists = sorted(_LISTS.glob("*_main_Contents-*.lz4"))
    if not lists:
        raise SystemExit(f"no Contents lists in {_LISTS}: apt-get install apt-file && apt-file update")
    sections: dict[str, str] = {}

    def rows() -> Iterator[tuple[str, str, str]]:
        for package, section, name, directory in rows_of_contents(lists):
            sections[package] = section
            yield package, name, directory

    pairs = write(folder / "files.parquet", ["package", "name", "directory"], rows())
    write(folder / "package.parquet", ["id", "label"], sections.items())
    return pairs


def npm_tables(folder: Path, archive: Path) -> int:
    """Write the tables of npm. Return the number of packages."""
    packages = dict(rows_of_npm(archive))

    def words() -> Iterator[tuple[str, str]]:
        for name in packages:
            yield from ((name, word) for word in {*re.findall(r"[a-z0-9]+", name.lower())} or {"-"})

    write(folder / "words.parquet", ["package", "word"], words())
    scoped = ((name, name.split("/")[0]) for name in packages if name.startswith("@"))
    write(folder / "scopes.parquet", ["package", "scope"], scoped)
    labels = ((name, "none" if place is None else "repository") for name, place in packages.items())
    return write(folder / "package.parquet", ["id", "label"], labels)


def build(folder: Path, edges: dict[str, tuple[str, str]]) -> dict[str, Any]:
    """Build a graph of the tables by the command line. Return its path, seconds and size."""
    graph = folder / "graph"
    shutil.rmtree(graph, ignore_errors=True)
    command = [sys.executable, "-c", "from gigl_loader.cli import main; main()"]
    command += ["partition", str(graph), "-p", "2", "--json"]
    command += ["--nodes", f"package={folder}/package.parquet", "--split-nodes", "package=0.8,0.1,0.1"]
    command += ["--unknown-ids", "add", "--undirected", "--duplicates", "drop"]
    for relation, (file, column) in edges.items():
        kind = f"package,{relation},{column}"
        command += ["--edges", f"{kind}={folder}/{file}", "--rename", f"{kind}:package=src"]
        command += ["--rename", f"{kind}:{column}=dst"]
        for other in {*pq.read_schema(folder / file).names} - {"package", column}:
            command += ["--drop", f"{kind}:{other}"]
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=_BUILD_S)
    if done.returncode:
        raise SystemExit(done.returncode)
    report = json.loads(done.stdout)
    size = sum(file.stat().st_size for file in graph.rglob("*") if file.is_file())
    schema = report["schema"]
    return {
        "build_s": time.perf_counter() - began,
        "peak_bytes": report["tasks"]["peak_bytes"],
        "nodes": sum(each["count"] for each in _values(schema["nodes"])),
        "edges": sum(each["count"] for each in _values(schema["edges"])),
        "graph_bytes": size,
    }


def _values(entries: Any) -> Iterable[Any]:
    return entries.values() if isinstance(entries, dict) else entries


class Model(torch.nn.Module):
    """Two layers over all edge types, with an embedding per bucket of node ids in place of features."""

    _BUCKETS = 1 << 16

    def __init__(self, dataset: DistDataset, num_classes: int) -> None:
        super().__init__()
        types = list(dataset.schema.nodes)
        self.embeddings = torch.nn.ModuleDict(
            {kind: torch.nn.EmbeddingBag(self._BUCKETS, _HIDDEN) for kind in types if kind != "package"}
        )
        self.blank = torch.nn.Parameter(torch.zeros(1, _HIDDEN))
        self.layers = torch.nn.ModuleList(
            HeteroConv({kind: SAGEConv(_HIDDEN, _HIDDEN) for kind in dataset.schema.edges}) for _ in _FANOUT
        )
        self.out = torch.nn.Linear(_HIDDEN, num_classes)

    def forward(self, batch: Any) -> torch.Tensor:
        x = {
            kind: self.embeddings[kind]((batch[kind].n_id % self._BUCKETS)[:, None])
            if kind in self.embeddings
            else self.blank.expand(len(batch[kind].n_id), -1)
            for kind in batch.node_types
        }
        for layer in self.layers:
            x |= {kind: value.relu() for kind, value in layer(x, batch.edge_index_dict).items()}
        out: torch.Tensor = self.out(x["package"][batch["package"].seed_index])
        return out


def train(graph: Path, batches: int) -> dict[str, Any]:
    """Train for some batches. Return the loader's speed without and with the model, and the accuracy."""
    dataset = DistDataset.open(graph)
    options: dict[str, Any] = {"batch_size": 1024, "shuffle": True, "seed": 0, "device": "cpu"}
    with DistNeighborLoader(dataset, _FANOUT, ("package", "train"), num_workers=2, **options) as loader:
        next(batch for batch in loader)
        began, seeds, edges = time.perf_counter(), 0, 0
        for batch in islice(loader, batches):
            seeds += len(batch["package"].input_id)
            edges += sum(each.shape[1] for each in batch.edge_index_dict.values())
        seconds = time.perf_counter() - began
        torch.manual_seed(0)
        model = Model(dataset, len(dataset.vocabulary("package", "y")))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for batch in islice(loader, batches):
            target = batch["package"].y[batch["package"].seed_index]
            loss = torch.nn.functional.cross_entropy(model(batch), target)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = asked = 0
    with DistNeighborLoader(dataset, _FANOUT, ("package", "test"), num_workers=2, **options) as loader:
        for batch in islice(loader, batches):
            target = batch["package"].y[batch["package"].seed_index]
            right += int((model(batch).argmax(1) == target).sum())
            asked += len(target)
    return {"seeds_per_s": seeds / seconds, "edges_per_s": edges / seconds, "test_accuracy": right / asked}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="directory for tables and graphs")
    parser.add_argument("--npm", type=Path, help="archive of all-the-package-repos")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    both = {"ships": ("files.parquet", "name"), "fills": ("files.parquet", "directory")}
    jobs = {"Debian": (debian_tables, (), both)}
    if options.npm is not None:
        named = {"says": ("words.parquet", "word"), "lies_in": ("scopes.parquet", "scope")}
        jobs["npm"] = (npm_tables, (options.npm,), named)
    results = {}
    for name, (tables, more, edges) in jobs.items():
        folder = options.work / name.lower()
        folder.mkdir(parents=True, exist_ok=True)
        began = time.perf_counter()
        rows = tables(folder, *more)
        read = {"rows": rows, "tables_s": time.perf_counter() - began}
        results[name] = {**read, **build(folder, edges), **train(folder / "graph", options.batches)}
    table = Table("", *results, title="graphs of public archives")
    for key in next(iter(results.values())):
        table.add_row(key, *(f"{each[key]:,.3f}".rstrip("0").rstrip(".") for each in results.values()))
    Console().print(table)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
