"""Batches of sampled neighbourhoods around links."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from typing_extensions import Unpack

from gigl_loader.arrays import plain_values, tensor_of
from gigl_loader.graph.reverses import read_reverses, reverses_of
from gigl_loader.graph.schema import EdgeType
from gigl_loader.graph.times import in_unit
from gigl_loader.loaders.arguments import ColumnByType, Fanouts, LoaderOptions
from gigl_loader.loaders.base import BaseDistLoader
from gigl_loader.loaders.collate import Collator
from gigl_loader.loaders.input_times import timed_input
from gigl_loader.loaders.inputs import InputLinks, SeedLinks, read_seed_links
from gigl_loader.loaders.leaks import ReverseWatch
from gigl_loader.loaders.link_labels import LinkLabels
from gigl_loader.loaders.neighbor import is_named, khop_arguments, sampler_arguments
from gigl_loader.options import flag, real_number
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.negatives import MAX_AMOUNT, Negatives, NodeWeights
from gigl_loader.sampling.plan import BatchPlan, SamplerOptions
from gigl_loader.sampling.plans.custom import CustomSamplerOptions, UserCode
from gigl_loader.sampling.plans.link import GIVEN, NOT_STRICT, TOO_LATE, LinkPlan
from gigl_loader.sampling.plans.neighbor import KHopNeighborSamplerOptions

if TYPE_CHECKING:
    from torch_geometric.sampler.base import SubgraphType

    from gigl_loader.arrays import Values
    from gigl_loader.graph.schema import GraphSchema, NodeType
    from gigl_loader.loaders.dataset import Dataset, LinkDirectory, NodeDirectory
    from gigl_loader.loaders.neighbor import Times, Window
    from gigl_loader.loaders.transfer import FrameTensors


@dataclass(frozen=True, slots=True, eq=False)
class NegativeSampling:
    """How many negatives a link has, and how they are drawn. Names and meanings are PyG's, but ``strict``.

    Negatives are drawn anew in each epoch, as a function of the run seed, the epoch and the links of the
    batch.
    """

    mode: str = "binary"
    """``"binary"`` draws pairs of nodes, ``"triplet"`` other destinations for the source of each link."""
    amount: float = 1
    """Negatives per link: ``ceil(M * amount)`` for M links. A whole number for triplets."""
    src_weight: torch.Tensor | None = None
    """Weight of each node of the source type, by ascending node id, [N]. Triplets keep the sources of their
    links."""
    dst_weight: torch.Tensor | None = None
    """Weight of each node of the destination type, by ascending node id, [N]."""
    strict: bool = False
    """Draw again what is an edge of the links' type, up to 100 times. ``stats()["negatives_not_strict"]``
    counts negatives that are one nevertheless."""

    def __post_init__(self) -> None:
        """``TypeError`` and ``ValueError`` name the field and the rule that it breaks."""
        if self.mode not in ("binary", "triplet"):
            raise ValueError(f"mode of negative sampling must be 'binary' or 'triplet', got {self.mode!r}")
        amount = real_number("amount of negatives", self.amount)
        if not math.isfinite(amount) or not 0 < amount <= MAX_AMOUNT:
            raise ValueError(f"amount of negatives must be positive, at most {MAX_AMOUNT}, got {self.amount}")
        flag("strict", self.strict)


_FIELDS = tuple(each.name for each in fields(NegativeSampling))


def user_code(value: Any) -> UserCode | None:
    """Return the class or function that finds negatives, where ``neg_sampling`` is one.

    ``ValueError`` for one that no process can import by its name.
    """
    if isinstance(value, CustomSamplerOptions):
        return value.code
    return UserCode.named(value) if callable(value) and hasattr(value, "__qualname__") else None


def read_negatives(value: Any, schema: GraphSchema, edge_type: EdgeType) -> Negatives | None:
    """Return what ``neg_sampling`` stands for. ``TypeError`` and ``ValueError`` name the rule it breaks.

    Of links whose type is no edge type of the graph, all negatives are strict.
    """
    if value is None:
        return None
    given = _given(value)
    src_weight = _weights("src_weight", given.src_weight, schema, edge_type[0])
    return Negatives(
        mode="triplet" if given.mode == "triplet" else "binary",
        amount=float(given.amount),
        strict=bool(given.strict) and edge_type in schema.edges,
        src_weight=src_weight if given.mode == "binary" else None,
        dst_weight=_weights("dst_weight", given.dst_weight, schema, edge_type[2]),
    )


def with_negatives(
    links: SeedLinks, directory: LinkDirectory, given: Any, *, width: int | None = None
) -> SeedLinks:
    """Return links with node ids of their negatives' destinations, integers [M, K], -1 for none.

    ``width``: K, where it is fixed. ``TypeError`` and ``ValueError`` name the rule that is broken.
    """
    ids = tensor_of("given negatives", given).numpy()
    if ids.dtype.kind not in "iu":
        raise TypeError(f"given negatives must be integer node ids, got {ids.dtype}")
    count = len(links.src)
    if ids.ndim != 2 or len(ids) != count or not ids.shape[1] or width not in (None, ids.shape[1]):
        raise ValueError(
            f"given negatives must be [{count}, {width or 'K'}], a row for each link, got {list(ids.shape)}"
        )
    ids = np.ascontiguousarray(ids, np.int64)
    positions, there = np.full_like(ids, -1), ids != -1
    if there.any():
        try:
            positions[there] = directory.positions(links.edge_type[2], ids[there])
        except ValueError as error:
            raise ValueError(f"given negatives: {error}") from None
    return replace(links, negatives=positions, negative_ids=ids)


def _given(value: Any) -> NegativeSampling:
    if isinstance(value, NegativeSampling):
        return value
    if isinstance(value, str):
        return NegativeSampling(value)
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in _FIELDS]
        if unknown:
            raise ValueError(f"neg_sampling has no field {unknown[0]!r}; known: {', '.join(_FIELDS)}")
        return NegativeSampling(**value)
    mode = getattr(value, "mode", None)
    if mode is None or not hasattr(value, "amount"):
        raise TypeError(
            "neg_sampling must be None, 'binary', 'triplet', a NegativeSampling (of gigl_loader or PyG), a "
            f"dict of its fields, node ids [M, K] or CustomSamplerOptions(...), got {value!r:.200}"
        )
    return NegativeSampling(
        getattr(mode, "value", mode),
        value.amount,
        src_weight=getattr(value, "src_weight", None),
        dst_weight=getattr(value, "dst_weight", None),
    )


def _weights(name: str, value: Any, schema: GraphSchema, node_type: NodeType) -> NodeWeights | None:
    if value is None:
        return None
    weights = tensor_of(name, value)
    if not weights.is_floating_point():
        raise TypeError(f"{name} must be a float tensor, got {weights.dtype}")
    count = schema.nodes[node_type].count
    if weights.shape != (count,):
        raise ValueError(
            f"{name} needs one weight for each of the {count} nodes of type {node_type!r}, got shape "
            f"{tuple(weights.shape)}"
        )
    try:
        return NodeWeights(np.ascontiguousarray(weights.float().numpy()))
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


class DistLinkNeighborLoader(BaseDistLoader):
    """K-hop neighbourhoods of the ends of links, as PyG ``Data`` or ``HeteroData``. Names are PyG's.

    Batches have the nodes, edges and columns of :class:`DistNeighborLoader`, around the distinct ends of M
    links and their negatives, and also:

    - without negatives: ``edge_label_index`` (int64 [2, M], local nodes, row 0 = source) and, where labels
      were given, ``edge_label`` [M];
    - binary: ``edge_label_index`` [2, M + J], the links first, then the J negatives, and ``edge_label``
      [M + J]: 1 for links (or the labels that were given, plus 1 where the smallest of the input is 0), 0
      for negatives;
    - triplet: ``src_index`` [M], ``dst_pos_index`` [M] and ``dst_neg_index`` ([M], or [M, amount]; of given
      and custom negatives [M, K], with -1 for none);
    - ``input_id`` [M]: place of each link in the input; where times were given, ``edge_label_time``, and
      for triplets ``seed_time`` [M] in its place.

    In a heterogeneous batch, ``edge_label_index``, ``edge_label``, ``edge_label_time`` and ``input_id`` are
    attributes of the links' edge type, ``src_index`` of its source type, ``dst_...`` of its destination type,
    ``seed_time`` of triplets of both.
    ``stats()`` has ``negatives_not_strict`` and ``negatives_too_late``.
    """

    def __init__(
        self,
        dataset: Dataset,
        num_neighbors: Fanouts,
        edge_label_index: InputLinks = None,
        *,
        edge_label: Values | None = None,
        edge_label_time: Times | None = None,
        input_time_start: Times | None = None,
        neg_sampling: NegativeSampling
        | Mapping[str, Any]
        | str
        | Values
        | CustomSamplerOptions
        | Callable[..., Any]
        | None = None,
        exclude_targets: bool = False,
        reverse_edge_types: Mapping[EdgeType, EdgeType] | None = None,
        replace: bool = False,
        with_edge: bool | None = None,
        weight_attr: ColumnByType = None,
        disjoint: bool = False,
        time_attr: ColumnByType = None,
        time_window: Window | None = None,
        temporal_strategy: Literal["uniform", "last", "monotone"] = "uniform",
        temporal_comparison: Literal["<", "<="] = "<=",
        subgraph_type: str | SubgraphType = "directional",
        sampler_options: SamplerOptions = KHopNeighborSamplerOptions(),  # noqa: B008 - a frozen value
        **options: Unpack[LoaderOptions],
    ) -> None:
        """Check the arguments, then start the sampling processes.

        ``num_neighbors``
            As for :class:`DistNeighborLoader`.
        ``edge_label_index``
            Links as node ids, integers [2, M], row 0 = source, or as texts, by which tables named the nodes;
            the name of a split of edges; an edge type, or its two ends, for all of its edges; a pair of an
            edge type and links, or a split; ``None`` for all edges of a graph with one edge type. Links need
            not be edges of the graph, nor their type one of its edge types: any between two of its node types
            will do. An input of nothing gives epochs of no batch, with a warning.
        ``edge_label``
            A label for each link, [M, ...]. Binary negatives have the label 0, beside integers, floats or
            booleans. If the smallest label of the whole input is 0, 1 is added to each, as in PyG (booleans
            become int64); otherwise labels stay as they are. Not for triplets.
        ``edge_label_time``
            A time for each link, [M]. Negatives have the time of their link. Without ``time_attr``, times are
            handed on alone.
        ``neg_sampling``
            ``"binary"``, ``"triplet"``, or a :class:`NegativeSampling` (PyG's, too, or a dict of fields);
            node ids, integers [M, K], the destinations of the negatives of each link, -1 for none; or a class
            or function of the user that finds them, ``CustomSamplerOptions("package.module:name", ...)`` or
            itself. The last two give triplets.
        ``exclude_targets``
            Remove from each batch the sampled edges that are one of its links, so that a model does not see
            what it is to predict; parallel edges too. Other edges are drawn as without it.
        ``reverse_edge_types``
            With ``exclude_targets``: for the links' edge type, the type that holds the same edges the other
            way round, which are removed, too. A graph of one edge type that holds both directions maps the
            type to itself. By default, the declared reverse (``--reverse``, ``reverses`` of
            ``DistDataset.from_pyg``) and the types that are its reverse by the prefix ``rev_``; ``{}``: none.
            Links that a batch has the other way round nevertheless are warned about once.
        ``disjoint``
            Sample a tree of its own around every link, its ends and its negatives. ``batch`` is the number of
            the tree of every node.
        ``time_attr``, ``time_window``, ``input_time_start``, ``temporal_strategy``, ``temporal_comparison``
            As for :class:`DistNeighborLoader`, by ``edge_label_time``, which is then needed. Windows bound
            the neighbourhoods of links, not their negatives. With times of nodes, the ends of negatives are
            drawn among nodes that are not later than their link (with ``"<"``: that are earlier); where there
            are none, among all, which ``stats()["negatives_too_late"]`` counts.
        ``replace``, ``with_edge``, ``weight_attr``, ``subgraph_type``
            As for :class:`DistNeighborLoader`.
        ``sampler_options``
            ``KHopNeighborSamplerOptions()`` or ``LaborSamplerOptions()``: only neighbourhoods go with links.
        ``options``
            Those of :class:`LoaderOptions`. ``batch_size`` counts links.
        """
        self._edge_label_index = edge_label_index
        self._edge_label = edge_label
        self._edge_label_time = edge_label_time
        self._input_time_start = input_time_start
        self._neg_sampling = neg_sampling
        self._exclude_targets = flag("exclude_targets", exclude_targets)
        self._reverse_edge_types = reverse_edge_types
        arguments = sampler_arguments(
            num_neighbors,
            replace=replace,
            with_edge=with_edge,
            weight_attr=weight_attr,
            disjoint=disjoint or is_named(time_attr),
            time_attr=time_attr,
            temporal_strategy=temporal_strategy,
            temporal_comparison=temporal_comparison,
            time_window=time_window,
            with_starts=input_time_start is not None,
            subgraph_type=subgraph_type,
        )
        self._sampling = khop_arguments(arguments, sampler_options, "links")
        super().__init__(dataset, **options)

    def read_input(self) -> SeedLinks:
        """Return the links of an epoch. Called once, first."""
        links, given = self._links_of(self._edge_label_index), self._neg_sampling
        self._negatives, self._custom = None, user_code(given)
        if isinstance(plain_values("given negatives", given), (torch.Tensor, np.ndarray, list)):
            links = with_negatives(links, cast("LinkDirectory", self.dataset), given)
        elif self._custom is None:
            self._negatives = read_negatives(given, self.dataset.schema, links.edge_type)
        mode = None if given is None else "triplet" if self._negatives is None else self._negatives.mode
        unit = self._sampling.time_unit(self.dataset.schema)
        time = in_unit("edge_label_time", self._edge_label_time, unit)
        self._labels = LinkLabels.read(self._edge_label, time, num_links=len(links.src), mode=mode)
        if self._sampling.time_attr is None:
            return links
        if self._edge_label_time is None:
            raise ValueError("'edge_label_time' is not set: time_attr needs the time of each link")
        times = {"edge_label_time": time, "input_time_start": self._input_time_start}
        return timed_input(links, unit=unit, **times)

    def sampling_plan(self, seed_type: Any, run_seed: int) -> BatchPlan:
        """Return which subgraph belongs to a batch. ``seed_type`` is the edge type of the links."""
        schema = self.dataset.schema
        excluded, excluded_reverse = self._excluded(seed_type)
        plan = LinkPlan(
            edge_type=seed_type,
            hops=KHop.of(schema, self._sampling),
            negatives=self._negatives,
            given=0 if GIVEN not in self._seeds.columns else self._seeds.columns[GIVEN].shape[1],
            custom=self._custom,
            excluded=excluded,
            excluded_reverse=excluded_reverse,
        )
        plan.check_excluded()
        return BatchPlan(sampler=plan, run_seed=run_seed, columns=self.columns)

    def collate(self, tensors: FrameTensors) -> Any:
        """Return ``Data`` or ``HeteroData``. A subclass may extend it."""
        plan = cast("LinkPlan", self.plan.sampler)
        self._watch.look(tensors.frame, plan.edge_type, *map(tensors.frame.array, ("src", "dst")))
        return self._labels.attach(self._collator(tensors), tensors, plan)

    def sample(
        self,
        nodes: Any,
        *,
        epoch: int | None = None,
        time: Any = None,
        time_start: Any = None,
        negatives: Any = None,
    ) -> Any:
        """Return the batch of links by themselves: see :meth:`BaseDistLoader.sample`.

        The labels, times and negatives that the loader was given belong to other links: such a batch has none
        of them. ``negatives`` are those of these links, as for ``neg_sampling``, [M, K] with K as it was.
        """
        if negatives is not None and not cast("LinkPlan", self.plan.sampler).given:
            raise ValueError("negatives have no meaning here: the loader was given none with its links")
        of_input, self._labels, self._own_negatives = self._labels, LinkLabels(), negatives
        try:
            return super().sample(nodes, epoch=epoch, time=time, time_start=time_start)
        finally:
            self._labels, self._own_negatives = of_input, None

    def stats(self) -> dict[str, Any]:
        """Return the counters of every loader, and counters of negatives in the batches made so far.

        ``negatives_not_strict`` are edges though they should be none, ``negatives_too_late`` have an end that
        is not early enough for their link.
        """
        counted = self._pipeline.counted
        return {**super().stats(), **{name: counted[name] for name in (NOT_STRICT, TOO_LATE)}}

    def _links_of(self, value: Any) -> SeedLinks:
        return read_seed_links(cast("LinkDirectory", self.dataset), value)

    def _input_of(self, value: Any, directory: NodeDirectory, negatives: Any = None) -> SeedLinks:
        links = read_seed_links(cast("LinkDirectory", directory), (self._seeds.kind, value))
        width = cast("LinkPlan", self.plan.sampler).given
        if not width:
            return links
        given = self._own_negatives if negatives is None else negatives
        if given is None:
            given = np.full((len(links.src), width), -1)
        return with_negatives(links, cast("LinkDirectory", self.dataset), given, width=width)

    def _excluded(self, edge_type: EdgeType) -> tuple[tuple[EdgeType, ...], tuple[EdgeType, ...]]:
        """Return the edge types that are removed: the type of the links, and its reverses."""
        schema = self.dataset.schema
        given = read_reverses(
            {*schema.edges, edge_type}, schema.edges, self._reverse_edge_types, "reverse_edge_types"
        )
        self._reverses_are_told = given is not None and (edge_type in given or not given)
        reverses = reverses_of(edge_type, schema.edges, schema.reverses)
        if given is not None and self._reverses_are_told:
            reverses = tuple(given[each] for each in given if each == edge_type)
        self._reverses = reverses
        if not self._exclude_targets:
            return (), ()
        return (edge_type,) if edge_type in schema.edges else (), reverses

    @cached_property
    def _watch(self) -> ReverseWatch:
        """Looks for reverses of links, unless the user said which edge types hold them."""
        plan = cast("LinkPlan", self.plan.sampler)
        is_watched = self._exclude_targets and not self._reverses_are_told
        excluded = {plan.edge_type: plan.excluded_reverse} if is_watched else {}
        return ReverseWatch(self.name, self.dataset.schema, plan.hops, excluded)

    @cached_property
    def _collator(self) -> Collator:
        return Collator.of(self.dataset.schema, self.plan, self._sampling)
