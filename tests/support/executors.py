"""Builds by several executors: tables that every kind of stage reads, and tables that end their process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gigl_loader.arrays import Array
from gigl_loader.cli.build_options import Kept, TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.graph import HOMOGENEOUS_EDGE
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable


def write_rich_files(folder: Path, *, users: int = 300, items: int = 200, edges: int = 6000) -> None:
    """Write tables of users (text ids, CSV), items (sparse ids, Parquet) and edges (several files)."""
    random = np.random.default_rng(0)
    names = [f"u{number}" for number in random.permutation(users)]
    ages = [str(number) if number % 7 else "" for number in range(users)]
    rows = [
        f"{name},{age},{number % 3},{number}"
        for number, (name, age) in enumerate(zip(names, ages, strict=True))
    ]
    (folder / "users.csv").write_text("\n".join(["id,age,label,joined", *rows, ""]))
    item_ids = random.permutation(items) * 5 - 40
    vectors = random.random((items, 4), dtype=np.float32)
    _write_parquet(
        folder / "items.parquet", {"id": item_ids, "x": list(vectors), "t": random.integers(0, 99, items)}, 37
    )
    (folder / "buys").mkdir()
    for number, part in enumerate(np.array_split(np.arange(edges), 3)):
        src = [names[at] for at in (random.random(len(part)) ** 2 * users).astype(int)]
        dst = item_ids[(random.random(len(part)) ** 2 * items).astype(int)]
        columns = {
            "src": src,
            "dst": dst,
            "w": random.random(len(part)).astype(np.float32),
            "time": random.integers(0, 50, len(part)),
            "price": random.random(len(part)),
        }
        _write_parquet(folder / "buys" / f"{number}.parquet", columns, 500)
    acts = [f"act {number}" for number in random.integers(0, 3, 4 * users)]
    dst = item_ids[random.integers(0, items, 4 * users)]
    _write_parquet(folder / "acts.parquet", {"src": names * 4, "dst": dst, "act": acts}, 150)
    np.save(folder / "src.npy", item_ids[random.integers(0, items, edges)])
    np.save(folder / "dst.npy", item_ids[random.integers(0, items, edges)])
    np.save(folder / "brand.npy", random.integers(0, 40, edges) * 3 - 7)


def _write_parquet(path: Path, columns: dict[str, object], group_rows: int) -> None:
    pq.write_table(pa.table(columns), path, row_group_size=group_rows)


def rich_tables(folder: Path | str) -> GraphTables:
    """Open those files with options that use every step of a build."""
    return open_tables(
        TableOptions(
            nodes=[f"user={folder}/users.csv", f"item={folder}/items.parquet"],
            edges=[
                f"user,buys,item={folder}/buys",
                f"item,like,item={folder}/src.npy,{folder}/dst.npy",
                f"user,@act,item={folder}/acts.parquet",
                f"item,of,brand=src:{folder}/src.npy,dst:{folder}/brand.npy",
            ],
            fill=["user:age=mean"],
            weights=["user,buys,item:w"],
            times=["user,buys,item:time", "item:t"],
            quantize=["user,buys,item:price=int8", "item:x=uint4:per-row"],
            reverse=["user,buys,item"],
            split_nodes=["item=0.8,0.1,0.1"],
            split_edges=["item,like,item=0.7,0.2,0.1"],
            message_edges="train",
            labels=[f"user,buys,item={folder}/buys/1.parquet"],
            duplicates=Kept.drop,
            self_loops=Kept.drop,
        )
    )


class DeadlyTable(ArrayTable):
    """Edges whose last shard kills the process that reads it: ``times`` times, counted by files."""

    def __init__(self, arrays: dict[str, Array], counter: Path, times: int) -> None:
        super().__init__("edges", arrays)
        self._counter = counter
        self._times = times
        self._builder = os.getpid()
        self._end = self.num_rows

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        is_last = self._first_row + self.num_rows == self._end
        if is_last and self._first_row and os.getpid() != self._builder:
            found = len(list(self._counter.iterdir()))
            if found < self._times:
                (self._counter / str(found)).touch()
                os.kill(os.getpid(), signal.SIGKILL)
        yield from super().read(names, rows)


class WaitingTable(ArrayTable):
    """Edges whose readers in other processes leave a file each, and wait for the file ``go`` beside them."""

    def __init__(self, arrays: dict[str, Array], signs: Path) -> None:
        super().__init__("edges", arrays)
        self._signs = signs
        self._builder = os.getpid()

    def read(self, names: Sequence[str], rows: int) -> Iterator[dict[str, Array]]:
        if os.getpid() != self._builder:
            (self._signs / str(os.getpid())).touch()
            deadline = time.monotonic() + 120
            while not (self._signs / "go").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
        yield from super().read(names, rows)


def waiting_tables(signs: Path) -> GraphTables:
    """Return tables of a graph whose edges are a ``WaitingTable``."""
    random = np.random.default_rng(1)
    edges = WaitingTable({name: random.integers(0, 100, 3000) for name in ("src", "dst")}, signs)
    return GraphTables(edges={HOMOGENEOUS_EDGE: edges}, nodes={"node": NodeTable(count=100)})
