"""What GLT's samplers are asked, and what is said where graphlearn-torch is not installed.

``benchmarks/glt_check.sh`` compares with graphlearn-torch itself, in an environment of its own.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader import DistDataset
from gigl_loader.glt import GltDataset, GltStore
from gigl_loader.glt.store import check_rule, distinct_edges
from gigl_loader.sampling.store import DrawRule
from tests.support.pyg_graphs import homogeneous

PROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text()


def test_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphlearn_torch", None)
    dataset = DistDataset.from_pyg(homogeneous())
    for make in (lambda: GltDataset(dataset), lambda: GltStore(dataset._graph, 0)):
        with pytest.raises(ImportError, match=r"pip install 'gigl-loader\[glt\]'") as caught:
            make()
        assert "\n" not in str(caught.value)


def test_tests_never_install_it() -> None:
    """It would bring a torch of its own."""
    _, _, extras = PROJECT.partition("[project.optional-dependencies]")
    named = re.findall(r"^(\w+) = \[(.*?)\]$", extras.partition("\n[")[0], re.MULTILINE | re.DOTALL)
    assert [name for name, packages in named if "graphlearn" in packages] == ["glt"]
    assert [name for name, packages in named if re.search(r"gigl-loader\[[^]]*glt", packages)] == []


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (DrawRule(fanout=3, replace=True), "not with replace=True;"),
        (DrawRule(fanout=3, weight="w"), "not with weight='w';"),
        (DrawRule(fanout=3, time="t"), "not with time='t';"),
        (DrawRule(fanout=3, labor=True), "not with labor=True;"),
    ],
)
def test_draws_that_glt_does_not_make_are_refused(rule: DrawRule, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_rule(rule)
    check_rule(DrawRule(fanout=rule.fanout))


@given(st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=6))
def test_an_edge_comes_once_for_each_target(drawn: list[list[int]]) -> None:
    slots = np.array([slot for target in drawn for slot in target], np.int64)
    found, counts = distinct_edges(slots, np.array([len(target) for target in drawn], np.int64))
    assert counts.tolist() == [len(set(target)) for target in drawn]
    assert found.tolist() == [slot for target in drawn for slot in sorted(set(target))]
