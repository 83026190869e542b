"""Frames without rows, and how they are completed where they arrive.

A skeleton is a frame that has, in place of the columns of a type, one array that says where their rows
lie: ``node/T/position``, and ``edge/E/slot`` in the terms of a partitioned store (partition and place,
see ``SLOT_BITS``). Who receives it lays out the complete frame, which has the bytes that it would have had
if it had been written whole, and asks the owners for the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.schema import type_name
from gigl_loader.sampling.frame_schema import FrameCounts, FrameSchema
from gigl_loader.sampling.store import SLOT_BITS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_loader.channel.frame import Frame
    from gigl_loader.graph.graph import Graph
    from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType
    from gigl_loader.options import SamplingPlan
    from gigl_loader.sampling.features import FeatureSource, GatherRequest
    from gigl_loader.tensors import Layout

__all__ = ["Completion", "OwnPlaces", "StoredPlaces"]


class StoredPlaces:
    """A ``FeatureSource`` of skeletons: writes the rows' places instead of the rows."""

    def gather(self, wants: Sequence[GatherRequest]) -> None:
        for want in wants:
            [out] = want.out
            out.reshape(-1).view(np.int64)[:] = want.rows


class OwnPlaces(StoredPlaces):
    """The same for a graph that lies wholly on this host, where slots count through all partitions."""

    def __init__(self, graph: Graph, plan: SamplingPlan) -> None:
        parts = range(graph.schema.num_partitions)
        self._bounds: dict[NodeType | EdgeType, Int64Array] = {}
        for edge_type in plan.edge_columns:
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
    """Makes complete frames of the skeletons of a plan. Thread-safe where the source of rows is."""

    def __init__(self, schema: GraphSchema, plan: SamplingPlan, rows: FeatureSource) -> None:
        """``rows`` answers in the terms of a partitioned store."""
        self._schema = schema
        self._plan = plan
        self._whole = FrameSchema.whole(schema, plan)
        self._bare = self._whole.without_rows()
        self._rows = rows

    def layout(self, skeleton: Frame) -> Layout:
        """Return the layout of the complete frame. ``FormatError`` for what is no skeleton of this plan."""
        specs = skeleton.layout.specs
        try:
            counts = FrameCounts(
                epoch=skeleton.epoch,
                batch=skeleton.batch,
                num_seeds=specs["seeds"].shape[0],
                num_nodes=skeleton.num_sampled_nodes,
                num_edges=skeleton.num_sampled_edges,
                num_targets={
                    part.name: specs[f"{part.prefix}/colptr"].shape[0] - 1 for part in self._bare.edges
                },
            )
            expected = self._bare.layout(counts)
        except KeyError as error:
            raise FormatError(f"frame without rows: {error} is missing") from None
        if dict(expected.specs) != dict(specs) or skeleton.seed_type != type_name(self._plan.seed_type):
            raise FormatError("frame without rows: it is not one of the plan that was asked for")
        return self._whole.layout(counts)

    def write(self, skeleton: Frame, layout: Layout, buffer: Bytes) -> None:
        """Write the complete frame to the start of ``buffer``. Errors are those of the source of rows."""
        buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
        kept = skeleton.layout.specs.keys() & layout.specs.keys() - self._columns
        for name in kept:
            np.copyto(layout.view(buffer, name), skeleton.array(name))
        self._rows.gather(list(self._wants(skeleton, layout, buffer)))

    @property
    def _columns(self) -> set[str]:
        """Names of columns: one may be called ``position``, too."""
        parts = (*self._whole.nodes, *self._whole.edges)
        return {name for part in parts for name, _ in part.columns.values()}

    def _wants(self, skeleton: Frame, layout: Layout, buffer: Bytes) -> Iterator[GatherRequest]:
        for bare, whole in zip(self._bare.nodes, self._whole.nodes, strict=True):
            for name, _ in bare.columns.values():
                positions = skeleton.array(name)
                _check_places(name, positions, self._schema.nodes[str(whole.kind)].count)
                yield whole.want(positions, layout, buffer, distinct=True)
        for bare, whole in zip(self._bare.edges, self._whole.edges, strict=True):
            for name, _ in bare.columns.values():
                slots = skeleton.array(name)
                _check_places(name, slots, self._schema.num_partitions << SLOT_BITS)
                yield whole.want(slots, layout, buffer, distinct=not self._plan.replace)


def _check_places(name: str, places: Int64Array, count: int) -> None:
    # As unsigned numbers, negative places are larger than any other: one pass checks both bounds.
    if len(places) and places.view(np.uint64).max() >= count:
        raise FormatError(f"frame without rows: {name!r} leaves the {count} that there are")
