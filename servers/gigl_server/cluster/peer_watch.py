"""Watch over the other servers: one log line when one of them goes or comes back."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_server.cluster.peers import check_fit, listed

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_server.cluster.peers import PeerAnswer

__all__ = ["PeerWatch"]

_LOGGER = logging.getLogger(__name__)
_TIMEOUT_S = 2.0
_MISSES = 2
"""A server that does not answer so many times in a row is lost: one slow answer is no news."""


class PeerWatch:
    """Looks after the other servers when it is told to. Sampling does not depend on it: asks find out."""

    def __init__(
        self, members: Sequence[Endpoint], graph: str, ask: Callable[[str, float], PeerAnswer]
    ) -> None:
        """``members`` are the others."""
        self._members = members
        self._graph = graph
        self._ask = ask
        self._misses = dict.fromkeys(members, 0)

    @property
    def lost(self) -> list[Endpoint]:
        """Those that did not answer the last times."""
        return [member for member, misses in self._misses.items() if misses >= _MISSES]

    def look(self, until: threading.Event) -> None:
        """Ask each of them once, or until it is over: those that do not answer take their time."""
        for member in self._members:
            if until.is_set():
                return
            try:
                answer = self._ask(member.control_address, _TIMEOUT_S)
                check_fit(member.control_address, answer, graph=self._graph)
                if answer.itself.partitions != member.partitions:
                    raise ValueError(f"it came back with partitions {listed(answer.itself.partitions)}")
            except (GiglError, ValueError) as error:
                self._misses[member] += 1
                if self._misses[member] == _MISSES:
                    silent = isinstance(error, StorageUnavailable)
                    _LOGGER.warning("%s is lost%s", member, "" if silent else f": {error}")
                continue
            if self._misses[member] >= _MISSES:
                _LOGGER.info("%s is back", member)
            self._misses[member] = 0
