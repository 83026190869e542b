"""Batches of sampled neighbourhoods around anchors and their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
from typing_extensions import Unpack

from gigl_loader.graph.reverses import read_reverses
from gigl_loader.loaders.arguments import ColumnByType, Fanouts, LoaderOptions
from gigl_loader.loaders.base import BaseDistLoader
from gigl_loader.loaders.collate import Collator, seed_index
from gigl_loader.loaders.input_times import timed_input
from gigl_loader.loaders.inputs import SeedNodes, read_seed_nodes
from gigl_loader.loaders.leaks import ReverseWatch
from gigl_loader.loaders.neighbor import (
    attach_around,
    check_sampler_options,
    is_named,
    options_around,
    sampler_arguments,
)
from gigl_loader.options import EdgeType, flag, known_edge_type, whole_number
from gigl_loader.sampling.khop import KHop
from gigl_loader.sampling.plan import BatchPlan, SamplerOptions
from gigl_loader.sampling.plans.ablp import (
    NUM_ANCHORS,
    ABLPPlan,
    excluded_types,
    pair_arrays,
    random_array,
)
from gigl_loader.sampling.plans.neighbor import KHopNeighborSamplerOptions
from gigl_loader.sampling.request import SEED_TIME

if TYPE_CHECKING:
    from torch_geometric.sampler.base import SubgraphType

    from gigl_loader.graph.schema import LabelSign
    from gigl_loader.loaders.dataset import Dataset
    from gigl_loader.loaders.neighbor import InputNodes, Times, Window
    from gigl_loader.loaders.transfer import FrameTensors

_SIGNS: tuple[LabelSign, ...] = ("positive", "negative")


class DistABLPLoader(BaseDistLoader):
    """K-hop neighbourhoods for anchor-based link prediction, as PyG ``Data`` or ``HeteroData``.

    Anchors and the nodes that supervision edges join them with, their labels, are seeds. Batches have the
    nodes, edges and columns of :class:`DistNeighborLoader`, and ``batch``, ``batch_size``, ``input_id`` and
    ``seed_index`` of the anchors alone. Besides:

    - ``y_positive``: int64 [2, P], row 0 the local anchor (0 .. number of distinct anchors - 1), row 1 the
      local label node in its type; by ascending anchor, and for each by ascending node id. A label that
      comes twice stays twice; an anchor without labels has no pair. With ``as_dict``, a dict of anchor to
      its labels [P of the anchor], with an entry for every anchor.
    - ``y_negative``: the same for hard negatives, where the graph has a label set with negatives.
    - ``random_negative_index``: int64 [r], local nodes of the labels' type, with ``num_random_negatives``.

    Where a list of several supervision types was given, each is a dict by type. Names are GiGL's.
    """

    def __init__(
        self,
        dataset: Dataset,
        num_neighbors: Fanouts | None,
        input_nodes: InputNodes = None,
        *,
        supervision_edge_type: EdgeType | Sequence[EdgeType] | None = None,
        max_labels_per_anchor: int | None = None,
        num_random_negatives: int = 0,
        as_dict: bool = False,
        exclude_targets: bool = True,
        reverse_edge_types: Mapping[EdgeType, EdgeType] | None = None,
        replace: bool = False,
        with_edge: bool | None = None,
        weight_attr: ColumnByType = None,
        disjoint: bool = False,
        time_attr: ColumnByType = None,
        input_time: Times | None = None,
        input_time_start: Times | None = None,
        time_window: Window | None = None,
        temporal_strategy: Literal["uniform", "last", "monotone"] = "uniform",
        temporal_comparison: Literal["<", "<="] = "<=",
        subgraph_type: str | SubgraphType = "directional",
        sampler_options: SamplerOptions = KHopNeighborSamplerOptions(),  # noqa: B008 - a frozen value
        **options: Unpack[LoaderOptions],
    ) -> None:
        """Check the arguments, then start the sampling processes.

        ``disjoint``
            Sample a tree of its own around every anchor and its labels, and around each random negative.
            ``batch`` is the number of the tree of every node. Anchors that repeat stay repeated.
        ``time_attr``, ``input_time``, ``input_time_start``, ``time_window``, ``temporal_strategy``,
        ``temporal_comparison``
            As for :class:`DistNeighborLoader`: labels share the tree and the time of their anchor. Not with
            random negatives.
        ``num_neighbors``, ``replace``, ``with_edge``, ``weight_attr``, ``subgraph_type``
            As for :class:`DistNeighborLoader`.
        ``input_nodes``
            Anchors: node ids, a mask, a split or ``None``, as for :class:`DistNeighborLoader`; all of the
            source type of the supervision edges.
        ``supervision_edge_type``
            Supervision type, or several from one source type: ``(anchor type, relation, label type)``,
            outward, whatever the graph's ``edge_dir``. Labels are those of its label set (``labels`` of
            ``DistDataset.from_pyg``, ``gigl-loader partition --labels``), else the edges of the type. May be
            left out where the graph has one label set, or none and one edge type.
        ``max_labels_per_anchor``
            Keep so many labels of an anchor and type, drawn anew each epoch. ``None``: all.
        ``num_random_negatives``
            Nodes of each label type that are drawn for every batch, different while there are enough.
        ``as_dict``
            ``y_positive`` and ``y_negative`` as dicts of anchor to labels.
        ``exclude_targets``
            Remove the sampled edges of the supervision type, and of its reverses (``rev_...`` and
            ``reverse_edge_types``), that join an anchor with one of its labels in the batch, positive or
            negative. In a homogeneous graph, its edges in both directions.
        ``reverse_edge_types``
            With ``exclude_targets``: for a supervision type, the edge type that holds its edges the other way
            round, where it is neither declared nor called ``rev_...``. ``{}``: no type does, not even one
            that is called so, nor those of a homogeneous graph.
        ``sampler_options``
            Kind of sampler and its options: hops, ``LaborSamplerOptions()``, ``PPRSamplerOptions(...)`` or
            ``RandomWalkSamplerOptions(...)``. PageRank and walks start at each distinct seed: anchors, labels
            and random negatives. Batches have what those of :class:`DistNeighborLoader` have of them;
            ``walks`` has rows by local seed, and is a dict by node type where seeds of several types have
            walks. With ``exclude_targets``, PageRank passes nothing over the excluded edges, and walks end
            before them.
        ``options``
            Those of :class:`LoaderOptions`. ``batch_size`` counts anchors.
        """
        self._input_nodes = input_nodes
        self._supervision = supervision_edge_type
        self._reverse_edge_types = reverse_edge_types
        self._cap = (
            None
            if max_labels_per_anchor is None
            else whole_number("max_labels_per_anchor", max_labels_per_anchor, minimum=1)
        )
        self._num_random = whole_number("num_random_negatives", num_random_negatives, minimum=0)
        self._as_dict = flag("as_dict", as_dict)
        self._exclude_targets = flag("exclude_targets", exclude_targets)
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
            with_times=input_time is not None,
            with_starts=input_time_start is not None,
            subgraph_type=subgraph_type,
        )
        self._input_time, self._input_time_start = input_time, input_time_start
        self._sampling = arguments
        self._sampler_options = options_around(check_sampler_options(sampler_options), "labels of anchors")
        super().__init__(dataset, **options)

    def seed_nodes(self) -> SeedNodes:
        """Return the anchors of an epoch."""
        self._types, self._several = self._supervision_types()
        anchor_type = self._types[0][0]
        anchors = read_seed_nodes(self.dataset, self._input_nodes, node_type=anchor_type)
        if anchors.node_type != anchor_type:
            raise ValueError(
                f"anchors are nodes of type {anchors.node_type!r}, and {self._types[0]} leads from "
                f"{anchor_type!r}: supervision_edge_type is (anchor type, relation, label type)"
            )
        times = {"input_time": self._input_time, "input_time_start": self._input_time_start}
        return timed_input(anchors, unit=self._sampling.time_unit(self.dataset.schema), **times)

    def sampling_plan(self, seed_type: Any, run_seed: int) -> BatchPlan:
        """Return which subgraph belongs to a batch."""
        schema = self.dataset.schema
        known = {*schema.edges, *schema.label_types}
        given = read_reverses(known, schema.edges, self._reverse_edge_types, "reverse_edge_types")
        seed_types = list(dict.fromkeys([self._types[0][0], *(each[2] for each in self._types)]))
        plan = ABLPPlan(
            supervision=tuple(self._types),
            hops=self._sampler_options.around(schema, seed_types, self._sampling),
            max_labels=self._cap,
            random_negatives=self._num_random,
            exclude=self._exclude_targets,
            reverses=tuple(sorted(pair for pair in (given or {}).items() if pair[0] in self._types)),
            without_reverses=given == {},
            with_times=self._sampling.with_times,
        )
        plan.check(schema)
        return BatchPlan(sampler=plan, run_seed=run_seed, columns=self.columns)

    def collate(self, tensors: FrameTensors) -> Any:
        """Return ``Data`` or ``HeteroData``. A subclass may extend it."""
        plan = cast("ABLPPlan", self.plan.sampler)
        self._watch_labels(tensors)
        schema = self.dataset.schema
        batch = attach_around(self._collator(tensors), tensors, plan.hops, plan.seed_types, schema)
        count = tensors.frame.counters[NUM_ANCHORS]
        anchor_type = self._types[0][0]
        seeds, node_ids = tensors.tensor("seeds"), tensors.of_nodes(anchor_type, "n_id")
        store = batch if self.dataset.schema.homogeneous else batch[anchor_type]
        store.batch_size = count
        store.input_id = tensors.tensor("input_id")
        if not self._sampling.disjoint:  # There, nodes have the numbers of their trees.
            store.batch = seeds
        store.seed_index = seed_index(seeds, node_ids[:count])
        if self._sampling.time_attr is not None:
            store.seed_time = tensors.tensor(SEED_TIME)
        for sign in _SIGNS:
            found = {
                each: self._pairs(tensors, each, sign, count)
                for each in self._types
                if sign in self.dataset.schema.label_lists(each)
            }
            if found:
                batch[f"y_{sign}"] = found if self._several else found[self._types[0]]
        if self._num_random:
            randoms = {each: _local(tensors, random_array(each)) for each in self._types}
            batch.random_negative_index = randoms if self._several else randoms[self._types[0]]
        return batch

    def _pairs(self, tensors: FrameTensors, edge_type: EdgeType, sign: LabelSign, num_anchors: int) -> Any:
        names = pair_arrays(edge_type, sign)
        labels = _local(tensors, names.labels)
        if not self._as_dict:
            return torch.stack([_local(tensors, names.anchors), labels])
        # On the host, which has the frame, too: counting on the device would make the host wait.
        counts = np.bincount(tensors.frame.array(names.anchors), minlength=num_anchors)
        return dict(enumerate(torch.split(labels, counts.tolist())))

    def _watch_labels(self, tensors: FrameTensors) -> None:
        for each in self._types:
            for sign in self.dataset.schema.label_lists(each):
                names = pair_arrays(each, sign)
                anchors, labels = (tensors.frame.array(name) for name in names)
                self._watch.look(tensors.frame, each, anchors, labels)

    def _supervision_types(self) -> tuple[list[EdgeType], bool]:
        """Return the supervision types, ascending, and whether a list was given."""
        schema = self.dataset.schema
        given = schema.supervision_type if self._supervision is None else self._supervision
        several = isinstance(given, Sequence) and not isinstance(given, (str, tuple))
        listed: Any = given if several else [given]
        if isinstance(given, tuple) and given and isinstance(given[0], tuple):
            several, listed = True, list(given)
        if not listed:
            raise ValueError("supervision_edge_type is empty: name at least one edge type")
        known = {*schema.edges, *schema.label_types}
        types = [known_edge_type(known, each, "supervision_edge_type") for each in listed]
        if len(set(types)) < len(types):
            raise ValueError(f"supervision_edge_type names a type twice: {types}")
        sources = {each[0] for each in types}
        if len(sources) > 1:
            raise ValueError(f"supervision types lead from several node types: {', '.join(sorted(sources))}")
        return sorted(types), several and len(types) > 1

    @cached_property
    def _watch(self) -> ReverseWatch:
        """Looks for reverses of labels, unless the user said which edge types hold them."""
        schema, plan = self.dataset.schema, cast("ABLPPlan", self.plan.sampler)
        told = {each for each, _ in plan.reverses}
        is_watched = plan.exclude and not plan.without_reverses and isinstance(plan.hops, KHop)
        excluded = {
            each: [kind for kind, turned in excluded_types(schema, plan, each) if turned]
            for each in self._types
            if is_watched and each not in told
        }
        return ReverseWatch(self.name, schema, cast("KHop", plan.hops), excluded)

    @cached_property
    def _collator(self) -> Collator:
        return Collator.of(self.dataset.schema, self.plan, self._sampling)


def _local(tensors: FrameTensors, name: str) -> torch.Tensor:
    return tensors.tensor(name).to(torch.int64)
