"""The order in which holders are asked: even, stable, and healthy ones first."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.holders import Holders, rendezvous_order

NAMES = st.lists(st.text(st.characters(codec="ascii"), min_size=1, max_size=8), unique=True, max_size=8)


def server(port: int, *partitions: int, incarnation: int = 0) -> Endpoint:
    return Endpoint(
        host_index=0,
        host="host",
        control_port=port,
        data_port=port + 1,
        partitions=partitions,
        incarnation=incarnation,
    )


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@given(NAMES, st.text(max_size=4), st.randoms(use_true_random=False))
def test_the_order_depends_on_names_and_key_alone(names: list[str], key: str, random: object) -> None:
    shuffled = list(names)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert rendezvous_order(names, key) == rendezvous_order(shuffled, key)


@given(NAMES, st.text(max_size=4), st.data())
def test_the_loss_of_a_name_leaves_the_order_of_the_others(
    names: list[str], key: str, data: st.DataObject
) -> None:
    order = rendezvous_order(names, key)
    if order:
        lost = data.draw(st.sampled_from(order))
        assert rendezvous_order(set(names) - {lost}, key) == [name for name in order if name != lost]


def test_load_is_even_over_callers_and_stays_so_when_one_is_lost() -> None:
    names = [f"10.0.0.{number}:7070" for number in range(4)]
    first = Counter(rendezvous_order(names, f"caller {number}", "3")[0] for number in range(4_000))
    assert all(800 < first[name] < 1_200 for name in names)
    left = Counter(rendezvous_order(names[1:], f"caller {number}", "3")[0] for number in range(4_000))
    assert all(1_100 < left[name] < 1_600 for name in names[1:])


def test_only_holders_are_asked_and_all_of_them() -> None:
    servers = [server(10, 0, 1), server(20, 1, 2), server(30, 0, 2)]
    holders = Holders(servers, key="me")
    for partition in range(3):
        assert set(holders.of(partition)) == {each for each in servers if partition in each.partitions}
    assert set(holders.of(None)) == set(servers)
    assert holders.of(7) == ()


def test_one_that_failed_comes_last_until_one_call_tries_it_again() -> None:
    clock = Clock()
    holders = Holders([server(10, 0), server(20, 0)], key="me", clock=clock)
    first, second = holders.of(0)
    holders.failed(first, "silent")
    assert holders.of(0) == (second, first)
    clock.now = 1.0
    assert holders.of(0) == (first, second), "due to be tried again"
    assert holders.of(0) == (second, first), "by one call only"
    clock.now = 10.0
    assert holders.of(0) == (first, second)
    holders.answered(first)
    assert holders.of(0) == (first, second) == holders.of(0)


def test_one_that_was_started_again_or_moved_is_used_at_once() -> None:
    clock = Clock()
    holders = Holders([server(10, 0, incarnation=1), server(20, 0, incarnation=1)], key="me", clock=clock)
    first, second = holders.of(0)
    holders.failed(first, "gone")
    holders.update([server(first.control_port, 0, incarnation=2), second])
    assert [each.control_port for each in holders.of(0)] == [first.control_port, second.control_port]
    holders.failed(second, "gone")
    holders.update([first, server(30, 0)])
    assert second not in holders.of(0)


def test_those_of_all_that_failed_that_may_answer_soonest_come_first() -> None:
    clock = Clock()
    holders = Holders([server(port, 0) for port in (10, 20, 30)], key="me", clock=clock)
    order = holders.of(0)
    for seconds, each in enumerate(reversed(order)):
        clock.now = seconds / 100
        holders.failed(each, "gone")
        clock.now += 0.4 * seconds
    assert set(holders.of(0)) == set(order)
