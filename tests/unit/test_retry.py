"""The backoff that every retry uses."""

from __future__ import annotations

import pytest

from gigl_loader.retry import Backoff


def test_pauses_double_up_to_the_longest_and_are_never_longer() -> None:
    backoff = Backoff(first_s=0.1, longest_s=0.5)
    pauses = [backoff.next_s() for _ in range(6)]
    for pause, whole in zip(pauses, (0.1, 0.2, 0.4, 0.5, 0.5, 0.5), strict=True):
        assert 0.75 * whole <= pause <= whole


def test_callers_that_fail_together_do_not_come_back_together() -> None:
    assert len({Backoff().next_s() for _ in range(20)}) > 1


def test_it_begins_again_when_told() -> None:
    backoff = Backoff(first_s=0.1, longest_s=1.0)
    for _ in range(4):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 0.1


@pytest.mark.parametrize(("first_s", "longest_s"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.5)])
def test_pauses_that_do_not_grow_are_refused(first_s: float, longest_s: float) -> None:
    with pytest.raises(ValueError, match="pauses must grow"):
        Backoff(first_s=first_s, longest_s=longest_s)
