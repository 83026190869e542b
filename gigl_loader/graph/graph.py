"""Opened graph: maps of its files, checked against its schema."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from gigl_loader.arrays import Array, Int64Array
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import DiskFolder, Folder, folder_from, graph_directory
from gigl_loader.graph.ids import Directory, NodeTimes, TextIds
from gigl_loader.graph.manifest import (
    Document,
    Manifest,
    check_files,
    check_part,
    edges_path,
    feature_files,
    files_of,
    ids_path,
    node_times_path,
    nodes_path,
    splits_path,
    text_ids_path,
    timed_weights_path,
    times_path,
    topology_path,
    vocabulary_path,
    weights_path,
)
from gigl_loader.graph.schema import EdgeType, GraphSchema, NodeType
from gigl_loader.graph.verifier import (
    LazyVerifier,
    NoVerifier,
    Verifier,
    beyond_memory,
    check_split,
    verify_graph,
)
from gigl_loader.options import TopologyScope, Verify, check_verify


class Graph:
    """A graph on this host. Opening maps the files and reads only their headers.

    Arrays are read-only views of the maps, shared with every process that opens the same graph.
    """

    def __init__(
        self,
        folder: Folder,
        manifest: Manifest,
        documents: Mapping[str, Document],
        parts: tuple[int, ...],
        verifier: Verifier,
        *,
        lists_of: Collection[int] = (),
    ) -> None:
        self.schema: GraphSchema = manifest.schema
        self.parts = parts
        """Opened partitions, ascending."""
        self.topology_parts = tuple(sorted({*parts, *lists_of}))
        """Opened partitions, and those of which all files but the features are opened, ascending."""
        self.folder = folder
        self.manifest = manifest
        self.notes: dict[str, Any] = {}
        """Further values for processes that open the graph by its ``reference``, JSON-able."""
        self.verifier = verifier
        """Verifies the files. Call ``check`` before a batch is used."""
        self.derived: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        """Objects made from the files, with their ``nbytes``, shared by their users while there are any."""
        self.deriving = threading.Lock()
        """Held while an object is made for ``derived``."""
        self._documents = documents
        self._directories = {node_type: self._directory(node_type) for node_type in self.schema.nodes}
        self._text_ids = {
            node_type: self._opened_text_ids(node_type)
            for node_type, nodes in self.schema.nodes.items()
            if nodes.text_ids
        }

    @classmethod
    def open(
        cls,
        where: str | os.PathLike[str] | Folder,
        *,
        parts: Sequence[int] | None = None,
        topology: TopologyScope = "own",
        verify: Verify = "lazy",
    ) -> Graph:
        """Open a graph, or only some of its partitions; with topology "all", the others without features.

        Raises ``FormatError`` for missing, damaged or inconsistent files, as far as sizes, headers and the
        ends of each adjacency show. With ``verify="lazy"``, files of topology, ids and splits are verified
        at first use, and features from the first ``verifier.check()`` on; with ``"full"``, every byte is
        verified here; with ``"none"``, nothing further is.
        """
        mode = check_verify(verify)
        folder = folder_at(where)
        manifest = Manifest.read(folder)
        opened = range(manifest.schema.num_partitions) if parts is None else sorted(set(parts))
        lists_of = range(manifest.schema.num_partitions if topology == "all" else 0)
        documents = _documents(folder, manifest, opened, lists_of)
        verifier = _verifier(folder, documents, mode)
        graph = cls(folder, manifest, documents, tuple(opened), verifier, lists_of=lists_of)
        graph._check_counts()
        if mode == "full":
            verifier.finish()
        return graph

    @classmethod
    def from_reference(cls, reference: Mapping[str, Any]) -> Graph:
        """Open the graph behind the ``reference`` of another process, which verifies the graph."""
        return cls.open(
            folder_from(reference),
            parts=reference.get("parts"),
            topology=reference.get("topology", "own"),
            verify="none",
        )

    def holding(
        self, parts: Sequence[int], *, lists_of: Collection[int] = (), reopen: Collection[str] = ()
    ) -> Graph:
        """Return the same graph with other partitions opened, ``lists_of`` some without features.

        This graph stays as it is.

        Files of both stay mapped, and verified. Files named by ``reopen`` were replaced, and are mapped anew.
        Raises as ``open``.
        """
        kept = {name: document for name, document in self._documents.items() if name not in reopen}
        opened = tuple(sorted(set(parts)))
        documents = _documents(self.folder, self.manifest, opened, lists_of, kept)
        verifier = self.verifier.over(documents, feature_files(documents))
        graph = Graph(self.folder, self.manifest, documents, opened, verifier, lists_of=lists_of)
        graph._check_counts()
        graph.notes = self.notes
        return graph

    @property
    def derived_bytes(self) -> int:
        """Bytes of all objects in ``derived``."""
        alive = (reference() for reference in self.derived.valuerefs())
        return sum(each.nbytes for each in alive if each is not None)

    @property
    def is_whole(self) -> bool:
        """Whether all partitions were opened."""
        return len(self.parts) == self.schema.num_partitions

    @property
    def has_all_topology(self) -> bool:
        """Whether the adjacency of all partitions is opened."""
        return len(self.topology_parts) == self.schema.num_partitions

    @property
    def reference(self) -> dict[str, Any]:
        """Location and opened partitions of the graph, JSON-able, with ``notes``.

        A child process needs ``pass_fds`` to use it.
        """
        parts: dict[str, Any] = {} if self.is_whole else {"parts": list(self.parts)}
        if self.has_all_topology and not self.is_whole:
            parts["topology"] = "all"
        return {**self.folder.reference, **parts, **self.notes}

    @property
    def pass_fds(self) -> tuple[int, ...]:
        """File descriptors that a child process must inherit to use ``reference``."""
        return self.folder.pass_fds

    @property
    def nbytes(self) -> int:
        """Size of all files together, opened or not."""
        return sum(record.nbytes for record in self.manifest.files.values())

    @property
    def structure_bytes(self) -> int:
        """Size of the opened files that every batch reads: all but columns and texts."""
        features = set(feature_files(self._documents))
        return sum(self.manifest.files[name].nbytes for name in self._documents if name not in features)

    def verify(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Read every byte: checksums, order of ``indptr``, range of every index, ids.

        ``progress(read, total)`` is called with bytes. Raises ``FormatError`` at the first fault.
        """
        verify_graph(self.schema, self.folder, self._documents, self._directories, progress)
        for texts in self._text_ids.values():
            texts.verify()
        for file in self.schema.vocabulary_files:
            self._vocabulary(file.number).verify()

    def topology(self, edge_type: EdgeType, part: int) -> dict[str, Array]:
        """Return a partition's adjacency: ``indptr`` int64 [N + 1], ``indices`` [E] and ``edge_ids`` [E].

        ``indices`` are neighbour positions, int32 or int64. ``weight`` (float32 [E]) and ``time`` (int64 [E])
        are included where the schema declares them.
        """
        self._known_edge_type(edge_type)
        document = self._verified(topology_path(part, edge_type))
        return {name: document.array(name) for name in document.specs}

    def has_lists_on_disk(self, edge_type: EdgeType, part: int) -> bool:
        """Whether a partition's lists of an edge type are read from a disk, as memory is short."""
        return self.document(topology_path(part, edge_type)).stays_on_disk

    def node_column(self, node_type: NodeType, name: str, part: int) -> Array:
        """Return a column of the nodes that a partition owns, [N, ...], by position."""
        columns = self._known_node_type(node_type).columns
        _require(name, columns, f"nodes of type {node_type!r} have no column")
        return self.document(nodes_path(part, node_type)).array(name)

    def edge_column(self, edge_type: EdgeType, name: str, part: int) -> Array:
        """Return a column of the edges of a partition, [E, ...], in the order of its ``indices``."""
        columns = self._known_edge_type(edge_type).columns
        _require(name, columns, f"edges of type {edge_type} have no column")
        return self.document(edges_path(part, edge_type)).array(name)

    def weights(self, edge_type: EdgeType, name: str, part: int) -> tuple[Int64Array, Int64Array]:
        """Return the index of a declared weight column.

        It has the running sums of weights, int64 [E], and the number of weights above 0 in each list,
        int64 [T].
        """
        declared = self._known_edge_type(edge_type).weights
        _require(name, declared, f"edges of type {edge_type} have no weights")
        document = self._verified(weights_path(part, edge_type, name))
        return document.array("sums"), document.array("counts")

    def times(self, edge_type: EdgeType, name: str, part: int) -> tuple[Int64Array, Array]:
        """Return the lists of an edge type by ascending time: the times, int64 [E], and the edges' places.

        ``name`` is a declared time of the edges or of the neighbours. Places are int32 or int64 [E], in the
        order of ``indices``. Edges of equal times keep that order.
        """
        self._known_edge_type(edge_type)
        _require(name, self.schema.list_times(edge_type), f"edges of type {edge_type} have no times")
        document = self._verified(times_path(part, edge_type, name))
        return document.array("times"), document.array("slots")

    def timed_weights(self, edge_type: EdgeType, time: str, weight: str, part: int) -> Int64Array:
        """Return the running sums of a declared weight column in order of a time, int64 [E]."""
        return self._verified(timed_weights_path(part, edge_type, time, weight)).array("sums")

    def node_times(self, node_type: NodeType, name: str) -> NodeTimes:
        """Return a declared time of all nodes of a type."""
        _require(name, self._known_node_type(node_type).times, f"nodes of type {node_type!r} have no times")
        document = self._verified(node_times_path(node_type, name))
        return NodeTimes(document.array("times"), document.array("order"))

    def bounds(self, node_type: NodeType) -> Int64Array:
        """Return the bounds, int64 [P + 1]: partition p owns positions ``[bounds[p], bounds[p + 1])``."""
        return np.array(self._known_node_type(node_type).bounds, dtype=np.int64)

    def node_ids(self, node_type: NodeType) -> Int64Array | None:
        """Return the node id at each position, int64 [N]. ``None`` where ids equal positions."""
        return self.directory(node_type).ids

    def positions(self, node_type: NodeType, ids: Int64Array) -> Int64Array:
        """Return the position of each node id, int64 [N]. ``ValueError`` lists the first ten unknown ids."""
        positions = self.directory(node_type).find(ids)
        unknown = ids[positions < 0]
        if len(unknown):
            listed = ", ".join(map(str, unknown[:10].tolist())) + (", ..." if len(unknown) > 10 else "")
            raise ValueError(f"{len(unknown)} unknown node ids of type {node_type!r}: {listed}")
        return positions

    def text_ids(self, node_type: NodeType) -> TextIds | None:
        """Return the texts of a type's node ids, where the graph was built with such."""
        if not self._known_node_type(node_type).text_ids:
            return None
        self.verifier.require(text_ids_path(node_type))
        return self._text_ids[node_type]

    def vocabulary(self, number: int) -> tuple[str, ...]:
        """Return the texts of a vocabulary that lies in a file, which the schema numbers."""
        self.verifier.require(vocabulary_path(number))
        return self._vocabulary(number).all_texts()

    def _vocabulary(self, number: int) -> TextIds:
        return TextIds.of_document(self._documents[vocabulary_path(number)])

    def all_positions(self, node_type: NodeType, first: int = 0, count: int | None = None) -> Int64Array:
        """Return the positions of a type, int64 [N], by ascending node id.

        That order of the nodes does not depend on the partitioning. With ``count``, return only so many,
        from index ``first`` in that order.
        """
        return self.directory(node_type).in_id_order(first, count)

    def at_ranks(self, node_type: NodeType, ranks: Int64Array) -> Int64Array:
        """Return the positions of the nodes at these indices, int64 [N], by ascending node id."""
        return self.directory(node_type).at_ranks(ranks)

    def split(self, node_type: NodeType, name: str) -> Int64Array:
        """Return the positions of a split, int64 [N], by ascending node id."""
        parts = [self.split_part(node_type, name, part) for part in range(self.schema.num_partitions)]
        return self.in_id_order(node_type, np.concatenate(parts))

    def in_id_order(self, node_type: NodeType, positions: Array) -> Array:
        """Return ``positions``, which ascend, ordered by ascending node id."""
        directory = self.directory(node_type)
        if directory.ascending:
            return positions
        return np.asarray(positions[np.argsort(directory.node_ids(positions))])

    def split_part(self, node_type: NodeType, name: str, part: int) -> Array:
        """Return the positions of a split in one partition, ascending (int32 or int64).

        ``FormatError`` where they do not ascend or are of another partition: callers index arrays with them.
        """
        nodes = self._known_node_type(node_type)
        _require(name, nodes.splits, f"nodes of type {node_type!r} have no split")
        document = self._verified(splits_path(part, node_type))
        check_split(document, name, nodes.bounds[part], nodes.bounds[part + 1])
        return document.array(name)

    def directory(self, node_type: NodeType) -> Directory:
        """Return the node ids of a type by position, and positions by node id."""
        if self._known_node_type(node_type).ids != "identity":
            self.verifier.require(ids_path(node_type))
        return self._directories[node_type]

    def _directory(self, node_type: NodeType) -> Directory:
        nodes = self.schema.nodes[node_type]
        if nodes.ids == "identity":
            return Directory(nodes.count)
        document = self._documents[ids_path(node_type)]
        Directory.check(nodes.ids, nodes.count, document.specs, document.name)
        arrays = {name: document.array(name) for name in document.specs}
        return Directory(nodes.count, arrays["ids"], arrays.get("sorted_ids"), arrays.get("positions"))

    def _opened_text_ids(self, node_type: NodeType) -> TextIds:
        document = self._documents[text_ids_path(node_type)]
        TextIds.check(self.schema.nodes[node_type].count, document.specs, document.name)
        return TextIds.of_document(document)

    def document(self, name: str) -> Document:
        """Return a file of the partitions that are open, by its path in the graph."""
        document = self._documents.get(name)
        if document is None:
            raise ValueError(f"{name} is not among the opened partitions")
        return document

    def _verified(self, name: str) -> Document:
        document = self.document(name)
        self.verifier.require(name)
        return document

    def _known_node_type(self, node_type: NodeType) -> Any:
        if node_type not in self.schema.nodes:
            raise ValueError(f"unknown node type {node_type!r}; known: {_listed(self.schema.nodes)}")
        return self.schema.nodes[node_type]

    def _known_edge_type(self, edge_type: EdgeType) -> Any:
        lists = self.schema.lists
        if edge_type not in lists:
            raise ValueError(f"unknown edge type {edge_type!r}; known: {_listed(self.schema.edges)}")
        return lists[edge_type]

    def _check_counts(self) -> None:
        """Raise ``FormatError`` unless array sizes match the counts of the schema."""
        if not self.has_all_topology:
            return
        for edge_type, edges in self.schema.lists.items():
            stored = sum(
                self._documents[topology_path(part, edge_type)].specs["indices"].shape[0]
                for part in range(self.schema.num_partitions)
            )
            if stored != edges.count:
                raise FormatError(
                    f"edge type {edge_type}: {stored} edges stored, the schema says {edges.count}"
                )
        for node_type, nodes in self.schema.nodes.items():
            for name, count in nodes.splits.items():
                stored = sum(
                    self._documents[splits_path(part, node_type)].specs[name].shape[0]
                    for part in self.topology_parts
                )
                if stored != count:
                    raise FormatError(
                        f"split {name!r} of node type {node_type!r}: {stored} nodes stored, the schema says "
                        f"{count}"
                    )


def folder_at(where: str | os.PathLike[str] | Folder) -> Folder:
    """Return the folder of a graph. ``FileNotFoundError`` for a directory that is not there."""
    if not isinstance(where, (str, os.PathLike)):
        return where
    path = graph_directory(where)
    if not path.exists():
        host, _, port = str(path).rpartition(":")
        hint = ": of storage servers, use RemoteDistDataset.connect" if host and port.isdigit() else ""
        raise FileNotFoundError(f"no graph at {path}{hint}")
    return DiskFolder(path)


def _documents(
    folder: Folder,
    manifest: Manifest,
    parts: Collection[int],
    lists_of: Collection[int],
    kept: Mapping[str, Document] | None = None,
) -> dict[str, Document]:
    """Open the files of partitions, ``lists_of`` some without features. Those in ``kept`` are open."""
    schema = manifest.schema
    opened = sorted({*parts, *lists_of})
    for part in opened:
        if not 0 <= part < schema.num_partitions:
            raise ValueError(f"no partition {part} in a graph of {schema.num_partitions}")
    check_files(manifest)
    there = kept or {}
    names = files_of(schema, opened, features_of=parts)
    documents = {name: there.get(name) or Document(folder, name, manifest.files[name]) for name in names}
    for node_type, nodes in schema.nodes.items():
        for time in nodes.times:
            NodeTimes.check(documents[node_times_path(node_type, time)], nodes.count)
    for file in schema.vocabulary_files:
        document = documents[vocabulary_path(file.number)]
        TextIds.check(file.num_texts, document.specs, document.name)
    for part in opened:
        check_part(schema, documents, part)
    for name in beyond_memory(documents) if isinstance(folder, DiskFolder) else ():
        documents[name].advise_random()
    return documents


def _verifier(folder: Folder, documents: Mapping[str, Document], mode: Verify) -> Verifier:
    """Return the verifier of these files. Files in memory need none."""
    if mode == "none" or not isinstance(folder, DiskFolder):
        return NoVerifier()
    return LazyVerifier(folder, documents, feature_files(documents))


def _require(name: str, known: Collection[str], what: str) -> None:
    if name not in known:
        raise ValueError(f"{what} {name!r}; known: {_listed(known)}")


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"
