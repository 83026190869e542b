"""Connection of a simulated client to its cluster: what both kinds of clients have.

The seams are names by which the modules of a client reach the outside: ``DataClient``, a connection to a data
port; ``control_channel``, a gRPC channel to a control port; and, by ``World.installed``, clock and threads.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from gigl_client import cluster, discovery
from gigl_loader import retry
from gigl_loader.rpc import calls, connection, holders, replicas, store_client
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.credentials import Caller
from tests.simulation.control import ControlChannel
from tests.simulation.network import GRAPH
from tests.simulation.outcomes import Attempt, Record
from tests.support.sources import small_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.network import Network
    from tests.simulation.schedule import Schedule

MODULES = (retry, calls, connection, holders, replicas, store_client, cluster, discovery)


@cache
def _schema() -> Any:
    return small_graph().schema


@contextmanager
def connected(network: Network, schedule: Schedule, record: Record) -> Iterator[cluster.Cluster]:
    """Connect to the members of a simulated cluster. Attempts of calls and batches are recorded."""

    class Recorded(connection.Connection):
        """Connection that keeps a record of its attempts."""

        def attempt(self, request: bytes, *arguments: Any, **options: Any) -> Any:
            record.attempts.append(Attempt(network.world.now, request.decode(), str(self._endpoint)))
            return super().attempt(request, *arguments, **options)

        def sample(self, request: bytes, *arguments: Any, **options: Any) -> Any:
            name = batch_name(messages.SampleRequest.FromString(request))
            record.attempts.append(Attempt(network.world.now, name, str(self._endpoint)))
            return super().sample(request, *arguments, **options)

    patches = {
        (connection, "DataClient"): network.client,
        (replicas, "Connection"): Recorded,
        (cluster, "Connection"): Recorded,
        (store_client, "control_channel"): lambda endpoint, caller, options: ControlChannel(
            network, endpoint
        ),
        (store_client, "explained"): lambda endpoint, caller, error, found, **options: found,
        (cluster, "secrets"): SimpleNamespace(token_hex=lambda nbytes: "trainer"),
    }
    with ExitStack() as stack:
        for (module, name), value in patches.items():
            stack.enter_context(mock.patch.object(module, name, value))
        found = cluster.Cluster(
            network.endpoints,
            schema=_schema(),
            graph_digest=GRAPH,
            job="0" * 64,
            caller=Caller(),
            timeout_s=schedule.timeout_s,
            membership=network.membership,
        )
        stack.callback(found.close)
        yield found


def batch_name(request: Any) -> str:
    """Return the name of the batch of a request."""
    return f"batch {request.batch} of epoch {request.epoch}"
