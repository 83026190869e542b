"""Reports of a service about itself and its cluster, as messages."""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.versions import BuildVersions

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gigl_server.cluster.membership import View
    from gigl_server.counters import Counters
    from gigl_server.sampling.service import ServiceLoad
    from gigl_server.sessions.channel import ChannelLoad


class PeerCalls:
    """Handlers of the calls of ``Peer``."""

    def __init__(
        self,
        counters: Counters,
        *,
        graph: str,
        partitions: Sequence[int],
        data_port: int,
        incarnation: int = 0,
    ) -> None:
        self._counters = counters
        self._incarnation = incarnation
        self._began = time.monotonic()
        self._graph, self._data_port = graph, data_port
        self._held: tuple[list[int], list[int]] = sorted(partitions), []

    @property
    def handlers(self) -> dict[str, Any]:
        """Handlers by the name of the call."""
        return {"Describe": self._describe, "Stats": self._stats}

    def announce(self, partitions: Iterable[int], *, repairing: Iterable[int] = ()) -> None:
        """Describe the service as one of these partitions, and of further ones under repair, from now on."""
        self._held = sorted(partitions), sorted(repairing)

    def description(self) -> Any:
        partitions, repairing = self._held
        versions = BuildVersions.own()
        return messages.Description(
            version=versions.library,
            wire_version=versions.wire,
            oldest_wire_version=versions.oldest_wire,
            draw_specification=versions.draws,
            graph=self._graph,
            partitions=partitions,
            repairing=repairing,
            data_port=self._data_port,
            pid=os.getpid(),
            uptime_s=time.monotonic() - self._began,
            incarnation=self._incarnation,
        )

    def statistics(self) -> Any:
        totals = self._counters.read()
        return messages.Statistics(
            cpu_s=time.process_time(),
            sampling_s=totals.sampling_s,
            gathering_s=totals.gathering_s,
            calls=totals.calls,
            bytes_in=totals.bytes_in,
            bytes_out=totals.bytes_out,
            refused=totals.refused,
        )

    def calls(self) -> list[Any]:
        return [
            messages.CallLoad(
                port=port,
                method=method,
                calls=counts.calls,
                bytes_in=counts.bytes_in,
                bytes_out=counts.bytes_out,
            )
            for (port, method), counts in self._counters.calls().items()
        ]

    def _describe(self, request: Any, call: Any) -> Any:
        return self.description()

    def _stats(self, request: Any, call: Any) -> Any:
        return self.statistics()


def cluster_view(description: Any, view: View) -> Any:
    """Return the reply to ``Cluster``."""
    reply: Any = messages.ClusterView(
        servers=[
            messages.Server(
                host=member.host,
                control_port=member.control_port,
                data_port=member.data_port,
                partitions=member.partitions,
                incarnation=member.incarnation,
                away=member.control_address in view.away,
                wire_version=member.wire_version,
            )
            for member in view.members
        ],
        ready=view.ready,
        reason=view.reason,
        membership=view.membership,
    )
    reply.self.CopyFrom(description)
    return reply


def server_load(
    peer: PeerCalls,
    load: ServiceLoad,
    view: View,
    *,
    job: bytes | None,
    show_names: bool = False,
) -> Any:
    """Return the reply to ``Load``. Only channels of ``job`` show their names, unless ``show_names``."""
    waited = load.durations["waiting", "interactive"]
    reply: Any = messages.ServerLoad(
        totals=peer.statistics(),
        calls=peer.calls(),
        workers=load.workers,
        busy=load.busy,
        jobs=load.jobs,
        producers=load.producers,
        rss_bytes=_resident_bytes(),
        ready_bytes=load.ready_bytes,
        batches=load.batches,
        shared=load.shared,
        shared_bytes=load.shared_bytes,
        interactive_batches=waited.total,
        interactive_waiting_s=waited.sum_s,
        bytes=load.nbytes,
        topology_partitions=load.topology_partitions,
        channels=[_channel_load(each, named=show_names or each.job == job) for each in load.channels],
        peers=[
            messages.PeerLoad(
                server=server,
                calls=counts.calls,
                bytes_in=counts.bytes_in,
                bytes_out=counts.bytes_out,
                retries=counts.retries,
            )
            for server, counts in view.peers.items()
        ],
        ready=view.ready,
        reason=view.reason,
    )
    reply.self.CopyFrom(peer.description())
    return reply


def _channel_load(load: ChannelLoad, *, named: bool) -> Any:
    return messages.ChannelLoad(
        job=load.short_job,
        key=load.key if named else "",
        name=load.name if named else "",
        transport=load.transport,
        interactive=load.interactive,
        batches=load.batches,
        shared=load.shared,
        bytes=load.nbytes,
        queued=load.queued,
        sampling_s=load.sampling_s,
        waiting_s=load.waiting_s,
        idle_s=load.idle_s,
    )


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:  # No Linux.
        return 0
