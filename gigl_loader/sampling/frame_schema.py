"""Schema of the frames of a plan: their arrays, by graph schema, plan and counts."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from gigl_loader.arrays import Bytes, Int64Array
from gigl_loader.graph.schema import Column, type_name
from gigl_loader.sampling.features import GatherRequest
from gigl_loader.sampling.rows import as_rows
from gigl_loader.tensors import ArraySpec, Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType, SamplingPlan

__all__ = ["FrameCounts", "FramePart", "FrameSchema"]


_PLACES = {"node": "position", "edge": "slot"}
"""By what a part is of: the array that a frame without rows has in place of columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCounts:
    """What a layout depends on besides schema and plan. Keys are encoded types."""

    epoch: int
    batch: int
    num_seeds: int
    num_nodes: Mapping[str, list[int]]
    """Per hop."""
    num_edges: Mapping[str, list[int]]
    num_targets: Mapping[str, int]
    """Expanded nodes of the edge type's target type: ``len(colptr) - 1``."""


class FramePart(NamedTuple):
    """What a frame holds of one type."""

    kind: NodeType | EdgeType
    name: str
    prefix: str
    columns: dict[str, tuple[str, Column]]
    """By column: its name in the frame, and what it is."""

    @classmethod
    def of(
        cls, what: str, kind: NodeType | EdgeType, names: Sequence[str], columns: Mapping[str, Column]
    ) -> FramePart:
        prefix = f"{what}/{type_name(kind)}"
        stored = {name: (f"{prefix}/{type_name(name)}", columns[name]) for name in names}
        return cls(kind, type_name(kind), prefix, stored)

    def with_places(self) -> FramePart:
        """Return the part with the places of the rows for its only column, if there are any rows."""
        if not self.columns:
            return self
        place = _PLACES[self.prefix.partition("/")[0]]
        return self._replace(columns={place: (f"{self.prefix}/{place}", Column("I64"))})

    def column_specs(self, count: int) -> Iterator[tuple[str, ArraySpec]]:
        return ((frame_name, column.spec(count)) for frame_name, column in self.columns.values())

    def want(self, rows: Int64Array, layout: Layout, buffer: Bytes, *, distinct: bool) -> GatherRequest:
        """Return what the columns need. Those of rows without bytes are complete already."""
        filled = {name: each for name, each in self.columns.items() if each[1].row_bytes}
        out = [as_rows(layout.view(buffer, name), column.row_bytes) for name, column in filled.values()]
        return GatherRequest(kind=self.kind, columns=tuple(filled), rows=rows, distinct=distinct, out=out)


@dataclass(frozen=True, slots=True)
class FrameSchema:
    """The arrays of the frames of a plan, whole or without rows."""

    plan: SamplingPlan
    nodes: tuple[FramePart, ...]
    edges: tuple[FramePart, ...]

    @classmethod
    def whole(cls, schema: GraphSchema, plan: SamplingPlan) -> FrameSchema:
        """Return the shape of complete frames."""
        nodes = (
            FramePart.of("node", each, plan.node_columns.get(each, ()), found.columns)
            for each, found in schema.nodes.items()
        )
        edges = (
            FramePart.of("edge", each, plan.edge_columns.get(each, ()), found.columns)
            for each, found in schema.edges.items()
            if each in plan.num_neighbors
        )
        return cls(plan, tuple(nodes), tuple(edges))

    def without_rows(self) -> FrameSchema:
        """Return the shape of skeletons: ``position`` or ``slot`` (I64) stand for all columns of a type."""
        return replace(
            self,
            nodes=tuple(part.with_places() for part in self.nodes),
            edges=tuple(part.with_places() for part in self.edges),
        )

    def layout(self, counts: FrameCounts) -> Layout:
        """Return the layout of a frame with so many of everything."""
        seeds = ArraySpec("I64", (counts.num_seeds,))
        specs = {"seeds": seeds, "input_id": seeds}
        for part in self.nodes:
            count = sum(counts.num_nodes[part.name])
            specs[f"{part.prefix}/n_id"] = ArraySpec("I64", (count,))
            specs.update(part.column_specs(count))
        for part in self.edges:
            count = sum(counts.num_edges[part.name])
            specs[f"{part.prefix}/rows"] = ArraySpec("I32", (count,))
            specs[f"{part.prefix}/colptr"] = ArraySpec("I64", (counts.num_targets[part.name] + 1,))
            if self.plan.with_edge:
                specs[f"{part.prefix}/e_id"] = ArraySpec("I64", (count,))
            specs.update(part.column_specs(count))
        metadata = {
            "epoch": str(counts.epoch),
            "batch": str(counts.batch),
            "seed_type": json.dumps(type_name(self.plan.seed_type)),
            "num_sampled_nodes": json.dumps(dict(counts.num_nodes)),
            "num_sampled_edges": json.dumps(dict(counts.num_edges)),
        }
        return Layout.plan(specs, metadata)
