"""Plan of random walks from seed nodes, and of the nodes that they visit most."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from gigl_loader.graph.schema import Column, type_name
from gigl_loader.options import known_edge_type, real_number, whole_number
from gigl_loader.sampling.frame_schema import FrameArray, FrameSchema
from gigl_loader.sampling.request import SEED, InputColumn
from gigl_loader.sampling.seeds import NodeSeeder
from gigl_loader.sampling.walk_sampler import MAX_STEPS, WalkSampler, visit_arrays, walk_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.plan import PlanFields, PlanSampler, SamplerArguments, SamplerContext

_LOCAL = Column("I32")


class WalkPath(NamedTuple):
    """The edge types that walks from seeds of one type follow."""

    seed_type: NodeType
    steps: tuple[EdgeType, ...]
    period: int = 1
    """Steps after which the path repeats. Visits count at these steps."""

    def node_types(self, schema: GraphSchema) -> list[NodeType]:
        """Return the node type before each step, and after the last."""
        return [self.seed_type, *(schema.neighbor_type(each) for each in self.steps)]

    def check(self, schema: GraphSchema) -> None:
        """Raise ``ValueError`` unless each step begins where the one before ended."""
        for here, edge_type in zip(self.node_types(schema), self.steps, strict=False):
            target = schema.target_type(edge_type)
            if target != here:
                raise ValueError(
                    f"walks follow lists of {edge_type} from nodes of type {target!r} to "
                    f"{schema.neighbor_type(edge_type)!r}, and would be at {here!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Walks:
    """Random walks from the seeds of a batch."""

    kind: ClassVar[str] = "walk"
    disjoint: ClassVar[bool] = False
    time_attr: ClassVar[str | None] = None
    time_window: ClassVar[None] = None
    with_starts: ClassVar[bool] = False

    paths: tuple[WalkPath, ...]
    """By node type of the seeds, ascending. Seeds of other types have no walks."""
    walks_per_seed: int
    p: float = 1.0
    q: float = 1.0
    top_k: int | None = None
    """Keep the most visited nodes in place of the walks."""

    def __post_init__(self) -> None:
        types = [each.seed_type for each in self.paths]
        if not types or types != sorted(set(types)):
            raise ValueError("walks have a path, one for each node type at which they start, ascending")
        for path in self.paths:
            if not 1 <= len(path.steps) <= MAX_STEPS:
                raise ValueError(f"walk_length must lie in [1, {MAX_STEPS}], got {len(path.steps)}")
            if not 1 <= path.period <= len(path.steps):
                raise ValueError(f"the path of {len(path.steps)} steps cannot repeat after {path.period}")
        if not 1 <= self.walks_per_seed < 2**20:
            raise ValueError(f"walks_per_seed must lie in [1, 2**20), got {self.walks_per_seed}")
        if self.top_k is not None and not 1 <= self.top_k < 2**31:
            raise ValueError(f"top_k must lie in [1, 2**31), got {self.top_k}")
        for name, value in (("p", self.p), ("q", self.q)):
            if not (math.isfinite(value) and 1e-6 <= value <= 1e6):
                raise ValueError(f"{name} must lie in [1e-6, 1e6], got {value}")
        if not self.p == self.q == 1 and any(len(set(path.steps)) > 1 for path in self.paths):
            raise ValueError("p and q are for walks over one edge type: leave them out with a metapath")

    def around_seeds(
        self,
        schema: GraphSchema,
        columns: ColumnPlan,
        *,
        computed: tuple[FrameArray, ...] = (),
        per_entry: bool = False,
        **of_plan: Any,
    ) -> FrameSchema:
        """Return the frames of a plan that walks so from the distinct seeds, or from each entry of a request.

        ``of_plan``: what else ``FrameSchema`` is to know.
        """
        arrays = (array for each in self.paths for array in self._arrays(schema, each, per_entry=per_entry))
        return FrameSchema.around_seeds(
            schema,
            columns,
            num_hops=1,
            edge_types=[],
            with_edge=False,
            computed=(*computed, *arrays),
            **of_plan,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "paths": [
                [each.seed_type, each.period, [list(step) for step in each.steps]] for each in self.paths
            ],
            **{name: getattr(self, name) for name in ("walks_per_seed", "p", "q", "top_k")},
        }

    @classmethod
    def read(cls, fields: PlanFields, paths: Sequence[WalkPath] | None = None) -> Walks:
        """Read the fields of a plan from outside. ``ValueError`` names the rule that is broken."""
        top_k = fields.take("top_k")
        p, q = fields.take("p"), fields.take("q")
        if top_k is not None and type(top_k) is not int:
            raise ValueError("top_k is a whole number or null")
        if type(p) not in (int, float) or type(q) not in (int, float):
            raise ValueError("p and q are numbers")
        walks = cls(
            paths=tuple(_read_paths(fields) if paths is None else paths),
            walks_per_seed=fields.whole("walks_per_seed"),
            p=float(p),
            q=float(q),
            top_k=top_k,
        )
        for each in walks.paths:
            each.check(fields.schema)
        return walks

    def _arrays(self, schema: GraphSchema, path: WalkPath, *, per_entry: bool) -> list[FrameArray]:
        names = tuple(map(type_name, path.node_types(schema)))
        if self.top_k is None:
            count = self.walks_per_seed * len(names) if per_entry else None
            return [FrameArray(walk_array(path.seed_type), _LOCAL, "computed", nodes=names, per_entry=count)]
        seed, node, share = visit_arrays(path.seed_type)
        return [
            FrameArray(seed, _LOCAL, "computed", indexes=type_name(path.seed_type)),
            FrameArray(node, _LOCAL, "computed", nodes=(names[path.period],), as_long_as=seed),
            FrameArray(share, Column("F32"), "computed", as_long_as=seed),
        ]


def _read_paths(fields: PlanFields) -> Iterator[WalkPath]:
    listed = fields.take("paths")
    for each in listed if isinstance(listed, list) else [None]:
        if not isinstance(each, list) or len(each) != 3 or type(each[1]) is not int:
            raise ValueError("paths are lists of a node type, a period and edge types")
        if not isinstance(each[0], str) or each[0] not in fields.schema.nodes:
            raise ValueError("paths start at node types of the graph")
        yield WalkPath(each[0], fields.listed_edge_types(each[2], "a path"), each[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkPlan:
    """Random walks from each entry of a request, nodes of one type. Fields are those of ``Walks``."""

    kind: ClassVar[str] = "walk"

    seed_type: NodeType
    path: tuple[EdgeType, ...]
    period: int = 1
    walks_per_seed: int
    p: float = 1.0
    q: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        _ = self.walks  # Checked at birth.

    @property
    def walks(self) -> Walks:
        return Walks(
            paths=(WalkPath(self.seed_type, self.path, self.period),),
            walks_per_seed=self.walks_per_seed,
            p=self.p,
            q=self.q,
            top_k=self.top_k,
        )

    @property
    def inputs(self) -> tuple[InputColumn, ...]:
        return (InputColumn(SEED, "I64", self.seed_type),)

    def frame(self, schema: GraphSchema, columns: ColumnPlan) -> FrameSchema:
        return self.walks.around_seeds(schema, columns, seed_type=self.seed_type, per_entry=True)

    def open(self, context: SamplerContext) -> PlanSampler:
        return WalkSampler(context, self.walks, NodeSeeder(context, self.seed_type), per_entry=True)

    def check_here(self) -> None:
        """Do nothing: the library has all that it takes."""

    def to_json(self) -> dict[str, Any]:
        rest = self.walks.to_json()
        del rest["paths"]
        return {
            "seed_type": self.seed_type,
            "path": [list(each) for each in self.path],
            "period": self.period,
            **rest,
        }

    @classmethod
    def from_json(cls, fields: PlanFields) -> WalkPlan:
        path = WalkPath(fields.node_type("seed_type"), fields.edge_types("path"), fields.whole("period"))
        return cls.of(Walks.read(fields, [path]))

    @classmethod
    def of(cls, walks: Walks) -> WalkPlan:
        """Return the plan of walks from seeds of one type."""
        [path] = walks.paths
        return cls(
            seed_type=path.seed_type,
            path=path.steps,
            period=path.period,
            walks_per_seed=walks.walks_per_seed,
            p=walks.p,
            q=walks.q,
            top_k=walks.top_k,
        )


@dataclass(frozen=True, slots=True)
class RandomWalkSamplerOptions:
    """Random walks from the seeds, along adjacency lists: in-edges backwards with ``edge_dir="in"``.

    Batches have ``walks``, int64 [B * walks_per_seed, walk_length + 1]: local nodes, the seed first, -1 after
    a dead end, the rows of a seed together. In a heterogeneous batch, column i has nodes of the type at which
    step i ends.

    With ``top_k``, they have instead the nodes that the walks of a seed visit most, as PinSAGE uses them
    (Ying et al. 2018): ``edge_index`` [2, E], row 0 the node, row 1 the seed, by descending share, ties by
    ascending node id, and ``edge_attr`` [E], float32, the share of all visits of the seed's walks. The start
    counts as no visit. In a heterogeneous batch they are of the type (node type, "walk", seed type).

    ``walk_length``, ``walks_per_seed``
        Steps of a walk, at most 253; walks from each entry of the input.
    ``p``, ``q``
        Return and in-out parameters of node2vec (Grover and Leskovec 2016), for walks over one edge type.
    ``metapath``
        Edge types of the steps, in order, repeated until ``walk_length``: each leads on from where the one
        before ended. Needed where there are several edge types. With ``top_k``, only nodes at which the
        metapath ends are counted. For seeds of several types (also anchors and labels), a mapping of node
        type to metapath has one for each; without it, all seeds of the type at which it begins have walks.
    ``top_k``
        How many nodes to keep of each seed.

    ``num_neighbors`` of the loader is ``None``; ``replace``, ``weight_attr``, ``time_attr`` and
    ``disjoint`` are refused.
    """

    walk_length: int
    walks_per_seed: int = 1
    p: float = 1.0
    q: float = 1.0
    metapath: Sequence[EdgeType] | Mapping[NodeType, Sequence[EdgeType]] | None = None
    top_k: int | None = None

    def plan(self, schema: GraphSchema, seed_type: NodeType, arguments: SamplerArguments) -> WalkPlan:
        return WalkPlan.of(self.around(schema, [seed_type], arguments))

    def around(
        self, schema: GraphSchema, seed_types: Sequence[NodeType], arguments: SamplerArguments
    ) -> Walks:
        for name in ("num_neighbors", "replace", "weight_attr", "disjoint", "time_attr"):
            if getattr(arguments, name):
                raise ValueError(
                    f"{name} has no meaning for random walks: leave it out (num_neighbors: None)"
                )
        if arguments.subgraph_type != "directional":
            raise ValueError("subgraph_type has no meaning for random walks: leave it out")
        length = whole_number("walk_length", self.walk_length, minimum=1)
        if length > MAX_STEPS:
            raise ValueError(f"walk_length must lie in [1, {MAX_STEPS}], got {length}")
        if isinstance(self.metapath, Mapping):
            unknown = [each for each in self.metapath if each not in seed_types]
            if unknown or not self.metapath:
                raise ValueError(
                    f"metapath by node type is for seeds of {', '.join(seed_types)}, got {unknown}"
                )
            paths = [_path(schema, each, self.metapath[each], length) for each in sorted(self.metapath)]
        else:
            first = _path(schema, seed_types[0], self.metapath, length)
            begins = {schema.target_type(first.steps[0]), seed_types[0]}
            paths = [first._replace(seed_type=each) for each in sorted(begins.intersection(seed_types))]
        for each in paths:
            each.check(schema)
        return Walks(
            paths=tuple(paths),
            walks_per_seed=whole_number("walks_per_seed", self.walks_per_seed, minimum=1),
            p=real_number("p", self.p),
            q=real_number("q", self.q),
            top_k=None if self.top_k is None else whole_number("top_k", self.top_k, minimum=1),
        )


def _path(
    schema: GraphSchema, seed_type: NodeType, given: Sequence[EdgeType] | None, length: int
) -> WalkPath:
    metapath = _metapath(schema, given)
    if length < len(metapath):
        raise ValueError(f"walk_length {length} is less than the {len(metapath)} steps of the metapath")
    steps = tuple(metapath[step % len(metapath)] for step in range(length))
    return WalkPath(seed_type, steps, len(metapath))


def _metapath(schema: GraphSchema, given: Sequence[EdgeType] | None) -> list[EdgeType]:
    known = ", ".join(map(str, schema.edges)) or "none"
    if given is None:
        if len(schema.edges) != 1:
            raise ValueError(f"walks need a metapath, a list of edge types, where there are several: {known}")
        return list(schema.edges)
    if not given:
        raise ValueError("metapath is empty: name at least one edge type")
    return [known_edge_type(schema.edges, each, "metapath") for each in given]
