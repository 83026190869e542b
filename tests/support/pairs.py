"""Which cases of test matrices the fast tier runs: covering arrays of pairs, and a few of many cases.

Most faults show with one value or with two together (Kuhn, Wallace and Gallo, "Software fault interactions
and implications for software testing", 2004). The tests of a module with ``pytestmark = pytest.mark.pairs``
are a matrix: test functions by parameters. The fast tier runs a covering array of it, chosen by the commit;
all other cases are ``slow``.

A test function with ``pytest.mark.some(3)`` has three of its cases in the fast tier, chosen by the commit.
"""

from __future__ import annotations

import random
import subprocess
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

SEED_VARIABLE = "PAIRS_SEED"
"""Environment variable that repeats a choice."""


def commit() -> str:
    """Return the first digits of the commit that is tested, or "none" outside a checkout."""
    command, folder = ["git", "rev-parse", "--short=12", "HEAD"], Path(__file__).parent
    try:
        found = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "none"
    return found.stdout.strip() or "none"


def covering(cases: Sequence[Mapping[str, Hashable]], seed: str) -> set[int]:
    """Return the indices of few cases in which every pair of values occurs that occurs in ``cases``.

    A case maps factors to values. Greedy: takes the case that adds most pairs; ``seed`` decides ties.
    """
    missing = [set(combinations(sorted(case.items(), key=_factor), 2)) for case in cases]
    order = list(range(len(cases)))
    random.Random(seed).shuffle(order)
    chosen: set[int] = set()
    while order:
        best = max(order, key=lambda index: len(missing[index]))
        added = set(missing[best])
        if not added:
            break
        chosen.add(best)
        for index in order:
            missing[index] -= added
        order = [index for index in order if missing[index]]
    return chosen


def mark_all_but_pairs(items: Sequence[pytest.Item], seed: str) -> None:
    """Mark as ``slow`` those of ``items`` that are outside the covering array of their module."""
    matrices: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("pairs") and not item.get_closest_marker("slow"):
            matrices.setdefault(item.path, []).append(item)
    for matrix in matrices.values():
        matrix.sort(key=lambda item: item.nodeid)
        chosen = covering([_case(item) for item in matrix], seed)
        for index, item in enumerate(matrix):
            if index not in chosen:
                item.add_marker("slow")


def some_of(cases: Sequence[str], count: int, seed: str) -> set[str]:
    """Return ``count`` of the names of cases, or all if there are no more. Their order plays no part."""
    return set(random.Random(seed).sample(sorted(cases), min(count, len(cases))))


def mark_all_but_some(items: Sequence[pytest.Item], seed: str) -> None:
    """Mark as ``slow`` the cases of a test function with ``some(count)`` that are not chosen."""
    functions: dict[str, dict[str, pytest.Item]] = {}
    counts: dict[str, int] = {}
    for item in items:
        marker = item.get_closest_marker("some")
        if marker is not None and not item.get_closest_marker("slow"):
            function = item.nodeid.partition("[")[0]
            functions.setdefault(function, {})[item.nodeid] = item
            counts[function] = marker.args[0]
    for function, cases in functions.items():
        for name in cases.keys() - some_of([*cases], counts[function], seed + function):
            cases[name].add_marker("slow")


def _case(item: pytest.Item) -> dict[str, Hashable]:
    """Return the factors of one test. A parameter with an attribute ``factors`` stands for several."""
    case: dict[str, Hashable] = {"test": item.nodeid.partition("[")[0]}
    parameters: dict[str, Any] = item.callspec.params if hasattr(item, "callspec") else {}
    for name, value in parameters.items():
        case |= getattr(value, "factors", {name: repr(value)})
    if len(case) == 1:
        case["parameters"] = None  # A test without parameters has no pair else, and would never run.
    return case


def _factor(entry: tuple[str, Hashable]) -> str:
    return entry[0]
