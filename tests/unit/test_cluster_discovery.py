"""How storage servers find each other: with scripted others, without a network."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.rpc.endpoint import Endpoint
from gigl_server.cluster.discovery import Discovery
from gigl_server.cluster.peers import JoinRefused, PeerResponse
from tests.support.leftovers import wait_until
from tests.support.store_control import response_of

GRAPH = "a" * 64


def server(port: int, *partitions: int) -> Endpoint:
    return Endpoint(
        host_index=0,
        host="host",
        control_port=port,
        data_port=port + 1,
        partitions=partitions,
        what="storage server",
    )


def answer(itself: Endpoint, *others: str, **changes: Any) -> PeerResponse:
    return response_of(itself, *others, **{"graph": GRAPH, **changes})


@dataclass
class Others:
    """What other servers say, by address; a list is said one after the other, its last for ever."""

    said: dict[str, list[PeerResponse | Exception]]
    unfit: dict[int, Exception] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def ask(self, address: str, timeout_s: float) -> PeerResponse:
        assert timeout_s > 0
        self.asked.append(address)
        script = self.said.get(address, [StorageUnavailable("nothing listens there")])
        said = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(said, Exception):
            raise said
        return said

    def check(self, endpoint: Endpoint, timeout_s: float) -> None:
        if endpoint.control_port in self.unfit:
            raise self.unfit[endpoint.control_port]

    def joining(self, own: Endpoint, *peers: str, partitions: int = 3, meet_s: float = 0.0) -> Discovery:
        """``meet_s`` is 0 where a test is not about waiting: most scripted servers never meet this one."""
        return Discovery(
            own,
            graph=GRAPH,
            num_partitions=partitions,
            peers=peers,
            query=self.ask,
            check=self.check,
            meet_s=meet_s,
        )


def test_a_server_that_has_all_and_expects_nobody_asks_nobody() -> None:
    others = Others({})
    own = server(10, 0, 1, 2)
    assert others.joining(own, "host:10", meet_s=60).run(1) == (own,)
    assert others.asked == []


@pytest.mark.parametrize("named", ["by peers", "by expect"])
def test_a_server_that_has_all_waits_until_it_and_those_it_expects_know_each_other(named: str) -> None:
    script: list[PeerResponse | Exception] = [
        StorageUnavailable("not yet"),
        answer(server(20, 0, 1, 2)),
        answer(server(20, 0, 1, 2), "host:10"),
    ]
    others = Others({"host:20": script})
    joining = others.joining(server(10, 0, 1, 2), *["host:20"] * (named == "by peers"), meet_s=600)
    if named == "by expect":
        joining.expect("host:20")
    assert joining.waiting_for == "waits for servers host:20"
    assert [each.control_port for each in joining.run(600)] == [10, 20]
    assert others.asked == ["host:20"] * 3
    assert joining.waiting_for == ""


def test_one_that_is_expected_and_stays_away_is_met_when_it_comes(caplog: pytest.LogCaptureFixture) -> None:
    said: dict[str, list[PeerResponse | Exception]] = {}
    own = server(10, 0, 1, 2)
    joining = Others(said).joining(own, "host:20", meet_s=0.2)
    assert joining.run(60) == (own,)
    told = "waits for servers host:20 (nothing listens there)"
    assert caplog.messages == [f"goes on alone, and joins them when they come: it {told}"]
    assert joining.waiting_for == told
    said["host:20"] = [answer(server(20, 0, 1, 2), "host:10")]
    joining.follow(0.1)
    assert [each.control_port for each in joining.members] == [10, 20]
    assert joining.waiting_for == ""


def test_the_wait_for_those_that_are_expected_ends_with_the_time_to_join() -> None:
    own = server(10, 0, 1, 2)
    assert Others({}).joining(own, "host:20", meet_s=600).run(0.2) == (own,)


def test_one_that_is_expected_and_does_not_fit_is_refused_or_passed_over() -> None:
    said: dict[str, list[PeerResponse | Exception]] = {
        "host:20": [answer(server(20, 0), "host:10", graph="b" * 64)]
    }
    own = server(10, 0, 1, 2)
    with pytest.raises(JoinRefused, match="another graph"):
        Others(said).joining(own, "host:20", meet_s=600).run(600)
    joining = Others(said).joining(own, meet_s=600)
    joining.expect("host:20")
    assert joining.run(600) == (own,)
    assert joining.waiting_for == ""


def test_one_tells_of_the_next() -> None:
    others = Others(
        {
            "host:20": [answer(server(20, 0), "host:30")],
            "host:30": [answer(server(30, 2), "host:20", "host:10")],
        }
    )
    members = others.joining(server(10, 1), "host:20").run(5)
    assert [(each.host_index, each.control_port) for each in members] == [(0, 20), (1, 10), (2, 30)]
    assert "host:10" not in others.asked


def test_one_that_is_not_up_yet_is_asked_again() -> None:
    soon: list[PeerResponse | Exception] = [
        StorageUnavailable("not yet"),
        StorageUnavailable("not yet"),
        answer(server(20, 1)),
    ]
    joining = Others({"host:20": soon}).joining(server(10, 0), "host:20", partitions=2)
    assert len(joining.run(10)) == 2


def test_one_that_came_to_us_is_found() -> None:
    others = Others({"host:20": [answer(server(20, 1))]})
    joining = others.joining(server(10, 0), partitions=2)
    done = threading.Thread(target=lambda: joining.run(30))
    done.start()
    joining.tell("not an address")
    joining.tell("host:20")
    done.join(10)
    assert joining.missing == []


def test_one_that_hears_of_itself_does_not_join_itself() -> None:
    own = server(10, 0)
    others = Others({"other-name:10": [answer(own)], "host:20": [answer(server(20, 1), "host:10")]})
    members = others.joining(own, "other-name:10", "host:20", partitions=2).run(5)
    assert [each.control_port for each in members] == [10, 20]


@pytest.mark.parametrize(
    ("told", "said"),
    [
        (
            answer(server(20, 1), graph="b" * 64),
            "storage server at host:20 has another graph: digest bbbbbbbbbbbb vs aaaaaaaaaaaa here",
        ),
        (answer(server(20, 1), wire_version=99), "host:20 runs gigl-loader 1, whose wire version is 99"),
        (SamplingError("storage server at host:20: wrong token"), "wrong token"),
        (ValueError("its certificate expired"), "its certificate expired"),
    ],
)
def test_one_that_does_not_fit_is_refused_by_name(told: PeerResponse | Exception, said: str) -> None:
    with pytest.raises(JoinRefused, match=said):
        Others({"host:20": [told]}).joining(server(10, 0), "host:20").run(5)


def test_several_may_hold_the_same_partition() -> None:
    others = Others({"host:20": [answer(server(20, 0, 1))], "host:30": [answer(server(30, 1))]})
    members = others.joining(server(10, 0), "host:20", "host:30", partitions=2).run(5)
    assert [(each.host_index, each.control_port) for each in members] == [(0, 10), (1, 20), (2, 30)]


def test_one_that_came_back_elsewhere_takes_the_place_of_what_is_gone() -> None:
    gone: list[PeerResponse | Exception] = [
        answer(server(20, 1)),
        StorageUnavailable("nothing listens there"),
    ]
    others = Others({"host:20": gone, "host:30": [answer(server(30, 1))], "host:40": [answer(server(40, 2))]})
    joining = others.joining(server(10, 0), "host:20")
    joined: list[Any] = []
    thread = threading.Thread(target=lambda: joined.extend(joining.run(30)))
    thread.start()
    assert wait_until(lambda: joining.missing == [2])
    joining.tell("host:30")
    assert wait_until(lambda: "host:30" in {each.control_address for each in joining.members})
    joining.tell("host:40")
    thread.join(20)
    assert [each.control_port for each in joined] == [10, 30, 40]


def test_one_that_comes_later_joins_and_raises_the_version() -> None:
    said: dict[str, list[PeerResponse | Exception]] = {"host:20": [answer(server(20, 1))]}
    joining = Others(said).joining(server(10, 0), "host:20", partitions=2)
    joining.run(5)
    before = joining.membership.version
    said["host:30"] = [answer(server(30, 1))]
    joining.tell("host:30")
    joining.follow(0.1)
    assert [each.control_port for each in joining.members] == [10, 20, 30]
    assert joining.membership.version > before


def test_one_that_comes_later_and_does_not_fit_is_passed_over() -> None:
    said: dict[str, list[PeerResponse | Exception]] = {"host:20": [answer(server(20, 1))]}
    joining = Others(said).joining(server(10, 0), "host:20", "host:30", partitions=2)
    joining.run(5)
    said["host:30"] = [answer(server(30, 1), graph="b" * 64)]
    joining.tell("host:30")
    joining.follow(0.1)
    assert [each.control_port for each in joining.members] == [10, 20]


def test_a_known_one_that_has_news_is_asked_again() -> None:
    said: dict[str, list[PeerResponse | Exception]] = {"host:20": [answer(server(20, 1))]}
    joining = Others(said).joining(server(10, 0), "host:20", partitions=2)
    joining.run(5)
    said["host:20"] = [answer(server(20, 0, 1))]
    joining.tell("host:20")
    joining.follow(0.1)
    assert [each.partitions for each in joining.members] == [(0,), (0, 1)]


def test_what_this_one_announces_ends_the_pause_of_the_watch() -> None:
    joining = Others({}).joining(server(10, 0), partitions=1)
    before = joining.membership.version
    announcing = threading.Timer(0.1, joining.announce, ([0, 1],))
    announcing.start()
    joining.follow(300)
    announcing.join()
    assert joining.members[0].partitions == (0, 1)
    assert joining.membership.version > before


def test_silent_ones_that_we_were_told_of_do_not_delay_those_that_are_needed() -> None:
    soon: list[PeerResponse | Exception] = [*[StorageUnavailable("not yet")] * 3, answer(server(20, 1))]
    others = Others({"host:20": soon})
    joining = others.joining(server(10, 0), "host:20", partitions=2)
    for port in range(1000, 6000):
        joining.tell(f"silent:{port}")
    assert len(joining.run(20)) == 2
    assert others.asked.count("host:20") == 4
    assert len(others.asked) <= 4 * 17


def test_the_newest_that_came_to_us_is_asked_however_many_were_silent() -> None:
    others = Others({"host:20": [answer(server(20, 1))]})
    joining = others.joining(server(10, 0), partitions=2)
    for port in range(1000, 1000 + 4096):
        joining.tell(f"silent:{port}")
    done = threading.Thread(target=lambda: joining.run(30))
    done.start()
    assert wait_until(lambda: len(others.asked) > 16)
    joining.tell("host:20")
    done.join(20)
    assert joining.missing == []


def test_one_that_only_came_to_us_and_does_not_fit_is_passed_over() -> None:
    others = Others({"host:20": [answer(server(20, 1), graph="b" * 64)], "host:30": [answer(server(30, 1))]})
    joining = others.joining(server(10, 0), "host:30", partitions=2)
    joining.tell("host:20")
    assert [each.control_port for each in joining.run(5)] == [10, 30]


def test_a_data_port_that_does_not_answer_is_waited_for() -> None:
    others = Others(
        {"host:20": [answer(server(20, 1))]}, unfit={20: StorageUnavailable("port 21: a firewall?")}
    )
    joining = others.joining(server(10, 0), "host:20", partitions=2)
    with pytest.raises(StorageUnavailable, match=r"waits for partitions \[1\] \(port 21: a firewall"):
        joining.run(0.3)


def test_what_is_missing_is_told_after_the_time() -> None:
    joining = Others({}).joining(server(10, 1), "host:20")
    with pytest.raises(StorageUnavailable, match=r"after 0.2 s.*\[0, 2\] \(nothing listens there"):
        joining.run(0.2)


def test_nobody_to_ask_is_told_with_what_to_do() -> None:
    with pytest.raises(StorageUnavailable, match="name another server by --peer"):
        Others({}).joining(server(10, 1)).run(0.1)
    only_itself = Others({"host:10": [answer(server(10, 1))]}).joining(server(10, 1), "host:10")
    with pytest.raises(StorageUnavailable, match="name another server by --peer"):
        only_itself.run(0.2)


def test_closing_ends_the_wait() -> None:
    joining = Others({}).joining(server(10, 1), "host:20")
    failed: list[Exception] = []

    def run() -> None:
        try:
            joining.run(300)
        except StorageUnavailable as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    joining.close()
    thread.join(10)
    assert "was closed" in str(failed[0])
