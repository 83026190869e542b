"""Options and output that the benchmarks share."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gigl_loader.bench.workload import FULL, QUICK, Workload


def parser(description: str | None, *, rounds: int = 3) -> argparse.ArgumentParser:
    """Return a parser with the options of a benchmark of the common workload."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--data", type=Path, help="folder of the workload, made where missing (default: a temporary one)"
    )
    made.add_argument("--quick", action="store_true", help="a small graph: does it run?")
    made.add_argument("--rounds", type=int, default=rounds, help="how often each case is measured")
    made.add_argument("--json", type=Path, help="write all figures to this file")
    return made


@contextmanager
def folder(path: Path | None) -> Iterator[Path]:
    """Lend ``path``, or a temporary folder that is removed afterwards."""
    if path is not None:
        path.mkdir(parents=True, exist_ok=True)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="gigl-bench-") as temporary:
        yield Path(temporary)


def workload_of(options: argparse.Namespace) -> Workload:
    """Return the workload that ``--quick`` chooses."""
    return QUICK if options.quick else FULL


def arrays(data: Path, *names: str) -> list[npt.NDArray[Any]]:
    """Return arrays of the workload (``src``, ``dst``, ``feat``, ``label``, ``train``), mapped."""
    return [np.load(data / f"{name}.npy", mmap_mode="r") for name in names]


def load() -> float:
    """Return the machine's load average of the last minute."""
    return os.getloadavg()[0]


def write_json(options: argparse.Namespace, document: Any) -> None:
    """Write the document where ``--json`` says."""
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


def spread(figure: dict[str, Any], form: str) -> str:
    """Return the median of a figure with its lowest and highest round."""
    median, low, high = (form.format(f(figure["rounds"])) for f in (lambda _: figure["median"], min, max))
    return median if low == high else f"{median} ({low} to {high})"
