"""Client of a storage server's control port."""

from __future__ import annotations

import logging
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.native import draws
from gigl_loader.retry import Deadline
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.checksums import (
    CHECKSUM_HEADER,
    HEAD_CHECKSUM_HEADER,
    has_checksum,
    head_checksum,
    message_checksum,
    message_is_whole,
)
from gigl_loader.rpc.control import (
    ANNOUNCEMENT,
    CALLS,
    MEMBERSHIP_HEADER,
    ClusterView,
    control_channel,
    control_error,
    explained,
    is_marked,
    is_of_connection,
    lost_its_checksum,
    refused_token,
)
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.refusals import Contact, Damaged, FaultKind, rule_of
from gigl_loader.rpc.server_proof import (
    CHALLENGE,
    NONCE,
    PROOF,
    adoption_proof,
    announcement_proof,
    header_value,
    new_nonce,
    shows,
    view_proof,
)
from gigl_loader.rpc.tokens import JOB_HEADER
from gigl_loader.tracing import trace_headers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gigl_loader.rpc.credentials import Caller

_LOGGER = logging.getLogger(__name__)

Result = TypeVar("Result")
_MAX_DIGITS = 19
_MAX_DAMAGED = 3  # Attempts of one call, where each was damaged.
_ANEW_S = 0.25  # Age from which a connection is left for a new one.
_CERTAIN_S = 0.7
"""Pause before an unmarked refusal is checked by a second call: the first may have been damaged."""
_OPTIONS = [
    ("grpc.max_receive_message_length", 32 << 20),
    ("grpc.max_send_message_length", 32 << 20),
    # A network that was cut sends nothing: ping every 5 s, and wait 5 s for the response.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # To reconnect soon to a restarted server: by default gRPC waits 1 s, then longer and longer.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 500),
]


class StoreClient:
    """Calls to one storage server, for one job. Thread-safe; a call holds no thread.

    Calls raise what ``refusals.FAULT_RULES`` says, and ``SamplingError`` after ``close``.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        caller: Caller,
        job: str = "",
        *,
        on_membership: Callable[[int], None] | None = None,
        contact: Contact = Contact.FIRST,
    ) -> None:
        """Connects at the first call. Without ``job``, the server accepts only ``cluster`` and ``load``.

        ``on_membership`` is called with each new version of the membership in a reply. It must not block.
        ``contact``: whether a call to this address has succeeded before.
        """
        self.endpoint = endpoint
        self._contact = contact
        self._connected_at = 0.0
        self._sends_checksums = False
        self._on_membership = on_membership
        self._heard = ""
        """Version of the membership in the last reply that had one."""
        self._job_header = ((JOB_HEADER, job),) if job else ()
        self._closed = False
        self._lock = threading.Lock()
        self._channels: list[Any] = []
        """The last is in use. The one before has calls that were begun with other certificates."""
        self._caller = caller
        self._use(caller)

    def cluster(
        self,
        timeout_s: float,
        *,
        by_server: bool = False,
        announce: str = "",
        cluster_key: str = "",
        challenge: str = "",
    ) -> ClusterView:
        """Return the server's view of its cluster, ready or not.

        A storage server passes ``by_server``, and its own address as ``announce`` (HOST:PORT). With
        ``cluster_key``, it requires a proof, and proves itself with ``challenge`` from an earlier view. Where
        the server does not respond, the error says why, such as an expired certificate.
        """
        self._check_open()
        nonce = new_nonce()
        headers: list[tuple[str, str]] = []
        if announce:
            headers.append((ANNOUNCEMENT, announce))
        if by_server or cluster_key:
            headers.append((NONCE, nonce))
        if announce and cluster_key:
            proof = announcement_proof(cluster_key, challenge, announce)
            headers += [(CHALLENGE, challenge), (PROOF, proof)]
        reply, call = self._cluster_call(headers, Deadline.after(timeout_s))
        trailers = call.trailing_metadata()
        self.check_reply("Cluster", reply, trailers)
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
        """Create the producer of ``key`` where there is none. Return whether this call created it.

        ``plan`` is ``BatchPlan.to_json()``, ``graph`` the digest. ``ValueError`` for a plan that differs from
        that of an existing producer, for another graph, and from a server that draws otherwise.
        """
        request = messages.CreateProducerRequest(
            key=key, plan=plan, graph=graph, draw_specification=draws.DRAW_SPECIFICATION
        )
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
        plan_digest: bytes = b"",
        interactive: bool = False,
        timeout_s: float,
    ) -> messages.Channel:
        """Open a channel of a producer. The reply has ``id``, ``lease_s``, and ``ring_door`` for a ring.

        With ``plan_digest``, also raises ``Unknown`` where the producer has another plan.
        """
        request = messages.OpenChannelRequest(
            key=key,
            name=name,
            credit=credit,
            share=share,
            without_rows=deferred_features,
            ring_slots=ring_slots,
            ring_slot_bytes=ring_slot_bytes,
            plan_digest=plan_digest,
            interactive=interactive,
        )
        channel: messages.Channel = self._call("OpenChannel", request, timeout_s)
        return channel

    def probe(self, channel: bytes, timeout_s: float) -> Any:
        """Make the call of ``heartbeat`` for one channel, and return a ``grpc.Future``.

        Pass the exception that it raises to ``error``.
        """
        self._check_open()
        request = messages.HeartbeatRequest(channels=[channel])
        return self._calls["Heartbeat"].future(
            request, timeout=timeout_s, metadata=self._headed("Heartbeat", request)
        )

    def heard(self, trailers: Iterable[Any] | None) -> None:
        """Read the version of the membership in the trailers of a reply."""
        if self._on_membership is not None:
            told = header_value(trailers or (), MEMBERSHIP_HEADER)
            if told != self._heard and told.isascii() and told.isdigit() and len(told) <= _MAX_DIGITS:
                self._heard = told
                self._on_membership(int(told))

    def error(self, error: grpc.RpcError) -> Exception:
        """Return the exception for a failed call. Later calls show what the caller's files hold now."""
        self._renewed(self._caller, error)
        return self._translated(error)

    def heartbeat(self, channels: Iterable[bytes], timeout_s: float) -> list[bytes]:
        """Renew the leases of ``channels``. Return the channels that the server knows."""
        request = messages.HeartbeatRequest(channels=channels)
        return list(self._call("Heartbeat", request, timeout_s).channels)

    def close_channel(self, channel: bytes, timeout_s: float) -> None:
        """Close a channel, and its producer with the last channel. Fine for an unknown channel."""
        self._call("CloseChannel", messages.CloseChannelRequest(channel=channel), timeout_s)

    def destroy_producer(self, key: str, timeout_s: float) -> None:
        """Remove a producer and its channels. Fine for an unknown producer."""
        self._call("DestroyProducer", messages.DestroyProducerRequest(key=key), timeout_s)

    def load(self, timeout_s: float) -> messages.ServerLoad:
        """Return the load of the server. Only channels of the caller's job show keys and names, or all."""
        load: messages.ServerLoad = self._call("Load", messages.LoadRequest(), timeout_s)
        return load

    def adopt(
        self, partition: int, timeout_s: float, *, begin: bool, cluster_key: str = ""
    ) -> messages.AdoptReply:
        """Have the server take over a partition, with ``begin``, or return the progress.

        ``cluster_key`` is that of the servers, where they have one. ``ValueError`` without the right to ask,
        and for a partition that the graph does not have.
        """
        deadline = Deadline.after(timeout_s)
        headers: list[tuple[str, str]] = []
        if cluster_key:
            challenge = self.cluster(timeout_s, cluster_key=cluster_key).challenge
            headers = [(CHALLENGE, challenge), (PROOF, adoption_proof(cluster_key, challenge, partition))]
        request = messages.AdoptRequest(partition=partition, begin=begin)
        reply: messages.AdoptReply = self._call("Adopt", request, deadline.left_s(), headers)
        return reply

    def close(self) -> None:
        """Disconnect, and cancel calls under way. Closing twice is fine."""
        self._closed = True
        with self._lock:
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()

    def _use(self, caller: Caller) -> None:
        """Send the token of ``caller`` from now on, and connect anew where its certificates differ."""
        with self._lock:
            before = self._caller if self._channels else None
            self._metadata = (*caller.headers, *self._job_header)
            self._caller = caller
            parts = caller.ssl_parts(self.endpoint)
            if self._closed or (before is not None and before.ssl_parts(self.endpoint) == parts):
                return
            old = self._connect()
        for each in old:
            each.close()

    def _connect(self) -> list[Any]:
        """Use a new connection from the next call on. Return those to close. Under the lock."""
        old, channel = self._channels[:-1], control_channel(self.endpoint, self._caller, _OPTIONS)
        self._channels = [*self._channels[-1:], channel]
        self._connected_at = time.monotonic()
        self._calls = {
            name: channel.unary_unary(
                path, request_serializer=request.SerializeToString, response_deserializer=reply.FromString
            )
            for name, (path, request, reply) in CALLS.items()
        }
        return old

    def connect_anew(self) -> None:
        """Leave a connection whose answers make no sense, or that loses calls, unless it is a new one."""
        # Damage stays for as long as it lives: in tables of compressed headers, in windows of flow control.
        with self._lock:
            if self._closed or time.monotonic() - self._connected_at < _ANEW_S:
                return
            try:
                old = self._connect()
            except (OSError, ValueError):  # Its certificates cannot be read: the next call says so.
                return
        for each in old:
            each.close()

    def _renewed(self, used: Caller, error: grpc.RpcError) -> bool:
        """Use what the caller's files hold now, or its next token, after a call with ``used`` failed.

        Return whether that is something else, so that the call may be made again.
        """
        code = error.code() if hasattr(error, "code") else None
        if code not in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE):
            return False
        if self._caller is used:
            found = used.after_refusal() if refused_token(error) else used.latest()
            if found is not used:
                self._use(found)
        return self._caller is not used

    def _with_renewal(self, call: Callable[[], Result]) -> Result:
        """Make a call, again while it is refused and there is another token to show."""
        for _ in range(max(len(self._caller.other_tokens), 1)):
            used = self._caller
            try:
                return call()
            except grpc.RpcError as error:
                if not self._renewed(used, error):
                    raise
        return call()

    def _cluster_call(
        self, headers: Sequence[tuple[str, str]], deadline: Deadline, *, again: bool = True
    ) -> tuple[Any, Any]:
        """Return reply and call. An unmarked refusal for good is raised when it comes twice."""
        request = messages.ClusterRequest()
        try:
            return self._sent("Cluster", request, deadline, headers)
        except grpc.RpcError as error:
            found = self._explained(error, deadline)
            try:
                if is_marked(error) or not again or isinstance(found, StorageUnavailable):
                    raise found from None
                if deadline.left_s() <= _CERTAIN_S:
                    raise StorageUnavailable(str(found)) from None
            finally:
                del found  # Its traceback has this frame, and the cycle would keep whatever called it.
        time.sleep(_CERTAIN_S)
        self.connect_anew()
        return self._cluster_call(headers, deadline, again=False)

    def _call(
        self, name: str, request: Any, timeout_s: float, headers: Sequence[tuple[str, str]] = ()
    ) -> Any:
        """Make a call. Repeats it at once where it was damaged, ``_MAX_DAMAGED`` attempts in all."""
        deadline = Deadline.after(timeout_s)
        for _ in range(_MAX_DAMAGED - 1):
            with suppress(Damaged):
                return self._call_once(name, request, deadline, headers)
        return self._call_once(name, request, deadline, headers)

    def _sent(
        self, name: str, request: Any, deadline: Deadline, headers: Sequence[tuple[str, str]]
    ) -> tuple[Any, Any]:
        """Send a request, with each token until one is accepted. Return reply and call.

        Raises ``grpc.RpcError``.
        """
        reply, call = self._with_renewal(
            lambda: self._calls[name].with_call(
                request, timeout=deadline.left_s(), metadata=self._headed(name, request, *headers)
            )
        )
        return reply, call

    def _headed(self, name: str, request: Any, *headers: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        """Return the headers of a call, with checksums of its message and of themselves."""
        traced = trace_headers() if "opentelemetry.trace" in sys.modules else ()
        metadata = (*self._metadata, (CHECKSUM_HEADER, message_checksum(request)), *headers, *traced)
        return (*metadata, (HEAD_CHECKSUM_HEADER, head_checksum(CALLS[name][0], metadata)))

    def check_reply(self, name: str, reply: Any, trailers: Any) -> None:
        """Raise ``Damaged`` unless a reply matches its checksum in the trailers.

        A whole one establishes the contact. After a damaged one, later calls use a new connection.
        """
        if not message_is_whole(reply, trailers, required=self._sends_checksums):
            self.connect_anew()
            text = (
                f"{self.endpoint}: a reply to {name} that does not match its checksum, or without a message"
            )
            raise rule_of(FaultKind.REPLY).error(text)
        self._sends_checksums = self._sends_checksums or has_checksum(trailers)
        self._contact = Contact.ESTABLISHED

    def _translated(self, error: grpc.RpcError) -> Exception:
        """Return the exception for a failed call."""
        if lost_its_checksum(error):  # The service may have refused a damaged call.
            text = f"{self.endpoint}: the headers of a call lost their checksum on the way"
            found: Exception = rule_of(FaultKind.REPLY).error(text)
        else:
            found = control_error(self.endpoint, self._caller, error, self._contact)
        if isinstance(found, Damaged) or not (is_marked(error) or is_of_connection(error)):
            self.connect_anew()
        return found

    def _explained(self, error: grpc.RpcError, deadline: Deadline) -> Exception:
        """Return the exception for a failed call, which says why no server responds.

        Connects up to twice, in the time that is left.
        """
        found = self._translated(error)
        if is_marked(error):
            return found
        return explained(self.endpoint, self._caller, error, found, contact=self._contact, deadline=deadline)

    def _call_once(
        self, name: str, request: Any, deadline: Deadline, headers: Sequence[tuple[str, str]]
    ) -> Any:
        self._check_open()
        began = time.monotonic()
        try:
            reply, call = self._sent(name, request, deadline, headers)
        except grpc.RpcError as error:
            raise self._translated(error) from None
        except ValueError:
            self._check_open()  # gRPC raises it for a channel that was closed meanwhile.
            raise
        self.heard(call.trailing_metadata())
        self.check_reply(name, reply, call.trailing_metadata())
        _LOGGER.debug("%s: %s: %.1f ms", self.endpoint, name, 1e3 * (time.monotonic() - began))
        return reply

    def _check_open(self) -> None:
        if self._closed:
            raise SamplingError(f"the connection to {self.endpoint} was closed")
