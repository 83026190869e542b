"""The other trainers, through the key-value store of the process group.

Only the store is used, never a collective: a rank that waits for another here cannot disturb a
collective of the training loop, and it can say who did not come. Values are text; nothing is pickled.
"""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["RankGroup", "name_ranks", "wait_for"]

_PREFIX = "gigl"
_FIRST_PAUSE_S = 0.001
_LONGEST_PAUSE_S = 0.05
"""A wait asks the store again after a pause that doubles up to this: 64 ranks then ask 1,280 times a second.

Not the store's own ``wait``: it holds the connection that other threads of the process use, too.
"""


class RankGroup:
    """The ranks of a process group, as seen by one of them."""

    def __init__(self, store: Any, rank: int, world_size: int) -> None:
        """``store`` is any ``torch.distributed.Store`` that all ranks share."""
        self._store = store
        self.rank = rank
        self.world_size = world_size

    @classmethod
    def current(cls) -> RankGroup | None:
        """Return the default process group; ``None`` where there is none, or with one rank."""
        # A process that never imported torch has no process group, and need not import it to know.
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        world_size = int(distributed.get_world_size())
        if world_size == 1:
            return None
        store = distributed.distributed_c10d._get_default_store()
        return cls(store, int(distributed.get_rank()), world_size)

    def publish(self, key: str, value: str) -> None:
        """Let all ranks see this rank's ``value``."""
        with _store_errors():
            self._store.set(self._of(key, self.rank), value)

    def published(self, key: str, *, ranks: Iterable[int] | None = None) -> dict[int, str]:
        """Return what ranks have published so far, by rank. Does not wait."""
        found = {}
        with _store_errors():
            for rank in range(self.world_size) if ranks is None else ranks:
                name = self._of(key, rank)
                if self._store.check([name]):
                    found[rank] = self._store.get(name).decode()
        return found

    def collect(
        self, key: str, *, timeout: float, what: str, ranks: Iterable[int] | None = None
    ) -> list[str]:
        """Return what each of ``ranks`` (all of them by default) published, in their order.

        ``TimeoutError`` after ``timeout`` seconds: "ranks 2, 3 did not ``what``".
        """
        wanted = list(range(self.world_size) if ranks is None else ranks)
        found: dict[int, str] = {}

        def all_there() -> bool:
            found.update(self.published(key, ranks=[rank for rank in wanted if rank not in found]))
            return len(found) == len(wanted)

        if not wait_for(all_there, timeout):
            missing = name_ranks(rank for rank in wanted if rank not in found)
            raise TimeoutError(f"{missing} did not {what} within {timeout:g} s")
        return [found[rank] for rank in wanted]

    def first(self, key: str, value: str) -> str:
        """Return the value of the rank that asked first: ``value`` where that is this one."""
        return self.replace(key, "", value)

    def replace(self, key: str, expected: str, value: str) -> str:
        """Put ``value`` in the place of ``expected`` ("" where nothing is). Return what is there now.

        Atomic: of several ranks that expect the same, one is served.
        """
        with _store_errors():
            there: bytes = self._store.compare_set(f"{_PREFIX}/{key}", expected, value)
        return there.decode()

    def turn(self, key: str) -> int:
        """Return how often this rank has asked for this key: 1, 2, 3, ..."""
        with _store_errors():
            return int(self._store.add(self._of(f"turn/{key}", self.rank), 1))

    def _of(self, key: str, rank: int) -> str:
        return f"{_PREFIX}/{key}/{rank}"


def wait_for(condition: Callable[[], bool], timeout: float) -> bool:
    """Ask ``condition`` again and again until it holds. Return whether it did within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    pause = _FIRST_PAUSE_S
    while not condition():
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        time.sleep(min(pause, remaining))
        pause = min(2 * pause, _LONGEST_PAUSE_S)
    return True


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
