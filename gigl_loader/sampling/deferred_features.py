"""Frames with deferred features, and their completion where they arrive.

In place of the features of a type, such a frame has one array that says where they lie: ``node/T/position``,
and ``edge/E/slot`` in the terms of a partitioned store (partition and place, see ``SLOT_BITS``). The receiver
lays out the complete frame and asks the owners for the features. The result has the bytes of a frame that was
written whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.sampling.store import SLOT_BITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_loader.channel.frame import Frame
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.features import FeatureSource, GatherRequest
    from gigl_loader.sampling.frame_schema import FrameSchema, TypeArrays
    from gigl_loader.sampling.plan import BatchPlan, ColumnPlan
    from gigl_loader.tensors import Layout

__all__ = ["Completion", "LocalPlaces", "StoredPlaces"]


class StoredPlaces:
    """A ``FeatureSource`` that writes where features lie instead of the features."""

    def gather(self, wants: Sequence[GatherRequest]) -> None:
        for want in wants:
            [out] = want.out
            out.reshape(-1).view(np.int64)[:] = want.rows


class LocalPlaces(StoredPlaces):
    """The same for a graph that lies wholly on this host, where slots count through all partitions."""

    def __init__(self, graph: Graph, columns: ColumnPlan) -> None:
        parts = range(graph.schema.num_partitions)
        self._bounds: dict[NodeType | EdgeType, Int64Array] = {}
        for edge_type in columns.edges:
            counts = [len(graph.topology(edge_type, part)["indices"]) for part in parts]
            self._bounds[edge_type] = np.cumsum([0, *counts], dtype=np.int64)

    def gather(self, wants: Sequence[GatherRequest]) -> None:
        super().gather(wants)
        for want in wants:
            bounds = self._bounds.get(want.kind)
            if bounds is not None:
                slots = want.out[0].reshape(-1).view(np.int64)
                owners = np.searchsorted(bounds, slots, side="right") - 1
                slots += (owners << SLOT_BITS) - bounds[owners]


class Completion:
    """Completes the frames of a plan that came with deferred features. Thread-safe where the source is."""

    def __init__(self, schema: GraphSchema, plan: BatchPlan, features: FeatureSource) -> None:
        """``features`` answers in the terms of a partitioned store."""
        self._schema = schema
        self._whole = plan.frame(schema)
        self._deferred = self._whole.with_deferred_features()
        self._features = features
        self._kept = list(_names(self._whole))

    def parse(self, buffer: Bytes) -> Frame:
        """Return the frame with deferred features in ``buffer``. ``FormatError`` names a broken rule."""
        frame = self._deferred.parse(buffer)
        for arrays, count in self._places():
            if arrays.deferred is not None and not frame.is_failure:
                _check_places(arrays.deferred.name, frame.array(arrays.deferred.name), count)
        return frame

    def layout(self, deferred: Frame) -> Layout:
        """Return the layout of the complete frame of one that ``parse`` returned."""
        return self._whole.layout(self._deferred.counts(deferred.layout))

    def write(self, deferred: Frame, layout: Layout, buffer: Bytes) -> None:
        """Write the complete frame to the start of ``buffer``. Errors are those of the source of features."""
        buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
        for name in self._kept:
            np.copyto(layout.view(buffer, name), deferred.array(name))
        self._features.gather(list(self._gather_requests(deferred, layout, buffer)))

    def _places(self) -> Iterator[tuple[TypeArrays, int]]:
        """Yield the arrays of each type, and the end of the places that its features have."""
        for nodes in self._deferred.nodes:
            yield nodes, self._schema.nodes[str(nodes.kind)].count
        for edges in self._deferred.edges:
            yield edges, self._schema.num_partitions << SLOT_BITS

    def _gather_requests(self, deferred: Frame, layout: Layout, buffer: Bytes) -> Iterator[GatherRequest]:
        frame, whole = self._deferred, self._whole
        types = (
            *zip(frame.nodes, whole.nodes, [not whole.disjoint] * len(whole.nodes), strict=True),
            *zip(frame.edges, whole.edges, [whole.distinct_edges] * len(whole.edges), strict=True),
        )
        for arrays, complete, distinct in types:
            if arrays.deferred is not None:
                places = deferred.array(arrays.deferred.name)
                yield complete.gather_request(places, layout, buffer, distinct=distinct)


def _names(frame: FrameSchema) -> Iterator[str]:
    """Yield the names of the arrays that both forms of a frame have."""
    yield from (each.name for each in (*frame.inputs, *frame.computed))
    for arrays in (*frame.nodes, *frame.edges):
        yield from (each.name for each in arrays.arrays if each.origin == "sampled")


def _check_places(name: str, places: Int64Array, count: int) -> None:
    # As unsigned numbers, negative places are larger than any other: one pass checks both bounds.
    if len(places) and places.view(np.uint64).max() >= count:
        raise FormatError(f"frame without features: {name!r} leaves the {count} that there are")
