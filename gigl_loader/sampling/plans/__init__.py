"""Kinds of batches: one module each, and the reader of plans of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.sampling.plan import DEFAULT_KIND, BatchPlan, PlanFields
from gigl_loader.sampling.plans.ablp import ABLPPlan
from gigl_loader.sampling.plans.custom import CustomPlan
from gigl_loader.sampling.plans.link import LinkPlan
from gigl_loader.sampling.plans.neighbor import NeighborPlan
from gigl_loader.sampling.plans.node_types import NodeTypesPlan
from gigl_loader.sampling.plans.ppr import PPRPlan
from gigl_loader.sampling.plans.walks import WalkPlan

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.sampling.plan import SamplerPlan

__all__ = ["KINDS", "read_plan"]

KINDS: Mapping[str, type[SamplerPlan]] = {
    each.kind: each
    for each in (NeighborPlan, NodeTypesPlan, LinkPlan, ABLPPlan, WalkPlan, PPRPlan, CustomPlan)
}


def read_plan(
    text: str, schema: GraphSchema, *, allowed_samplers: Collection[str] | None = None
) -> BatchPlan:
    """Read ``BatchPlan.to_json()``. ``ValueError`` for anything that is no plan for this graph.

    ``allowed_samplers`` are the users' classes that may be imported: ``None`` for a plan of the same user.
    """
    fields = PlanFields(text, schema, allowed_samplers)
    kind = fields.text("kind", DEFAULT_KIND)
    if kind not in KINDS:
        raise ValueError(f"unknown kind of plan {kind[:100]!r}; known: {', '.join(sorted(KINDS))}")
    plan = BatchPlan(
        columns=fields.columns(), run_seed=fields.whole("run_seed"), sampler=KINDS[kind].from_json(fields)
    )
    fields.check_all_read()
    return plan
