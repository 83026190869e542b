"""How a server and its cluster do, as messages."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigl_loader.rpc import graph_store_pb2 as messages

if TYPE_CHECKING:
    from gigl_server.loads import ChannelLoad, ServiceLoad
    from gigl_server.view import View

__all__ = ["cluster_view", "server_load"]


def cluster_view(description: Any, view: View) -> Any:
    """Return the reply to ``Cluster``."""
    reply: Any = messages.ClusterView(
        servers=[
            messages.Server(
                host=member.host,
                control_port=member.control_port,
                data_port=member.data_port,
                partitions=member.partitions,
            )
            for member in view.members
        ],
        ready=view.ready,
        reason=view.reason,
    )
    reply.self.CopyFrom(description)
    return reply


def server_load(
    description: Any, statistics: Any, load: ServiceLoad, view: View, *, job: bytes | None
) -> Any:
    """Return the reply to ``Load``. Names of channels are for ``job``, whose they are."""
    reply: Any = messages.ServerLoad(
        totals=statistics,
        workers=load.workers,
        busy=load.busy,
        jobs=load.jobs,
        producers=load.producers,
        rss_bytes=_resident_bytes(),
        ready_bytes=load.ready_bytes,
        channels=[_channel_load(each, named=each.job == job) for each in load.channels],
        peers=[
            messages.PeerLoad(
                server=each.server,
                calls=each.counts.calls,
                bytes_in=each.counts.bytes_in,
                bytes_out=each.counts.bytes_out,
                retries=each.counts.retries,
            )
            for each in view.peers
        ],
        ready=view.ready,
        reason=view.reason,
    )
    reply.self.CopyFrom(description)
    return reply


def _channel_load(load: ChannelLoad, *, named: bool) -> Any:
    return messages.ChannelLoad(
        job=load.short_job,
        key=load.key if named else "",
        name=load.name if named else "",
        transport=load.transport,
        batches=load.batches,
        bytes=load.nbytes,
        queued=load.queued,
        ready=load.ready,
        sampling_s=load.sampling_s,
        waiting_s=load.waiting_s,
        idle_s=load.idle_s,
    )


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:  # No Linux.
        return 0
