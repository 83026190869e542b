"""Draws in time of the kernels: what does not fit is refused, and damaged orders end."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from gigl_loader import native

DEGREE = 6
TIMES = np.array([1, 2, 2, 5, 8, 9])
SLOTS = np.array([3, 0, 5, 1, 2, 4], np.int32)
SUMS = np.array([4, 4, 7, 9, 9, 12])
HUGE = 2**31 - 1


def lists(**changes: Any) -> native.Adjacency:
    """Return one list of six neighbours, in order of time."""
    index = np.arange(DEGREE, dtype=np.int32)
    given = {"times": [TIMES], "time_slots": [SLOTS], "time_sums": [SUMS], **changes}
    return native.Adjacency(np.array([0, 1]), [np.array([0, DEGREE])], [index], [index + 10], **given)


def drawn(
    adjacency: native.Adjacency,
    rule: native.DrawRule,
    time: int | None = 5,
    start: int | None = None,
    bound: int | None = None,
    *,
    of_list: Any = TIMES,
    **options: Any,
) -> Any:
    """Return the edge ids that are drawn from the list in the tree of number 0."""
    given = {
        "key": 1,
        "address": 2,
        "hop": 0,
        "rule": rule,
        "with_edge_ids": True,
        "with_slots": False,
        "disjoint": True,
        "tree_times": None if time is None else np.array([time]),
        "tree_starts": None if start is None else np.array([start]),
        "bounds": None if bound is None else np.array([bound]),
        **options,
    }
    _, _, edge_ids, _, times = native.draw_hop(adjacency, None, DEGREE, np.zeros(1, np.int64), **given)
    assert edge_ids is not None
    assert (times is not None) == rule.monotone
    if times is not None:
        of_edges = dict(zip(SLOTS.tolist(), of_list.tolist(), strict=True))
        assert times.tolist() == [of_edges[number - 10] for number in edge_ids.tolist()]
    return edge_ids.tolist()


@pytest.mark.parametrize(
    ("rule", "time", "expected"),
    [
        ({"fanout": -1}, 5, [13, 10, 15, 11]),
        ({"fanout": 9}, 2, [13, 10, 15]),
        ({"fanout": 9}, 0, []),
        ({"fanout": 2, "last": True}, 5, [11, 15]),
        ({"fanout": -1, "last": True}, 2**63 - 1, [14, 12, 11, 15, 10, 13]),
        ({"fanout": 2, "last": True, "weighted": True}, 8, [11, 15]),
        ({"fanout": 9, "weighted": True}, 8, [13, 15, 11]),
        ({"fanout": -1, "weighted": True}, 9, [13, 15, 11, 14]),
        ({"fanout": -1, "strictly_earlier": True}, 5, [13, 10, 15]),
        ({"fanout": 9, "strictly_earlier": True}, 2, [13]),
        ({"fanout": 9, "strictly_earlier": True}, 1, []),
        ({"fanout": 2, "last": True, "strictly_earlier": True}, 5, [15, 10]),
        ({"fanout": 2, "last": True, "weighted": True, "strictly_earlier": True}, 5, [15, 13]),
        ({"fanout": 9, "weighted": True, "strictly_earlier": True}, 8, [13, 15, 11]),
        ({"fanout": -1, "weighted": True, "strictly_earlier": True}, 9, [13, 15, 11]),
    ],
)
def test_entries_that_are_early_enough_come_in_order_of_time(
    rule: dict[str, Any], time: int, expected: list[int]
) -> None:
    assert drawn(lists(), native.DrawRule(**rule, timed=True), time) == expected


@pytest.mark.parametrize(
    ("rule", "span", "expected"),
    [
        ({"fanout": -1, "window": True}, {"time": 8, "start": 2}, [10, 15, 11, 12]),
        ({"fanout": -1, "window": True}, {"time": 8, "start": 3}, [11, 12]),
        ({"fanout": -1, "window": True}, {"time": 2, "start": 3}, []),
        ({"fanout": -1, "window": True}, {"time": 2**63 - 1, "start": 10}, []),
        ({"fanout": 2, "window": True, "last": True}, {"time": 5, "start": 5}, [11]),
        ({"fanout": 2, "window": True, "last": True}, {"time": 5, "start": 2}, [11, 15]),
        ({"fanout": 9, "window": True, "weighted": True}, {"time": 8, "start": 2}, [15, 11]),
        ({"fanout": 9, "window": True, "weighted": True}, {"time": 8, "start": 6}, []),
        ({"fanout": -1, "window": True, "weighted": True}, {"time": 9, "start": 5}, [11, 14]),
        ({"fanout": 2, "window": True, "weighted": True, "last": True}, {"time": 8, "start": 2}, [11, 15]),
        ({"fanout": -1, "monotone": True}, {"time": 9, "bound": 2}, [13, 10, 15]),
        ({"fanout": -1, "monotone": True, "window": True}, {"time": 9, "bound": 5, "start": 2}, [10, 15, 11]),
        ({"fanout": -1, "monotone": True, "weighted": True}, {"time": 9, "bound": 4}, [13, 15]),
        ({"fanout": -1, "window": True, "strictly_earlier": True}, {"time": 8, "start": 5}, [11]),
        ({"fanout": -1, "window": True, "strictly_earlier": True}, {"time": 5, "start": 5}, []),
        (
            {"fanout": 9, "window": True, "last": True, "weighted": True, "strictly_earlier": True},
            {"time": 9, "start": 2},
            [11, 15],
        ),
        ({"fanout": -1, "monotone": True, "strictly_earlier": True}, {"time": 9, "bound": 2}, [13]),
    ],
)
def test_windows_and_bounds_cut_the_order_of_time(
    rule: dict[str, Any], span: dict[str, int], expected: list[int]
) -> None:
    assert drawn(lists(), native.DrawRule(**rule, timed=True), **span) == expected


@pytest.mark.parametrize(
    "rule", [{}, {"last": True}, {"weighted": True}, {"monotone": True}, {"window": True}]
)
def test_nothing_is_earlier_than_the_least_time(rule: dict[str, bool]) -> None:
    least = -(2**63)
    span: dict[str, Any] = (
        {"bound": least} if "monotone" in rule else {"start": least} if "window" in rule else {}
    )
    times = np.array([least, least, 0, 1, 2, 2**63 - 1])
    adjacency = lists(times=[times], time_sums=[np.arange(1, 7)])
    for strictly, expected in ((False, 2), (True, 0)):
        strict = native.DrawRule(-1, timed=True, strictly_earlier=strictly, **rule)
        assert len(drawn(adjacency, strict, least, of_list=times, **span)) == expected


@pytest.mark.parametrize(
    ("adjacency", "options", "message"),
    [
        ({"times": [], "time_slots": [], "time_sums": []}, {}, "needs an adjacency with times"),
        ({"time_sums": []}, {"rule": {"weighted": True}}, "needs an adjacency with time_sums"),
        ({}, {"time": None}, "needs disjoint trees and their tree_times"),
        ({}, {"disjoint": False}, "needs disjoint trees and their tree_times"),
        ({}, {"tree_times": np.empty(0, np.int64)}, "a tree has no time"),
        ({}, {"rule": {"window": True}}, "a tree has no time"),
        ({}, {"rule": {"monotone": True}}, "a monotone rule needs bounds"),
        ({}, {"bound": 3}, "a monotone rule needs bounds"),
        ({"times": [TIMES[:3]]}, {}, "times, time_slots and indices differ in length"),
        ({"time_sums": [SUMS[:3]]}, {}, "time_sums and indices differ in length"),
    ],
)
def test_what_does_not_fit_is_refused(adjacency: Any, options: dict[str, Any], message: str) -> None:
    options = dict(options)
    rule = native.DrawRule(3, timed=True, **options.pop("rule", {}))
    with pytest.raises(ValueError, match=message):
        drawn(lists(**adjacency), rule, **options)


def test_rules_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="LABOR has no"):
        native.DrawRule(3, labor=True, timed=True)
    for options in ({"timed": True, "replace": True}, {}):
        with pytest.raises(ValueError, match="timed rule without replacement"):
            native.DrawRule(3, last=True, **options)
    for options in (
        {"window": True},
        {"monotone": True},
        {"strictly_earlier": True},
        {"monotone": True, "timed": True, "last": True},
    ):
        with pytest.raises(ValueError, match="those of a timed rule"):
            native.DrawRule(3, **options)


@pytest.mark.parametrize("slot", [-1, DEGREE, HUGE])
def test_an_order_that_leaves_the_edges_is_damaged(slot: int) -> None:
    slots = SLOTS.copy()
    slots[0] = slot
    with pytest.raises(RuntimeError, match="damaged adjacency: the order of time leaves the edges"):
        drawn(lists(time_slots=[slots]), native.DrawRule(-1, timed=True))


@pytest.mark.parametrize(
    "sums", [[9, 1, 9, 1, 9, 1], [0] * 6, [5, 4, 3, 2, 1, 7], [-3, -2, -1, 0, 1, 2], [-1] * 6]
)
@pytest.mark.parametrize("options", [{}, {"last": True}, {"replace": True}, {"window": True}])
def test_draws_by_damaged_weights_end(sums: list[int], options: dict[str, bool]) -> None:
    fanout = 50 if "replace" in options else HUGE
    rule = native.DrawRule(fanout, timed=True, weighted=True, **options)
    found: list[int] = []
    with suppress(RuntimeError):  # Or some entries, but no more than there are.
        found = drawn(lists(time_sums=[np.array(sums)]), rule, 9, start=2 if "window" in options else None)
    assert len(found) <= (fanout if "replace" in options else DEGREE)
    assert set(found) <= set(range(10, 10 + DEGREE))
