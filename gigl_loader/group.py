"""The other trainers, through the key-value store of the process group.

Only the store is used, never a collective: a rank that waits for another here cannot disturb a
collective of the training loop, and it can say who did not come. Values are text; nothing is pickled.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from gigl_loader.retry import Deadline, attempts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")

_PREFIX = "gigl"
_FREE = "free"
_MISSED_S = 1.0
_PATIENCE_S = 60.0
"""Timeout of one call to the store. A call takes milliseconds, unless the holder of the store hangs."""
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.001, 0.05
"""A wait polls the store with a pause that doubles up to this: 64 ranks then make 1,280 calls a second.

Not the store's own ``wait``: it holds the connection that other threads of the process use, too.
"""


class RankGroup:
    """The ranks of a process group, as seen by one of them."""

    def __init__(self, store: Any, rank: int, world_size: int, *, patience_s: float = _PATIENCE_S) -> None:
        """``store`` is any ``torch.distributed.Store`` that all ranks share.

        ``ConnectionError`` where it does not answer within ``patience_s`` seconds, or is gone.
        """
        self._store = store
        self._patience_s = patience_s
        self.rank = rank
        self.world_size = world_size

    @classmethod
    def current(cls, *, patience_s: float = _PATIENCE_S) -> RankGroup | None:
        """Return the default process group; ``None`` where there is none, or with one rank."""
        # A process that never imported torch has no process group, and need not import it to know.
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        world_size = int(distributed.get_world_size())
        if world_size == 1:
            return None
        store = distributed.distributed_c10d._get_default_store()
        return cls(store, int(distributed.get_rank()), world_size, patience_s=min(patience_s, _PATIENCE_S))

    def is_same(self, other: RankGroup) -> bool:
        """Whether both are the same rank of the same process group."""
        return self._store is other._store and (self.rank, self.world_size) == (other.rank, other.world_size)

    def within(self, rank: int, world_size: int) -> RankGroup:
        """Return a part of the group whose ranks are numbered anew, such as those of a host.

        Keys are those of the whole group: the caller makes them differ between parts.
        """
        return RankGroup(self._store, rank, world_size, patience_s=self._patience_s)

    def publish(self, key: str, value: str) -> None:
        """Let all ranks see this rank's ``value``."""
        self._ask(lambda: self._store.set(self._of(key, self.rank), value))

    def published(self, key: str, *, ranks: Iterable[int] | None = None) -> dict[int, str]:
        """Return what ranks have published so far, by rank. Does not wait."""
        names = {rank: self._of(key, rank) for rank in (range(self.world_size) if ranks is None else ranks)}

        def look() -> dict[int, str]:
            there = (rank for rank, name in names.items() if self._store.check([name]))
            return {rank: self._store.get(names[rank]).decode() for rank in there}

        return self._ask(look)

    def collect(
        self,
        key: str,
        *,
        timeout: float,
        what: str,
        ranks: Iterable[int] | None = None,
        check: Callable[[dict[int, str]], None] | None = None,
        missed: Callable[[list[int]], None] | None = None,
    ) -> list[str]:
        """Return what each of ``ranks`` (all of them by default) published, in their order.

        ``TimeoutError`` after ``timeout`` seconds: "ranks 2, 3 did not ``what``". ``check`` is called with
        what has come, by rank, whenever more has, ``missed`` once a second with the ranks that have not
        come; what they raise ends the wait.
        """
        wanted = list(range(self.world_size) if ranks is None else ranks)
        found: dict[int, str] = {}
        last = time.monotonic()

        def all_there() -> bool:
            nonlocal last
            came = self.published(key, ranks=[rank for rank in wanted if rank not in found])
            found.update(came)
            if came and check is not None:
                check(found)
            if missed is not None and len(found) < len(wanted) and time.monotonic() - last > _MISSED_S:
                missed([rank for rank in wanted if rank not in found])
                last = time.monotonic()
            return len(found) == len(wanted)

        if not wait_for(all_there, timeout):
            missing = name_ranks(rank for rank in wanted if rank not in found)
            raise TimeoutError(f"{missing} did not {what} within {timeout:g} s")
        return [found[rank] for rank in wanted]

    def first(self, key: str, value: str) -> str:
        """Return the value of the rank that called first: ``value`` where that is this one."""
        return self.replace(key, "", value)

    def replace(self, key: str, expected: str, value: str) -> str:
        """Put ``value`` in the place of ``expected`` ("" where nothing is). Return what is there now.

        Atomic: of several ranks that expect the same, one is served.
        """
        there: bytes = self._ask(lambda: self._store.compare_set(f"{_PREFIX}/{key}", expected, value))
        return there.decode()

    def join(self, key: str) -> None:
        """Add this rank to the members of ``key``."""

        def enter() -> None:
            number = self._store.add(f"{_PREFIX}/{key}/members", 1)
            self._store.set(f"{_PREFIX}/{key}/member/{number}", str(self.rank))

        self._ask(enter)

    def joined(self, key: str) -> list[int]:
        """Return the ranks that have joined ``key`` so far, ascending. Does not wait."""

        def look() -> list[int]:
            count = int(self._store.add(f"{_PREFIX}/{key}/members", 0))
            names = [f"{_PREFIX}/{key}/member/{number}" for number in range(1, count + 1)]
            return sorted(int(self._store.get(name)) for name in names if self._store.check([name]))

        return self._ask(look)

    def turn(self, key: str) -> int:
        """Return how often this rank has called this with ``key``: 1, 2, 3, ..."""
        return self._ask(lambda: int(self._store.add(self._of(f"turn/{key}", self.rank), 1)))

    def turns(self, key: str) -> int:
        """Return how often this rank has taken a turn, without taking one."""
        return self._ask(lambda: int(self._store.add(self._of(f"turn/{key}", self.rank), 0)))

    def _ask(self, question: Callable[[], T]) -> T:
        """Ask in a thread: torch's stores wait for ever for a holder that is there and says nothing."""
        answers: list[T] = []
        errors: list[BaseException] = []

        def ask() -> None:
            try:
                answers.append(question())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=ask, daemon=True, name="gigl-store")
        with _store_errors():
            thread.start()
            thread.join(self._patience_s)
            if errors:
                raise errors[0]
            if not answers:
                raise RuntimeError(f"no answer within {self._patience_s:g} s")
        return answers[0]

    def _of(self, key: str, rank: int) -> str:
        return f"{_PREFIX}/{key}/{rank}"


class RankLock:
    """A lock in a group's store, of the rank that wrote its name into it."""

    def __init__(
        self, group: RankGroup, key: str, *, abandoned: Callable[[int, int], bool] = lambda rank, pid: False
    ) -> None:
        """``abandoned`` says of a holder, by its rank and process id, whether it is dead."""
        self._group = group
        self._key = key
        self._abandoned = abandoned
        # The last part distinguishes the threads of one rank that want the lock at once.
        self._me = f"{group.rank} {os.getpid()} {secrets.token_hex(4)}"
        self._there = ""
        self.note = ""
        """What the holder before left."""

    @property
    def holder(self) -> int:
        """Rank of who has it. Known after ``take``."""
        return int(self._there.split()[0])

    @property
    def holder_pid(self) -> int:
        return int(self._there.split()[1])

    def take(self) -> bool:
        """Try to take the lock, which is free where its holder is dead. Return whether it is ours."""
        expected = self._there if self._is_vacant() else ""
        self._there = self._group.replace(self._key, expected, self._me)
        taken = self._there == self._me
        if taken and expected.startswith(_FREE):
            self.note = expected.partition(" ")[2]
        return taken

    def give_back(self, note: str = "") -> None:
        """Release the lock; leave a note for the next holder."""
        self._group.replace(self._key, self._me, f"{_FREE} {note}")

    def _is_vacant(self) -> bool:
        there = self._there
        return there.startswith(_FREE) or (there != "" and self._abandoned(self.holder, self.holder_pid))


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Ask ``condition`` again and again until it holds. Return whether it did within ``timeout`` seconds."""
    polls = attempts(Deadline.after(timeout), first_s=_FIRST_PAUSE_S, longest_s=_MAX_PAUSE_S)
    return any(condition() for _ in polls)


def name_ranks(ranks: Iterable[int]) -> str:
    """Return "rank 2" or "ranks 2, 3", and "ranks 0, 1, ..., 99 (100 in all)" where there are many."""
    listed = [str(rank) for rank in ranks]
    if len(listed) == 1:
        return f"rank {listed[0]}"
    if len(listed) > 16:
        return f"ranks {', '.join(listed[:8])}, ..., {listed[-1]} ({len(listed)} in all)"
    return f"ranks {', '.join(listed)}"


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn what a store raises when its holder is gone into one line."""
    try:
        yield
    except RuntimeError as error:  # All errors of torch's stores are.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ConnectionError(
            "the key-value store of the process group does not answer: the process that holds it "
            f"(rank 0, or torchrun on its host) is gone or cannot be reached ({reason})"
        ) from error
