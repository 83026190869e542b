"""Validation of requests to the sampling service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.sampling.plans import read_plan
from gigl_loader.sampling.request import BatchRequest
from gigl_server.frames.ring import FrameRing

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gigl_loader.arrays import Array
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.rpc.graph_store_pb2 import SampleRequest
    from gigl_loader.sampling.plan import BatchPlan
    from gigl_loader.sampling.request import InputColumn
    from gigl_server.frames.ring_memory import RingMemory
    from gigl_server.identity import Identity
    from gigl_server.limits import Limits
    from gigl_server.sessions.channel import Channel, ChannelOptions

__all__ = [
    "check_channel_options",
    "check_graph",
    "check_key",
    "check_slot",
    "make_ring",
    "read_producer_plan",
    "read_request",
]


def check_key(key: str, limits: Limits) -> None:
    """Raise ``Refusal`` unless a producer may have this key."""
    if not 0 < len(key) <= limits.name_length:
        raise Refusal(
            RefusalKind.INVALID, f"a key has 1 to {limits.name_length} characters, this one {len(key)}"
        )
    _check_printable(key, "key")


def check_graph(digest: str, graph: Graph) -> None:
    """Raise ``Refusal`` unless ``digest`` is that of this graph."""
    ours = graph.manifest.digest
    if digest != ours:
        raise Refusal(
            RefusalKind.CONFLICT,
            f"asked for graph {digest[:12]!r}, this server has {ours[:12]!r}: serve one graph everywhere",
        )


def read_producer_plan(
    text: str, schema: GraphSchema, limits: Limits, allowed_samplers: Collection[str]
) -> BatchPlan:
    """Read the plan of a producer. ``Refusal`` for an invalid plan, or one that does not fit this graph."""
    if len(text) > limits.plan_bytes:
        raise Refusal(RefusalKind.INVALID, f"a plan of {len(text)} characters: at most {limits.plan_bytes}")
    try:
        plan = read_plan(text, schema, allowed_samplers=allowed_samplers)
        plan.sampler.check_here()
        return plan
    except ValueError as error:
        raise Refusal(RefusalKind.INVALID, str(error)) from None


def make_ring(options: ChannelOptions, *, free_bytes: int, memory: RingMemory, owner: Identity) -> FrameRing:
    """Make the requested ring. ``Refusal`` for invalid sizes, or more than ``free_bytes``."""
    if options.ring_slots * options.ring_slot_bytes > free_bytes:
        raise Refusal(
            RefusalKind.BUSY,
            f"a ring of {options.ring_slots} slots of {options.ring_slot_bytes} bytes: this server has "
            f"{free_bytes} left for rings",
        )
    try:
        return FrameRing(options.ring_slots, options.ring_slot_bytes, memory=memory, owner=owner)
    except ValueError as error:
        raise Refusal(RefusalKind.INVALID, str(error)) from None


def check_channel_options(options: ChannelOptions, limits: Limits) -> None:
    """Raise ``Refusal`` for invalid channel options."""
    check_key(options.key, limits)
    if len(options.name) > limits.name_length:
        raise Refusal(
            RefusalKind.INVALID, f"a name of {len(options.name)} characters: at most {limits.name_length}"
        )
    _check_printable(options.name, "name")
    for name, value, most in (
        ("credit", options.credit, limits.credit),
        ("share", options.share, limits.share),
    ):
        if not 1 <= value <= most:
            raise Refusal(RefusalKind.INVALID, f"{name} {value} does not lie in [1, {most}]")
    if bool(options.ring_slots) != bool(options.ring_slot_bytes):
        raise Refusal(RefusalKind.INVALID, "a ring needs a number of slots and their size")


def check_slot(channel: Channel, slot: int) -> None:
    """Raise ``Refusal`` unless the channel's ring has the slot. 0 means no slot."""
    slots = 0 if channel.ring is None else channel.ring.slots
    if not 0 <= slot <= slots:
        raise Refusal(RefusalKind.INVALID, f"slot {slot} of a ring of {slots}")


def read_request(
    message: SampleRequest, inputs: Sequence[InputColumn], *, schema: GraphSchema, limits: Limits
) -> BatchRequest:
    """Return the request for a batch. ``Refusal`` unless its entries fit the plan's ``inputs``."""
    if max(message.epoch, message.batch, message.fence) >= 2**63:
        raise Refusal(RefusalKind.INVALID, "epoch, batch and fence are below 2**63")
    try:
        request = BatchRequest.read(
            message.epoch, message.batch, index=message.index, inputs=message.inputs, columns=inputs
        )
    except ValueError as error:
        raise Refusal(RefusalKind.INVALID, str(error)) from None
    if not 1 <= len(request) <= limits.batch_seeds:
        raise Refusal(
            RefusalKind.INVALID, f"a batch has 1 to {limits.batch_seeds} seeds, this one {len(request)}"
        )
    for column in inputs:
        if column.node_type is not None:
            _check_positions(request.inputs[column.name], schema.nodes[column.node_type].count, column.name)
    return request


def _check_positions(positions: Array, count: int, name: str) -> None:
    low, high = int(positions.min()), int(positions.max())
    if low < 0 or high >= count:
        raise Refusal(RefusalKind.INVALID, f"{name}s {low} to {high} lie outside of {count} nodes")


def _check_printable(text: str, what: str) -> None:
    """Raise ``Refusal`` for control characters, which logs, metrics and terminals would interpret."""
    if not text.isprintable():
        raise Refusal(RefusalKind.INVALID, f"a {what} has no control characters, got {text!r}")
