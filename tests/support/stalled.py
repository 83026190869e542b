"""Callers of the data port that ask and do not read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.native import StreamError
from tests.support.raw_data import RawCaller, Refused

if TYPE_CHECKING:
    from typing_extensions import Self

_CALL_S = 600.0


class StalledCaller:
    """Any number of calls, each over a connection of its own, of whose replies nothing is read."""

    def __init__(self, address: str, token: str = "") -> None:
        self._address = address
        self._token = token
        self._callers: list[RawCaller] = []

    def ask(self, ticket: bytes) -> bool:
        """Ask, and read no more than the head of the reply. Return whether there is one."""
        caller = RawCaller(self._address, token=self._token)
        try:
            caller.begin(ticket, timeout_s=_CALL_S)
        except (Refused, StreamError):
            return False
        self._callers.append(caller)
        return True

    def close(self) -> None:
        for caller in self._callers:
            caller.close()
        self._callers.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
