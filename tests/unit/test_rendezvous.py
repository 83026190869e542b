"""Rendezvous of hosts: groups, and partitions that make a whole."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest
from torch._C._distributed_c10d import HashStore

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.group import RankGroup
from gigl_loader.hosts.rendezvous import STEPS, Holding, Rendezvous, check_holdings

if TYPE_CHECKING:
    from collections.abc import Sequence


def _meetings(count: int, *, timeout: float = 1, store: Any = None) -> Sequence[Rendezvous]:
    store = HashStore() if store is None else store
    return [Rendezvous(RankGroup(store, rank, count), timeout=timeout) for rank in range(count)]


class _Gone:
    """A store whose holder ended after this rank had come."""

    def add(self, key: str, amount: int) -> int:
        return amount

    def check(self, keys: Sequence[str]) -> bool:
        raise RuntimeError("Connection was likely closed")


def test_what_ranks_tell_is_heard_in_their_order() -> None:
    meetings = _meetings(3)
    for meeting in meetings:
        meeting.tell("step", {"rank": meeting.group.rank})
    assert meetings[1].hear("step", what="tell") == [{"rank": rank} for rank in range(3)]
    assert meetings[1].hear("step", what="tell", ranks=[2, 0]) == [{"rank": 2}, {"rank": 0}]
    assert meetings[0].told("step")[1] == {"rank": 1}


def test_whoever_does_not_tell_is_named() -> None:
    meeting = _meetings(3, timeout=0.02)[0]
    meeting.tell("step", None)
    with pytest.raises(TimeoutError, match=r"^ranks 1, 2 did not tell anything within 0\.02 s$"):
        meeting.hear("step", what="tell anything")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("wrong"), ValueError),
        (StorageUnavailable("gone"), StorageUnavailable),
        (FileNotFoundError("nothing there"), FileNotFoundError),
        (PermissionError("not for you"), OSError),
        (ZeroDivisionError("odd"), GiglError),
    ],
)
def test_a_failure_is_raised_on_all_ranks_as_what_it_was(error: Exception, kind: type[Exception]) -> None:
    first, second, _ = _meetings(3, timeout=10)
    with pytest.raises(type(error)), first.telling_failures():
        raise error
    with pytest.raises(kind, match=f"^rank 0: {error}$") as caught:  # Nobody waits for the third.
        second.hear(STEPS[0], what="tell")
    assert type(caught.value) is kind


def test_a_failure_takes_the_place_of_what_was_told_and_of_what_was_to_come() -> None:
    first, second = _meetings(2, timeout=0.02)
    first.tell(STEPS[0], 1)
    with pytest.raises(TimeoutError, match=r"^rank 1 did not tell"), first.telling_failures():
        first.hear(STEPS[0], what="tell")
    for step in STEPS:
        second.tell(step, 2)
        with pytest.raises(TimeoutError, match=r"^rank 0: rank 1 did not tell"):
            second.hear(step, what="tell")


def test_what_was_heard_of_another_is_not_told_again() -> None:
    first, second, third = _meetings(3)
    first.tell_failure(ValueError("wrong"))
    first.tell_failure(ValueError("a consequence"))
    with pytest.raises(ValueError, match=r"^rank 0: wrong$"), second.telling_failures():
        second.hear(STEPS[0], what="tell")
    with pytest.raises(ValueError, match=r"^rank 0: wrong$"):
        third.hear(STEPS[0], what="tell")
    with pytest.raises(ValueError, match=r"^rank 0: wrong$"):
        third.told(STEPS[0])


def test_the_first_value_is_everybodys() -> None:
    assert [meeting.first("token", str(n)) for n, meeting in enumerate(_meetings(2))] == ["0", "0"]


def test_settling_waits_for_values_and_failures_and_raises_nothing() -> None:
    first, second = _meetings(2, timeout=0.02)
    first.tell("reach", 1)
    first.settle("reach", ranks=[0, 1])
    second.tell_failure(ValueError())
    first.settle("reach", ranks=[0, 1])
    with pytest.raises(ValueError, match=r"rank 1: ValueError\(\)"):
        first.hear("reach", what="tell")


def test_settling_with_a_store_that_is_gone_leaves_room_for_the_error_that_is_raised() -> None:
    meeting = _meetings(2, store=_Gone(), timeout=60)[0]
    with pytest.raises(ConnectionError, match="of the process group does not answer"):
        meeting.told("reach")
    meeting.settle("reach", ranks=[0, 1])


def test_meetings_of_one_group_do_not_mix() -> None:
    store = HashStore()
    for meeting in _meetings(2, store=store):
        meeting.tell("step", "first")
    again = _meetings(2, store=store)
    assert again[0].told("step") == {}


# --- Partitions that make a whole


def _holdings(*partitions: tuple[int, ...], ranks_per_host: int = 1, **fields: Any) -> list[Holding]:
    same = {"digest": "d" * 64, "address": "10.0.0.1", "where": "graph/", **fields}
    return [
        Holding(host_index=rank // ranks_per_host, local_rank=rank % ranks_per_host, partitions=parts, **same)
        for rank, parts in enumerate(partitions)
    ]


@pytest.mark.parametrize(
    "partitions", [[(0, 1), (2,)], [(0, 1, 2), (0, 1, 2)], [(0,), (1,), (2,)], [(2, 1), (0, 1)]]
)
def test_what_makes_a_whole_is_accepted(partitions: list[tuple[int, ...]]) -> None:
    check_holdings(_holdings(*partitions), 3)


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        (
            [(0,), (0,)],
            "no host holds partitions 1, 2 of 3: host 0 holds 0; host 1 holds 0; copy what is missing to",
        ),
        ([(0, 1), (1,)], "no host holds partition 2 of 3: host 0 holds 0, 1; host 1 holds 1;"),
    ],
)
def test_what_is_missing_is_told_with_who_holds_what(partitions: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        check_holdings(_holdings(*partitions), 3)


def test_many_missing_partitions_are_not_all_listed() -> None:
    with pytest.raises(ValueError, match=r"no host holds partitions 1, 2, .*, 8, \.\.\., 999 of 1000"):
        check_holdings(_holdings((0,), (0,)), 1000)


def test_ranks_of_a_host_must_hold_the_same() -> None:
    rule = "ranks of host 1 opened different partitions: partitions 1 on rank 2, partitions 0, 1 on rank 3"
    with pytest.raises(ValueError, match=rule):
        check_holdings(_holdings((0,), (0,), (1,), (0, 1), ranks_per_host=2), 2)


def test_hosts_that_would_draw_differently_are_told_apart() -> None:
    mine, other = _holdings((0,), (1,), versions=(3, 2, 1))
    check_holdings([mine, replace(other, versions=(4, 3, 1))], 2)
    rule = (
        "different batches: draw specification 1 on rank 0, draw specification 2 on rank 1; install the same"
    )
    with pytest.raises(ValueError, match=rule):
        check_holdings([mine, replace(other, versions=(3, 2, 2))], 2)


def test_what_a_later_build_publishes_is_read() -> None:
    [mine] = _holdings((0, 1), versions=(3, 2, 1), library="1.0")
    published = json.loads(json.dumps(asdict(mine)))
    assert Holding.from_json({**published, "colour": "red"}) == mine


def test_graphs_must_be_equal() -> None:
    mine, other = _holdings((0,), (1,))
    other = Holding(
        host_index=1, local_rank=0, digest="e" * 64, partitions=(1,), address="10.0.0.2", where="old/"
    )
    rule = "hosts have different graphs: d{12} at graph/ on rank 0, e{12} at old/ on rank 1; copy one"
    with pytest.raises(ValueError, match=rule):
        check_holdings([mine, other], 2)
