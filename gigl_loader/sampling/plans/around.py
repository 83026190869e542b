"""Neighbourhoods of seeds of several node types, for the plans that have such: hops, PageRank or walks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.neighbor_sampler import open_sampler
from gigl_loader.sampling.plans.ppr import PPR
from gigl_loader.sampling.plans.walks import Walks
from gigl_loader.sampling.ppr_sampler import PPRSampler
from gigl_loader.sampling.walk_sampler import WalkSampler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import NodeType
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.frame_schema import FrameSchema
    from gigl_loader.sampling.plan import PlanFields, PlanSampler, SamplerContext
    from gigl_loader.sampling.seeds import Seeder

Around: TypeAlias = "KHop | PPR | Walks"

_KINDS: Mapping[str, type[KHop | PPR | Walks]] = {"hops": KHop, PPR.kind: PPR, Walks.kind: Walks}


def around_frame(
    around: Around,
    schema: GraphSchema,
    columns: ColumnPlan,
    seed_types: Sequence[NodeType],
    **of_plan: Any,
) -> FrameSchema:
    """Return what the frames hold. ``of_plan``: what else ``FrameSchema`` is to know."""
    if isinstance(around, PPR):
        of_plan["seed_types"] = seed_types
    return around.around_seeds(schema, columns, **of_plan)


def open_around(
    context: SamplerContext,
    around: Around,
    seed_types: Sequence[NodeType],
    seeder: Seeder,
    *,
    per_entry: bool,
) -> PlanSampler:
    """Return a sampler. ``per_entry``: seeds that repeat have walks of their own."""
    if isinstance(around, PPR):
        return PPRSampler(context, around, seed_types, seeder)
    if isinstance(around, Walks):
        return WalkSampler(context, around, seeder, per_entry=per_entry)
    return open_sampler(context, around, seeder)


def around_json(around: Around) -> dict[str, Any]:
    """Return the fields as JSON values."""
    return {**around.to_json(), **({} if isinstance(around, KHop) else {"around": around.kind})}


def read_around(fields: PlanFields) -> Around:
    """Read the fields of a plan from outside. ``ValueError`` names the rule that is broken."""
    kind = fields.text("around", "hops")
    if kind not in _KINDS:
        raise ValueError(f"nothing is sampled by {kind[:100]!r}; known: {', '.join(_KINDS)}")
    return _KINDS[kind].read(fields)
