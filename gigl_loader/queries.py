"""Queries of a graph, the same for every kind of dataset."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from gigl_loader.arrays import plain_values, tensor_of
from gigl_loader.graph.schema import held_out_list
from gigl_loader.options import MAX_TEXT_ID, known_edge_type
from gigl_loader.sharding import read_share
from gigl_loader.splits import edges_in_split

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch
    from torch_geometric.data import FeatureStore, GraphStore

    from gigl_loader.arrays import Int64Array
    from gigl_loader.graph.schema import EdgeSchema, GraphSchema, NodeSchema, VocabularyFile
    from gigl_loader.loaders.sampler import Sampler
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.partitioned import PartitionedStore
    from gigl_loader.sampling.store import EdgeList
    from gigl_loader.sharding import Share


class ABLPInput(NamedTuple):
    """Anchors and their labels, as node ids (int64)."""

    anchors: torch.Tensor
    """[N], ascending."""
    positive: torch.Tensor
    """[2, P]: anchor and label, by ascending anchor, then by ascending label. Repeated labels stay."""
    negative: torch.Tensor | None
    """[2, Q]; ``None`` where the graph has no negative labels of the type."""


class FeatureInfo(NamedTuple):
    """Width and dtype of a column of features. The fields are GiGL's."""

    dim: int
    """Elements of a row."""
    dtype: torch.dtype


class GraphQueries:
    """Sizes, types, splits and nodes of a graph, wherever it lies.

    Properties of features, labels and splits have a value in a homogeneous graph, and a dict by type in a
    heterogeneous one, as in PyG, GiGL and GLT.
    """

    @property
    def schema(self) -> GraphSchema:
        """Types, sizes, columns and splits."""
        raise NotImplementedError

    @property
    def node_types(self) -> list[NodeType]:
        """Types of nodes, ascending."""
        return list(self.schema.nodes)

    @property
    def edge_types(self) -> list[EdgeType]:
        """Types of edges as (source, relation, destination), ascending."""
        return list(self.schema.edges)

    @property
    def edge_dir(self) -> Literal["in", "out"]:
        """``"in"`` samples the sources of edges (for message passing), ``"out"`` their destinations."""
        return self.schema.edge_dir

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types together; ``schema.nodes[node_type].count`` is that of one type."""
        return sum(nodes.count for nodes in self.schema.nodes.values())

    @property
    def num_edges(self) -> int:
        """Number of edges of all types together; ``schema.edges[edge_type].count`` is that of one type."""
        return sum(edges.count for edges in self.schema.edges.values())

    @property
    def edge_splits(self) -> dict[EdgeType, dict[str, int]]:
        """Number of edges of each split, by edge type and name. A type without splits has an empty entry."""
        return {
            edge_type: {} if edges.splits is None else dict(edges.splits.counts)
            for edge_type, edges in self.schema.edges.items()
        }

    @property
    def splits(self) -> dict[NodeType, dict[str, int]]:
        """Number of nodes of each split, by node type and name. A type without splits has an empty entry."""
        return {node_type: dict(nodes.splits) for node_type, nodes in self.schema.nodes.items()}

    def vocabulary(self, kind: NodeType | EdgeType, column: str) -> tuple[str, ...]:
        """Return the texts of the tables that the integers of a column stand for: integer i is text i.

        ``"label"`` may stand for ``"y"``. ``ValueError`` where the column had no texts.
        """
        schema = self.schema
        if kind not in schema.columns:
            raise ValueError(f"unknown type {kind!r}; known: {', '.join(map(str, schema.columns))}")
        entry = schema.nodes[kind] if isinstance(kind, str) else schema.edges[kind]
        texts, files = entry.vocabularies, entry.vocabulary_files
        name = "y" if column == "label" and column not in {*texts, *files} else column
        if name not in {*texts, *files}:
            listed = ", ".join(map(repr, [*texts, *files])) or "none"
            raise ValueError(f"column {column!r} of {kind!r} has no vocabulary; columns that have: {listed}")
        return texts[name] if name in texts else self._vocabulary(files[name])

    def _vocabulary(self, file: VocabularyFile) -> tuple[str, ...]:
        """Return the texts of a vocabulary that lies in a file of the graph."""
        raise NotImplementedError

    def metadata(self) -> tuple[list[NodeType], list[EdgeType]]:
        """Return the node types and edge types of batches, as PyG's heterogeneous models take them.

        With ``edge_dir="out"``, edge types are reversed, as messages flow.
        """
        if self.edge_dir == "in" or self.schema.homogeneous:
            return self.node_types, self.edge_types
        from gigl_loader.sampling.khop import reversed_edge_types

        return self.node_types, sorted(reversed_edge_types(self.edge_types).values())

    def get_node_types(self) -> list[NodeType] | None:
        """Return the types of nodes, ``None`` for a homogeneous graph, as GLT does."""
        return None if self.schema.homogeneous else self.node_types

    def get_edge_types(self) -> list[EdgeType] | None:
        """Return the types of edges, ``None`` for a homogeneous graph, as GLT does."""
        return None if self.schema.homogeneous else self.edge_types

    @property
    def node_feature_info(self) -> Any:
        """``FeatureInfo`` of the column ``x`` of nodes. ``None`` where no type has it."""
        return self._by_type(_feature_infos(self.schema.nodes, "x"))

    @property
    def edge_feature_info(self) -> Any:
        """``FeatureInfo`` of the column ``edge_attr`` of edges. ``None`` where no type has it."""
        return self._by_type(_feature_infos(self.schema.edges, "edge_attr"))

    @property
    def num_features(self) -> Any:
        """Width of the column ``x`` of nodes, an ``int``; 0 without one."""
        found = _feature_infos(self.schema.nodes, "x")
        widths = {kind: found[kind].dim if kind in found else 0 for kind in self.node_types}
        return self._by_type(widths) or 0

    @property
    def num_classes(self) -> Any:
        """Number of classes by the column ``y`` of nodes, an ``int``; 0 without one.

        One more than the largest of integers, the number of distinct floats, or the width of rows, as in
        PyG. Numbers are read from all nodes at each access.
        """
        return self._by_type({kind: self._classes_of(kind) for kind in self.node_types}) or 0

    @property
    def train_node_ids(self) -> Any:
        """Node ids of the split ``"train"`` of the whole graph, int64 [N], ascending. Read at each access.

        ``None`` where no type has the split. Loaders take its name, too, and share it among the ranks.
        """
        return self._ids_in_split("train")

    @property
    def val_node_ids(self) -> Any:
        """The same for the split ``"val"``."""
        return self._ids_in_split("val")

    @property
    def test_node_ids(self) -> Any:
        """The same for the split ``"test"``."""
        return self._ids_in_split("test")

    def _by_type(self, found: dict[Any, Any]) -> Any:
        """Return the value of the only type of a homogeneous graph, else all by type; ``None`` for none."""
        return next(iter(found.values()), None) if self.schema.homogeneous else found or None

    def _ids_in_split(self, split: str) -> Any:
        import torch

        positions = {
            kind: self.split_positions(kind, split)
            for kind, nodes in self.schema.nodes.items()
            if split in nodes.splits
        }
        return self._by_type(
            {kind: torch.from_numpy(self.node_ids(kind, held).copy()) for kind, held in positions.items()}
        )

    def _classes_of(self, node_type: NodeType) -> int:
        column = self.schema.nodes[node_type].columns.get("y")
        if column is None or column.shape not in ((), (1,)):
            return column.shape[-1] if column else 0
        features, _ = self.as_pyg()
        with features:
            labels = features.get_tensor(group_name=node_type, attr_name="y", index=None)
        if labels.is_floating_point():
            return len(labels.unique())
        return int(labels.long().max()) + 1 if len(labels) else 0  # Torch has no max of uint16 and wider.

    def positions(self, node_type: NodeType, node_ids: Int64Array) -> Int64Array:
        """Return the positions of ``node_ids``, int64 [N], in order. ``ValueError`` lists unknown ids."""
        raise NotImplementedError

    def split_positions(self, node_type: NodeType, split: str) -> Int64Array:
        """Return a split's positions, int64 [N], by ascending node id. ``ValueError`` lists the splits."""
        raise NotImplementedError

    def node_ids(self, node_type: NodeType, positions: Int64Array) -> Int64Array:
        """Return the node ids at ``positions``, int64 [N], in order."""
        raise NotImplementedError

    def all_edges(self, edge_type: EdgeType, split: str | None = None) -> tuple[Int64Array, Int64Array]:
        """Return the positions of sources and destinations of edges of a type, by ascending edge id.

        All edges that batches can have, or the edges of a split, held out or not. Both int64 [E]: 16 bytes an
        edge. ``ValueError`` lists the splits.
        """
        if split is None:
            return self._ends(edge_type)[:2]
        splits = self.schema.edges[edge_type].splits
        if splits is None or split not in splits.fractions:
            known = ", ".join(map(repr, splits.fractions)) if splits else "none"
            raise ValueError(f"edges of type {edge_type} have no split {split!r}; known: {known}")
        found = []
        for name in (edge_type, held_out_list(edge_type)):
            if name in self.schema.lists:
                src, dst, edge_ids = self._ends(name)
                ids = (self.node_ids(edge_type[0], src), self.node_ids(edge_type[2], dst))
                which = edges_in_split(splits, split, *ids)
                found.append((src[which], dst[which], edge_ids[which]))
        src, dst, edge_ids = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        order = np.argsort(edge_ids, kind="stable")
        return src[order], dst[order]

    def _ends(self, name: EdgeType) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return sources, destinations and ids of the edges in some lists, by ascending edge id."""
        edges = self._edge_list(name)
        outward = self.schema.edge_dir == "out" or name in self.schema.labels
        ends = (edges.targets, edges.neighbors) if outward else (edges.neighbors, edges.targets)
        return *ends, edges.edge_ids

    def _edge_list(self, edge_type: EdgeType) -> EdgeList:
        """Return all edges of a type of the graph, by ascending edge id."""
        raise NotImplementedError

    def fetch_node_ids(
        self,
        split: str | None = None,
        node_type: NodeType | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        balance: Literal["servers", "seeds"] = "servers",
    ) -> dict[int, torch.Tensor]:
        """Return node ids by the rank of the server that holds them, with an entry for every server.

        The ids, int64 [N] and ascending, are the nodes of ``split``, or all nodes of the type. A loader takes
        the whole mapping as ``input_nodes``, with ``sharding="none"`` where it is one rank's share. Where
        there is no graph store, all ids are under 0.

        ``node_type``
            May be left out where there is one only.
        ``rank``, ``world_size``
            Return this rank's share only. Give both or neither. Shares cover every node once.
        ``balance``
            ``"servers"`` gives each rank the same number of servers, ``"seeds"`` the same number of nodes.

        ``ValueError`` for an unknown type, split or share.
        """
        import torch

        _check_names(split, node_type)
        share = read_share(rank, world_size, balance)
        lists = self._ids_of_servers(self._one_type(node_type), split, share)
        return {server: torch.from_numpy(ids.copy()) for server, ids in enumerate(lists)}

    def fetch_ablp_input(
        self,
        split: str | None = None,
        anchor_node_type: NodeType | None = None,
        supervision_edge_type: EdgeType | tuple[str, str] | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        balance: Literal["servers", "seeds"] = "servers",
    ) -> dict[int, ABLPInput]:
        """Return anchors with all of their labels, by the rank of the server that holds the anchors.

        For samplers of your own: ``DistABLPLoader`` looks labels up batch by batch, and takes the mapping
        for its anchors: the nodes that :meth:`fetch_node_ids` returns for ``split``, ``rank``, ``world_size``
        and ``balance``.

        ``anchor_node_type``
            May be left out where there is one type only, or a supervision type is given.
        ``supervision_edge_type``
            (anchor type, relation, label type): a label set, or an edge type, whose edges are the positive
            labels. May be left out where the graph has one label set, or none and one edge type.

        ``ValueError`` for an unknown type, split or share.
        """
        import torch

        _check_names(split, anchor_node_type)
        supervision = self._supervision_type(anchor_node_type, supervision_edge_type)
        lists = self.schema.label_lists(supervision)
        share = {"rank": rank, "world_size": world_size, "balance": balance}
        anchors = self.fetch_node_ids(split, supervision[0], **share)  # type: ignore[arg-type]
        found: dict[int, ABLPInput] = {}
        with closing(self._open_store()) as store:
            for server, ids in anchors.items():
                pairs = {
                    sign: torch.from_numpy(self._labels_of(store, name, ids.numpy()))
                    for sign, name in lists.items()
                }
                none = torch.empty((2, 0), dtype=torch.int64)
                found[server] = ABLPInput(ids, pairs.get("positive", none), pairs.get("negative"))
        return found

    def _supervision_type(self, anchor_type: NodeType | None, given: Any) -> EdgeType:
        known = sorted({*self.schema.edges, *self.schema.label_types})
        given = self.schema.supervision_type if given is None else given
        found = known_edge_type(known, given, "supervision_edge_type")
        if anchor_type not in (None, found[0]):
            raise ValueError(f"{found} leads from {found[0]!r}, not from anchors of type {anchor_type!r}")
        return found

    def _labels_of(self, store: PartitionedStore, lists: EdgeType, anchors: Int64Array) -> Int64Array:
        """Return the ids of anchors and labels, int64 [2, P]. ``anchors``: ascending ids, int64 [N]."""
        from gigl_loader.sampling.labels import LabelLookup
        from gigl_loader.sampling.store import NO_BOUND

        lookup = LabelLookup(self.schema, store, lists)
        labels = lookup.labels(self.positions(lists[0], anchors), 0, max_labels=NO_BOUND)
        pairs = np.stack([np.repeat(anchors, labels.counts), self.node_ids(lists[2], labels.nodes)])
        return pairs[:, np.lexsort((pairs[1], pairs[0]))]

    def as_pyg(self) -> tuple[FeatureStore, GraphStore]:
        """Return the graph as PyG's ``(FeatureStore, GraphStore)``, which PyG's loaders take as ``data``.

        Rows are fetched from wherever the partitions lie. Nodes are numbered by ascending node id, which
        changes nothing where node ids are ``0 .. N - 1``. Both stores are read-only, and say more of
        themselves: :class:`~gigl_loader.pyg.feature_store.GiglFeatureStore`,
        :class:`~gigl_loader.pyg.graph_store.GiglGraphStore`. Their connections are closed when the feature
        store is closed or collected, and with the dataset.
        """
        from gigl_loader.pyg.dataset import PygStores
        from gigl_loader.pyg.feature_store import GiglFeatureStore
        from gigl_loader.pyg.graph_store import GiglGraphStore

        self._check_usable()
        dataset: Any = self  # Its subclasses have all members of ``Dataset``.
        return PygStores((GiglFeatureStore(dataset), GiglGraphStore(dataset)))

    def sampler(
        self,
        num_neighbors: Any = None,
        seed_type: NodeType | EdgeType | Sequence[NodeType] | None = None,
        **options: Any,
    ) -> Sampler:
        """Return a sampler that stays open, for batches on request from any thread and from asyncio.

        Arguments and errors are those of :class:`~gigl_loader.Sampler`: ``num_neighbors`` per hop, the node
        type (or a list of types) of the seeds or edge type of the links, ``loader_class``, ``concurrency``,
        ``timeout``, and the options of the loader that concern batches. Nothing is opened before the first
        call.
        """
        from gigl_loader.loaders.sampler import Sampler

        self._check_usable()
        dataset: Any = self  # Its subclasses have all members of ``Dataset``.
        return Sampler(dataset, num_neighbors, seed_type, **options)

    @property
    def _is_on_this_host(self) -> bool:
        """Whether other processes of this host can use the dataset: it has no network connections."""
        raise NotImplementedError

    def _check_usable(self) -> None:
        """Raise ``ValueError`` after ``close``, ``RuntimeError`` in a process that cannot use the dataset."""
        raise NotImplementedError

    def _open_store(self) -> PartitionedStore:
        """Return a store of all partitions. The caller closes it; else it is closed with the dataset."""
        raise NotImplementedError

    def partition_of(self, ids: torch.Tensor, node_type: NodeType | None = None) -> torch.Tensor:
        """Return the partition that owns each node of ``ids`` (integers [N]), int64 [N].

        ``ValueError`` lists the first ten unknown ids.
        """
        import torch

        kind = self._one_type(node_type)
        return torch.from_numpy(self._owners(kind, self.positions(kind, _id_array(ids))))

    def _owners(self, node_type: NodeType, positions: Int64Array) -> Int64Array:
        bounds = np.array(self.schema.nodes[node_type].bounds, np.int64)
        return np.searchsorted(bounds, positions, side="right") - 1

    def original_ids(
        self, node_ids: torch.Tensor, node_type: NodeType | None = None
    ) -> list[str] | list[int]:
        """Return the ids by which the tables of the graph named these nodes, in order.

        Texts where the tables had texts (``schema.nodes[node_type].text_ids``), else ``node_ids`` as they
        are. ``node_ids`` are integers [N], such as ``batch.n_id``. ``ValueError`` lists the first ten unknown
        ids.
        """
        kind = self._one_type(node_type)
        ids = _id_array(node_ids)
        self.positions(kind, ids)
        return self._texts(kind, ids) if self.schema.nodes[kind].text_ids else ids.tolist()

    def node_ids_of(self, original_ids: Iterable[str], node_type: NodeType | None = None) -> torch.Tensor:
        """Return the node ids, int64 [N], of nodes that the tables of the graph named by texts.

        Loaders take such texts in place of node ids, too. ``TypeError`` where the type has no text ids,
        ``ValueError`` with the first ten unknown texts.
        """
        import torch

        kind = self._one_type(node_type)
        if isinstance(original_ids, str):
            raise TypeError(f"original ids must be a list of texts, got the text {original_ids[:100]!r}")
        texts = list(plain_values("original ids", original_ids))
        wrong = [text for text in texts if not isinstance(text, str)]
        if wrong:
            raise TypeError(f"original ids must be texts, got {wrong[0]!r}")
        if not self.schema.nodes[kind].text_ids:
            raise TypeError(f"node ids must be integers: tables named no nodes of type {kind!r} by texts")
        ids = self._find_texts(kind, [text if len(text) <= MAX_TEXT_ID else "" for text in texts])
        unknown = [texts[at][:100] for at in np.flatnonzero(ids < 0)[:10]]
        if unknown:
            count = int((ids < 0).sum())
            listed = ", ".join(map(repr, unknown)) + (", ..." if count > len(unknown) else "")
            raise ValueError(f"{count} unknown ids of type {kind!r}: {listed}")
        return torch.from_numpy(ids)

    def _texts(self, node_type: NodeType, node_ids: Int64Array) -> list[str]:
        """Return the texts of node ids (int64 [N], all known) of a type with text ids."""
        raise NotImplementedError

    def _find_texts(self, node_type: NodeType, texts: list[str]) -> Int64Array:
        """Return the node ids of texts of a type with text ids, int64 [N], -1 for unknown texts."""
        raise NotImplementedError

    def _ids_of_servers(self, node_type: NodeType, split: str | None, share: Share) -> Sequence[Int64Array]:
        """Return a share of the ids of a split, or of all nodes, by server, int64, ascending."""
        raise NotImplementedError

    def _one_type(self, node_type: NodeType | None) -> NodeType:
        if node_type is None:
            if len(self.node_types) > 1:
                raise ValueError(f"node_type must be one of {', '.join(self.node_types)}")
            return self.node_types[0]
        if node_type not in self.schema.nodes:
            known = ", ".join(map(repr, self.node_types))
            raise ValueError(f"unknown node type {node_type!r}; known: {known}")
        return node_type


def _feature_infos(types: Mapping[Any, NodeSchema | EdgeSchema], name: str) -> dict[Any, FeatureInfo]:
    """Return width and dtype, in batches, of a column of the types that have it."""
    from gigl_loader.pyg.feature_store import as_tensor

    columns = {kind: each.columns[name] for kind, each in types.items() if name in each.columns}
    return {
        kind: FeatureInfo(
            column.shape[-1] if column.shape else 1,
            as_tensor(np.empty((0, column.row_bytes), np.uint8), column, (0, *column.shape)).dtype,
        )
        for kind, column in columns.items()
    }


def _check_names(*names: object) -> None:
    """Raise ``TypeError`` for what stands in the place of a name in a call with GiGL's order of arguments."""
    for name in names:
        if isinstance(name, int):
            raise TypeError(
                f"split and node type are names, got {name!r}: pass rank= and world_size= by name"
            )


def _id_array(ids: torch.Tensor) -> Int64Array:
    """Return a user's node ids as int64 [N]."""
    array = np.ascontiguousarray(tensor_of("node ids", ids).numpy())
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise TypeError(f"node ids must be a 1-D tensor of integers, got {array.dtype} {array.shape}")
    return array.astype(np.int64)
