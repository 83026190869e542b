"""How the ranks that open one graph together tell each other what they have, step by step.

Every step is told or failed by some ranks and heard by all, so whatever goes wrong on one host is raised
on every rank, and nobody waits for a step that will not come.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import FormatError, GiglError, StorageUnavailable
from gigl_loader.group import wait_for
from gigl_loader.topology import announce_host

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_loader.group import RankGroup

__all__ = ["FIRST_STEP", "Meeting", "tell_failure"]

FIRST_STEP = "holding"

_KINDS = {
    kind.__name__: kind
    for kind in (FormatError, FileNotFoundError, OSError, StorageUnavailable, TimeoutError, ValueError)
}


class Meeting:
    """One meeting of all ranks, as seen by one of them."""

    def __init__(self, group: RankGroup, *, timeout: float) -> None:
        """Each step is waited for up to ``timeout`` seconds."""
        self.group = group
        self._key = f"dataset/{group.turn('dataset')}"
        self.timeout = timeout

    def tell(self, step: str, value: Any) -> None:
        """Let all ranks hear ``value`` (JSON-able) of this rank."""
        self.group.publish(f"{self._key}/{step}", json.dumps({"value": value}))

    def told(self, step: str) -> dict[int, Any]:
        """Return what ranks have told so far, by rank. Does not wait."""
        texts = self.group.published(f"{self._key}/{step}")
        return {rank: _value(rank, text) for rank, text in texts.items()}

    @contextmanager
    def telling_failures(self, step: str) -> Iterator[None]:
        """Let all ranks that wait for this step hear of an exception instead."""
        try:
            yield
        except BaseException as error:
            self.tell_failure(step, error)
            raise

    def tell_failure(self, step: str, error: BaseException) -> None:
        """Let all ranks that wait for this step hear of ``error`` instead."""
        failure = [type(error).__name__, str(error) or repr(error)]
        with suppress(ConnectionError):  # Of two failures, the first counts.
            self.group.publish(f"{self._key}/{step}", json.dumps({"failure": failure}))

    def hear(self, step: str, *, what: str, ranks: Sequence[int] | None = None) -> list[Any]:
        """Wait for what ``ranks`` (all) tell, and return it in their order.

        The failure of another rank is raised as what it was there. ``TimeoutError``: "ranks 2, 3 did not
        ``what``".
        """
        key = f"{self._key}/{step}"
        texts = self.group.collect(key, timeout=self.timeout, what=what, ranks=ranks, check=_check_values)
        return [json.loads(text)["value"] for text in texts]

    def settle(self, step: str, *, ranks: Sequence[int]) -> None:
        """Wait until each of ``ranks`` has told something or failed, or the timeout is over."""
        key = f"{self._key}/{step}"
        wait_for(lambda: len(self.group.published(key, ranks=ranks)) == len(ranks), self.timeout)

    def first(self, key: str, value: str) -> str:
        """Return the value of the rank that came first."""
        return self.group.first(f"{self._key}/{key}", value)


def tell_failure(group: RankGroup, error: BaseException) -> None:
    """Tell all ranks that this one will not come to the next meeting, and why."""
    with suppress(ConnectionError):
        announce_host(group)
        Meeting(group, timeout=0).tell_failure(FIRST_STEP, error)


def _check_values(texts: dict[int, str]) -> None:
    """Raise the failure of a rank, if there is one."""
    for rank, text in texts.items():
        _value(rank, text)


def _value(rank: int, text: str) -> Any:
    told = json.loads(text)
    if "failure" not in told:
        return told["value"]
    kind, message = told["failure"]
    raise _KINDS.get(kind, GiglError)(f"rank {rank}: {message}")
