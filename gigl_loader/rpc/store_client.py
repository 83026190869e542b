"""The trainer's side of a storage server's control port."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.checksums import CHECKSUM_HEADER, MAX_DAMAGED, message_checksum
from gigl_loader.rpc.control import ANNOUNCEMENT, STORE_METHODS, STORE_SERVICE, control_channel
from gigl_loader.rpc.control_errors import control_error, speaks_otherwise
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.job import JOB_HEADER
from gigl_loader.rpc.refusals import Damaged
from gigl_loader.rpc.server_proof import (
    CHALLENGE,
    NONCE,
    PROOF,
    announcement_proof,
    header_value,
    new_nonce,
    shows,
    view_proof,
)
from gigl_loader.rpc.tcp_probe import tcp_probe
from gigl_loader.rpc.tls import tls_fault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gigl_loader.rpc.credentials import Caller

__all__ = ["ClusterView", "StoreClient"]

_KNOCK_S = 2.0
_OPTIONS = [
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.max_send_message_length", 32 << 20),
    # A network that was cut says nothing: a ping every 5 s, and 5 s for its answer.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # A server that is started again is to be found soon: gRPC would wait for 1 s, then longer and longer.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What a server says of itself and its cluster."""

    version: str
    wire_version: int
    graph: str
    """Digest."""
    partitions: tuple[int, ...]
    data_port: int
    pid: int
    uptime_s: float
    servers: tuple[Endpoint, ...]
    """Those known so far, this one included: the place is the rank."""
    ready: bool
    reason: str
    """Why it is not ready, in words."""
    proven: bool = False
    """It proved the cluster key that it was asked with."""
    challenge: str = ""
    """What an announcement to this server has to answer. Empty: it has no cluster key."""

    @classmethod
    def read(cls, reply: Any, *, certificate: str, proven: bool = False, challenge: str = "") -> ClusterView:
        """Read a reply; ``certificate`` is what must be trusted to talk to the servers."""
        own = reply.self
        servers = tuple(
            Endpoint(
                what="storage server",
                host_index=rank,
                host=each.host,
                control_port=each.control_port,
                data_port=each.data_port,
                partitions=tuple(each.partitions),
                certificate=certificate,
            )
            for rank, each in enumerate(reply.servers)
        )
        return cls(
            version=own.version,
            wire_version=own.wire_version,
            graph=own.graph,
            partitions=tuple(own.partitions),
            data_port=own.data_port,
            pid=own.pid,
            uptime_s=own.uptime_s,
            servers=servers,
            ready=reply.ready,
            reason=reply.reason,
            proven=proven,
            challenge=challenge,
        )


class StoreClient:
    """Calls of one storage server, for one job. Any number of threads may call; none is kept per call.

    Besides ``ValueError`` for what the server refuses: ``StorageUnavailable`` where it does not answer,
    ``Unknown`` where it does not know what is named, ``Busy`` beyond its limits, ``SamplingError`` for no
    token or a wrong one, and after ``close``.
    """

    def __init__(self, endpoint: Endpoint, caller: Caller, job: str = "") -> None:
        """Connects when first used. Without ``job``, only ``cluster`` and ``load`` are answered."""
        self.endpoint = endpoint
        self._caller = caller
        self._closed = False
        self._metadata = (*caller.headers, *(((JOB_HEADER, job),) if job else ()))
        self._channel = control_channel(endpoint, caller, _OPTIONS)
        self._calls = {
            name: self._channel.unary_unary(
                f"/{STORE_SERVICE}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=reply.FromString,
            )
            for name, (request, reply) in STORE_METHODS.items()
        }

    def cluster(
        self, timeout_s: float, *, announce: str = "", cluster_key: str = "", challenge: str = ""
    ) -> ClusterView:
        """Return what the server knows of its cluster, ready or not.

        Another server says with ``announce`` (HOST:PORT) where it is. With ``cluster_key`` it asks for a
        proof, and proves itself by ``challenge``, which the server gave before. Where the server does not
        answer, the error says why: an unknown name, a port where nobody listens, a certificate that is over.
        """
        self._check_open()
        nonce = new_nonce()
        headers = list(self._metadata)
        if announce:
            headers.append((ANNOUNCEMENT, announce))
        if cluster_key:
            headers.append((NONCE, nonce))
        if announce and cluster_key:
            proof = announcement_proof(cluster_key, challenge, announce)
            headers += [(CHALLENGE, challenge), (PROOF, proof)]
        try:
            reply, call = self._calls["Cluster"].with_call(
                messages.ClusterRequest(), timeout=timeout_s, metadata=tuple(headers)
            )
        except grpc.RpcError as error:
            raise self._explained(error) from None
        trailers = call.trailing_metadata()
        try:
            return ClusterView.read(
                reply,
                certificate=self.endpoint.certificate,
                proven=bool(cluster_key) and shows(trailers, view_proof(cluster_key, nonce, reply)),
                challenge=header_value(trailers, CHALLENGE),
            )
        except ValueError as error:
            raise FormatError(f"{self.endpoint}: bad view of its cluster: {error}") from None

    def create_producer(self, key: str, plan: str, graph: str, timeout_s: float) -> bool:
        """Make the producer of ``key``, or join it; return whether this call made it.

        ``plan`` is ``BatchPlan.to_json()``, ``graph`` the digest. ``ValueError`` for another plan than
        that of the producer there, and for another graph.
        """
        request = messages.CreateProducerRequest(key=key, plan=plan, graph=graph)
        return bool(self._call("CreateProducer", request, timeout_s).created)

    def open_channel(
        self,
        key: str,
        *,
        name: str,
        credit: int,
        share: int = 1,
        deferred_features: bool = False,
        ring_slots: int = 0,
        ring_slot_bytes: int = 0,
        timeout_s: float,
    ) -> messages.Channel:
        """Open a channel of a producer: ``id``, ``lease_s``, and ``ring_door`` where it has a ring."""
        request = messages.OpenChannelRequest(
            key=key,
            name=name,
            credit=credit,
            share=share,
            without_rows=deferred_features,
            ring_slots=ring_slots,
            ring_slot_bytes=ring_slot_bytes,
        )
        channel: messages.Channel = self._call("OpenChannel", request, timeout_s)
        return channel

    def sample(self, request: messages.SampleRequest, timeout_s: float) -> Any:
        """Ask for a batch and return a ``grpc.Future``. What it raises goes through ``error``."""
        self._check_open()
        try:
            return self._calls["Sample"].future(
                request, timeout=timeout_s, metadata=self._with_checksum(request)
            )
        except ValueError:
            self._check_open()
            raise

    def error(self, error: grpc.RpcError) -> Exception:
        """Return the exception for a failed call."""
        return control_error(self.endpoint, self._caller, error)

    def heartbeat(self, channels: Iterable[bytes], timeout_s: float) -> list[bytes]:
        """Renew the leases of these channels. Return those of them that the server knows."""
        request = messages.HeartbeatRequest(channels=channels)
        return list(self._call("Heartbeat", request, timeout_s).channels)

    def close_channel(self, channel: bytes, timeout_s: float) -> None:
        """Close a channel; fine for one that is not there. Its producer goes with the last one."""
        self._call("CloseChannel", messages.CloseChannelRequest(channel=channel), timeout_s)

    def destroy_producer(self, key: str, timeout_s: float) -> None:
        """Take a producer away with its channels; fine for one that is not there."""
        self._call("DestroyProducer", messages.DestroyProducerRequest(key=key), timeout_s)

    def load(self, timeout_s: float) -> messages.ServerLoad:
        """Return how the server does. Keys and names are those of the own job's channels."""
        load: messages.ServerLoad = self._call("Load", messages.LoadRequest(), timeout_s)
        return load

    def close(self) -> None:
        """Disconnect; calls under way are cancelled. Closing twice is fine."""
        self._closed = True
        self._channel.close()

    def _call(self, name: str, request: Any, timeout_s: float) -> Any:
        """Make a call, again where the request came damaged: ``FormatError`` when it did three times."""
        for _ in range(MAX_DAMAGED - 1):
            with suppress(Damaged):
                return self._call_once(name, request, timeout_s)
        try:
            return self._call_once(name, request, timeout_s)
        except Damaged as error:
            raise FormatError(str(error)) from None

    def _with_checksum(self, request: Any) -> tuple[tuple[str, str], ...]:
        return (*self._metadata, (CHECKSUM_HEADER, message_checksum(request)))

    def _call_once(self, name: str, request: Any, timeout_s: float) -> Any:
        self._check_open()
        try:
            reply = self._calls[name](request, timeout=timeout_s, metadata=self._with_checksum(request))
        except grpc.RpcError as error:
            raise control_error(self.endpoint, self._caller, error) from None
        except ValueError:
            self._check_open()  # gRPC's word for a channel that was closed meanwhile.
            raise
        if reply is None:
            raise Damaged(f"{self.endpoint}: a reply to {name} without a message")
        return reply

    def _check_open(self) -> None:
        if self._closed:
            raise SamplingError(f"the connection to {self.endpoint} was closed")

    def _explained(self, error: grpc.RpcError) -> Exception:
        """Find out why a server does not answer, in words. Takes up to two knocks."""
        found = control_error(self.endpoint, self._caller, error)
        if not isinstance(found, (StorageUnavailable, ValueError)):
            return found
        port = self.endpoint.control_port
        try:
            tcp_probe(self.endpoint, port, time.monotonic() + _KNOCK_S)
        except StorageUnavailable as silence:
            return silence
        fault = tls_fault(self.endpoint, self._caller, port, _KNOCK_S)
        if fault is not None:
            return ValueError(f"{self.endpoint}: {fault}")
        return ValueError(str(found)) if speaks_otherwise(error) else found
