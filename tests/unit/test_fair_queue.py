"""Turns, without threads."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_server.admission import LOCAL, Identity
from gigl_server.sampling.fair_queue import QUANTUM_S, ExpectedCosts, FairQueue
from tests.support.store_service import Clock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_server.sessions.channel import Channel, SampleTask


def channel(
    name: str,
    asks: int,
    share: int = 1,
    *,
    owner: Identity = LOCAL,
    plan: bytes = b"plan",
    interactive: bool = False,
) -> Channel:
    given = {"name": name, "share": share, "queue": deque(), "in_round": False, "owner": owner}
    given["interactive"] = interactive
    made: Any = SimpleNamespace(**given, producer=SimpleNamespace(digest=plan))
    for _ in range(asks):
        ask(made)
    return cast("Channel", made)


def ask(channel: Any) -> None:
    task = Task.of(channel)
    task.needs_frame_memory = channel.name != "r"
    channel.queue.append(task)


class Task(SimpleNamespace):
    __hash__ = object.__hash__  # type: ignore[assignment]  # As ``SampleTask``: by identity.
    shared = None

    @classmethod
    def of(cls, made: Channel) -> Any:
        return cls(name=made.name, needs_frame_memory=True, charged_s=0.0, channel=made)


def order(turns: FairQueue, count: int, *, passed_over: str = "") -> str:
    taken: list[Any] = [turns.next(lambda each: cast(Any, each).name != passed_over) for _ in range(count)]
    return "".join(each.name if each else "-" for each in taken)


def following(turns: FairQueue) -> Any:
    return turns.next(lambda _: True)


def entered(*channels: Channel) -> FairQueue:
    turns = FairQueue(Clock())
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


def test_channels_that_wait_for_memory_are_those_whose_next_ask_needs_it() -> None:
    first, second = channel("a", 1), channel("b", 2)
    turns = entered(first, channel("r", 1), second, channel("e", 0))
    assert turns.waiting == [first, second]
    order(turns, 1)
    assert turns.waiting == [second]


# --- owners


def owner_of(number: int) -> Identity:
    return Identity(address=f"10.0.0.{number}")


class Simulation:
    """Sampling threads and trainers that ask again ``think_s`` after each of their batches came.

    A batch that ran for a quantum leaves its thread to an owner with less time, as ``TimeSlices`` has it.
    """

    def __init__(
        self,
        costs: dict[Identity, float],
        *,
        threads: int,
        credit: int,
        think_s: float,
        shares: Mapping[Identity, float] | None = None,
    ) -> None:
        self.clock = Clock()
        self.turns = FairQueue(self.clock, lambda owner: (shares or {}).get(owner, 1.0))
        self.costs = costs
        self.think_s = think_s
        self.spent: dict[Identity, float] = defaultdict(float)
        self.batches: Counter[Identity] = Counter()
        self._free = threads
        self._polls = False
        self._ran: dict[Any, float] = {}
        self._events: list[tuple[float, int, Any, Any]] = []  # When, a tie-break, what, of what.
        self._number = 0
        for owner in costs:
            trainer = channel(str(owner), credit, owner=owner)
            self.turns.enter(trainer)

    def run(self, seconds: float) -> None:
        end = self.clock.now + seconds
        while self.clock.now < end:
            self._dispatch()
            self.clock.now, _, act, subject = heapq.heappop(self._events)
            act(subject)

    def _dispatch(self) -> None:
        while self._free:
            task = self.turns.next(lambda _: True)
            if task is None:
                if self.turns.awaited is not None:
                    self.turns.charge_wait(self.turns.awaited, 0.001)
                if not self._polls:
                    self._polls = True
                    self._at(0.001, self._poll, None)
                return
            self._free -= 1
            self._ran.setdefault(task, 0.0)
            self._run(task)

    def _run(self, task: SampleTask) -> None:
        left = self.costs[task.channel.owner] - self._ran[task]
        self._at(min(left, QUANTUM_S), self._end_stint, (task, min(left, QUANTUM_S)))

    def _end_stint(self, given: tuple[SampleTask, float]) -> None:
        task, seconds = given
        owner = task.channel.owner
        self._ran[task] += seconds
        self.spent[owner] += seconds
        self.turns.charge(task, self._ran[task])
        if self._ran[task] >= self.costs[owner] - 1e-9:
            self._finish(task)
        elif self.turns.is_to_yield(task, lambda _: True):
            self._free += 1
            self.turns.set_aside(task)
        else:
            self._run(task)

    def _poll(self, _: None) -> None:
        self._polls = False

    def _finish(self, task: SampleTask) -> None:
        owner = task.channel.owner
        self._free += 1
        del self._ran[task]
        self.turns.settle(task, self.costs[owner], busy_s=self.costs[owner])
        self.batches[owner] += 1
        self._at(self.think_s, self._ask_again, task.channel)

    def _ask_again(self, channel: Channel) -> None:
        ask(channel)
        self.turns.enter(channel)

    def _at(self, after_s: float, act: Any, subject: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.clock.now + after_s, self._number, act, subject))


@settings(max_examples=25)
@given(
    costs=st.lists(st.floats(0.02, 2.0), min_size=2, max_size=9),
    threads=st.integers(1, 4),
    think_s=st.floats(0.0, 0.01),
)
def test_owners_have_equal_time_whatever_their_batches_cost(
    costs: list[float], threads: int, think_s: float
) -> None:
    owners = {owner_of(number): cost for number, cost in enumerate(costs)}
    seconds = 40 * max(costs) * len(costs) / threads
    simulation = Simulation(owners, threads=threads, credit=4 * threads, think_s=think_s)
    simulation.run(seconds)
    fair = threads * seconds / len(costs)
    for owner in owners:
        assert simulation.spent[owner] >= 0.8 * fair


def test_a_trainer_beside_eight_with_heavy_batches_keeps_its_part() -> None:
    """One that is asked for with four batches in advance, and asks again 3 ms after each came."""
    honest = owner_of(0)
    owners = {honest: 0.01} | {owner_of(number): 4.0 for number in range(1, 9)}
    for threads in (1, 2, 4):
        simulation = Simulation(owners, threads=threads, credit=4, think_s=0.003)
        simulation.run(300)
        assert simulation.batches[honest] >= 0.7 * 300 * threads / 9 / 0.01


def test_more_channels_and_jobs_are_no_more_time() -> None:
    turns = FairQueue(Clock())
    greedy, modest = owner_of(1), owner_of(2)
    for number in range(20):
        turns.enter(channel(f"g{number}", 5, owner=greedy))
    turns.enter(channel("m", 30, owner=modest))
    taken: list[Any] = [turns.next(lambda _: True) for _ in range(40)]
    assert sum(each.channel.owner == modest for each in taken) == 20


@pytest.mark.slow
@settings(max_examples=20)
@given(st.floats(0.25, 8), st.sampled_from([0.004, 0.01, 0.05]), st.integers(1, 3))
def test_time_goes_by_share(share: float, cost: float, threads: int) -> None:
    one, other = owner_of(1), owner_of(2)
    simulation = Simulation(
        {one: 0.01, other: cost}, threads=threads, credit=8, think_s=0.0, shares={other: share}
    )
    simulation.run(100)
    assert 0.9 * share <= simulation.spent[other] / simulation.spent[one] <= 1.1 * share


def test_time_that_was_not_used_is_not_kept() -> None:
    simulation = Simulation({owner_of(1): 0.01}, threads=1, credit=4, think_s=0.0)
    simulation.run(60)
    late = owner_of(2)
    simulation.costs[late] = 0.01
    simulation.turns.enter(channel("late", 1000, owner=late))
    simulation.run(2)
    assert 80 <= simulation.batches[late] <= 120


def test_a_heavy_batch_waits_a_moment_only_for_an_owner_that_was_served_just_now() -> None:
    clock = Clock()
    turns = FairQueue(clock)
    light, heavy = channel("l", 1, owner=owner_of(1)), channel("h", 2, owner=owner_of(2))
    turns.enter(heavy)
    first: Any = turns.next(lambda _: True)
    turns.settle(first, 5.0, busy_s=5.0)
    turns.enter(light)
    served: Any = turns.next(lambda _: True)
    assert served.channel is light
    turns.settle(served, 0.01, busy_s=0.01)
    assert turns.next(lambda _: True) is None
    assert turns.awaited == light.owner
    clock.now += 0.1
    assert turns.next(lambda _: True) is not None


def test_a_running_batch_is_charged_and_yields_to_an_owner_with_less_time() -> None:
    clock = Clock()
    turns = FairQueue(clock)
    turns.enter(channel("h", 1, owner=owner_of(1)))
    heavy: Any = turns.next(lambda _: True)
    assert not turns.is_to_yield(heavy, lambda _: True)
    turns.enter(channel("l", 1, owner=owner_of(2)))
    turns.charge(heavy, 5.0)
    assert turns.is_to_yield(heavy, lambda _: True)
    assert not turns.is_to_yield(heavy, lambda _: False)
    turns.set_aside(heavy)
    light: Any = turns.next(lambda _: True)
    assert light.channel.name == "l"
    assert turns.next(lambda _: True) is None  # The next request of the light owner is about to come.
    turns.settle(light, 0.01, busy_s=0.01)
    clock.now += 1.0
    assert following(turns) is heavy
    turns.settle(heavy, 6.0, busy_s=6.0)


def test_an_owner_with_a_batch_set_aside_begins_light_ones_alone() -> None:
    turns = FairQueue(Clock())
    turns.enter(channel("h", 4, owner=owner_of(1)))
    first: Any = turns.next(lambda _: True)
    turns.settle(first, 5.0, busy_s=5.0)
    heavy: Any = turns.next(lambda _: True)
    turns.set_aside(heavy)
    light = channel("l", 3, owner=owner_of(1), plan=b"light")
    turns.settle(Task.of(light), 0.0, busy_s=0.0)
    for _ in range(20):
        turns.settle(Task.of(light), 0.01, busy_s=0.01)
    turns.enter(light)
    assert following(turns) is heavy
    turns.set_aside(heavy)
    assert [order(turns, 1), following(turns) is heavy] == ["l", True]
    turns.set_aside(heavy)


def test_one_owner_alone_yields_to_nobody() -> None:
    turns = FairQueue(Clock())
    for number in range(3):
        turns.enter(channel(f"c{number}", 2, owner=owner_of(1)))
    task: Any = turns.next(lambda _: True)
    turns.charge(task, 100.0)
    assert not turns.is_to_yield(task, lambda _: True)


def test_expected_costs_outlive_channels_and_are_bounded() -> None:
    costs = ExpectedCosts(keep=10)
    owner = owner_of(1)
    costs.add(channel("a", 0, owner=owner), 8.0)
    assert costs.expected(channel("another", 0, owner=owner)) == 8.0
    assert costs.expected(channel("b", 0, owner=owner, plan=b"another plan")) == 8.0
    assert costs.expected(channel("c", 0, owner=owner_of(2))) < 1.0
    for number in range(100):
        costs.add(channel("d", 0, owner=owner, plan=bytes([number])), 0.5)
        assert len(costs) <= 10


def urgent(share: float, *channels: Channel) -> tuple[FairQueue, Clock]:
    clock = Clock()
    turns = FairQueue(clock, interactive_share=share)
    for each in channels:
        turns.enter(each)
    return turns, clock


def test_batches_that_callers_wait_for_go_first_and_in_turns() -> None:
    other = Identity("other")
    turns, _ = urgent(
        0.5,
        channel("a", 2),
        channel("i", 2, interactive=True),
        channel("j", 1, interactive=True),
        channel("k", 1, interactive=True, owner=other),
        channel("b", 1, owner=other),
    )
    first = order(turns, 4)
    assert sorted(first) == ["i", "i", "j", "k"]
    assert first.replace("k", "") == "iji"
    assert sorted(order(turns, 4)) == ["-", "a", "a", "b"]
    assert len(turns) == 0


def test_their_share_is_of_the_time() -> None:
    """Half of a thread: a second's worth is kept, then they take turns with the others."""
    turns, clock = urgent(0.5, channel("a", 99), channel("i", 99, interactive=True))
    taken = ""
    for _ in range(60):
        task = following(turns)
        taken += task.name
        turns.settle(task, 0.02, busy_s=0.02)
    assert taken.startswith("i" * 25)  # 0.5 s.
    assert taken[26:60].count("i") == pytest.approx(17, abs=1)
    clock.now += 0.2  # 0.1 s for them, of which they owe at most a quantum.
    assert following(turns).name in "ia"
    clock.now += 10
    assert order(turns, 3) == "iii"


def test_waits_for_a_core_cost_them_nothing() -> None:
    """Of 0.2 s, a batch of 2 ms waited 0.198 s for trainers' batches: it is light, and its share lasts."""
    turns, _ = urgent(0.5, channel("a", 99), channel("i", 99, interactive=True))
    for _ in range(99):
        task = following(turns)
        assert task.name == "i"
        turns.settle(task, 0.2, busy_s=0.002)


def test_without_a_share_they_take_turns() -> None:
    turns, _ = urgent(0.0, channel("a", 3), channel("i", 3, interactive=True))
    assert order(turns, 6) == "aiaiai"
    assert turns.next_interactive(lambda _: True) is None


def test_a_heavy_batch_does_not_go_first() -> None:
    heavy = channel("h", 2, interactive=True, plan=b"heavy")
    turns, _ = urgent(1.0, heavy)
    turns.settle(following(turns), 5.0, busy_s=5.0)
    turns.enter(channel("a", 1))
    assert turns.next_interactive(lambda _: True) is None


def test_an_owner_that_is_far_ahead_of_another_takes_turns() -> None:
    """Else an owner of interactive channels would get all of their share, beside any number of owners."""
    turns, _ = urgent(1.0, channel("a", 99), channel("i", 99, interactive=True, owner=Identity("other")))
    taken = ""
    for _ in range(60):
        task = following(turns)
        taken += task.name
        turns.interactive.charge(-1.0)
        turns.settle(task, 0.05, busy_s=0.05)
    assert taken.startswith("i" * 20)
    assert taken[22:].count("a") == pytest.approx(19, abs=1)


def test_one_that_is_not_admitted_is_passed_over() -> None:
    turns, _ = urgent(0.5, channel("a", 1), channel("i", 1, interactive=True))
    assert order(turns, 2, passed_over="i") == "a-"
    assert order(turns, 2) == "i-"
