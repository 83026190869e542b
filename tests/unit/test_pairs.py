"""The choice of cases in which every pair of values occurs."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.support.pairs import covering, some_of

Case = dict[str, str]
WHOLE = [
    dict(zip(("kind", "mode", "transport", "reader"), values, strict=True))
    for values in product("abcdef", "uvw", "xy", "12345")
]
WITH_GAPS = [case for case in WHOLE if case["mode"] != "u" or case["transport"] == "x"]


def pairs_of(cases: list[Case]) -> set[tuple[tuple[str, str], ...]]:
    return {pair for case in cases for pair in combinations(sorted(case.items()), 2)}


@pytest.mark.parametrize("cases", [WHOLE, WITH_GAPS, [*WHOLE, {"kind": "a", "other": "z"}]])
@pytest.mark.parametrize("seed", ["", "3f2a", "none"])
def test_every_pair_that_occurs_is_chosen(cases: list[Case], seed: str) -> None:
    chosen = covering(cases, seed)
    assert pairs_of([cases[index] for index in chosen]) == pairs_of(cases)


def test_few_cases_are_enough() -> None:
    assert 30 <= len(covering(WHOLE, "1")) <= 45  # Of 180; six kinds with five readers need thirty.


def test_a_seed_repeats_a_choice_and_another_makes_another() -> None:
    assert covering(WHOLE, "1") == covering(WHOLE, "1")
    assert len({frozenset(covering(WHOLE, str(seed))) for seed in range(5)}) > 1


def test_all_cases_are_chosen_by_some_seed() -> None:
    assert len(set[int]().union(*(covering(WHOLE, str(seed)) for seed in range(60)))) == len(WHOLE)


def test_some_cases_are_as_many_as_asked_and_a_seed_repeats_them() -> None:
    cases = [f"test[{number}]" for number in range(30)]
    assert some_of(cases, 5, "1") == some_of(cases[::-1], 5, "1")
    assert len(some_of(cases, 5, "1")) == 5
    assert some_of(cases[:3], 5, "1") == set(cases[:3])
    assert set[str]().union(*(some_of(cases, 5, str(seed)) for seed in range(60))) == set(cases)
