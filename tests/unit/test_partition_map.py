from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from typing import Any

import pytest

from gigl_loader.hosts.rendezvous import Holding, check_holdings


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
