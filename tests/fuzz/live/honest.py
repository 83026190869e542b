"""Honest callers of services under attack: they check every answer and note how long they waited."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from typing_extensions import Self

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_loader.graph.graph import Graph
from gigl_loader.sampling.store import DrawRule, NeighborRequest
from tests.fuzz.live.services import Service
from tests.support.peers import remote_store
from tests.support.training import FANOUT, OPTIONS, digest

_TIMEOUT_S = 60.0


class Honest:
    """A thread that asks again and again until the end of the block."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.right = 0
        """Answers that were as they must be."""
        self.wrong: list[str] = []
        self.worst_gap_s = 0.0
        self._last = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._go, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(2 * _TIMEOUT_S)

    @abstractmethod
    def ask(self, stack: ExitStack) -> None:
        """Ask until the end, and ``count`` each answer."""

    def ended(self) -> bool:
        """Return whether to stop."""
        return self._end.is_set()

    def count(self, *, right: bool) -> None:
        now = time.monotonic()
        self.worst_gap_s = max(self.worst_gap_s, now - self._last)
        self._last = now
        if right:
            self.right += 1
        else:
            self.wrong.append(f"answer {self.right + len(self.wrong)} differs")

    def _go(self) -> None:
        self._last = time.monotonic()
        while not self.ended():
            self._ask_noting_errors()

    def _ask_noting_errors(self) -> None:
        try:
            with ExitStack() as stack:
                self.ask(stack)
        except Exception as error:
            self.wrong.append(f"{type(error).__name__}: {str(error)[:300]}")
            self._end.wait(1.0)


class Trainer(Honest):
    """A loader over the network. ``expected`` are the digests of its first epoch."""

    def __init__(self, service: Service, expected: Sequence[int]) -> None:
        super().__init__(service)
        self._expected = expected

    def ask(self, stack: ExitStack) -> None:
        """Train the first epoch, with a loader of its own each time: so connections are made, too."""
        dataset = stack.enter_context(
            RemoteDistDataset.connect(
                self.service.target.control,
                credentials=self.service.caller,
                transport="network",
                timeout=_TIMEOUT_S,
            )
        )
        while not self.ended():
            with DistNeighborLoader(
                dataset, FANOUT, "train", **OPTIONS | {"timeout": _TIMEOUT_S, "name": "honest"}
            ) as loader:
                for batch, expected in zip(loader, self._expected, strict=False):
                    self.count(right=digest(batch) == expected)
                    if self.ended():
                        return


class Neighbor(Honest):
    """Another host that asks a peer service for neighbours."""

    def __init__(self, service: Service, graph: Path) -> None:
        super().__init__(service)
        self._graph = Graph.open(graph)

    def ask(self, stack: ExitStack) -> None:
        process = self.service.process
        store = remote_store(self._graph, process.endpoint, caller=self.service.caller, timeout_s=_TIMEOUT_S)
        stack.callback(store.close)
        (edge_type,) = self._graph.schema.edges
        first = None
        while not self.ended():
            ask = NeighborRequest(
                edge_type=edge_type,
                targets=np.arange(100, dtype=np.int64),
                key=7,
                hop=0,
                rule=DrawRule(fanout=5),
                with_edge_ids=True,
                with_slots=False,
            )
            found = store.sample(ask)
            answer = [np.asarray(found.counts).tobytes(), np.asarray(found.positions).tobytes()]
            first = answer if first is None else first
            self.count(right=answer == first)
            time.sleep(0.01)
