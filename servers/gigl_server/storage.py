"""What a storage server is made of: everything is put together here, and nothing else happens here."""

from __future__ import annotations

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
from gigl_server.metrics_port import MetricsPort
from gigl_server.ring_door import RingDoor
from gigl_server.service import SamplingService
from gigl_server.standing import Standing
from gigl_server.storage_server import Parts, StorageServer

if TYPE_CHECKING:
    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.config import ServeOptions

__all__ = ["StorageServer", "build_storage_server"]


def build_storage_server(
    options: ServeOptions, *, graph: Graph | None = None, credentials: Credentials | None = None
) -> StorageServer:
    """Bind both ports and begin to join. Returns when calls are answered; sampling begins when it is ready.

    ``graph`` and ``credentials`` replace what the options name. Before anything is bound: ``ValueError`` for
    what cannot be right, ``FormatError`` for a damaged graph. ``OSError`` where a port cannot be had.
    """
    credentials = credentials or options.load_credentials()
    credentials.check_reach(options.address)
    graph = _opened(options, graph)
    for address in (options.address, options.data_address):
        check_free(address)
    return _compose(options, graph, credentials)


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
        parts = Parts(
            endpoint=own,
            credentials=credentials,
            asker=asker,
            joining=joining,
            standing=standing,
            control=control,
            service=service,
            metrics=metrics,
            stack=stack.pop_all(),
        )
        return StorageServer(options, graph, parts)
