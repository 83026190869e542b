"""The calls of ``GraphStore``: from messages to the sampling service and back."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.checksums import CHECKSUM_HEADER, message_checksum, message_is_whole
from gigl_loader.rpc.control import ANNOUNCEMENT
from gigl_loader.rpc.job import JOB_HEADER, job_key
from gigl_server.channels import Ask, ChannelOrder
from gigl_server.reception import header_values
from gigl_server.refusal import Refusal, Status
from gigl_server.reports import cluster_view, server_load

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_server.channels import Outcome
    from gigl_server.ledger import Ledger
    from gigl_server.reports import PeerCalls
    from gigl_server.service import SamplingService
    from gigl_server.standing import View

__all__ = ["StoreCalls"]


class StoreCalls:
    """Answers on the event loop. A call that waits for its batch costs no thread."""

    def __init__(
        self,
        service: SamplingService,
        peer: PeerCalls,
        ledger: Ledger,
        *,
        view: Callable[[], View],
        announced: Callable[[str], None] | None,
    ) -> None:
        self._service = service
        self._peer = peer
        self._ledger = ledger
        self._view = view
        self._announced = announced

    @property
    def answers(self) -> dict[str, Any]:
        """By the name of the call."""
        return {
            "Cluster": self._cluster,
            "CreateProducer": self._create_producer,
            "OpenChannel": self._open_channel,
            "Sample": self._sample,
            "Heartbeat": self._heartbeat,
            "CloseChannel": self._close_channel,
            "DestroyProducer": self._destroy_producer,
            "Load": self._load,
        }

    async def _cluster(self, request: Any, context: Any) -> Any:
        if self._announced is not None:
            for value in header_values(context.invocation_metadata(), ANNOUNCEMENT):
                self._announced(str(value))
        return cluster_view(self._peer.description(), self._view())

    async def _load(self, request: Any, context: Any) -> Any:
        values = header_values(context.invocation_metadata(), JOB_HEADER)
        return server_load(
            self._peer.description(),
            self._peer.statistics(),
            self._service.load(),
            self._view(),
            job=job_key(values),
        )

    async def _create_producer(self, request: Any, context: Any) -> Any:
        return await self._answered(context, request, lambda job: self._create(job, request))

    async def _open_channel(self, request: Any, context: Any) -> Any:
        return await self._answered(context, request, lambda job: self._open(job, request))

    async def _heartbeat(self, request: Any, context: Any) -> Any:
        def renew(job: bytes) -> Any:
            return messages.HeartbeatReply(channels=self._service.heartbeat(job, request.channels))

        return await self._answered(context, request, renew)

    async def _close_channel(self, request: Any, context: Any) -> Any:
        def close(job: bytes) -> Any:
            self._service.close_channel(job, request.channel)
            return messages.CloseChannelReply()

        return await self._answered(context, request, close)

    async def _destroy_producer(self, request: Any, context: Any) -> Any:
        def destroy(job: bytes) -> Any:
            self._service.destroy_producer(job, request.key)
            return messages.DestroyProducerReply()

        return await self._answered(context, request, destroy)

    async def _sample(self, request: Any, context: Any) -> Any:
        loop = asyncio.get_running_loop()
        settled: asyncio.Future[Outcome] = loop.create_future()

        def done(outcome: Outcome) -> None:
            _post(loop, settled, outcome)

        channel, asks = request.channel, [_ask(request)]

        def submit(job: bytes) -> Any:
            return self._service.submit(job, channel, asks.pop(), done)

        errand = await self._answered(context, request, submit)
        del request  # It holds the seeds once more, and the call may wait for minutes.
        try:
            outcome = await settled
        except asyncio.CancelledError:  # The caller is gone, or its time is over.
            self._service.abandon(errand)
            raise
        if outcome.refusal is not None:
            await self._refuse(context, outcome.refusal)
        reply = _reply(outcome)
        context.set_trailing_metadata(((CHECKSUM_HEADER, message_checksum(reply)),))
        return reply

    def _create(self, job: bytes, request: Any) -> Any:
        created = self._service.create_producer(job, key=request.key, plan=request.plan, graph=request.graph)
        return messages.CreateProducerReply(created=created)

    def _open(self, job: bytes, request: Any) -> Any:
        channel = self._service.open_channel(
            job,
            ChannelOrder(
                key=request.key,
                name=request.name,
                credit=request.credit,
                share=request.share,
                without_rows=request.without_rows,
                ring_slots=request.ring_slots,
                ring_slot_bytes=request.ring_slot_bytes,
            ),
        )
        return messages.Channel(
            id=channel.id,
            lease_s=self._service.limits.lease_s,
            ring_door=self._service.ring_door if channel.ring is not None else "",
        )

    async def _answered(self, context: Any, request: Any, answer: Callable[[bytes], Any]) -> Any:
        """Return the answer to a call of a job, or end the call with the refusal's status."""
        job = job_key(header_values(context.invocation_metadata(), JOB_HEADER))
        try:
            if not message_is_whole(request, context.invocation_metadata()):
                raise Refusal(Status.DAMAGED, "the request does not match its checksum")
            if job is None:
                raise Refusal(Status.INVALID, f"the header {JOB_HEADER!r} has 64 hex digits, once")
            return answer(job)
        except Refusal as refusal:
            return await self._refuse(context, refusal)

    async def _refuse(self, context: Any, refusal: Refusal) -> None:
        message = refusal.message
        if refusal.status is Status.UNAVAILABLE:
            reason = self._view().reason
            message = f"{message}: {reason}" if reason not in message else message
        elif refusal.status is not Status.BEYOND_LIMIT:
            self._ledger.add(refused=1)
        await context.abort(grpc.StatusCode[refusal.status.value], _header_text(message))


def _ask(request: Any) -> Ask:
    return Ask(
        epoch=request.epoch,
        batch=request.batch,
        fence=request.fence,
        seeds=request.seeds,
        input_ids=request.input_ids,
        slot=request.slot,
    )


def _reply(outcome: Outcome) -> Any:
    reply = messages.SampleReply(
        nbytes=outcome.nbytes,
        unavailable=outcome.unavailable,
        sampling_s=outcome.sampling_s,
        waiting_s=outcome.waiting_s,
    )
    for name in ("in_slot", "handle", "failure", "skipped"):
        if value := getattr(outcome, name):
            setattr(reply, name, value)
    return reply


def _post(loop: asyncio.AbstractEventLoop, settled: asyncio.Future[Outcome], outcome: Outcome) -> None:
    """Settle a future of the loop from any thread. The loop may be closed by now: nobody waits then."""

    def settle() -> None:
        if not settled.done():
            settled.set_result(outcome)

    with suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)


def _header_text(message: str) -> str:
    """Return what fits the headers of an HTTP/2 message: 8 KiB in all."""
    return message[:1_000].encode("ascii", "backslashreplace").decode()[:4_000]
