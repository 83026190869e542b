"""A storage server: everything that it is made of, how it comes up and how it ends."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from gigl_loader.graph.graph import Graph, open_partitions
from gigl_loader.rpc.endpoint import Endpoint
from gigl_server.answers import Answers
from gigl_server.asking import Asker
from gigl_server.binding import check_free
from gigl_server.control import ControlService
from gigl_server.data import open_data_service, shut_down
from gigl_server.joining import Joining
from gigl_server.ledger import Ledger
from gigl_server.limits import Limits
from gigl_server.metrics import MetricsPort
from gigl_server.ring_door import RingDoor
from gigl_server.service import THREADS_PER_WORKER, SamplingService
from gigl_server.standing import Standing
from gigl_server.stores import ClusterStores
from gigl_server.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.config import ServeOptions

__all__ = ["StorageServer", "build_storage_server"]

_LOGGER = logging.getLogger(__name__)
_LOOK_EVERY_S = 5.0
_JOIN_END_S = 10.0


class StorageServer:
    """Serves from the moment that it is ready until it is drained or closed."""

    def __init__(
        self,
        options: ServeOptions,
        graph: Graph,
        *,
        endpoint: Endpoint,
        asker: Asker,
        joining: Joining,
        standing: Standing,
        control: ControlService,
        service: SamplingService,
        credentials: Credentials,
        metrics: MetricsPort | None,
        stack: ExitStack,
    ) -> None:
        """Use ``build_storage_server``. Begins to join; ``stack`` closes everything."""
        self.failure: Exception | None = None
        """Why this server will not become ready."""
        self._endpoint = endpoint
        self._options, self._graph = options, graph
        self._asker, self._joining, self._standing = asker, joining, standing
        self._control, self._service, self._credentials = control, service, credentials
        self._metrics, self._stack = metrics, stack
        self.settled = threading.Event()
        """Set once the server is ready, or cannot become so."""
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._live, name="cluster", daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> Endpoint:
        """Where it is reached. Its number is its rank once the server is ready."""
        members = [each for each in self._joining.members if each.partitions == self._endpoint.partitions]
        return members[0] if self.ready and members else self._endpoint

    @property
    def ready(self) -> bool:
        return self._standing.ready

    @property
    def metrics_address(self) -> str:
        """``HOST:PORT`` of the metrics; empty where there are none."""
        return self._metrics.address if self._metrics else ""

    def meet(self, addresses: Sequence[str]) -> None:
        """Tell of further servers while this one waits for them."""
        for address in addresses:
            self._standing.heard_of(address)

    def wait_ready(self, timeout_s: float) -> None:
        """Return when the server serves.

        Raises what it failed of, ``JoinRefused`` or ``StorageUnavailable``, or ``TimeoutError``.
        """
        if not self.settled.wait(timeout_s):
            raise TimeoutError(f"not ready after {timeout_s:g} s: {self._standing.view().reason}")
        if self.failure is not None:
            raise self.failure

    def drain(self, timeout_s: float) -> bool:
        """Take no new asks; finish those under way and let them be fetched. ``False``: time was over."""
        was_ready = self.ready
        self._standing.is_not_ready("draining")
        self._control.set_serving(False)
        self._ending.set()
        self._joining.close()
        if not was_ready:
            return True
        _LOGGER.info("draining: %g s at most", timeout_s)
        done = self._service.drain(timeout_s)
        if not done:
            _LOGGER.warning("batches were left when %g s were over; trainers ask again for them", timeout_s)
        return done

    def close(self) -> None:
        """End calls under way, let go of ports, memory and threads. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._standing.is_not_ready("it is closed")
        self._ending.set()
        self._joining.close()
        self._thread.join(_JOIN_END_S)
        self._stack.close()
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
            self._standing.is_not_ready(str(error))
            if not self._ending.is_set():
                _LOGGER.error("not ready: %s", error)
            return
        finally:
            self.settled.set()
        while not self._ending.wait(_LOOK_EVERY_S):
            watch.look()

    def _become_ready(self) -> Watch:
        members = self._joining.run(self._options.join_timeout_s)
        stores = ClusterStores(
            self._graph,
            members,
            self._credentials.caller(),
            concurrency=self._options.num_workers * THREADS_PER_WORKER,
        )
        self._service.make_ready(None if self._graph.is_whole else stores.open)
        if not self._ending.is_set():
            self._standing.is_ready(stores.traffic)
            self._control.set_serving(True)
            _LOGGER.info(
                "ready: %s serves partitions %s, %d workers",
                self.endpoint,
                list(self._endpoint.partitions),
                self._options.num_workers,
            )
        others = [each for each in members if each.control_address != self._endpoint.control_address]
        return Watch(others, self._graph.manifest.digest, self._asker.ask)


def build_storage_server(
    options: ServeOptions, *, graph: Graph | None = None, credentials: Credentials | None = None
) -> StorageServer:
    """Bind both ports and begin to join. Returns when calls are answered; sampling begins when it is ready.

    ``graph`` and ``credentials`` replace what the options name. Before anything is bound: ``ValueError`` for
    what cannot be right, ``FormatError`` for a damaged graph. ``OSError`` where a port cannot be had.
    """
    began = time.monotonic()
    credentials = credentials or options.load_credentials()
    credentials.check_reach(options.address)
    graph = _opened(options, graph)
    for address in (options.address, options.data_address):
        check_free(address)
    server = _compose(options, graph, credentials)
    _LOGGER.info(
        "starting: %s, data port %d, partitions %s of graph %s, mapped in %.1f s",
        server.endpoint,
        server.endpoint.data_port,
        list(graph.parts),
        graph.manifest.digest[:12],
        time.monotonic() - began,
    )
    return server


def _opened(options: ServeOptions, graph: Graph | None) -> Graph:
    if graph is None:
        return open_partitions(options.graph_dir, options.partitions)
    if options.partitions is None or tuple(sorted(options.partitions)) == graph.parts:
        return graph
    return Graph.open(graph.folder, parts=options.partitions)


def _compose(options: ServeOptions, graph: Graph, credentials: Credentials) -> StorageServer:
    """What is pushed last is closed first: calls end before what answers them."""
    ledger, standing = Ledger(), Standing()
    digest = graph.manifest.digest
    with ExitStack() as stack:
        answers = Answers(graph, graph.parts, ledger)
        stack.callback(answers.close)
        limits = Limits(lease_s=options.lease_s, frame_bytes=options.frame_memory)
        service = SamplingService(
            graph, graph.parts, workers=options.num_workers, limits=limits, ledger=ledger
        )
        stack.callback(service.close)
        door = RingDoor(service.ring_of)
        stack.callback(door.close)
        service.ring_door = door.name
        data = open_data_service(options.data_address, answers, ledger, credentials, frames=service.frames)
        stack.callback(shut_down, data)
        metrics = None
        if options.metrics:
            metrics = MetricsPort(options.metrics, service=service, ledger=ledger, view=standing.view)
            stack.callback(metrics.close)
        control = ControlService(
            options.address,
            credentials,
            ledger,
            graph=digest,
            partitions=graph.parts,
            data_port=data.port,
            service=service,
            view=standing.view,
            announced=standing.heard_of,
        )
        stack.callback(control.close)
        own = Endpoint(
            host_index=0,
            host=options.reachable_host,
            control_port=control.port,
            data_port=data.port,
            partitions=graph.parts,
            certificate=credentials.trusted,
            what="storage server",
        )
        asker = Asker(own, credentials.caller(), graph=digest)
        joining = Joining(
            own,
            graph=digest,
            num_partitions=graph.schema.num_partitions,
            peers=options.peers,
            ask=asker.ask,
            check=asker.check,
        )
        standing.joins(joining)
        return StorageServer(
            options,
            graph,
            endpoint=own,
            asker=asker,
            joining=joining,
            standing=standing,
            control=control,
            service=service,
            credentials=credentials,
            metrics=metrics,
            stack=stack.pop_all(),
        )
