"""Times of the trees of batches that are drawn in time: given with the input, or those of its nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.sampling.request import SEED, TIME, InputColumn

if TYPE_CHECKING:
    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import NodeType
    from gigl_loader.sampling.khop import KHop
    from gigl_loader.sampling.plan import SamplerContext
    from gigl_loader.sampling.request import BatchRequest

__all__ = ["EntryTimes", "check_entry_times", "time_inputs"]


class EntryTimes:
    """The times of the entries of a request: those that it has, or else those of its nodes."""

    def __init__(self, context: SamplerContext, node_type: NodeType, hops: KHop, *, given: bool) -> None:
        """``given``: requests have times. Where the plan is not one of time, there are none."""
        self._given = given
        self._of_nodes: Int64Array | None = None
        if hops.time_attr is not None and not given:
            self._of_nodes = context.graph.node_times(node_type, hops.time_attr).times

    def of(self, request: BatchRequest) -> Int64Array | None:
        """Return the time of each entry, int64 [B]; ``None`` where there are none."""
        if self._given:
            return np.asarray(request.inputs[TIME])
        return None if self._of_nodes is None else np.asarray(self._of_nodes[request.inputs[SEED]])


def time_inputs(*, given: bool) -> tuple[InputColumn, ...]:
    """Return the column of times of an input, where it has one."""
    return (InputColumn(TIME),) if given else ()


def check_entry_times(schema: GraphSchema, node_type: NodeType, hops: KHop, *, given: bool) -> None:
    """Raise ``ValueError`` unless it is known from when the trees around nodes of a type are."""
    if given and hops.time_attr is None:
        raise ValueError("times of seeds have no meaning without time_attr, the column that they bound")
    if given or hops.time_attr is None:
        return
    by_edges = [kind for kind, edges in schema.edges.items() if hops.time_attr in edges.times]
    if by_edges:
        raise ValueError(
            f"time_attr {hops.time_attr!r} is a time of edges {by_edges[0]}: pass input_time, the time of "
            "each seed"
        )
    if hops.time_attr not in schema.nodes[node_type].times:
        raise ValueError(
            f"nodes of type {node_type!r} have no time {hops.time_attr!r}: pass input_time, the time of each "
            "seed"
        )
