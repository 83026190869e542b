"""Bits that flip in the files of a graph before a trainer opens it.

A trainer must get the undisturbed batches, or a ``FormatError`` that names the file. Then the file is mended
and the trainer goes on from its state.
"""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

from gigl_loader import DistDataset, DistNeighborLoader, FormatError
from tests.chaos.faults import Fault, draw_faults
from tests.chaos.ground import LOADER, Ground
from tests.chaos.record import Record
from tests.chaos.wrongs import flipped_bit
from tests.support.training import FANOUT, digest

NAME = "damaged files"
KINDS = ("bit flip on disk",)
_TAKEN = 15
"""Batches from each damaged graph."""


def run(ground: Ground, seed: int, leg: int, count: int) -> Record:
    """Run a leg of ``count`` faults."""
    record = Record(NAME, leg)
    graph = ground.fresh_folder(f"damaged-{leg}") / "graph"
    shutil.copytree(ground.graph, graph)
    state: dict[str, Any] | None = None
    expected, at = ground.expected(0), 0
    for fault in draw_faults(seed, NAME, leg, count, kinds=KINDS):
        record.committed(fault)
        record.start()
        path = _file(graph, fault.choice)
        with flipped_bit(path, fault.choice >> 10):
            seen, _ = _take(graph, state, fault, path, record)
        record.compare(seen, expected[at : at + len(seen)])
        mended, state = _take(graph, state, fault, None, record)
        record.compare(mended, expected[at : at + _TAKEN])
        at += _TAKEN
        if at + _TAKEN > len(expected):
            at, state = 0, None
    return record


def _take(
    graph: Path,
    state: dict[str, Any] | None,
    fault: Fault,
    damaged: Path | None,
    record: Record,
) -> tuple[list[int], dict[str, Any] | None]:
    """Return the digests of batches from where ``state`` stands, and the state after them."""
    seen: list[int] = []
    try:
        with DistNeighborLoader(
            DistDataset.open(graph), FANOUT, "train", **LOADER | {"num_workers": fault.target % 2}
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for batch in islice(loader, _TAKEN):
                seen.append(digest(batch))
                record.arrived()
            state = loader.state_dict()
    except Exception as error:
        record.raised_to_trainer(error)
        name = "" if damaged is None else damaged.name
        if damaged is None or not isinstance(error, FormatError) or name not in str(error):
            record.defect(f"damaged {name}: {type(error).__name__}: {str(error)[:300]}")
    return seen, state


def _file(graph: Path, choice: int) -> Path:
    """Return one of the graph's files; ``graph.json`` is one of them."""
    files = sorted(path for path in graph.rglob("*") if path.is_file())
    return files[choice % len(files)]
