"""Rendezvous of the ranks that open one graph: each step is published, and failures reach every rank.

Every step is told by some ranks and heard by all. A rank that fails lets all steps fail, those already
told, too: who comes late finds that the others did not wait, and nobody waits for what will not come.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import FormatError, GiglError, StorageUnavailable
from gigl_loader.group import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gigl_loader.group import RankGroup

__all__ = ["STEPS", "WHOLE", "Rendezvous", "excuse"]

STEPS = ("holding", "endpoint", "reach", "cache", "joined")
"""Of opening a graph, in their order. The last says that nothing can fail any more."""

WHOLE = "dataset/whole"
"""Where a rank leaves word, under a graph's digest, that it has opened all of that graph, alone."""

_TURN = "dataset"
_EXCUSE = "excuse"

_KINDS = {
    kind.__name__: kind
    for kind in (FormatError, FileNotFoundError, OSError, StorageUnavailable, TimeoutError, ValueError)
}


class Rendezvous:
    """One meeting of all ranks, as seen by one of them."""

    def __init__(self, group: RankGroup, *, timeout: float) -> None:
        """Each step is waited for up to ``timeout`` seconds."""
        self.group = group
        self._key = _key(group.turn(_TURN))
        self.timeout = timeout
        self._failed = False

    def tell(self, step: str, value: Any) -> None:
        """Let all ranks hear ``value`` (JSON-able) of this rank."""
        self.group.publish(f"{self._key}/{step}", json.dumps({"value": value}))

    def told(self, step: str) -> dict[int, Any]:
        """Return what ranks have told so far, by rank. Does not wait."""
        texts = self.group.published(f"{self._key}/{step}")
        return {rank: _value(rank, text) for rank, text in texts.items()}

    @contextmanager
    def telling_failures(self) -> Iterator[None]:
        """Let all ranks hear of an exception in the place of any step."""
        try:
            yield
        except BaseException as error:
            self.tell_failure(error)
            raise

    def tell_failure(self, error: BaseException) -> None:
        """Let all ranks hear of ``error`` in the place of any step.

        Only of the first, and not of what was heard from another rank, which has told everybody.
        """
        if self._failed:
            return
        self._failed = True
        with suppress(ConnectionError):  # Of two failures, the first counts.
            for step in STEPS:
                self.group.publish(f"{self._key}/{step}", _failure(error))

    def hear(
        self,
        step: str,
        *,
        what: str,
        ranks: Sequence[int] | None = None,
        missed: Callable[[list[int]], None] | None = None,
    ) -> list[Any]:
        """Wait for what ``ranks`` (all) tell, and return it in their order.

        The failure of another rank is raised as what it was there. ``TimeoutError``: "ranks 2, 3 did not
        ``what``". ``missed`` is called once a second with the ranks that are waited for.
        """
        texts = self.group.collect(
            f"{self._key}/{step}",
            timeout=self.timeout,
            what=what,
            ranks=ranks,
            check=self._check,
            missed=missed,
        )
        return [json.loads(text)["value"] for text in texts]

    def check_excuses(self, ranks: Sequence[int]) -> None:
        """Raise what kept one of ``ranks`` from coming, if it said so."""
        self._check(self.group.published(f"{self._key}/{_EXCUSE}", ranks=ranks))

    def settle(self, step: str, *, ranks: Sequence[int]) -> None:
        """Wait until each of ``ranks`` has told something or failed, or the timeout is over."""
        key = f"{self._key}/{step}"
        wait_for(lambda: len(self.group.published(key, ranks=ranks)) == len(ranks), self.timeout)

    def first(self, key: str, value: str) -> str:
        """Return the value of the rank that came first."""
        return self.group.first(f"{self._key}/{key}", value)

    def _check(self, texts: dict[int, str]) -> None:
        """Raise the failure of a rank, if there is one."""
        try:
            for rank, text in texts.items():
                _value(rank, text)
        except Exception:
            self._failed = True
            raise


def excuse(group: RankGroup, error: BaseException) -> None:
    """Tell those who wait for this rank at their next meeting why it does not come.

    It may come after all: an excuse counts only while its rank is missed.
    """
    with suppress(ConnectionError):
        group.publish(f"{_key(group.turns(_TURN) + 1)}/{_EXCUSE}", _failure(error))


def _key(turn: int) -> str:
    return f"{_TURN}/{turn}"


def _failure(error: BaseException) -> str:
    return json.dumps({"failure": [_kind(error), str(error) or repr(error)]})


def _kind(error: BaseException) -> str:
    """Return what other ranks raise for it: the nearest class that they know by name."""
    return next((kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS), "")


def _value(rank: int, text: str) -> Any:
    told = json.loads(text)
    if "failure" not in told:
        return told["value"]
    kind, message = told["failure"]
    raise _KINDS.get(kind, GiglError)(f"rank {rank}: {message}")
