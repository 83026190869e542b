"""Ranks for tests are told where they are, are watched, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fork_server import ForkServer
from tests.support.hosts import Network, missing_for_hosts
from tests.support.leftovers import is_gone, wait_until
from tests.support.ranks import Ranks, places
from tests.support.torchrun import run_torchrun

ME = __name__
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")


# What ranks do


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


def tell(word: str) -> None:
    say([word, *(int(os.environ[name]) for name in NAMES)])


def fail() -> None:
    raise ValueError("on purpose")


def wait_with_a_child() -> None:
    child = subprocess.Popen(["sleep", "60"])
    say(child.pid)
    time.sleep(60)


def tell_host() -> None:
    addresses = [f"10.77.0.{index}" for index in range(1, 5)]
    say([os.environ["MASTER_ADDR"], os.environ["GIGL_BOOT_ID"], [a for a in addresses if is_mine(a)]])


def is_mine(address: str) -> bool:
    with socket.socket() as attempt:
        try:
            attempt.bind((address, 0))
        except OSError:
            return False
    return True


# Tests


def kill_the_only_one(ranks: Ranks) -> None:
    with ranks:
        assert wait_until(lambda: bool(ranks.printed(0)))
        assert [child.pid for child in ranks.children(0)] == ranks.printed(0)
        ranks.send(0, signal.SIGKILL)
        (ended,) = ranks.finish(seconds=10)
        assert ended.status == -signal.SIGKILL


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    with ForkServer.of() as fork_server:
        yield fork_server


def test_every_rank_knows_its_place(fork_server: ForkServer, tmp_path: Path) -> None:
    where = places(2, 1)
    special = {2: {"word": "other"}}
    with Ranks(
        fork_server, f"{ME}:tell", where, tmp_path, arguments={"word": "place"}, special=special
    ) as ranks:
        ended = ranks.succeed(seconds=10)
    assert [rank.lines for rank in ended] == [
        [["place", 0, 3, 0, 2, 0, 2]],
        [["place", 1, 3, 1, 2, 0, 2]],
        [["other", 2, 3, 0, 1, 1, 2]],
    ]


def test_an_exception_is_a_status_and_a_message(fork_server: ForkServer, tmp_path: Path) -> None:
    with Ranks(fork_server, f"{ME}:fail", places(1), tmp_path) as ranks:
        (ended,) = ranks.finish(seconds=10)
    assert (ended.status, ended.failure) == (1, "ValueError: on purpose")
    assert "Traceback" in ended.errors


def test_orphans_of_a_killed_rank_fail_the_test_and_are_ended(
    fork_server: ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.ranks._PATIENCE", 0.2)
    ranks = Ranks(fork_server, f"{ME}:wait_with_a_child", places(1), tmp_path)
    with pytest.raises(AssertionError, match=r"still there.*sleep"):
        kill_the_only_one(ranks)
    assert fork_server.everyone() == []


def test_ranks_that_take_too_long_fail_the_test_and_are_ended(
    fork_server: ForkServer, tmp_path: Path
) -> None:
    ranks = Ranks(fork_server, f"{ME}:wait_with_a_child", places(2), tmp_path)
    with pytest.raises(AssertionError, match=r"not all ranks ended within 0\.1 s"), ranks:
        ranks.finish(seconds=0.1)
    assert fork_server.everyone() == []


def test_all_ranks_end_with_their_fork_server() -> None:
    with ForkServer.of() as fork_server:
        order = {"program": f"{ME}:wait_with_a_child", "arguments": {}, "environment": {}, "network": ""}
        pid = fork_server.start({**order, "directory": "/", "output": os.devnull, "errors": os.devnull})
        assert wait_until(lambda: len(fork_server.everyone()) == 2)
        everyone = [process.pid for process in fork_server.everyone()]
        assert pid in everyone
    assert wait_until(lambda: all(map(is_gone, everyone)))


@pytest.mark.skipif(bool(missing_for_hosts()), reason=missing_for_hosts() or "hosts can be made")
def test_ranks_run_on_their_hosts(fork_server: ForkServer, tmp_path: Path) -> None:
    with Network.of(2) as network:
        where = places(1, 1, hosts=network.hosts)
        with Ranks(fork_server, f"{ME}:tell_host", where, tmp_path) as ranks:
            ended = ranks.succeed(seconds=10)
        boots = [host.boot_id for host in network.hosts]
    assert [rank.lines for rank in ended] == [
        [["10.77.0.1", boots[0], ["10.77.0.1"]]],
        [["10.77.0.1", boots[1], ["10.77.0.2"]]],
    ]


@pytest.mark.slow
def test_torchrun_on_two_hosts_of_this_machine(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nif os.environ['LOCAL_RANK'] == '0': print(sys.argv[1], os.environ['GIGL_BOOT_ID'])"
    )
    printed = run_torchrun(
        str(script), "at-{host}", ranks_per_host=2, num_hosts=2, seconds=60, folder=tmp_path
    )
    assert printed == ["at-0 boot-0\n", "at-1 boot-1\n"]
