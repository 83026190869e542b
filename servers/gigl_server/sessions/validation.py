"""Validation of what trainers ask of the sampling service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.rpc.refusals import Refusal
from gigl_loader.rpc.refusals import RefusalKind as Status
from gigl_loader.sampling.schedule import BatchRequest
from gigl_server.frames.ring import FrameRing
from gigl_server.sessions.plans import read_plan

if TYPE_CHECKING:
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import SamplingPlan
    from gigl_server.frames.ring_memory import RingMemory
    from gigl_server.identity import Identity
    from gigl_server.limits import Limits
    from gigl_server.sessions.channel import Channel, ChannelOptions, ReceivedRequest

__all__ = [
    "check_graph",
    "check_key",
    "check_order",
    "check_slot",
    "make_ring",
    "read_order_plan",
    "read_request",
]

_INT64 = np.dtype("<i8")


def check_key(key: str, limits: Limits) -> None:
    """``Refusal`` unless a producer may have this key."""
    if not 0 < len(key) <= limits.name_length:
        raise Refusal(Status.INVALID, f"a key has 1 to {limits.name_length} characters, this one {len(key)}")
    _check_printable(key, "key")


def check_graph(digest: str, graph: Graph) -> None:
    """``Refusal`` unless the order is for this graph."""
    ours = graph.manifest.digest
    if digest != ours:
        raise Refusal(
            Status.CONFLICT,
            f"asked for graph {digest[:12]!r}, this server has {ours[:12]!r}: serve one graph everywhere",
        )


def read_order_plan(text: str, schema: GraphSchema, limits: Limits) -> SamplingPlan:
    """Read the plan of a producer. ``Refusal`` for anything that is none for this graph."""
    if len(text) > limits.plan_bytes:
        raise Refusal(Status.INVALID, f"a plan of {len(text)} characters: at most {limits.plan_bytes}")
    try:
        return read_plan(text, schema)
    except ValueError as error:
        raise Refusal(Status.INVALID, str(error)) from None


def make_ring(order: ChannelOptions, *, free_bytes: int, memory: RingMemory, owner: Identity) -> FrameRing:
    """Make the ring that is ordered. ``Refusal`` if it cannot be, or is larger than what is free."""
    if order.ring_slots * order.ring_slot_bytes > free_bytes:
        raise Refusal(
            Status.BUSY,
            f"a ring of {order.ring_slots} slots of {order.ring_slot_bytes} bytes: this server has "
            f"{free_bytes} left for rings",
        )
    try:
        return FrameRing(order.ring_slots, order.ring_slot_bytes, memory=memory, owner=owner)
    except ValueError as error:
        raise Refusal(Status.INVALID, str(error)) from None


def check_order(order: ChannelOptions, limits: Limits) -> None:
    """``Refusal`` unless a channel can be like this."""
    check_key(order.key, limits)
    if len(order.name) > limits.name_length:
        raise Refusal(Status.INVALID, f"a name of {len(order.name)} characters: at most {limits.name_length}")
    _check_printable(order.name, "name")
    for name, value, most in (("credit", order.credit, limits.credit), ("share", order.share, limits.share)):
        if not 1 <= value <= most:
            raise Refusal(Status.INVALID, f"{name} {value} does not lie in [1, {most}]")
    if bool(order.ring_slots) != bool(order.ring_slot_bytes):
        raise Refusal(Status.INVALID, "a ring needs a number of slots and their size")


def check_slot(channel: Channel, slot: int) -> None:
    """``Refusal`` unless the channel's ring has the slot. 0 stands for none."""
    slots = 0 if channel.ring is None else channel.ring.slots
    if not 0 <= slot <= slots:
        raise Refusal(Status.INVALID, f"slot {slot} of a ring of {slots}")


def read_request(ask: ReceivedRequest, *, num_nodes: int, limits: Limits) -> BatchRequest:
    """Return the batch that is asked for. ``Refusal`` unless its seeds are positions of nodes."""
    seeds, input_ids = _numbers(ask.seeds, "seeds"), _numbers(ask.input_ids, "input_ids")
    if len(seeds) != len(input_ids):
        raise Refusal(Status.INVALID, f"{len(seeds)} seeds with {len(input_ids)} places in the input")
    if not 1 <= len(seeds) <= limits.batch_seeds:
        raise Refusal(Status.INVALID, f"a batch has 1 to {limits.batch_seeds} seeds, this one {len(seeds)}")
    if max(ask.epoch, ask.batch, ask.fence) >= 2**63:
        raise Refusal(Status.INVALID, "epoch, batch and fence are below 2**63")
    low, high = int(seeds.min()), int(seeds.max())
    if low < 0 or high >= num_nodes:
        raise Refusal(Status.INVALID, f"seeds {low} to {high} lie outside of {num_nodes} nodes")
    return BatchRequest(epoch=ask.epoch, batch=ask.batch, seeds=seeds, input_ids=input_ids)


def _check_printable(text: str, what: str) -> None:
    """Keys and names go to logs, metrics and terminals, where line ends and escapes would be obeyed."""
    if not text.isprintable():
        raise Refusal(Status.INVALID, f"a {what} has no control characters, got {text!r}")


def _numbers(data: bytes, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if len(data) % _INT64.itemsize:
        raise Refusal(Status.INVALID, f"{name} of {len(data)} bytes are no int64")
    return np.frombuffer(data, _INT64)
