"""Turns, without threads."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from gigl_server.turns import Turns

if TYPE_CHECKING:
    from gigl_server.channels import Channel


def channel(name: str, asks: int, share: int = 1) -> Channel:
    queue = deque(
        SimpleNamespace(name=name, number=number, needs_frame_memory=name != "r") for number in range(asks)
    )
    job = name.encode()
    return cast("Channel", SimpleNamespace(name=name, job=job, share=share, queue=queue, in_round=False))


def order(turns: Turns, count: int, *, passed_over: str = "") -> str:
    taken: list[Any] = [turns.next(lambda each: cast(Any, each).name != passed_over) for _ in range(count)]
    return "".join(each.name if each else "-" for each in taken)


def entered(*channels: Channel) -> Turns:
    turns = Turns()
    for each in channels:
        turns.enter(each)
    return turns


def test_channels_take_turns_one_batch_each() -> None:
    turns = entered(channel("a", 4), channel("b", 2), channel("c", 1))
    assert order(turns, 8) == "abcabaa-"
    assert len(turns) == 0


def test_shares_are_turns_in_each_round() -> None:
    assert order(entered(channel("a", 6, share=3), channel("b", 3)), 9) == "aaabaaabb"


def test_who_comes_later_waits_for_one_round_at_most() -> None:
    turns = entered(channel("a", 50), channel("b", 50))
    assert order(turns, 3) == "aba"
    turns.enter(channel("c", 1))
    assert order(turns, 3) == "bac"


def test_a_channel_that_cannot_go_on_now_keeps_its_asks_and_delays_nobody() -> None:
    turns = entered(channel("a", 2), channel("b", 2))
    assert order(turns, 3, passed_over="a") == "bb-"
    assert order(turns, 3) == "aa-"


def test_entering_twice_gives_no_more_turns() -> None:
    first, second = channel("a", 3), channel("b", 3)
    turns = entered(first, second, first, first)
    assert order(turns, 6) == "ababab"


def test_a_channel_whose_asks_were_taken_away_leaves_the_round() -> None:
    first, second = channel("a", 3), channel("b", 1)
    turns = entered(first, second)
    first.queue.clear()
    assert order(turns, 2) == "b-"
    assert not first.in_round


def test_jobs_in_need_are_those_whose_next_ask_needs_memory() -> None:
    turns = entered(channel("a", 1), channel("r", 1), channel("b", 2), channel("e", 0))
    assert turns.jobs_in_need == {b"a", b"b"}
    order(turns, 1)
    assert turns.jobs_in_need == {b"b"}
