"""Servicer of ``GraphStore``: translates messages to calls of the sampling service, and results back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.checksums import CHECKSUM_HEADER, has_checksum, message_is_whole
from gigl_loader.rpc.control import PENDING_HEADER
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.tokens import JOB_HEADER, job_key
from gigl_loader.rpc.versions import check_draws
from gigl_server.ports.reports import cluster_view, server_load
from gigl_server.ports.sample_calls import with_reason
from gigl_server.sessions.channel import ChannelOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_server.admission import Identity
    from gigl_server.cluster.membership import View
    from gigl_server.ports.control_call import ControlCall
    from gigl_server.ports.reports import PeerCalls
    from gigl_server.sampling.service import SamplingService

    Trailers = tuple[tuple[str, str], ...]

_CAREFUL_JOBS = 256


class GraphStoreServicer:
    """Handlers of the calls of a storage server."""

    def __init__(
        self,
        service: SamplingService,
        peer: PeerCalls,
        *,
        view: Callable[[], View],
        health: Callable[[], View],
        announced: Callable[[ControlCall, Any], Trailers] | None,
        show_names: bool = False,
    ) -> None:
        """``view`` is sent to trainers and servers, ``health`` with the load.

        ``announced`` takes each ``Cluster`` call and its reply, and returns the trailers.

        ``show_names``: any caller may read the names of channels, not only their job.
        """
        self._service = service
        self._peer = peer
        self._view = view
        self._health = health
        self._announced = announced
        self._show_names = show_names
        self._careful_jobs: tuple[bytes, ...] = ()
        """Jobs whose requests carry checksums: one without has lost it. Threads replace it whole."""

    @property
    def handlers(self) -> dict[str, Any]:
        """Handlers by the name of the call."""
        return {
            "Cluster": self._cluster,
            "CreateProducer": self._create_producer,
            "OpenChannel": self._open_channel,
            "Heartbeat": self._heartbeat,
            "CloseChannel": self._close_channel,
            "DestroyProducer": self._destroy_producer,
            "Load": self._load,
        }

    def _cluster(self, request: Any, call: ControlCall) -> Any:
        reply = cluster_view(self._peer.description(), self._view())
        if self._announced is not None:
            call.set_trailers(self._announced(call, reply))
        return reply

    def _load(self, request: Any, call: ControlCall) -> Any:
        return server_load(
            self._peer,
            self._service.load(),
            self._health(),
            job=_job_key(call),
            show_names=self._show_names,
        )

    def _create_producer(self, request: Any, call: ControlCall) -> Any:
        return self._of_job(call, request, lambda job: self._create(job, request, call.caller))

    def _open_channel(self, request: Any, call: ControlCall) -> Any:
        return self._of_job(call, request, lambda job: self._open(job, request))

    def _heartbeat(self, request: Any, call: ControlCall) -> Any:
        def renew(job: bytes) -> Any:
            if len(request.channels) == 1:
                pending = ",".join(map(str, self._service.pending(job, request.channels[0])))
                call.set_trailers(((PENDING_HEADER, pending),))
            return messages.HeartbeatReply(channels=self._service.heartbeat(job, request.channels))

        return self._of_job(call, request, renew)

    def _close_channel(self, request: Any, call: ControlCall) -> Any:
        def close(job: bytes) -> Any:
            self._service.close_channel(job, request.channel)
            return messages.CloseChannelReply()

        return self._of_job(call, request, close)

    def _destroy_producer(self, request: Any, call: ControlCall) -> Any:
        def destroy(job: bytes) -> Any:
            self._service.destroy_producer(job, request.key)
            return messages.DestroyProducerReply()

        return self._of_job(call, request, destroy)

    def _create(self, job: bytes, request: Any, caller: Identity) -> Any:
        try:
            check_draws("the trainer", request.draw_specification)
        except ValueError as error:
            raise Refusal(RefusalKind.CONFLICT, str(error)) from None
        created = self._service.create_producer(
            job, key=request.key, plan=request.plan, graph=request.graph, caller=caller
        )
        return messages.CreateProducerReply(created=created)

    def _open(self, job: bytes, request: Any) -> Any:
        channel = self._service.open_channel(
            job,
            ChannelOptions(
                key=request.key,
                name=request.name,
                credit=request.credit,
                share=request.share,
                deferred_features=request.without_rows,
                ring_slots=request.ring_slots,
                ring_slot_bytes=request.ring_slot_bytes,
                plan_digest=request.plan_digest,
                interactive=request.interactive,
            ),
        )
        return messages.Channel(
            id=channel.id,
            lease_s=self._service.limits.lease_s,
            ring_door=self._service.ring_door if channel.ring is not None else "",
        )

    def _of_job(self, call: ControlCall, request: Any, respond: Callable[[bytes], Any]) -> Any:
        """Return the reply to a call of a job. Checks the request's checksum. Raises ``Refusal``."""
        job = self._job_of(call, request)
        return self._answered(lambda: respond(job))

    def _job_of(self, call: ControlCall, request: Any) -> bytes:
        """Return the job of a call. Raises ``Refusal`` where there is none, and for a damaged request."""
        job = _job_key(call)
        if not message_is_whole(request, call.metadata, required=job in self._careful_jobs):
            raise Refusal(RefusalKind.DAMAGED, "the request does not match its checksum, or has none")
        if job is None:
            # Callers that send a checksum also send this header: it was damaged.
            kind = RefusalKind.DAMAGED if call.headers(CHECKSUM_HEADER) else RefusalKind.INVALID
            raise Refusal(kind, f"the header {JOB_HEADER!r} has 64 hex digits, once")
        if has_checksum(call.metadata) and job not in self._careful_jobs:
            self._careful_jobs = (*self._careful_jobs[1 - _CAREFUL_JOBS :], job)
        return job

    def _answered(self, respond: Callable[[], Any]) -> Any:
        try:
            return respond()
        except Refusal as refusal:
            raise with_reason(refusal, self._view) from None


def _job_key(call: ControlCall) -> bytes | None:
    return job_key(call.headers(JOB_HEADER), call.caller.token)
