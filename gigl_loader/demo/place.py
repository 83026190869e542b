"""Modes of the demo: batches from the trainer's host, or from storage servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gigl_loader.dataset import DistDataset
from gigl_loader.demo.choices import Choices

__all__ = ["ServerReport", "open_place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReport:
    """What one storage server did for the job, all loaders together."""

    batches: int
    bytes: int
    transport: str
    """``"ring"``: shared memory; ``"network"``: over the network."""
    waiting: float
    """Seconds from the asks for these batches to the beginning of sampling."""
    sampling: float
    """Seconds of its threads. Neighbours that another server was asked for are in it."""


@contextmanager
def open_place(choices: Choices, graph: Path) -> Iterator[tuple[Any, Callable[[], list[ServerReport]]]]:
    """Yield the graph that was built at ``graph``, served by as many servers as were chosen.

    With it comes what asks each server; loaders that were shut down are not in it. Without servers, all that
    samples is a part of the trainer, and counted there.
    """
    if not choices.num_servers:
        with DistDataset.open(graph) as dataset:
            yield dataset, list
        return
    # Of a graph store; needs gRPC and Arrow.
    from gigl_client import Caller, RemoteDistDataset
    from gigl_loader.rpc.tokens import new_token
    from gigl_server.local_cluster import LocalCluster

    token = new_token()
    with (
        LocalCluster(graph, servers=choices.num_servers, workers=choices.num_workers, token=token) as cluster,
        RemoteDistDataset.connect(
            cluster.addresses[0], credentials=Caller(token=token), transport=choices.transport
        ) as remote,
    ):
        yield (
            remote,
            lambda: [_report(load.get("channels", [])) for load in remote.server_stats().values()],
        )


def _report(channels: list[dict[str, Any]]) -> ServerReport:
    return ServerReport(
        batches=sum(channel["batches"] for channel in channels),
        bytes=sum(channel["bytes"] for channel in channels),
        transport="/".join(sorted({channel["transport"] for channel in channels})),
        waiting=sum(channel["waiting_s"] for channel in channels),
        sampling=sum(channel["sampling_s"] for channel in channels),
    )
