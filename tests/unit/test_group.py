from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from torch import distributed
from torch._C._distributed_c10d import FileStore, HashStore, TCPStore

from gigl_loader.group import RankGroup, RankLock, name_ranks, wait_for
from tests.support.thread_ranks import run_ranks


@pytest.fixture(params=["hash", "file", "tcp"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "hash":
        return HashStore()
    if request.param == "file":
        return FileStore(str(tmp_path / "store"), 3)
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def test_a_process_without_a_group_has_none() -> None:
    assert RankGroup.current() is None


def test_a_group_of_one_rank_is_none(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert RankGroup.current() is None
    finally:
        distributed.destroy_process_group()


def test_asking_for_the_group_does_not_import_torch() -> None:
    code = "import sys; from gigl_loader.group import RankGroup; assert RankGroup.current() is None; "
    subprocess.run([sys.executable, "-c", code + "assert 'torch' not in sys.modules"], check=True, timeout=60)


def test_what_ranks_publish_is_collected_in_their_order(store: Any) -> None:
    def program(group: RankGroup) -> list[str]:
        group.publish("word", f"of {group.rank}")
        return group.collect("word", timeout=10, what="say a word")

    assert run_ranks(3, program, store=store) == [["of 0", "of 1", "of 2"]] * 3


def test_some_ranks_can_be_collected(store: Any) -> None:
    groups = [RankGroup(store, rank, 3) for rank in range(3)]
    groups[2].publish("word", "two")
    assert groups[0].collect("word", timeout=1, what="say", ranks=[2]) == ["two"]
    assert groups[1].published("word") == {2: "two"}
    assert groups[1].published("word", ranks=[0, 1]) == {}


def test_whoever_does_not_come_is_named(store: Any) -> None:
    group = RankGroup(store, 1, 3)
    group.publish("word", "here")
    with pytest.raises(TimeoutError, match=r"^ranks 0, 2 did not say a word within 0\.05 s$"):
        group.collect("word", timeout=0.05, what="say a word")


def test_what_comes_can_be_checked_while_the_rest_is_waited_for(store: Any) -> None:
    groups = [RankGroup(store, rank, 3) for rank in range(3)]
    groups[1].publish("word", "bad")

    def check(found: dict[int, str]) -> None:
        assert found == {1: "bad"}
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        groups[0].collect("word", timeout=10, what="say a word", check=check)


def test_the_first_to_come_decides(store: Any) -> None:
    answers = run_ranks(3, lambda group: group.first("seed", str(group.rank)), store=store)
    assert len(set(map(str, answers))) == 1
    assert answers[0] in ("0", "1", "2")


def test_a_value_is_replaced_only_where_it_is_as_expected(store: Any) -> None:
    group = RankGroup(store, 0, 2)
    assert group.replace("lock", "", "mine") == "mine"
    assert group.replace("lock", "", "yours") == "mine"
    assert group.replace("lock", "mine", "free") == "free"


def test_turns_count_by_key_and_rank(store: Any) -> None:
    first, second = (RankGroup(store, rank, 2) for rank in range(2))
    assert [first.turn("a"), first.turn("a"), first.turn("b"), second.turn("a")] == [1, 2, 1, 1]


def test_keys_do_not_meet_those_of_others() -> None:
    store = HashStore()
    store.set("word/0", "not ours")
    assert RankGroup(store, 0, 2).published("word") == {}


@pytest.mark.slow
def test_a_store_whose_holder_is_gone_is_told_in_one_line() -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys; from torch.distributed import TCPStore\n"
            "store = TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)\n"
            "print(store.port, flush=True); sys.stdin.read()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    port = int(holder.stdout.readline())
    client = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=5))
    group = RankGroup(client, 1, 2)
    group.publish("word", "here")
    holder.communicate()
    with pytest.raises(ConnectionError, match=r"the process that holds it \(rank 0, .*\) is gone") as caught:
        group.collect("word", timeout=10, what="say a word")
    assert "\n" not in str(caught.value)


def test_waiting_ends_with_the_condition_or_in_time() -> None:
    answers = iter([False, False, True])
    assert wait_for(lambda: next(answers), 10)
    began = time.monotonic()
    assert not wait_for(lambda: False, 0.02)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([2], "rank 2"),
        ([2, 3], "ranks 2, 3"),
        (range(100), "ranks 0, 1, 2, 3, 4, 5, 6, 7, ..., 99 (100 in all)"),
    ],
)
def test_ranks_are_named_shortly(ranks: Any, text: str) -> None:
    assert name_ranks(ranks) == text


def test_a_store_whose_holder_hangs_is_told_in_time() -> None:
    held = threading.Event()

    class Hangs:
        def set(self, key: str, value: str) -> None:
            held.wait(10)

    try:
        with pytest.raises(ConnectionError, match=r"does not answer.*no answer within 0\.05 s"):
            RankGroup(Hangs(), 0, 2, patience_s=0.05).publish("key", "value")
    finally:
        held.set()


def test_a_lock_has_one_holder_and_tells_the_next_what_the_last_left() -> None:
    store = HashStore()
    first, second = (RankLock(RankGroup(store, rank, 2), "lock") for rank in range(2))
    assert first.take()
    assert (second.take(), second.holder, second.holder_pid) == (False, 0, os.getpid())
    first.give_back("a note")
    second.give_back("not its to give")
    # What was free when it looked last may be taken meanwhile.
    assert [second.take(), second.take()].count(True) == 1
    assert (second.note, first.take(), first.holder) == ("a note", False, 1)


def test_a_lock_passes_on_from_a_holder_that_is_dead() -> None:
    store, asked = HashStore(), []

    def abandoned(rank: int, pid: int) -> bool:
        asked.append((rank, pid))
        return True

    assert RankLock(RankGroup(store, 0, 2), "lock").take()
    second = RankLock(RankGroup(store, 1, 2), "lock", abandoned=abandoned)
    assert (second.take(), second.take(), second.note) == (False, True, "")
    assert asked == [(0, os.getpid())]


def test_members_are_the_ranks_that_have_joined_so_far() -> None:
    store = HashStore()
    groups = [RankGroup(store, rank, 4) for rank in range(4)]
    assert groups[0].joined("key") == []
    for rank in (2, 0):
        groups[rank].join("key")
    assert [group.joined("key") for group in groups] == [[0, 2]] * 4
    assert groups[1].joined("another") == []
