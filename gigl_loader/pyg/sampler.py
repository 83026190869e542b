"""PyG's ``BaseSampler`` over a dataset: this library's sampling for PyG's loaders."""

from __future__ import annotations

import logging
import os
import secrets
from dataclasses import replace as replaced
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch_geometric.sampler import BaseSampler, HeteroSamplerOutput, SamplerOutput

from gigl_loader.graph.schema import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE
from gigl_loader.loaders import arguments
from gigl_loader.loaders.collate import Collator
from gigl_loader.loaders.dataset import check_dataset
from gigl_loader.loaders.input_times import read_times
from gigl_loader.loaders.inputs import link_type
from gigl_loader.loaders.link import read_negatives
from gigl_loader.loaders.neighbor import sampler_arguments
from gigl_loader.loaders.single_batches import SingleBatches
from gigl_loader.loaders.transfer import transfer_to
from gigl_loader.pyg.dataset import NodeIndex, check_pickled, check_process, close_at_exit
from gigl_loader.sampling.khop import KHop, reversed_edge_types
from gigl_loader.sampling.plan import BatchPlan
from gigl_loader.sampling.plans.link import LinkPlan
from gigl_loader.sampling.plans.neighbor import KHopNeighborSamplerOptions
from gigl_loader.sampling.request import SEED, SEED_TIME, TIME, BatchRequest
from gigl_loader.sampling.source import SourceRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
    from torch_geometric.sampler.base import SubgraphType
    from typing_extensions import Self

    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType
    from gigl_loader.loaders.arguments import ColumnByType
    from gigl_loader.loaders.dataset import Dataset
    from gigl_loader.loaders.transfer import FrameTensors
    from gigl_loader.pyg.dataset import PygDataset
    from gigl_loader.sampling.negatives import Negatives
    from gigl_loader.sampling.plan import SamplerArguments


def sampler_output(
    batch: Any, schema: GraphSchema, nodes: NodeIndex, metadata: tuple[Any, ...], hops: KHop
) -> SamplerOutput | HeteroSamplerOutput:
    """Return the nodes and edges of a batch (``Data`` or ``HeteroData``), as PyG's samplers do.

    Edges have the types and the direction of the graph: ``row`` is the source. ``disjoint`` batches tell the
    tree of each node. As PyG's, ``bidirectional`` heterogeneous ones have no edge ids: some edges of a type
    are those of its reverse.
    """
    edges_per_hop = getattr(batch, "num_sampled_edges", None)
    if schema.homogeneous:
        [node_type] = schema.nodes
        row, col = _ends(batch.edge_index, schema)
        return SamplerOutput(
            node=_index(nodes, node_type, batch.n_id),
            row=row,
            col=col,
            edge=batch.get("e_id"),
            batch=batch.batch if hops.disjoint else None,
            num_sampled_nodes=batch.num_sampled_nodes,
            num_sampled_edges=edges_per_hop,
            metadata=metadata,
        )
    types = _graph_types(schema)
    stores = {types[message_type]: batch[message_type] for message_type in batch.edge_types}
    ends = {edge_type: _ends(store.edge_index, schema) for edge_type, store in stores.items()}
    return HeteroSamplerOutput(
        node={kind: _index(nodes, kind, batch[kind].n_id) for kind in batch.node_types},
        row={edge_type: row for edge_type, (row, _) in ends.items()},
        col={edge_type: col for edge_type, (_, col) in ends.items()},
        edge={
            edge_type: None if hops.subgraph_type == "bidirectional" else store.get("e_id")
            for edge_type, store in stores.items()
        },
        batch={kind: batch[kind].batch for kind in batch.node_types} if hops.disjoint else None,
        num_sampled_nodes=dict(batch.num_sampled_nodes),
        num_sampled_edges=edges_per_hop and {types[kind]: counts for kind, counts in edges_per_hop.items()},
        metadata=metadata,
    )


def link_metadata(
    tensors: FrameTensors, negatives: Negatives | None, input_id: Any, label: torch.Tensor | None
) -> tuple[Any, ...]:
    """Return what PyG's samplers tell of the links of a batch.

    Without negatives, and with binary ones: input, local ends int64 [2, M + J], labels and times [M + J].
    With triplets: input, local sources [M], destinations [M], negatives [M] or [M, amount], times [M].
    """

    def local(name: str) -> torch.Tensor:
        return tensors.tensor(name).to(torch.int64)

    src, dst = local("src"), local("dst")
    times = seed_times(tensors)
    if negatives is None:
        return input_id, torch.stack([src, dst]), label, times
    negative_dst = local("neg_dst")
    if negatives.mode == "triplet":
        if negatives.amount > 1:  # Negative a * M + i belongs to link i.
            negative_dst = negative_dst.view(-1, len(src)).t().contiguous()
        return input_id, src, dst, negative_dst, times
    links = torch.stack([torch.cat([src, local("neg_src")]), torch.cat([dst, negative_dst])])
    positive = torch.ones(len(src)) if label is None else label
    labels = torch.cat([positive, positive.new_zeros((len(negative_dst), *positive.shape[1:]))])
    owners = torch.arange(links.shape[1]) % len(src)  # Negative j belongs to link j mod M.
    return input_id, links, labels, times if times is None else times[owners]


def seed_times(tensors: FrameTensors) -> torch.Tensor | None:
    """Return the time of each entry of a batch, int64 [B]; ``None`` where it is not drawn in time."""
    return tensors.tensor(SEED_TIME) if SEED_TIME in tensors.frame.layout.specs else None


def _index(nodes: NodeIndex, node_type: NodeType, node_ids: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(nodes.of_node_ids(node_type, node_ids.numpy()))


def _ends(edge_index: torch.Tensor, schema: GraphSchema) -> tuple[torch.Tensor, torch.Tensor]:
    """Return local sources and destinations. Row 0 of ``edge_index`` has neighbours, row 1 targets."""
    neighbors, targets = edge_index
    return (neighbors, targets) if schema.edge_dir == "in" else (targets, neighbors)


def _graph_types(schema: GraphSchema) -> dict[EdgeType, EdgeType]:
    """Return the type in the graph of each edge type of a batch."""
    if schema.edge_dir == "in":
        return {edge_type: edge_type for edge_type in schema.edges}
    return {message: edge_type for edge_type, message in reversed_edge_types(schema.edges).items()}


class PlanBatches:
    """Batches of one plan, of any input. The source opens with the first one. Thread-safe."""

    def __init__(
        self, dataset: PygDataset, plan: BatchPlan, asked: SamplerArguments, *, timeout_s: float
    ) -> None:
        self.plan = plan
        self.collate = Collator.of(dataset.schema, plan, asked)
        """Makes ``Data`` or ``HeteroData`` of the tensors of a batch."""
        self._transfer = transfer_to(torch.device("cpu"), non_blocking=True)
        request = SourceRequest.single(plan, name="GiglSampler", timeout_s=timeout_s)
        self._single = SingleBatches(dataset.open_source, request)

    def draw(self, columns: Mapping[str, Int64Array], places: Any, epoch: int) -> FrameTensors:
        """Return the batch of an input, which has the columns of the plan, int64 [B] each.

        It equals the batch that a loader of this plan makes of these entries in ``epoch``. ``places``:
        integers [B], where the entries stand in the loader's input; ``None`` for 0 to B - 1.
        """
        count = len(next(iter(columns.values())))
        index = np.arange(count) if places is None else np.asarray(places, np.int64)
        return self._transfer.load(self._single.receive(BatchRequest(epoch, 0, index, columns)))

    def close(self) -> None:
        """Close the source. Closing twice is fine."""
        self._single.close()


logger = logging.getLogger(__name__)


class GiglSampler(BaseSampler):  # type: ignore[misc]  # PyG is not typed.
    """Samples for ``torch_geometric.loader.NodeLoader`` and ``LinkLoader``, from any kind of dataset.

    A batch has the nodes and edges that ``DistNeighborLoader`` or ``DistLinkNeighborLoader`` gives for the
    same seeds at the same places of the input, with the same epoch and run seed. PyG's ``input_id`` tells the
    places; without it they are 0 to B - 1. Outputs are PyG's ``SamplerOutput`` and
    ``HeteroSamplerOutput``:

    - ``node``: indices of nodes, as of :class:`GiglFeatureStore`, seeds first; seeds of ``sample_from_nodes``
      and ``sample_from_edges`` are indices, too.
    - ``row``, ``col``: local source and destination of each edge, in the direction of the graph. A graph of
      ``edge_dir="out"`` is sampled from sources to destinations, as by PyG's ``sample_direction="backward"``.
    - ``edge``: edge ids, unless ``with_edge=False``.
    - ``batch``: with ``disjoint`` or ``time_attr``, the number of the tree of each node.
    - ``num_sampled_nodes``, ``num_sampled_edges``: lists per hop; edges only of directional batches.
    - ``metadata``: what PyG's loaders read. Times of seeds are ``input_time`` of ``NodeLoader``, by default
      their own, and ``edge_label_time`` of ``LinkLoader``. Negatives are drawn as by
      ``DistLinkNeighborLoader``. Labels of binary negatives are 0, and those of links stay as PyG's
      ``LinkLoader`` passes them.

    A batch is a function of the run seed, the epoch, and its seeds and their places. :meth:`set_epoch` lets
    further epochs draw other neighbours for the same seeds.

    Where the whole graph lies on this host, the sampler works in the worker processes of a ``DataLoader``,
    forked or spawned, each of which opens its own source. With a graph on other hosts these are refused with
    one line: ``num_workers=0``. Sources stay open until :meth:`close`, or until the sampler is collected.
    """

    def __init__(
        self,
        dataset: Dataset,
        num_neighbors: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        *,
        replace: bool = False,
        with_edge: bool | None = None,
        weight_attr: ColumnByType = None,
        disjoint: bool = False,
        time_attr: ColumnByType = None,
        temporal_strategy: Literal["uniform", "last"] = "uniform",
        temporal_comparison: Literal["<", "<="] = "<=",
        subgraph_type: str | SubgraphType = "directional",
        seed: int | None = None,
        timeout: float = 300.0,
    ) -> None:
        """Check the arguments. Nothing is opened before the first batch.

        ``dataset``
            A ``DistDataset`` or a ``RemoteDistDataset``.
        ``num_neighbors``, ``replace``, ``with_edge``, ``weight_attr``, ``disjoint``, ``time_attr``,
        ``temporal_strategy``, ``temporal_comparison``, ``subgraph_type``
            As for ``DistNeighborLoader``.
        ``seed``
            Run seed. Random, and logged, when ``None``. See :attr:`seed`.
        ``timeout``
            Seconds that a batch may take before ``TimeoutError``.

        ``ValueError`` and ``TypeError`` name the argument that does not fit.
        """
        super().__init__()
        check_dataset(dataset)
        self._dataset: Any = dataset
        self._arguments = sampler_arguments(
            num_neighbors,
            replace=replace,
            with_edge=with_edge,
            weight_attr=weight_attr,
            disjoint=disjoint,
            time_attr=time_attr,
            temporal_strategy=temporal_strategy,
            temporal_comparison=temporal_comparison,
            subgraph_type=subgraph_type,
        )
        self._timeout_s = arguments.seconds("timeout", timeout, above_zero=True)
        given = arguments.run_seed(seed)
        self.seed = secrets.randbits(63) if given is None else given
        """Run seed."""
        if given is None:
            logger.info("GiglSampler: random run seed %d", self.seed)
        self._hops = KHop.of(dataset.schema, self._arguments)
        self.epoch = 0
        """The epoch whose draws batches have."""
        self._start()

    def _start(self) -> None:
        self._nodes = NodeIndex(self._dataset)
        self._owner = self._pid = os.getpid()
        self._forget()

    def _forget(self) -> None:
        """Begin without sources: a forked child must not use the sources of its parent."""
        self._pid = os.getpid()
        self._of_nodes: dict[tuple[NodeType, bool], PlanBatches] = {}
        """By type of the seeds, and whether they come with times."""
        self._of_links: dict[EdgeType, tuple[Any, PlanBatches]] = {}
        """By type of the links, with the requested negative sampling."""

    def set_epoch(self, epoch: int) -> None:
        """Let batches have the draws of ``epoch``, from 0. Call it before ``iter(loader)``.

        Workers of a ``DataLoader`` that persist keep the epoch in which they began.
        """
        self.epoch = arguments.whole_epoch(epoch)

    def sample_from_nodes(
        self, index: NodeSamplerInput, **kwargs: Any
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Return the neighbourhoods of the nodes ``index.node`` (indices, int64 [B]).

        ``ValueError`` for an unknown node, for times without ``time_attr``, and for a seed that is there
        twice unless trees are ``disjoint``: PyG counts seeds by entries, and a batch has one node for both.
        """
        self._check(kwargs, index.time)
        node_type = self._node_type(index.input_type)
        seeds = self._checked(node_type, index.node)
        if not self._hops.disjoint and len(np.unique(seeds)) < len(seeds):
            raise ValueError(
                "a batch has a seed twice, which PyG would count as two rows: pass disjoint=True to "
                "GiglSampler, or each seed once"
            )
        kind = (node_type, index.time is not None)
        batches = self._of_nodes.get(kind)
        if batches is None:
            arguments = replaced(self._arguments, with_times=kind[1])
            plan = KHopNeighborSamplerOptions().plan(self._dataset.schema, node_type, arguments)
            batches = self._of_nodes[kind] = self._open(BatchPlan(sampler=plan, run_seed=self.seed))
        columns = {SEED: self._nodes.positions(node_type, seeds)}
        if index.time is not None:
            columns[TIME] = read_times("input_time", index.time, count=len(seeds))
        tensors = batches.draw(columns, index.input_id, self.epoch)
        return self._output(batches, tensors, (index.input_id, seed_times(tensors)))

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Return the neighbourhoods of the ends of links (``index.row``, ``index.col``: indices, int64 [M]).

        ``neg_sampling`` may be PyG's ``NegativeSampling`` or ``gigl_loader.NegativeSampling``; weights are by
        index. ``ValueError`` for an unknown node, and where links have times without ``time_attr`` or the
        other way round.
        """
        self._check({}, index.time)
        if self._hops.time_attr is not None and index.time is None:
            raise ValueError("time_attr needs edge_label_time, the time of each link")
        edge_type = self._edge_type(index.input_type)
        batches = self._links(edge_type, neg_sampling)
        columns = {
            name: self._nodes.positions(node_type, self._checked(node_type, nodes))
            for name, node_type, nodes in (
                ("src", edge_type[0], index.row),
                ("dst", edge_type[2], index.col),
            )
        }
        if index.time is not None:
            columns[TIME] = read_times("edge_label_time", index.time, count=len(columns["src"]))
        tensors = batches.draw(columns, index.input_id, self.epoch)
        plan: Any = batches.plan.sampler
        negatives: Negatives | None = plan.negatives
        return self._output(batches, tensors, link_metadata(tensors, negatives, index.input_id, index.label))

    @property
    def edge_permutation(self) -> None:
        """``None``: ``edge`` holds edge ids."""
        return

    def close(self) -> None:
        """Close sources and connections; a later batch opens them again. Closing twice is fine."""
        if os.getpid() == self._pid:
            for batches in (*self._of_nodes.values(), *(each for _, each in self._of_links.values())):
                batches.close()
        self._forget()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        check_pickled(self._dataset, self)
        kept = ("_dataset", "_arguments", "_timeout_s", "_hops", "seed", "epoch")
        return {name: vars(self)[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()
        close_at_exit(self)

    def __repr__(self) -> str:
        return f"GiglSampler({self._dataset!r}, {self._arguments.num_neighbors}, seed={self.seed})"

    # Inside

    def _check(self, kwargs: Mapping[str, Any], time: Any) -> None:
        if kwargs:
            raise TypeError(f"GiglSampler has no argument {next(iter(kwargs))!r}")
        if time is not None and self._hops.time_attr is None:
            raise ValueError(
                "input_time and edge_label_time have no meaning without time_attr of GiglSampler, the column "
                "that they bound"
            )
        check_process(self._dataset, self._owner, os.getpid())
        self._dataset._check_usable()
        if os.getpid() != self._pid:
            self._forget()

    def _links(self, edge_type: EdgeType, neg_sampling: Any) -> PlanBatches:
        asked, batches = self._of_links.get(edge_type, (None, None))
        if batches is None or asked is not neg_sampling:
            plan = LinkPlan(
                edge_type=edge_type,
                hops=self._hops,
                negatives=read_negatives(neg_sampling, self._dataset.schema, edge_type),
            )
            if batches is not None:
                batches.close()
            batches = self._open(BatchPlan(sampler=plan, run_seed=self.seed))
            self._of_links[edge_type] = (neg_sampling, batches)
        return batches

    def _open(self, plan: BatchPlan) -> PlanBatches:
        return PlanBatches(self._dataset, plan, self._arguments, timeout_s=self._timeout_s)

    def _output(
        self, batches: PlanBatches, tensors: Any, metadata: tuple[Any, ...]
    ) -> SamplerOutput | HeteroSamplerOutput:
        batch = batches.collate(tensors)
        return sampler_output(batch, self._dataset.schema, self._nodes, metadata, self._hops)

    def _node_type(self, given: NodeType | None) -> NodeType:
        schema = self._dataset.schema
        if given is None and schema.homogeneous:
            return HOMOGENEOUS_NODE
        if given is None or given not in schema.nodes:
            known = ", ".join(map(repr, schema.nodes))
            raise ValueError(f"input_nodes must name one of the node types {known}, got {given!r:.200}")
        return given

    def _edge_type(self, given: EdgeType | None) -> EdgeType:
        schema = self._dataset.schema
        if given is None and schema.homogeneous:
            return HOMOGENEOUS_EDGE
        return link_type(schema, given, "edge_label_index")

    def _checked(self, node_type: NodeType, nodes: torch.Tensor) -> Int64Array:
        """Return indices as int64 [N], all of which exist."""
        index = torch.as_tensor(nodes).detach().cpu().to(torch.int64).contiguous().numpy()
        count = self._nodes.count(node_type)
        unknown = index[(index < 0) | (index >= count)]
        if len(unknown):
            listed = ", ".join(map(str, unknown[:10].tolist())) + (", ..." if len(unknown) > 10 else "")
            raise ValueError(
                f"{len(unknown)} unknown nodes of type {node_type!r}, of which there are {count}: {listed}"
            )
        checked: Int64Array = index
        return checked
