"""The list of seeded faults fits the tree: ``python -m tests.mutations.check`` can put each into it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tomllib")

from tests.mutations.check import read_faults

ROOT = Path(__file__).parents[2]


def test_each_fault_changes_one_place_of_its_file() -> None:
    faults = read_faults()
    assert len(faults) >= 60
    assert {each.name: (ROOT / each.file).read_text().count(each.find) for each in faults} == {
        each.name: 1 for each in faults
    }
    assert [each.name for each in faults if each.find == each.replace] == []


def test_the_tests_of_each_fault_are_there() -> None:
    named = {path for each in read_faults() for path in each.tests}
    assert [path for path in sorted(named) if not (ROOT / path).is_file()] == []
