"""Trainings with Lightning whose ranks are killed, and that go on from a checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


def killed_and_resumed(
    folder: Path, *arguments: str, saved: int, is_killed: bool = True
) -> list[dict[str, Any]]:
    """Run ``train.py`` of ``folder`` there. Return what its ranks wrote of each step that counts.

    The script trains in ``killed`` until its ranks are killed, or end by themselves, and goes on in
    ``resumed`` from the checkpoint of step ``saved``; each rank writes a JSON line for each step: ``epoch``,
    ``step`` and ``places``.
    """
    done = subprocess.run(
        [sys.executable, "train.py", *arguments],
        check=False,
        timeout=250,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert ("SIGKILL" in done.stdout) == is_killed
    before = [line for line in _lines(folder / "killed") if line["step"] < saved]
    after = list(_lines(folder / "resumed"))
    assert before
    assert min(line["step"] for line in after) == saved
    return [*before, *after]


def check_each_seed_once(lines: Iterable[dict[str, Any]], *, epochs: int, seeds: int) -> None:
    """Every epoch has every seed once."""
    for epoch in range(epochs):
        seen = Counter(place for line in lines if line["epoch"] == epoch for place in line["places"])
        assert set(seen) == set(range(seeds))
        assert set(seen.values()) == {1}


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    for file in folder.glob("*.jsonl"):
        yield from map(json.loads, file.read_text().splitlines())
