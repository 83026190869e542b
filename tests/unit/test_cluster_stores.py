"""Stores of a storage server over the servers of its cluster, which come, go and change what they hold."""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import replace

import numpy as np

from gigl_loader.graph.graph import Graph
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.store import EdgeRequest
from gigl_server.cluster.membership import Membership
from gigl_server.cluster.stores import ClusterStores
from tests.support.peers import CALLER, served
from tests.support.ports import free_port
from tests.support.sources import small_graph

EDGES = ("node", "to", "node")


def test_a_request_for_a_lost_partition_is_answered_once_this_server_has_taken_it_over() -> None:
    """It had begun before, and would end with ``StorageUnavailable``: it asks this server, as any holder."""
    whole = small_graph(2)
    bounds = whole.schema.nodes["node"].bounds
    targets = np.arange(bounds[1], bounds[2], dtype=np.int64)
    neighbors = targets[::-1].copy()
    request = EdgeRequest(edge_type=EDGES, targets=targets, neighbors=neighbors)
    with closing(LocalStore(whole, 1)) as local:
        expected = local.contains(request)
    with served(whole) as here:
        membership = Membership(replace(here, partitions=(0,)))
        membership.put(_lost(here))
        stores = ClusterStores(
            Graph.open(whole.folder, parts=[0]), membership, CALLER, concurrency=1, on_membership=None
        )
        with closing(stores.open()) as store:
            taking_over = threading.Timer(0.3, membership.announce, ([0, 1],))
            taking_over.start()
            assert (store.contains(EDGES, targets, neighbors) == expected).all()
            taking_over.join()


def _lost(here: Endpoint) -> Endpoint:
    port = free_port(count=2)
    return replace(here, control_port=port, data_port=port + 1, partitions=(1,))
