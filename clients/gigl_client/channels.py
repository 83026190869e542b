"""Channels to storage servers: configuration, buffers, state as the trainer sees it, opening and closing."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gigl_loader.channel.ring import SlotPool, private_slots
from gigl_loader.errors import FormatError, GiglError, StorageUnavailable
from gigl_loader.memfile import map_memory
from gigl_loader.resources import naming_channel
from gigl_loader.retry import Backoff, Deadline
from gigl_loader.rpc.refusals import Busy, Contact, FaultKind, RingRefused, Unknown, rule_of
from gigl_loader.rpc.ring_client import receive_ring
from gigl_loader.sampling.plan import plan_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_client.cluster import Server
    from gigl_loader.arrays import Bytes
    from gigl_loader.rpc.graph_store_pb2 import Channel as ChannelReply

_WAYS = {"transport": ("auto", "ring", "network"), "rows": ("auto", "direct", "through")}
_OLDER_NAMES = {"transport": "flight"}
"""Older name of ``network``: up to wire version 2, batches came over Arrow Flight."""

MAX_IN_FLIGHT = 64
"""Batches of a source in flight at all servers together: with a hundred servers, a few at each would fill the
trainer's memory."""

_MAX_CREDIT = 64
"""Default limit of a server on the open batches of one channel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelConfig:
    """Options of a source's channels, the same for all servers."""

    key: str
    name: str
    plan: str
    """JSON."""
    graph: str
    """Digest."""
    share: int = 1
    interactive: bool = False
    """Light batches go before those of other channels, within a share that each server sets."""
    prefetch: int = 4
    """Batches in flight per server, at first. 0: one in total, requested when the trainer waits for it."""
    most: int = 0
    """Batches in flight per server, at most, where that is more than ``prefetch``: the window adapts."""
    transport: str = "auto"
    rows: str = "auto"
    slots: int = 12
    """Number of slots of each ring."""
    slot_bytes: int = 4096
    channel_bytes: int = 4 << 30
    """Bytes that batches in flight may take at all servers together, by the sizes of earlier ones. Two are in
    flight however large they are: one is sampled while another is used."""
    timeout_s: float = 300.0
    first_server: int = 0
    """Place of the channel that batch 0 is requested of; batch 1 is of the next one. Ranks begin at different
    ones."""

    def __post_init__(self) -> None:
        check_ways(self.transport, self.rows)
        if self.prefetch < 0:
            raise ValueError(f"prefetch_size must not be negative, got {self.prefetch}")
        if self.share < 1:
            raise ValueError(f"a share of the servers' workers is at least 1, got {self.share}")
        if self.timeout_s <= 0:
            raise ValueError(f"timeouts must be positive, got {self.timeout_s} s")

    @property
    def credit(self) -> int:
        """Batches that a channel may have open, with room for some of an epoch that was left."""
        return min(2 * max(self.prefetch, self.most) + 8, _MAX_CREDIT)

    @property
    def first_window(self) -> int:
        """Batches of the current epoch that may be in flight at one server, at first."""
        return max(min(self.prefetch, _MAX_CREDIT), 1)

    @property
    def largest_window(self) -> int:
        """Batches of the current epoch that may be in flight at one server, at most."""
        return max(min(self.most, _MAX_CREDIT), self.first_window)

    def most_in_flight(self, frame_bytes: int) -> int:
        """Return how many batches of ``frame_bytes`` each may be in flight, at all servers together."""
        return min(max(self.channel_bytes // max(frame_bytes, 1), 2), MAX_IN_FLIGHT)

    def tries_ring(self, host: str) -> bool:
        """Return whether to request a ring from a server at ``host``."""
        return self.transport == "ring" or (self.transport == "auto" and is_this_host(host))

    def may_defer(self, *, whole: bool, has_columns: bool) -> bool:
        """Return whether frames may come with deferred features. ``whole``: every server has all partitions.

        With ``rows="auto"`` they may where features of other owners would otherwise cross the network twice.
        """
        return has_columns and (self.rows == "direct" or (self.rows == "auto" and not whole))

    def defers_features(self, *, ring: bool, defers: bool) -> bool:
        """Return whether a server sends frames with deferred features, where frames may have them.

        With ``rows="auto"`` it does unless it is on this host.
        """
        return defers and not (self.rows == "auto" and ring)


def check_ways(transport: str, rows: str) -> None:
    """Raise ``ValueError`` for an unknown ``transport`` or ``rows``."""
    for name, value in (("transport", transport), ("rows", rows)):
        if value not in _WAYS[name] and value != _OLDER_NAMES.get(name):
            raise ValueError(f"{name} must be one of {', '.join(_WAYS[name])}, got {value!r}")


def is_this_host(host: str) -> bool:
    """Return whether a name or address belongs to this host: only such an address can be bound."""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_can_bind(family, address[0]) for family, _, _, _, address in found)


def _can_bind(family: int, address: str | int) -> bool:
    try:
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


SPARE_SLOTS = 8
"""Slots beyond the batches in flight: for frames that the consumer keeps or that a left epoch holds."""


class RingBuffers:
    """A ring that a server on this host writes to. Only the trainer takes slots: requests name theirs."""

    def __init__(self, fd: int, *, slots: int, slot_bytes: int) -> None:
        """Map the memory file, and close ``fd``."""
        try:
            with naming_channel(slots * slot_bytes):
                memory = map_memory(fd, slots * slot_bytes)
        finally:
            os.close(fd)
        self._slots = SlotPool(memory, np.zeros(slots, np.uint8))
        self._lock = threading.Lock()

    def take(self) -> int | None:
        """Return a free slot, now taken. ``None`` where all are taken."""
        with self._lock:
            return self._slots.take()

    def give(self, slot: int) -> None:
        """Free a taken slot that was not lent."""
        self._slots.give(slot)

    def view(self, slot: int, nbytes: int) -> Bytes:
        """Return the first ``nbytes`` of a taken slot, uint8 [nbytes]. Valid until the slot is freed."""
        self._check(nbytes)
        return self._slots.buffer(slot)[:nbytes]

    def lend(self, slot: int, nbytes: int) -> Bytes:
        """Return the first ``nbytes`` of a taken slot, uint8 [nbytes]. The last reference frees the slot."""
        self._check(nbytes)
        return self._slots.lend(slot, nbytes)

    def _check(self, nbytes: int) -> None:
        if not 0 < nbytes <= self._slots.slot_bytes:
            raise FormatError(f"a frame of {nbytes} bytes in a slot of {self._slots.slot_bytes}")


class PrivateBuffers:
    """Memory of this process for frames that come over a network. Thread-safe."""

    def __init__(self, nbytes: int, slots: int) -> None:
        """Frames take about ``nbytes``, in ``slots`` whose memory is committed when it is touched."""
        self._slots = private_slots(nbytes, slots)
        self._lock = threading.Lock()
        self.oversize = 0
        """Number of frames larger than a slot."""
        self.crowded_out = 0
        """Number of frames that would fit a slot and found none free."""

    def lend(self, nbytes: int) -> Bytes:
        """Return memory for a frame, uint8 [nbytes]: a slot, or fresh memory where none is free."""
        with self._lock:
            slot = self._slots.take(nbytes)
            if slot is None:
                is_larger = nbytes > self._slots.slot_bytes
                self.oversize += is_larger
                self.crowded_out += not is_larger
        return np.empty(nbytes, np.uint8) if slot is None else self._slots.lend(slot, nbytes)


_LOGGER = logging.getLogger(__name__)

_ATTEMPT_S = 10.0
_SHORTEST_ATTEMPT_S = 2.0
_CLOSE_S = 1.0
_LONGEST_LATE_S = 10.0


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class OpenChannel:
    """A channel that is open at a server."""

    id: bytes
    lease_s: float
    ring: RingBuffers | None
    deferred_features: bool


class Channel:
    """State of the channel to one server. Not thread-safe: guarded by the lock of the dispatcher."""

    def __init__(self, server: Server, window: int) -> None:
        self.server = server
        self.window = window
        """Batches of an epoch that may be in flight."""
        self.opened: OpenChannel | None = None
        self.opening = False
        """A thread is opening the channel."""
        self.down_since = 0.0
        """When the channel was lost, or first requested. Meaningless while the channel is open."""
        self.failure: Exception | None = None
        """Error of the last attempt to open the channel."""
        self.last_fault: Exception | None = None
        self.fault_at = 0.0
        """Error that last ended the channel or a check of it, and when (monotonic)."""
        self.retry_at = 0.0
        """When the channel may be opened again where the server refused and is not needed."""
        self.gone = False
        """The server has left the cluster."""
        self.late_until = 0.0
        """When the server may be asked again (monotonic), after a batch of it was requested from another
        server as well. Infinity: when it responds."""
        self.probing = False
        """A probe finds out whether the server responds: its late call was cancelled."""
        self.load = 0
        """Batches that were requested from the server and not delivered yet."""
        self.allowance = 1
        """Batches of the current epoch that may be in flight: 1 at its start, and 1 more with each that was
        received. Else the first batch of an epoch would share cores and network with several later ones."""
        self.batches = 0
        self.reconnects = -1  # Opening the first channel counts 0.
        self._backoff = Backoff()
        self._batches_before = -1
        self._late_s = 0.0

    @property
    def contact(self) -> Contact:
        """Whether a channel to the server was open before, with a ring where it must have one."""
        return Contact.FIRST if self.reconnects < 0 else Contact.ESTABLISHED

    def pause_s(self) -> float:
        """Return the delay before reopening: 0 if the last channel delivered a batch, else a backoff."""
        if self.batches > self._batches_before:
            self._batches_before = self.batches
            self._backoff.reset()
            return 0.0
        return self._backoff.next_s()

    def note_fault(self, error: Exception) -> None:
        """Keep the last error, for the message of a wait that times out."""
        self.last_fault, self.fault_at = error, time.monotonic()

    @property
    def late(self) -> bool:
        return time.monotonic() < self.late_until

    def is_late(self, sent_s: float) -> None:
        """Skip the server until it responds to a request that was sent ``sent_s`` ago."""
        if not self.late:
            self._late_s = min(max(sent_s, 2 * self._late_s), _LONGEST_LATE_S)
        self.late_until = math.inf

    def responds(self) -> None:
        """Use the server again: it responded to a request."""
        self.late_until = self._late_s = 0.0

    def is_alive(self) -> None:
        """Use the server again after a pause: it responds, though not to the late request.

        The pause is as long as the request took so far, and doubles while the server stays late.
        """
        if self.late_until == math.inf:
            self.late_until = time.monotonic() + self._late_s

    @property
    def transport(self) -> str:
        if self.opened is None:
            return "none"
        return "network" if self.opened.ring is None else "ring"

    @property
    def rows(self) -> str:
        if self.opened is None:
            return "none"
        return "direct" if self.opened.deferred_features else "through"

    @cached_property
    def name(self) -> str:
        """The server and its address, for messages and ledgers."""
        return str(self.server.endpoint)

    def __str__(self) -> str:
        return self.name


class Tried(NamedTuple):
    """Channels over which a batch was requested."""

    under_way: Sequence[Channel] = ()
    failures: Counter[Channel] = Counter()  # noqa: RUF012
    """Attempts that failed, by channel."""


def may_pass(error: Exception) -> bool:
    """Return whether a retry may succeed, by ``refusals.FAULT_RULES``."""
    return isinstance(error, StorageUnavailable)


def open_channel(
    server: Server, config: ChannelConfig, *, defers: bool, contact: Contact = Contact.FIRST
) -> OpenChannel:
    """Open a channel, and create its producer where the server has none with that key and plan.

    The channel has a ring where ``config`` allows one and the server is on this host. ``defers``: frames may
    defer their features. All calls together take the time of one attempt; half of it is for a ring.
    """
    deadline = Deadline.after(_attempt_s(config))
    if config.tries_ring(server.endpoint.host):
        deferred = config.defers_features(ring=True, defers=defers)
        ring_by = deadline if config.transport == "ring" else Deadline.after(deadline.left_s() / 2)
        opened = _open_ring(server, config, ring_by, deferred_features=deferred, contact=contact)
        if opened is not None:
            return opened
    deferred = config.defers_features(ring=False, defers=defers)
    reply = _open(server, config, deadline, deferred_features=deferred)
    return OpenChannel(id=reply.id, lease_s=reply.lease_s, ring=None, deferred_features=deferred)


def close_channel(server: Server, channel: bytes) -> None:
    """Close a channel. Where the server does not respond, the lease of the channel ends it."""
    deadline = Deadline.after(_CLOSE_S)
    with suppress(GiglError, ValueError):
        try:
            server.client.close_channel(channel, deadline.left_s())
        except StorageUnavailable:  # The server may have closed an idle connection: try once more.
            server.client.close_channel(channel, deadline.left_s())


def _open_ring(
    server: Server, config: ChannelConfig, deadline: Deadline, *, deferred_features: bool, contact: Contact
) -> OpenChannel | None:
    """Return a channel with a ring. ``None`` where no ring can be had and ``transport`` is not ``"ring"``."""
    reply = None
    try:
        reply = _open(server, config, deadline, deferred_features=deferred_features, ring=True)
        ring = _ring_of(server, config, reply, deadline, contact)
    except BaseException as error:
        if reply is not None:
            close_channel(server, reply.id)
        elif not isinstance(error, Busy):  # Busy: there is no memory for the ring.
            raise
        if config.transport == "ring" or not isinstance(error, (StorageUnavailable, RingRefused)):
            raise
        _LOGGER.warning("%s: batches come over the network, not by a ring: %s", server.endpoint, error)
        return None
    return OpenChannel(id=reply.id, lease_s=reply.lease_s, ring=ring, deferred_features=deferred_features)


def _attempt_s(config: ChannelConfig) -> float:
    """Return the timeout of an attempt: several fit into that of the loader."""
    return min(_ATTEMPT_S, max(config.timeout_s / 4, _SHORTEST_ATTEMPT_S), config.timeout_s)


def _ring_of(
    server: Server, config: ChannelConfig, reply: ChannelReply, deadline: Deadline, contact: Contact
) -> RingBuffers:
    """Return the ring of an open channel, mapped."""
    if not reply.ring_door:
        raise RingRefused(f'{server.endpoint} hands out no rings: set transport="network"')
    nbytes = config.slots * config.slot_bytes
    fd = receive_ring(reply.ring_door, reply.id, nbytes, deadline.left_s(), contact=contact)
    try:
        return RingBuffers(fd, slots=config.slots, slot_bytes=config.slot_bytes)
    except OSError as error:
        raise rule_of(FaultKind.RESOURCES).error(f"the ring cannot be mapped: {error}") from None


def _open(
    server: Server,
    config: ChannelConfig,
    deadline: Deadline,
    *,
    deferred_features: bool,
    ring: bool = False,
) -> ChannelReply:
    """Open a channel of the producer of this plan. The server refuses another plan under the same key.

    The producer is created only where it is missing: its leader has created it on every server, and a plan
    may have megabytes.
    """
    open_once = partial(
        server.client.open_channel,
        config.key,
        name=config.name,
        credit=config.credit,
        share=config.share,
        interactive=config.interactive,
        deferred_features=deferred_features,
        ring_slots=config.slots if ring else 0,
        ring_slot_bytes=config.slot_bytes if ring else 0,
    )
    with suppress(Unknown):
        return open_once(plan_digest=plan_digest(config.plan), timeout_s=deadline.left_s())
    server.client.create_producer(config.key, config.plan, config.graph, deadline.left_s())
    return open_once(timeout_s=deadline.left_s())
