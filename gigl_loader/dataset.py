"""Dataset of this host: its partitions of a graph, and the sources of batches over all partitions."""

from __future__ import annotations

import math
import os
import sys
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from gigl_loader.graph.graph import Graph
from gigl_loader.graph.local_partitions import open_partitions
from gigl_loader.group import RankGroup
from gigl_loader.hosts.rendezvous import WHOLE, Rendezvous, excuse
from gigl_loader.logs import log_from_environment
from gigl_loader.options import byte_count
from gigl_loader.queries import GraphQueries
from gigl_loader.sampling.feature_cache import unfilled_bytes
from gigl_loader.sampling.feature_memory import decide_here
from gigl_loader.sampling.local_store import edges_of
from gigl_loader.sampling.source import InlineSource
from gigl_loader.sampling.store import EdgeList
from gigl_loader.sampling.window import host_windows, local_source
from gigl_loader.topology import Topology, announce_host
from gigl_loader.workers.process import start_source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch_geometric.data import Data, HeteroData
    from typing_extensions import Self

    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.folder import Folder, MemoryFolder
    from gigl_loader.graph.schema import GraphSchema, VocabularyFile
    from gigl_loader.hosts.host_group import HostGroup
    from gigl_loader.options import EdgeType, NodeType, StoreOptions, Verify
    from gigl_loader.partition.table import GraphTables
    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.source import BatchSource, SourceRequest
    from gigl_loader.sharding import Share

_PEERS_SAMPLERS = "gigl_loader.hosts.peers:open_samplers"
_INSTEAD = {
    "prefetch_size": "beside the trainer, num_workers * worker_concurrency batches are in flight",
}
_SHARE_OF_PEERS = 0.4
"""Of the time that a loader waits, for each ask: so that a batch fails, naming the host, before the loader
gives up: it sends requests hop after hop, and an earlier round may have been slow, too."""


class DistDataset(GraphQueries):
    """A graph of which this host holds all partitions, or some, and other hosts hold the rest.

    Made by :meth:`open` (a directory that ``gigl-loader partition`` wrote) or :meth:`from_pyg` (an
    object in memory). Opening maps files and copies nothing, so sampling processes share its memory.
    It is a context manager; close it late where other hosts may still send requests to this one.
    """

    def __init__(self, graph: Graph, membership: HostGroup | None = None) -> None:
        """Use :meth:`open` or :meth:`from_pyg`."""
        self._graph = graph
        self._membership = membership
        self._closed = False
        if membership is not None:
            weakref.finalize(self, _close_on_collection, membership, os.getpid())
        self._stores: weakref.WeakSet[PartitionedStore] = weakref.WeakSet()
        """Of loaders that sample in this process, and of feature stores. They close theirs when they end."""

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        partitions: int | Sequence[int] | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        credentials: Credentials | None = None,
        cache_size: int | str = "256MB",
        verify: Verify = "lazy",
        timeout: float = 300.0,
    ) -> DistDataset:
        """Map the graph directory at ``path``, whatever its size.

        With all partitions here, that is all. Where some are missing, every rank of the process group must
        call this, and local rank 0 of each host serves what its host holds to the other hosts. Ranks open
        several such graphs in the same order.

        ``partitions``
            Those to hold; by default all that lie at ``path``. The same on all ranks of a host.
        ``listen``
            ``"HOST:PORT"`` of this host's service; data goes over the port after it. By default free
            ports of the address that this host uses towards the master.
        ``advertise``
            Name or address by which other hosts reach this one, where it differs from ``listen``.
        ``credentials``
            Token and certificate. By default a random token, sent through the process group, and TLS with a
            certificate made for the run, or plain text where all are on one machine.
        ``cache_size``
            Memory of this host for rows of nodes elsewhere, in bytes or as ``"1GB"``; 0 for none. Filled
            here, once, with the nodes that the lists of this host refer to most. It spares the network, and
            changes no batch.
        ``verify``
            ``"lazy"`` reads topology, ids and splits before they are first used and compares them with
            their checksums, and features in a thread: batches raise ``FormatError`` once damage is found.
            ``"full"`` reads every byte here; ``"none"`` checks headers only. Of several ranks on a host,
            with ``"lazy"`` local rank 0 alone reads.
        ``timeout``
            Seconds that any wait for another rank may take.

        Raises ``FileNotFoundError`` where there is no graph, ``FormatError`` for one that is damaged or
        half written, ``ValueError`` where hosts do not hold one whole graph between them (and who holds
        what), ``TimeoutError`` naming ranks that do not come, ``StorageUnavailable`` for hosts that cannot
        be reached and ``OSError`` for an address that cannot be listened on: on all ranks alike.
        """
        log_from_environment()
        if not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
            raise ValueError(f"timeout must be a positive number of seconds, got {timeout!r}")
        given: Any = path
        if not isinstance(given, (str, os.PathLike)):
            raise TypeError(f"path must be that of a graph directory, got {path!r}")
        group = RankGroup.current(patience_s=timeout)
        try:
            cache_bytes = byte_count("cache_size", cache_size, minimum=0)
            graph = open_partitions(path, partitions, verify=_share_of_verifying(verify, group))
            if graph.is_whole:
                _publish_whole(group, graph)
                return cls(graph)
            if group is None:
                raise ValueError(_alone_with(graph))
        except Exception as error:
            if group is not None:
                _publish_failure(group, error)
            raise
        from gigl_loader.hosts.host_group import HostGroup  # gRPC and Arrow, which only peers need.

        membership = HostGroup.join(
            Rendezvous(group, timeout=timeout),
            graph,
            listen=listen,
            advertise=advertise,
            credentials=credentials,
            cache_bytes=cache_bytes,
        )
        return cls(graph, membership)

    @classmethod
    def from_pyg(
        cls,
        data: Data | HeteroData | None,
        *,
        num_partitions: int = 1,
        edge_dir: Literal["in", "out"] = "in",
        assigner: Literal["range", "hash", "ldg", "kaminpar"] = "range",
        weight_attr: str | Mapping[Any, str] | None = None,
        time_attr: str | Mapping[Any, str] | None = None,
        labels: Mapping[EdgeType, Any] | None = None,
        quantize: Mapping[Any, Any] | None = None,
        reverses: Mapping[Any, Any] | None = None,
        shared: bool = True,
        timeout: float = 300.0,
    ) -> DistDataset:
        """Build the graph of a PyG object in memory, once for all ranks of a host.

        Node ids are the rows of the object, edge ids the columns of each ``edge_index``. Tensors with
        one row per node or edge become columns (bfloat16 and ``TensorFrame``, too); ``train_mask``,
        ``val_mask`` and ``test_mask`` become the splits ``train``, ``val`` and ``test``. An ``adj_t`` alone
        is converted, its edges by ascending target and source (``tables_from_pyg``); other sparse tensors are
        left out with a warning.

        In a process group, every rank calls this with the same object. The first rank of each host builds the
        graph, the other ranks map its memory; they may pass ``None`` in place of the object. A dataset in
        memory can be an argument of a process that ``multiprocessing`` spawns.

        ``assigner``
            Which partition owns a node: by ranges or a hash of the ids, or as ``"ldg"`` and ``"kaminpar"``
            find it, which keep neighbours together.
        ``weight_attr``
            Edge attribute that loaders may draw edges by (``weight_attr`` of theirs), for every type that has
            it or by type.
        ``time_attr``
            Node or edge attribute of integers, by which loaders may draw in time (``time_attr`` of theirs):
            of every node type that has it, or else of every edge type, or by type. In a ``Data`` with as many
            edges as nodes, only ``{("node", "to", "node"): name}`` is one of edges.
        ``labels``
            Label sets of ``DistABLPLoader`` by supervision type: node ids [2, P], row 0 the anchors, or a
            pair of positive and negative ones. The type need not be one of the edges.
        ``quantize``
            Columns of floats to store, gather and send as codes of a few bits: ``{"x": "int8"}`` for every
            node and edge type that has ``x``, ``{"paper": {"x": "uint4:per-row"}}`` by type. Kinds are
            ``int8``, ``uint4``, ``uint2`` and ``uint1``. Codes divide the range of each element of a row over
            the graph, or of each row with ``:per-row``, in equal steps. Batches have values, off by at most
            half a step (``dequantize_to`` of loaders).
        ``reverses``
            For edge types, the type that holds the same edges the other way round: ``{buys: sold_to}``; of a
            graph with both directions in one type, the type itself. Loaders exclude both together. Types that
            are called ``rev_...`` need not be named.
        ``shared``
            ``False`` builds a graph for this rank alone, whatever other ranks do.
        ``timeout``
            Seconds to wait for other ranks, and for the first rank of the host to build.

        Raises ``FormatError`` naming the attribute that cannot be stored, ``ValueError`` for wrong arguments
        and for objects that differ between the ranks of a host, and ``TimeoutError`` naming ranks that do not
        come.
        """
        from gigl_loader.graph.folder import MemoryFolder
        from gigl_loader.partition import build_graph, tables_from_pyg
        from gigl_loader.partition.refusals import OptionsNeeded

        def tables() -> GraphTables:
            return tables_from_pyg(
                data,
                weight_attr=weight_attr,
                time_attr=time_attr,
                labels=labels,
                quantize=quantize,
                reverses=reverses,
            )

        def build(folder: MemoryFolder) -> None:
            try:
                build_graph(
                    tables(), folder, num_partitions=num_partitions, edge_dir=edge_dir, assigner=assigner
                )
            except OptionsNeeded as error:  # There is no command line.
                raise OptionsNeeded([error.problems], []) from None

        def content() -> str | None:
            return None if data is None else f"{tables().checksum()} {num_partitions} {edge_dir} {assigner}"

        log_from_environment()
        group = RankGroup.current(patience_s=timeout) if shared else None
        if group is None:
            folder = MemoryFolder()
            build(folder)
            return cls(Graph.open(folder))
        from gigl_loader.hosts.host_memory import build_on_one_rank

        return cls(Graph.open(build_on_one_rank(group, content, build, timeout=timeout)))

    @property
    def partitions(self) -> tuple[int, ...]:
        """Partitions that this host holds, ascending."""
        return self._graph.parts

    @property
    def schema(self) -> GraphSchema:
        """Types, sizes, columns and splits."""
        return self._graph.schema

    def all_positions(self, node_type: NodeType) -> Int64Array:
        """Return the positions of all nodes of a type, int64 [N], by ascending node id."""
        return self._graph.all_positions(node_type)

    def split_positions(self, node_type: NodeType, split: str) -> Int64Array:
        """Return a split's positions, int64 [N], by ascending node id. ``ValueError`` lists the splits."""
        self._check_open()
        if self._membership is None:
            return self._graph.split(node_type, split)
        timeout_s = self._membership.timeout_s
        return self._membership.peers.split(self._graph, node_type, split, timeout_s=timeout_s)

    def _edge_list(self, edge_type: EdgeType) -> EdgeList:
        self._check_open()
        if self._membership is None:
            parts = range(self.schema.num_partitions)
            return EdgeList.joined([edges_of(self._graph, edge_type, part) for part in parts])
        timeout_s = self._membership.timeout_s
        return self._membership.peers.edges(self._graph, edge_type, timeout_s=timeout_s)

    def _open_store(self) -> PartitionedStore:
        from gigl_loader.sampling.partitioned import PartitionedStore

        self._check_open()
        if self._membership is None:
            return PartitionedStore.whole(self._graph)
        store = self._membership.peers.open_store(self._graph, timeout_s=self._membership.timeout_s)
        self._stores.add(store)
        return store

    @property
    def _is_on_this_host(self) -> bool:
        return self._membership is None

    def _check_usable(self) -> None:
        self._check_open()

    def positions(self, node_type: NodeType, node_ids: Int64Array) -> Int64Array:
        return self._graph.positions(node_type, node_ids)

    def node_ids(self, node_type: NodeType, positions: Int64Array) -> Int64Array:
        """Return the node ids at ``positions``, int64 [N], in order."""
        ids = self._graph.node_ids(node_type)
        return positions if ids is None else ids[positions]

    def _vocabulary(self, file: VocabularyFile) -> tuple[str, ...]:
        return self._graph.vocabulary(file.number)

    def _texts(self, node_type: NodeType, node_ids: Int64Array) -> list[str]:
        texts = self._graph.text_ids(node_type)
        assert texts is not None
        return texts.texts(node_ids)

    def _find_texts(self, node_type: NodeType, texts: list[str]) -> Int64Array:
        known = self._graph.text_ids(node_type)
        assert known is not None
        return known.find(texts)

    def _ids_of_servers(self, node_type: NodeType, split: str | None, share: Share) -> list[Int64Array]:
        positions = self.all_positions(node_type) if split is None else self.split_positions(node_type, split)
        [held] = share.slices([len(positions)])
        return [self.node_ids(node_type, positions[held])]

    @property
    def graph_digest(self) -> str:
        """Equal for graphs with the same contents, however this host came by them."""
        return self._graph.manifest.digest

    @property
    def num_servers(self) -> int:
        """0: this is no graph store."""
        return 0

    def check_options(self, store: StoreOptions) -> None:
        """Raise ``ValueError`` for options that only a graph store has."""
        for name, value in store.given().items():
            hint = _INSTEAD.get(name, "beside the trainer, it has no meaning")
            raise ValueError(f"{name}={value!r} is for a graph store; {hint}")

    def open_source(self, request: SourceRequest) -> BatchSource:
        """Return where the batches come from: sampling processes, or inline without workers.

        The ranks of this host start their processes one after the other. Where other hosts hold partitions,
        a request to one is tried for 40 % of the time that the loader waits. A batch sends requests once for
        each hop and once for columns, and fails with ``StorageUnavailable`` in the first of these rounds that
        a host does not answer: before the loader gives up, unless earlier rounds took more than 60 % of its
        time.
        """
        self._check_open()
        request.plan.sampler.check_here()
        has_workers = request.num_workers > 0 and request.schedule.num_batches > 0
        if self._membership is None or request.has_given_memory:
            memory = decide_here(
                self._graph,
                request.plan.frame(self._graph.schema),
                request.features,
                loader=request.name,
                ranks=request.topology.local_world_size,
                num_workers=request.num_workers,
                taken=unfilled_bytes(),
            )
            request = replace(request, memory=memory)

        def open_source() -> BatchSource:
            open_inner = partial(self._worker_source if has_workers else self._inline_source, request)
            if not request.has_deferred_features:
                return open_inner()
            if self._membership is None:
                return local_source(open_inner, self._graph, request)
            source = open_inner()
            store = self._store_of_loader(request, threads=2)  # One fetches, one completes.
            return host_windows(source, self._graph, request, store)

        return start_source(
            open_source,
            group=request.group if has_workers else None,
            topology=request.topology,
            gap_s=request.start_gap_s,
            timeout=request.timeout_s,
        )

    def peer_stats(self, *, timeout: float = 10.0) -> dict[int, dict[str, Any]]:
        """Return the counters of each host's service since it started, by host index.

        Seconds of CPU, calls and bytes; nothing where this host holds the whole graph.
        """
        return {} if self._membership is None else self._membership.peers.stats(timeout_s=timeout)

    def close(self) -> None:
        """End what serves other hosts, once all ranks have closed the dataset, too, or the timeout is over.

        While an exception is under way, it does not wait. Close loaders first. Closing twice is fine, and
        needless where this host holds the whole graph. A dataset that was not closed is closed like this
        when it is collected, or when the script ends.
        """
        # Also in a `finally`: other ranks must receive the exception, not wait for this one.
        self._leave(wait=sys.exc_info()[0] is None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave(wait=kind is None)

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the dataset was closed: build loaders before, and shut them down first")

    def _leave(self, *, wait: bool) -> None:
        while self._stores:
            self._stores.pop().close()
        self._closed = True
        if self._membership is not None:
            self._membership.close(wait=wait)

    def _worker_source(self, request: SourceRequest) -> BatchSource:
        options = request.workers
        if self._membership is not None and options.start_method == "fork":
            raise ValueError(
                "multiprocessing_context='fork' cannot be used where other hosts hold partitions: network "
                "connections do not survive a fork; use 'spawn'"
            )
        # Loaded on demand: it needs Linux, sampling inline does not.
        from gigl_loader.workers.source import WorkerSource

        peers: dict[str, Any] = {}
        if self._membership is not None:
            peers = {"sampler": _PEERS_SAMPLERS, "timeout_s": _SHARE_OF_PEERS * request.timeout_s}
        return WorkerSource(
            self._graph,
            request.plan,
            request.schedule,
            options,
            shared=request.shared,
            memory=request.memory,
            deferred=request.has_deferred_features,
            values=request.values,
            ranks=request.topology.local_world_size,
            spans=request.spans,
            **peers,
        )

    def _inline_source(self, request: SourceRequest) -> InlineSource:
        store = None if self._membership is None else self._store_of_loader(request)
        sampler = request.plan.open(
            self._graph,
            store,
            shared=request.shared,
            deferred=request.has_deferred_features,
            new_nodes=request.interactive,
        )
        return InlineSource(
            sampler,
            request.schedule,
            channel_bytes=request.workers.frame_bytes(ranks=request.topology.local_world_size),
            store=store,
            check=self._graph.verifier.check,
            memory=request.memory,
            spans=request.spans,
        )

    def _store_of_loader(self, request: SourceRequest, *, threads: int = 1) -> PartitionedStore:
        """Return a store for ``threads`` of this process, where other hosts hold partitions.

        The loader's source closes it.
        """
        assert self._membership is not None
        timeout_s = _SHARE_OF_PEERS * request.timeout_s
        store = self._membership.peers.open_store(self._graph, timeout_s=timeout_s, concurrency=threads)
        self._stores.add(store)
        return store

    def __reduce__(self) -> tuple[Callable[..., DistDataset], tuple[Any, ...]]:
        if self._membership is not None:
            raise TypeError("a DistDataset of several hosts cannot be pickled: open it in each rank")
        path = self._graph.reference.get("path")
        return (DistDataset.open, (path,)) if path is not None else (_in_memory, (self._graph.folder,))

    def __repr__(self) -> str:
        return (
            f"DistDataset({self.num_nodes:,} nodes of {len(self.node_types)} types, "
            f"{self.num_edges:,} edges of {len(self.edge_types)} types, edge_dir={self.edge_dir!r})"
        )


def _in_memory(folder: Folder) -> DistDataset:
    return DistDataset(Graph.open(folder))


def _close_on_collection(membership: HostGroup, owner: int) -> None:
    """Leave where the user did not close the dataset: at the latest when the script ends."""
    if os.getpid() == owner:
        # Python sets this when an exception ends the script. Then no rank is waited for.
        membership.close(wait=not hasattr(sys, "last_type"))


def _publish_failure(group: RankGroup, error: Exception) -> None:
    """Publish that this rank will not join, and why."""
    with suppress(ConnectionError):
        announce_host(group)
        excuse(group, error)


def _publish_whole(group: RankGroup | None, graph: Graph) -> None:
    """Publish to ranks that have parts of this graph that this rank has all of it."""
    if group is not None:
        with suppress(ConnectionError):
            announce_host(group)
            group.publish(f"{WHOLE}/{graph.manifest.digest}", str(graph.folder))


def _share_of_verifying(verify: Verify, group: RankGroup | None) -> Verify:
    """Return what this rank verifies: ranks of a host map the same files."""
    if verify != "lazy" or group is None:
        return verify
    return "lazy" if Topology.without_asking().local_rank == 0 else "none"


def _alone_with(graph: Graph) -> str:
    held = ", ".join(map(str, graph.parts))
    return (
        f"of {graph.schema.num_partitions} partitions, {graph.folder} has only {held} here, and there is no "
        "process group in which to find the others: call torch.distributed.init_process_group(...) on every "
        "host first, or copy all partitions here"
    )
