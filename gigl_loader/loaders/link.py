"""Batches of sampled neighbourhoods around links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from typing_extensions import Unpack

from gigl_loader.loaders.arguments import LoaderOptions, flag, khop_arguments, sampler_arguments
from gigl_loader.loaders.base import BaseDistLoader, Dataset
from gigl_loader.loaders.collate import Collator
from gigl_loader.loaders.link_labels import LinkLabels
from gigl_loader.loaders.links import InputLinks, LinkDirectory, SeedLinks, read_seed_links
from gigl_loader.loaders.negative_sampling import NegativeSampling, read_negatives
from gigl_loader.loaders.times import read_times
from gigl_loader.options import EdgeType
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.plan import BatchPlan, SamplerOptions
from gigl_loader.sampling.plans.link import NOT_STRICT, TOO_LATE, LinkPlan
from gigl_loader.sampling.plans.neighbor import KHopNeighborSamplerOptions

if TYPE_CHECKING:
    from torch_geometric.sampler.base import SubgraphType

    from gigl_loader.loaders.transfer import FrameTensors

__all__ = ["DistLinkNeighborLoader"]


class DistLinkNeighborLoader(BaseDistLoader):
    """K-hop neighbourhoods of the ends of links, as PyG ``Data`` or ``HeteroData``. Names are PyG's.

    Batches have the nodes, edges and columns of :class:`DistNeighborLoader`, around the distinct ends of M
    links and their negatives, and besides:

    - without negatives: ``edge_label_index`` (int64 [2, M], local nodes, row 0 = source) and, where labels
      were given, ``edge_label`` [M];
    - binary: ``edge_label_index`` [2, M + J], the links first, then the J negatives, and ``edge_label``
      [M + J]: 1 for links (or the labels that were given, plus 1), 0 for negatives;
    - triplet: ``src_index`` [M], ``dst_pos_index`` [M] and ``dst_neg_index`` ([M], or [M, amount]);
    - ``input_id`` [M]: place of each link in the input; ``edge_label_time`` where times were given.

    In a heterogeneous batch, ``edge_label_index``, ``edge_label``, ``edge_label_time`` and ``input_id`` are
    those of the links' edge type, ``src_index`` of its source type, the others of its destination type.
    ``stats()`` has ``negatives_not_strict`` and ``negatives_too_late``.
    """

    def __init__(
        self,
        dataset: Dataset,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        edge_label_index: InputLinks = None,
        *,
        edge_label: torch.Tensor | None = None,
        edge_label_time: torch.Tensor | None = None,
        neg_sampling: NegativeSampling | Mapping[str, Any] | str | None = None,
        exclude_targets: bool = False,
        reverse_edge_types: Mapping[EdgeType, EdgeType] | None = None,
        replace: bool = False,
        with_edge: bool | None = None,
        weight_attr: str | None = None,
        disjoint: bool = False,
        time_attr: str | None = None,
        temporal_strategy: Literal["uniform", "last"] = "uniform",
        subgraph_type: str | SubgraphType = "directional",
        sampler_options: SamplerOptions = KHopNeighborSamplerOptions(),  # noqa: B008 - a frozen value
        **options: Unpack[LoaderOptions],
    ) -> None:
        """Check the arguments, then start the sampling processes.

        ``num_neighbors``
            Neighbours per hop, for every edge type or by edge type: -1 takes all, 0 skips the type.
        ``edge_label_index``
            Links as node ids, integers [2, M], row 0 = source, or as texts, by which tables named the nodes;
            the name of a split of edges; an edge type for all of its edges; a pair of an edge type and links,
            or a split; ``None`` for all edges of a graph with one edge type. Links need not be edges of the
            graph.
        ``edge_label``
            A label for each link, [M, ...]. With binary negatives, labels are integers or floats from 0 on:
            1 is added to each, and negatives have 0. Not for triplets.
        ``edge_label_time``
            A time for each link, [M]. Negatives have the time of their link. Without ``time_attr``, times are
            handed on alone.
        ``neg_sampling``
            ``"binary"``, ``"triplet"``, or a :class:`NegativeSampling` (PyG's, too, or a dict of fields).
        ``exclude_targets``
            Remove from each batch the sampled edges that are one of its links, so that a model does not see
            what it is to predict; parallel edges too. Other edges are drawn as without it.
        ``reverse_edge_types``
            With ``exclude_targets``: for the links' edge type, the type that holds the same edges the other
            way round, which are removed, too. A graph of one edge type that holds both directions maps the
            type to itself.
        ``disjoint``
            Sample a tree of its own around every link, its ends and its negatives. ``batch`` is the number of
            the tree of every node.
        ``time_attr``, ``temporal_strategy``
            As for :class:`DistNeighborLoader`, by ``edge_label_time``, which is then needed. With times of
            nodes, the ends of negatives are drawn among nodes that are not later than their link; where there
            are none, among all, which ``stats()["negatives_too_late"]`` counts.
        ``replace``, ``with_edge``, ``weight_attr``, ``subgraph_type``
            As for :class:`DistNeighborLoader`.
        ``sampler_options``
            ``KHopNeighborSamplerOptions()`` or ``LaborSamplerOptions()``: only neighbourhoods go with links.
        ``options``
            Those of :class:`BaseDistLoader`. ``batch_size`` counts links.
        """
        self._edge_label_index = edge_label_index
        self._edge_label = edge_label
        self._edge_label_time = edge_label_time
        self._neg_sampling = neg_sampling
        self._exclude_targets = flag("exclude_targets", exclude_targets)
        self._reverse_edge_types = reverse_edge_types
        arguments = sampler_arguments(
            num_neighbors,
            replace=replace,
            with_edge=with_edge,
            weight_attr=weight_attr,
            disjoint=disjoint or time_attr is not None,
            time_attr=time_attr,
            temporal_strategy=temporal_strategy,
            subgraph_type=subgraph_type,
        )
        self._sampling = khop_arguments(arguments, sampler_options, "links")
        self._counted = dict.fromkeys((NOT_STRICT, TOO_LATE), 0)
        super().__init__(dataset, **options)

    def read_input(self) -> SeedLinks:
        """Return the links of an epoch. Called once, first."""
        links = self._links_of(self._edge_label_index)
        self._negatives = read_negatives(self._neg_sampling, self.dataset.schema, links.edge_type)
        self._labels = LinkLabels.read(
            self._edge_label, self._edge_label_time, num_links=len(links.src), negatives=self._negatives
        )
        if self._sampling.time_attr is None:
            return links
        if self._edge_label_time is None:
            raise ValueError("time_attr needs edge_label_time, the time of each link")
        times = read_times("edge_label_time", self._edge_label_time, count=len(links.src))
        return links.with_times(times)

    def sampling_plan(self, seed_type: Any, run_seed: int) -> BatchPlan:
        """Return which subgraph belongs to a batch. ``seed_type`` is the edge type of the links."""
        schema = self.dataset.schema
        excluded, excluded_reverse = self._excluded(seed_type)
        plan = LinkPlan(
            edge_type=seed_type,
            hops=KHop.of(schema, self._sampling),
            negatives=self._negatives,
            excluded=excluded,
            excluded_reverse=excluded_reverse,
        )
        plan.check_excluded()
        return BatchPlan(sampler=plan, run_seed=run_seed, columns=self.columns)

    def collate(self, tensors: FrameTensors) -> Any:
        """Return ``Data`` or ``HeteroData``. A subclass may extend it."""
        plan = cast("LinkPlan", self.plan.sampler)
        for name, count in tensors.frame.counters.items():
            self._counted[name] += count
        return self._labels.attach(self._collator(tensors), tensors, plan)

    def sample(self, nodes: Any, *, epoch: int | None = None, time: Any = None) -> Any:
        """Return the batch of links by themselves: see :meth:`BaseDistLoader.sample`.

        The labels and times that the loader was given belong to other links: such a batch has none of them.
        """
        of_input, self._labels = self._labels, LinkLabels()
        try:
            return super().sample(nodes, epoch=epoch, time=time)
        finally:
            self._labels = of_input

    def stats(self) -> dict[str, Any]:
        """Return the counters of every loader, and those of negatives in the batches made so far.

        ``negatives_not_strict`` are edges though they should be none, ``negatives_too_late`` have an end that
        is later than their link.
        """
        return {**super().stats(), **self._counted}

    def _links_of(self, value: Any) -> SeedLinks:
        return read_seed_links(cast("LinkDirectory", self.dataset), value)

    def _input_of(self, value: Any) -> SeedLinks:
        return self._links_of((self._seeds.kind, value))

    def _excluded(self, edge_type: EdgeType) -> tuple[tuple[EdgeType, ...], tuple[EdgeType, ...]]:
        """Return the types of edges that are removed: those of links, and those of their reverses."""
        reverses = self._reverse_edge_types
        if reverses is not None and not isinstance(reverses, Mapping):
            raise TypeError(
                "reverse_edge_types must map an edge type to the one that holds its edges the other way "
                f"round, got {reverses!r}"
            )
        schema = self.dataset.schema
        for each in [*(reverses or {}).keys(), *(reverses or {}).values()]:
            if each not in schema.edges:
                listed = ", ".join(map(str, schema.edges))
                raise ValueError(f"reverse_edge_types has the unknown edge type {each}; known: {listed}")
        if not self._exclude_targets:
            return (), ()
        reverse = (reverses or {}).get(edge_type)
        return (edge_type,), () if reverse is None else (reverse,)

    @cached_property
    def _collator(self) -> Collator:
        return Collator.of(self.dataset.schema, self.plan, self._sampling)
