"""A small valid frame that tests bend, and a reader that touches all of one."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from gigl_loader.graph.schema import Column, EdgeSchema, GraphSchema, NodeSchema
from gigl_loader.tensors import Layout, spec_of
from tests.support.plans import neighbor_plan

if TYPE_CHECKING:
    from gigl_loader.channel.frame import Frame
    from gigl_loader.sampling.frame_schema import FrameSchema

EdgeDir = Literal["in", "out"]
_EDGE_TYPE = ("item", "buys+back", "user")


class Draft:
    """Two users and one more, two items, three edges from items to the first two users; three seeds."""

    def __init__(self) -> None:
        edge = "edge/item+buys%2Bback+user"
        self.arrays: dict[str, npt.NDArray[Any]] = {
            "seeds": np.array([70, 71, 70]),
            "input_id": np.array([5, 6, 7]),
            "node/user/n_id": np.array([70, 71, 72]),
            "node/item/n_id": np.array([1, 2]),
            "node/item/x": np.arange(6, dtype=np.float32).reshape(2, 3),
            f"{edge}/rows": np.array([0, 1, 1], np.int32),
            f"{edge}/colptr": np.array([0, 2, 3]),
            f"{edge}/e_id": np.array([8, 9, 10]),
            f"{edge}/w": np.array([True, False, True]),
        }
        self.metadata: dict[str, Any] = {
            "epoch": 3,
            "batch": 14,
            "seed_type": "user",
            "num_sampled_nodes": {"user": [2, 1], "item": [0, 2]},
            "num_sampled_edges": {"item+buys%2Bback+user": [3]},
        }
        self.texts: dict[str, str] = {}
        """Metadata that is written as it is."""

    def layout(self) -> Layout:
        metadata = {key: json.dumps(value) for key, value in self.metadata.items()} | self.texts
        return Layout.plan({name: spec_of(array) for name, array in self.arrays.items()}, metadata)

    def buffer(self) -> npt.NDArray[np.uint8]:
        layout = self.layout()
        buffer = np.zeros(layout.nbytes, np.uint8)
        buffer[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
        for name, array in self.arrays.items():
            layout.view(buffer, name)[...] = array
        return buffer

    def parse(self, *, edge_dir: EdgeDir = "in") -> Frame:
        return frame_schema(edge_dir).parse(self.buffer())


@functools.cache
def frame_schema(edge_dir: EdgeDir = "in") -> FrameSchema:
    """Return the schema that the draft fits."""
    nodes = {
        "user": NodeSchema(count=100, bounds=(0, 100), columns={}, splits={}),
        "item": NodeSchema(count=9, bounds=(0, 9), columns={"x": Column("F32", (3,))}, splits={}),
    }
    edges = {_EDGE_TYPE: EdgeSchema(count=20, wide_indices=False, columns={"w": Column("BOOL")})}
    schema = GraphSchema(edge_dir=edge_dir, homogeneous=False, nodes=nodes, edges=edges, num_partitions=1)
    plan = neighbor_plan(
        seed_type="user",
        num_neighbors={_EDGE_TYPE: (-1,)},
        with_edge=True,
        node_columns={"item": ("x",)},
        edge_columns={_EDGE_TYPE: ("w",)},
    )
    return plan.frame(schema)


def read_everything(frame: Frame, *, edge_dir: str = "in") -> None:
    """Use all of a frame as a collate step would, without checks of its own."""
    for name in frame.names:
        frame.array(name).tobytes()
    for edge_type, counts in frame.num_sampled_edges.items():
        source, _, destination = edge_type.split("+")
        ends = (source, destination) if edge_dir == "in" else (destination, source)
        neighbors, targets = (frame.array(f"node/{end}/n_id") for end in ends)
        rows, colptr = (frame.array(f"edge/{edge_type}/{name}") for name in ("rows", "colptr"))
        assert rows.min(initial=0) >= 0
        columns = np.repeat(np.arange(len(colptr) - 1), np.diff(colptr))
        assert len(neighbors[rows]) == len(targets[columns]) == sum(counts)
