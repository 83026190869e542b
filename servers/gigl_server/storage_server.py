"""A storage server from its first port to its last call: joining, serving, draining, ending."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_server.service import THREADS_PER_WORKER, SamplingService
from gigl_server.stores import ClusterStores
from gigl_server.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_server.asking import Asker
    from gigl_server.config import ServeOptions
    from gigl_server.control import ControlService
    from gigl_server.joining import Joining
    from gigl_server.metrics_port import MetricsPort
    from gigl_server.standing import Standing

__all__ = ["Parts", "StorageServer"]

_LOGGER = logging.getLogger(__name__)
_LOOK_EVERY_S = 5.0
_JOIN_END_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Parts:
    """What a storage server is made of. ``stack`` closes all of it."""

    endpoint: Endpoint
    credentials: Credentials
    asker: Asker
    joining: Joining
    standing: Standing
    control: ControlService
    service: SamplingService
    metrics: MetricsPort | None
    stack: ExitStack


class StorageServer:
    """Serves from the moment that it is ready until it is drained or closed."""

    def __init__(self, options: ServeOptions, graph: Graph, parts: Parts) -> None:
        """Use ``build_storage_server``. Begins to join."""
        self.failure: Exception | None = None
        """Why this server will not become ready."""
        self._options, self._graph, self._parts = options, graph, parts
        self.settled = threading.Event()
        """Set once the server is ready, or cannot become so."""
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        _LOGGER.info(
            "starting: control port at %s, data port %d, partitions %s of %d, graph %s",
            parts.endpoint.control_address,
            parts.endpoint.data_port,
            list(parts.endpoint.partitions),
            graph.schema.num_partitions,
            graph.manifest.digest[:12],
        )
        self._thread = threading.Thread(target=self._live, name="cluster", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> Endpoint:
        """Where it is reached. Its number is its rank once the server is ready."""
        members = [
            each for each in self._parts.joining.members if each.partitions == self._parts.endpoint.partitions
        ]
        return members[0] if self.ready and members else self._parts.endpoint

    @property
    def ready(self) -> bool:
        return self._parts.standing.ready

    @property
    def metrics_address(self) -> str:
        """``HOST:PORT`` of the metrics; empty where there are none."""
        return self._parts.metrics.address if self._parts.metrics else ""

    def meet(self, addresses: Sequence[str]) -> None:
        """Tell of further servers while this one waits for them."""
        for address in addresses:
            self._parts.standing.heard_of(address)

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the server serves.

        Raises what it failed of, ``JoinRefused`` or ``StorageUnavailable``, or ``TimeoutError``.
        """
        if not self.settled.wait(timeout_s):
            raise TimeoutError(f"not ready after {timeout_s:g} s: {self._parts.standing.view().reason}")
        if self.failure is not None:
            raise self.failure

    def drain(self, timeout_s: float) -> bool:
        """Take no new asks; finish those under way and let them be fetched. ``False``: time was over."""
        was_ready = self.ready
        self._parts.standing.ends("draining")
        self._parts.control.set_serving(False)
        self._ending.set()
        self._parts.joining.close()
        if not was_ready:
            return True
        _LOGGER.info("draining: %g s at most", timeout_s)
        done = self._parts.service.drain(timeout_s)
        if not done:
            _LOGGER.warning("batches were left when %g s were over; trainers ask again for them", timeout_s)
        return done

    def close(self) -> None:
        """End calls under way, let go of ports, memory and threads. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._parts.standing.ends("it is closed")
        self._ending.set()
        self._parts.joining.close()
        self._thread.join(_JOIN_END_S)
        self._parts.stack.close()
        if self.failure is None:  # Else the reason is the last line: people and supervisors show that one.
            _LOGGER.info("stopped")

    def __enter__(self) -> StorageServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _live(self) -> None:
        """Join, then look after the others."""
        try:
            watch = self._become_ready()
        except Exception as error:
            self.failure = error
            self._parts.standing.ends(str(error))
            if not self._ending.is_set():
                _LOGGER.error("not ready: %s", str(error))  # Records must not hold its frames.
            return
        finally:
            self.settled.set()
        while not self._ending.wait(_LOOK_EVERY_S):
            watch.look(self._ending)

    def _become_ready(self) -> Watch:
        fault = self._parts.asker.own_fault() if self._parts.credentials.certificate else None
        if fault is not None:
            _LOGGER.warning("others will refuse this server: %s", fault)
        members = self._parts.joining.run(self._options.join_timeout_s)
        stores = ClusterStores(
            self._graph,
            members,
            self._parts.credentials.caller(),
            concurrency=self._options.num_workers * THREADS_PER_WORKER,
        )
        self._parts.service.make_ready(None if self._graph.is_whole else stores.open)
        if not self._ending.is_set():
            self._parts.standing.is_ready(stores.traffic)
            self._parts.control.set_serving(True)
            _LOGGER.info(
                "ready: %s serves partitions %s, %d workers",
                self.endpoint,
                list(self._parts.endpoint.partitions),
                self._options.num_workers,
            )
        others = [each for each in members if each.control_address != self._parts.endpoint.control_address]
        return Watch(others, self._graph.manifest.digest, self._parts.asker.ask)
