"""What every service tells of itself."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from gigl_loader import __version__
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.requests import WIRE_VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_server.ledger import Ledger

__all__ = ["PeerCalls"]


class PeerCalls:
    """Answers the calls of ``Peer``."""

    def __init__(self, ledger: Ledger, *, graph: str, partitions: Sequence[int], data_port: int) -> None:
        self._ledger = ledger
        self._began = time.monotonic()
        self._graph, self._partitions, self._data_port = graph, sorted(partitions), data_port

    @property
    def answers(self) -> dict[str, Any]:
        """By the name of the call."""
        return {"Describe": self._describe, "Stats": self._stats}

    def description(self) -> Any:
        return messages.Description(
            version=__version__,
            wire_version=WIRE_VERSION,
            graph=self._graph,
            partitions=self._partitions,
            data_port=self._data_port,
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._began,
        )

    def statistics(self) -> Any:
        totals = self._ledger.read()
        return messages.Statistics(
            cpu_s=time.process_time(),
            sampling_s=totals.sampling_s,
            gathering_s=totals.gathering_s,
            calls=totals.calls,
            bytes_in=totals.bytes_in,
            bytes_out=totals.bytes_out,
            refused=totals.refused,
        )

    async def _describe(self, request: Any, context: Any) -> Any:
        return self.description()

    async def _stats(self, request: Any, context: Any) -> Any:
        return self.statistics()
