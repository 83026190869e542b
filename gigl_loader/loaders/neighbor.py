"""Batches of sampled neighbourhoods around nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from typing_extensions import Unpack

from gigl_loader.graph.schema import NodeType
from gigl_loader.loaders.arguments import ColumnByType, Fanouts, LoaderOptions
from gigl_loader.loaders.base import BaseDistLoader
from gigl_loader.loaders.collate import Collator
from gigl_loader.loaders.input_times import timed_input
from gigl_loader.loaders.inputs import SeedNodes
from gigl_loader.loaders.migration import check_fanouts
from gigl_loader.loaders.seeds_by_type import SeedsByType, attach_seeds, read_seeds
from gigl_loader.options import flag
from gigl_loader.sampling.khop import SUBGRAPH_TYPES
from gigl_loader.sampling.plan import BatchPlan, SamplerArguments, SamplerOptions
from gigl_loader.sampling.plans.neighbor import KHopNeighborSamplerOptions
from gigl_loader.sampling.plans.node_types import NodeTypesPlan
from gigl_loader.sampling.plans.ppr import PPR, PPRPlan
from gigl_loader.sampling.plans.walks import WalkPlan, Walks
from gigl_loader.sampling.ppr_sampler import ppr_arrays
from gigl_loader.sampling.walk_sampler import visit_arrays, walk_array

if TYPE_CHECKING:
    from torch_geometric.sampler.base import SubgraphType

    from gigl_loader.arrays import Values
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.dataset import Dataset
    from gigl_loader.loaders.transfer import FrameTensors
    from gigl_loader.sampling.plan import SamplerPlan
    from gigl_loader.sampling.plans.around import Around


def check_sampler_options(value: Any) -> SamplerOptions:
    """Return the options of a kind of sampler."""
    if isinstance(value, type) or not callable(getattr(value, "plan", None)):
        raise TypeError(
            "sampler_options must be options of a kind of sampler, such as KHopNeighborSamplerOptions() or "
            f"CustomSamplerOptions(...), got {value!r}"
        )
    return value  # type: ignore[no-any-return]


def sampler_arguments(
    num_neighbors: Any,
    *,
    replace: Any,
    with_edge: Any,
    weight_attr: Any,
    disjoint: Any,
    time_attr: Any = None,
    temporal_strategy: Any = "uniform",
    temporal_comparison: Any = "<=",
    time_window: Any = None,
    with_times: bool = False,
    with_starts: bool = False,
    subgraph_type: Any = "directional",
) -> SamplerArguments:
    """Return the arguments that say how neighbours are drawn; sampler options check the rest of them."""
    weight_attr, time_attr = (each if is_named(each) else None for each in (weight_attr, time_attr))
    check_fanouts(num_neighbors)
    given = {
        "input_time": with_times,
        "input_time_start": with_starts,
        "time_window": time_window is not None,
    }
    for name in (name for name, is_given in given.items() if is_given and time_attr is None):
        raise ValueError(f"{name} has no meaning without time_attr, the column that it bounds")
    return SamplerArguments(
        num_neighbors=num_neighbors,
        replace=flag("replace", replace),
        with_edge=with_edge is None or flag("with_edge", with_edge),
        weight_attr=weight_attr,
        disjoint=flag("disjoint", disjoint),
        time_attr=time_attr,
        last=(strategy := _strategy(temporal_strategy, time_attr)) == "last",
        monotone=strategy == "monotone",
        strictly_earlier=_is_strict(temporal_comparison, time_attr),
        time_window=time_window,
        with_times=with_times,
        with_starts=with_starts,
        subgraph_type=_subgraph_type(subgraph_type),
    )


def is_named(columns: Any) -> bool:
    """Return whether ``weight_attr`` or ``time_attr`` names a column. An empty mapping names none."""
    return columns is not None and not (isinstance(columns, Mapping) and not columns)


def _strategy(strategy: Any, time_attr: Any) -> str:
    if strategy not in ("uniform", "last", "monotone"):
        raise ValueError(f"temporal_strategy must be 'uniform', 'last' or 'monotone', got {strategy!r}")
    if strategy != "uniform" and time_attr is None:
        raise ValueError(
            f"temporal_strategy {strategy!r} needs time_attr, the column that says what is later"
        )
    return str(strategy)


def _is_strict(comparison: Any, time_attr: Any) -> bool:
    if comparison not in ("<", "<="):
        raise ValueError(f"temporal_comparison must be '<=' or '<', got {comparison!r:.200}")
    if comparison == "<" and time_attr is None:
        raise ValueError("temporal_comparison '<' needs time_attr, the column that it compares")
    return bool(comparison == "<")


def _subgraph_type(value: Any) -> str:
    """Return the name of a type of subgraphs, also of a ``SubgraphType`` of PyG."""
    name = getattr(value, "value", value)
    if not isinstance(name, str) or name not in SUBGRAPH_TYPES:
        raise ValueError(f"subgraph_type must be one of {', '.join(SUBGRAPH_TYPES)}, got {value!r:.200}")
    return name


def khop_arguments(arguments: SamplerArguments, options: Any, what: str) -> SamplerArguments:
    """Return the arguments with what the sampler options say of hops.

    ``ValueError`` for options of a sampler that only nodes are sampled by.
    """
    if not isinstance(check_sampler_options(options), KHopNeighborSamplerOptions):
        raise ValueError(
            f"{options!r} samples around nodes: {what} need KHopNeighborSamplerOptions() or "
            "LaborSamplerOptions()"
        )
    return replace(arguments, draw=options.draw)


def options_around(options: Any, what: str) -> Any:
    """Return sampler options that sample around seeds of several types.

    ``ValueError`` for those of a kind that samples around nodes of one type.
    """
    if not callable(getattr(options, "around", None)):
        raise ValueError(
            f"{options!r} samples around nodes of one type: {what} need KHopNeighborSamplerOptions(), "
            "LaborSamplerOptions(), PPRSamplerOptions() or RandomWalkSamplerOptions()"
        )
    return options


def attach_ppr(
    batch: Any, tensors: FrameTensors, ppr: PPR, seed_types: Sequence[NodeType], schema: GraphSchema
) -> Any:
    """Return ``batch`` with the edges from each seed to its neighbours, their scores and their hops."""
    for seed_type in seed_types:
        for node_type in ppr.reached_types(schema, seed_type):
            names = ppr_arrays(seed_type, node_type, max(len(ppr.channels), 1))
            store = batch if schema.homogeneous else batch[seed_type, "ppr", node_type]
            ends = [tensors.tensor(names.seed), tensors.tensor(names.node)]
            store.edge_index = torch.stack(ends).to(torch.int64)
            scores, hops = (
                torch.stack([tensors.tensor(each) for each in of_channels], dim=1)
                for of_channels in (names.scores, names.hops)
            )
            present = (hops >= 0).to(scores.dtype)
            closeness = present / (1 + hops.clamp(min=0)).to(scores.dtype)
            store.edge_attr = torch.cat([scores, closeness], dim=1)
            if ppr.channels:
                best = torch.stack([scores.amax(1), closeness.amax(1)], dim=1)
                by_channel = torch.stack([scores, closeness, present], dim=2).flatten(1)
                store.edge_attr = torch.cat([best, by_channel], dim=1)
    return batch


def attach_walks(batch: Any, tensors: FrameTensors, walks: Walks, schema: GraphSchema) -> Any:
    """Return ``batch`` with its walks, or with the edges to the nodes that they visit most."""
    found = {}
    for path in walks.paths:
        if walks.top_k is None:
            rows = tensors.tensor(walk_array(path.seed_type)).to(torch.int64)
            found[path.seed_type] = rows.reshape(-1, len(path.steps) + 1)
            continue
        seed, node, share = map(tensors.tensor, visit_arrays(path.seed_type))
        node_type = path.node_types(schema)[path.period]
        store = batch if schema.homogeneous else batch[node_type, "walk", path.seed_type]
        store.edge_index, store.edge_attr = torch.stack([node, seed]).to(torch.int64), share
    if found:
        batch.walks = found if len(found) > 1 else next(iter(found.values()))
    return batch


def attach_around(
    batch: Any, tensors: FrameTensors, around: Around, seed_types: Sequence[NodeType], schema: GraphSchema
) -> Any:
    """Return ``batch`` with what PageRank or walks found around seeds of these types, where they did."""
    if isinstance(around, PPR):
        return attach_ppr(batch, tensors, around, seed_types, schema)
    return attach_walks(batch, tensors, around, schema) if isinstance(around, Walks) else batch


_Nodes: TypeAlias = "Values | Mapping[int, Any] | None"
InputNodes: TypeAlias = "_Nodes | tuple[NodeType, _Nodes] | Mapping[NodeType, _Nodes]"
Times: TypeAlias = "Values | Sequence[Any]"
"""Integers, or points in time of NumPy, pandas or ``datetime``."""
Window = int | timedelta | np.timedelta64 | tuple[Any, Any]


class DistNeighborLoader(BaseDistLoader):
    """K-hop neighbourhoods of seed nodes, as PyG ``Data`` or ``HeteroData``.

    Batches carry ``edge_index`` (row 0 = neighbour, row 1 = target), ``n_id`` (alias ``node``; seeds
    first), ``e_id`` (alias ``edge``; unless ``with_edge=False``), the rows of every column (``x``, ``y``,
    ``edge_attr``, ...), ``batch_size``, ``input_id``, ``batch``, ``seed_index``, ``num_sampled_nodes``
    and ``num_sampled_edges``. ``out[batch.seed_index]`` has one row for each entry of ``input_id``, also
    where seeds repeat. Sampling is that of GraphSAGE (Hamilton et al. 2017); names are PyG's.
    """

    def __init__(
        self,
        dataset: Dataset,
        num_neighbors: Fanouts | None,
        input_nodes: InputNodes = None,
        *,
        replace: bool = False,
        with_edge: bool | None = None,
        weight_attr: ColumnByType = None,
        disjoint: bool = False,
        time_attr: ColumnByType = None,
        input_time: Times | Mapping[NodeType, Times] | None = None,
        input_time_start: Times | Mapping[NodeType, Times] | None = None,
        time_window: Window | None = None,
        temporal_strategy: Literal["uniform", "last", "monotone"] = "uniform",
        temporal_comparison: Literal["<", "<="] = "<=",
        subgraph_type: str | SubgraphType = "directional",
        sampler_options: SamplerOptions = KHopNeighborSamplerOptions(),  # noqa: B008 - a frozen value
        **options: Unpack[LoaderOptions],
    ) -> None:
        """Check the arguments, then start the sampling processes.

        ``num_neighbors``
            Neighbours per hop, for every edge type or by edge type: -1 takes all, 0 skips the type. Types
            that a mapping leaves out are skipped; PyG's ``NumNeighbors`` may have a default for them.
            ``None`` where ``sampler_options`` are of a kind that has no fanouts. Wherever an edge type is
            given, its two ends will do if one type joins them.
        ``input_nodes``
            Node ids (1-D tensor, array or list) or the texts by which tables named the nodes, a boolean mask,
            the name of a split, ``None`` for all nodes, a pair of a node type and one of these, or a node
            type for all of its nodes. Graph store: also node ids by server rank, taken in their order. An
            input of nothing gives epochs of no batch, with a warning.
            A mapping of several node types to one of these each: batches have seeds of all types, in one
            order, and each type has ``batch_size``, ``input_id`` (in the input of the type), ``batch``,
            ``seed_index`` and ``seed_time`` of its own. ``input_time`` and ``input_time_start`` are then
            mappings, too.
        ``replace``
            Draw neighbours with replacement.
        ``with_edge``
            ``False`` leaves the ids of sampled edges out, which saves a read for each edge.
        ``weight_attr``
            Edge column by which neighbours are drawn, declared when the graph was built (``--weight``,
            ``from_pyg(weight_attr=)``) or by ``gigl-loader index``. Without replacement, each draw picks
            among the edges that are left in proportion to their weights. An edge of weight 0 is in no batch,
            also with fanout -1. Edge types without the column draw uniformly. A mapping names the column of
            each of some edge types, ``{buys: "amount", follows: "days"}``; others draw uniformly.
        ``disjoint``
            Sample a tree of its own around every seed: a node that two seeds reach is there twice, and
            ``batch`` is the number of the tree of every node, as PyG has it. Seeds that repeat stay repeated.
        ``time_attr``
            Node or edge column of integers, declared when the graph was built (``--time``,
            ``from_pyg(time_attr=)``) or by ``gigl-loader index``. In the tree around a seed with time ``t``,
            no edge, or no neighbour, has a later time, at any hop; types without the column are not bound.
            A mapping names the column of each of some node or edge types; others are not bound.
            Trees are disjoint, and the batch has ``seed_time``. ``stats()["seeds_without_past"]`` counts the
            seeds of batches in which no seed has an edge, or neighbour, that is early enough (in its window).
        ``input_time``
            Time of each seed, integers [N] or [N, 1]; needed for times of edges. By default, seeds have their
            own. Where the column has a unit (it was built from ``datetime64`` or timestamps), also
            ``datetime64`` of any unit, dates of pandas and ``datetime``; times without a zone count as UTC.
        ``time_window``
            How far back a tree reaches: in the tree around a seed with time ``t``, no edge, or neighbour, is
            earlier than ``t - time_window``. A number as the column has them, or a ``timedelta`` where it has
            a unit. A pair ``(first, last)`` of points in time instead: nothing is earlier than ``first``, or
            later than ``last`` or ``t``; seeds without a time have ``last``.
        ``input_time_start``
            Per seed [N], in place of ``time_window``: nothing in its tree is earlier.
        ``temporal_strategy``
            ``"uniform"`` draws among the neighbours that are early enough, ``"last"`` takes the latest.
            ``"monotone"`` draws as ``"uniform"``, and no edge is later than the edge by which its target was
            first reached; with times of nodes, no neighbour is later than the node whose neighbour it is.
        ``temporal_comparison``
            ``"<"``: what must not be later than a time must be earlier: than that of the seed, the last of a
            window, and, with ``"monotone"``, of the edge or node that led there. Windows keep their start,
            and seeds are in their trees whatever their own time.
        ``subgraph_type``
            Which edges a batch has: ``"directional"``, those that were drawn; ``"bidirectional"``, these and
            their reverses, with edge ids and columns, one edge for each pair of nodes and direction (a type
            between two node types needs its ``rev_`` type); ``"induced"``, all edges of the graph among the
            nodes, but of types whose fanouts are all 0. The nodes are the same. PyG's ``SubgraphType`` is
            taken, too. Batches that are not directional have no ``num_sampled_edges``. ``"induced"`` does not
            go with ``disjoint``.
        ``sampler_options``
            Kind of sampler and its options: k-hop neighbourhoods by default.
        ``options``
            Those of :class:`LoaderOptions`.
        """
        self._input_nodes = input_nodes
        self._sampler_options = check_sampler_options(sampler_options)
        self._sampling = sampler_arguments(
            num_neighbors,
            replace=replace,
            with_edge=with_edge,
            weight_attr=weight_attr,
            disjoint=disjoint,
            time_attr=time_attr,
            temporal_strategy=temporal_strategy,
            temporal_comparison=temporal_comparison,
            time_window=time_window,
            with_times=input_time is not None,
            with_starts=input_time_start is not None,
            subgraph_type=subgraph_type,
        )
        self._input_time, self._input_time_start = input_time, input_time_start
        super().__init__(dataset, **options)

    def seed_nodes(self) -> SeedNodes | SeedsByType:
        seeds = read_seeds(self.dataset, self._input_nodes)
        times = {"input_time": self._input_time, "input_time_start": self._input_time_start}
        return timed_input(seeds, unit=self._sampling.time_unit(self.dataset.schema), **times)

    def sampling_plan(self, seed_type: Any, run_seed: int) -> BatchPlan:
        schema, options = self.dataset.schema, self._sampler_options
        sampler: SamplerPlan
        if isinstance(seed_type, frozenset):
            types = sorted(seed_type)
            hops = options_around(options, "seeds of several node types").around(
                schema, types, self._sampling
            )
            sampler = NodeTypesPlan(seed_types=tuple(types), hops=hops, with_times=self._sampling.with_times)
            sampler.check(schema)
        else:
            sampler = options.plan(schema, seed_type, self._sampling)
        return BatchPlan(sampler=sampler, run_seed=run_seed, columns=self.columns)

    def collate(self, tensors: FrameTensors) -> Any:
        """Return ``Data`` or ``HeteroData``. A subclass may extend it."""
        batch = self._collator(tensors)
        plan = self.plan.sampler
        if isinstance(plan, NodeTypesPlan):
            batch = attach_seeds(batch, tensors, plan)
            return attach_around(batch, tensors, plan.hops, plan.seed_types, self.dataset.schema)
        if isinstance(plan, WalkPlan):
            return attach_walks(batch, tensors, plan.walks, self.dataset.schema)
        if isinstance(plan, PPRPlan):
            return attach_ppr(batch, tensors, plan, [plan.seed_type], self.dataset.schema)
        return batch

    @cached_property
    def _collator(self) -> Collator:
        return Collator.of(self.dataset.schema, self.plan, self._sampling)
