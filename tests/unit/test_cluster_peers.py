"""How a storage server notices that others go, stay away and come back."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc.endpoint import Endpoint
from gigl_server.cluster.membership import Membership
from gigl_server.cluster.peers import PeerResponse, PeerWatch
from tests.support.store_control import response_of

OTHER = Endpoint(
    host_index=1, host="host", control_port=20, data_port=21, partitions=(1,), what="storage server"
)
THIRD = replace(OTHER, control_port=30, data_port=31)
HERE = response_of(OTHER, graph="a")
SILENCE = StorageUnavailable("nothing listens there")


def members(*others: Endpoint, partitions: tuple[int, ...] = (0,)) -> Membership:
    own = replace(OTHER, control_port=10, data_port=11, partitions=partitions)
    membership = Membership(own)
    for other in others:
        membership.put(other)
    return membership


@dataclass
class Script:
    """What the servers at each port say next; the last is said for ever."""

    said: dict[int, list[PeerResponse | Exception]]
    now: float = 0.0
    until: threading.Event = field(default_factory=threading.Event)

    def ask(self, address: str, timeout_s: float) -> PeerResponse:
        script = self.said[int(address.rpartition(":")[2])]
        said = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(said, Exception):
            raise said
        return said

    def watch(self, membership: Membership) -> PeerWatch:
        return PeerWatch(membership, "a", self.ask, leave_s=60, clock=lambda: self.now)


def test_a_change_is_one_line_and_one_slow_answer_is_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    script = Script({20: [HERE, SILENCE, HERE, SILENCE, SILENCE, SILENCE, HERE, HERE]})
    membership = members(OTHER)
    watch = script.watch(membership)
    lost = []
    for _ in range(8):
        watch.look(script.until)
        lost.append(bool(watch.lost))
        assert membership.away == ({"host:20"} if watch.lost else set())
    assert lost == [False, False, False, False, True, True, False, False]
    assert caplog.messages == ["storage server 1 at host:20 is lost", "storage server 1 at host:20 is back"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"graph": "b" * 64}, "has another graph: digest bbbbbbbbbbbb"),
        ({"wire_version": 99}, "whose wire version is 99"),
    ],
)
def test_one_that_comes_back_as_another_is_not_back(
    caplog: pytest.LogCaptureFixture, changes: dict[str, Any], said: str
) -> None:
    script = Script({20: [response_of(OTHER, **{"graph": "a", **changes})]})
    watch = script.watch(members(OTHER))
    watch.look(script.until)
    watch.look(script.until)
    assert said in caplog.text


def test_one_that_holds_other_partitions_now_is_a_change() -> None:
    membership = members(OTHER)
    before = membership.version
    script = Script({20: [response_of(replace(OTHER, partitions=(1, 2)), graph="a")]})
    script.watch(membership).look(script.until)
    assert membership.others[0].partitions == (1, 2)
    assert membership.version > before


def test_one_that_stays_away_leaves_once_others_hold_its_partitions() -> None:
    script = Script({20: [SILENCE], 30: [response_of(THIRD, graph="a")]})
    membership = members(OTHER)
    watch = script.watch(membership)
    for now in (0.0, 5.0, 70.0):
        script.now = now
        watch.look(script.until)
    assert [each.control_port for each in membership.others] == [20], "nobody else holds partition 1"
    membership.put(THIRD)
    watch.look(script.until)
    assert [each.control_port for each in membership.others] == [30]
    membership.put(OTHER)
    watch.look(script.until)
    assert [each.control_port for each in membership.others] == [20, 30], "it has joined again"
