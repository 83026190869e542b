"""Plans and requests of batches, made in one call."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.native import batch_key
from gigl_loader.sampling.columns import ColumnPlan
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans.neighbor import NeighborPlan
from gigl_loader.sampling.request import SEED, BatchRequest
from gigl_loader.sampling.store import DrawRule

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from gigl_loader.options import EdgeType, NodeType


def neighbor_plan(
    *,
    run_seed: int = 0,
    node_columns: Mapping[NodeType, tuple[str, ...]] | None = None,
    edge_columns: Mapping[EdgeType, tuple[str, ...]] | None = None,
    **sampler: Any,
) -> BatchPlan:
    """Return the plan of a ``NeighborPlan`` with these fields."""
    columns = ColumnPlan(nodes=node_columns or {}, edges=edge_columns or {})
    return BatchPlan(sampler=NeighborPlan(**sampler), run_seed=run_seed, columns=columns)


def seed_request(
    epoch: int, batch: int, seeds: npt.NDArray[np.int64], index: npt.NDArray[np.int64] | None = None
) -> BatchRequest:
    """Return the request for a batch of these positions [B]."""
    return BatchRequest(epoch, batch, np.arange(len(seeds)) if index is None else index, {SEED: seeds})


def key_without_places(request: BatchRequest, run_seed: int, *node_ids: npt.NDArray[np.int64]) -> int:
    """Return the key of a request by draw specification 1."""
    return batch_key(run_seed, request.epoch, np.concatenate(node_ids))


def with_sampler(plan: BatchPlan, **changes: Any) -> BatchPlan:
    """Return a plan whose sampler plan has other fields."""
    sampler: Any = plan.sampler
    return replace(plan, sampler=replace(sampler, **changes))


def rule(**fields: Any) -> DrawRule:
    """Return a rule: uniform, 3 neighbours, without replacement, unless told otherwise."""
    return DrawRule(**{"fanout": 3, **fields})
