"""Seeds of several node types in one input: ``{node type: nodes}``, and their attributes of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from typing_extensions import Self

from gigl_loader.errors import FormatError
from gigl_loader.loaders.collate import seed_index
from gigl_loader.loaders.dataset import entry_numbers
from gigl_loader.loaders.inputs import SeedNodes, nodes_by_type, num_entries, read_seed_nodes
from gigl_loader.sampling.request import SEED, SEED_TIME, SEED_TYPE

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch_geometric.data import HeteroData

    from gigl_loader.arrays import Array, Int64Array
    from gigl_loader.loaders.dataset import NodeDirectory
    from gigl_loader.loaders.inputs import LoaderInput
    from gigl_loader.loaders.transfer import FrameTensors
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.plans.node_types import NodeTypesPlan


@dataclass(frozen=True, slots=True, eq=False)
class SeedsByType:
    """The seeds of an epoch, of several node types: type after type, in ascending order of the types."""

    by_type: Mapping[NodeType, SeedNodes]
    """Their arrays are parts of ``columns``."""
    columns: Mapping[str, Array]
    """The columns of a request, [N] each."""
    places: Int64Array
    """Where each seed stands in the user's input of its type."""

    @classmethod
    def of(cls, given: Mapping[NodeType, SeedNodes]) -> Self:
        """Return the input of these seeds."""
        groups = [given[node_type] for node_type in sorted(given)]
        counts = [len(each.positions) for each in groups]
        positions = np.concatenate([each.positions for each in groups])
        parts = np.split(positions, np.cumsum(counts)[:-1])
        by_type = {
            each.node_type: SeedNodes(each.node_type, part, each.places, each.ids, split=each.split)
            for each, part in zip(groups, parts, strict=True)
        }
        places = [
            np.arange(count) if each.places is None else each.places
            for each, count in zip(groups, counts, strict=True)
        ]
        types = np.repeat(np.arange(len(groups), dtype=np.uint16), counts)
        return cls(by_type, {SEED_TYPE: types, SEED: positions}, np.concatenate(places))

    @property
    def kind(self) -> frozenset[NodeType]:
        """Types of the entries."""
        return frozenset(self.by_type)

    @property
    def what(self) -> str:
        return f"seed of node types {', '.join(map(repr, self.by_type))}"

    def described(self, directory: NodeDirectory) -> dict[str, Any]:
        """Return size and digest of the input of each type as plain values."""
        return {
            f"{name} of type {node_type!r}": value
            for node_type, seeds in self.by_type.items()
            for name, value in seeds.described(directory).items()
        }

    def with_times(self, times: Mapping[str, Int64Array]) -> SeedsByType:
        ends = np.cumsum([len(each.positions) for each in self.by_type.values()])[:-1]
        parts = {name: np.split(column, ends) for name, column in times.items()}
        by_type = {
            node_type: seeds.with_times({name: parts[name][number] for name in times})
            for number, (node_type, seeds) in enumerate(self.by_type.items())
        }
        return SeedsByType(by_type, {**self.columns, **times}, self.places)

    def without_ids(self) -> SeedsByType:
        by_type = {node_type: seeds.without_ids() for node_type, seeds in self.by_type.items()}
        return SeedsByType(by_type, self.columns, self.places)

    def entries_at(self, places: Mapping[Any, Any]) -> Int64Array:
        """Return the numbers, in the whole input, of entries by type, int64 [B].

        Places of a type count its own entries. ``ValueError`` names a type or place that is not there.
        """
        _check_known("places in the input", places, self.by_type)
        found, begin = [np.empty(0, np.int64)], 0
        for node_type, seeds in self.by_type.items():
            count = len(seeds.positions)
            if node_type in places and len(places[node_type]):
                found.append(begin + entry_numbers(places[node_type], count=count))
            begin += count
        return np.concatenate(found)


def entries_at(seeds: LoaderInput, places: Any) -> Int64Array:
    """Return the numbers of the entries at some places of an input, int64 [B], or of each of its types.

    ``ValueError`` names a place that is not there.
    """
    if isinstance(seeds, SeedsByType) and isinstance(places, Mapping):
        places = seeds.entries_at(places)
    return entry_numbers(places, count=num_entries(seeds))


def read_seeds(directory: NodeDirectory, input_nodes: Any) -> SeedNodes | SeedsByType:
    """Return the seeds that ``input_nodes`` stands for: of several types, if it maps some to nodes.

    The nodes of a type are what ``read_seed_nodes`` takes. ``ValueError`` and ``TypeError`` name the value
    and the rule that it breaks.
    """
    by_type = nodes_by_type(input_nodes)
    if by_type is None or len(by_type) < 2:
        return read_seed_nodes(directory, input_nodes)
    return SeedsByType.of({each: read_seed_nodes(directory, (each, by_type[each])) for each in by_type})


def read_seeds_of(
    directory: NodeDirectory, kind: NodeType | EdgeType | frozenset[NodeType], nodes: Any
) -> SeedNodes | SeedsByType:
    """Return seeds of the type, or types, of a loader. Of several types, some may have none.

    ``ValueError`` and ``TypeError`` name the value and the rule that it breaks.
    """
    by_type = nodes_by_type(nodes)
    if not isinstance(kind, frozenset):
        return read_seed_nodes(directory, (kind, nodes) if by_type is None else nodes)
    if by_type is None:
        raise TypeError(
            f"the seeds are of several node types: map {', '.join(map(repr, sorted(kind)))} to nodes, got "
            f"{nodes!r:.200}"
        )
    _check_known("the seeds", by_type, kind)
    return SeedsByType.of({each: read_seed_nodes(directory, (each, by_type.get(each, []))) for each in kind})


def new_nodes_of(kind: Any, counts: Mapping[NodeType, int]) -> Any:
    """Return the ids of all new nodes of the type, or types, of a loader's seeds: -1, -2, ... each."""
    if isinstance(kind, frozenset):
        return {each: new_nodes_of(each, counts) for each in kind}
    return -1 - np.arange(counts.get(str(kind), 0))


def times_by_type(name: str, value: Any, seeds: SeedsByType) -> dict[NodeType, Any]:
    """Return the times of the seeds of each type. Types without a seed need none.

    ``ValueError`` and ``TypeError`` name the rule that is broken.
    """
    if not isinstance(value, Mapping):
        raise TypeError(
            f"{name} must map each node type of the seeds to their times, got a {type(value).__name__}"
        )
    _check_known(name, value, seeds.by_type)
    for node_type, of_type in seeds.by_type.items():
        if node_type not in value and len(of_type.positions):
            raise ValueError(f"{name} lacks the times of the seeds of type {node_type!r}")
    return {node_type: value.get(node_type, []) for node_type in seeds.by_type}


def _check_known(what: str, given: Collection[Any], known: Collection[NodeType]) -> None:
    for node_type in given:
        if node_type not in known:
            raise ValueError(
                f"{what}: unknown node type {node_type!r}; those of the seeds: {', '.join(sorted(known))}"
            )


def attach_seeds(batch: HeteroData, tensors: FrameTensors, plan: NodeTypesPlan) -> HeteroData:
    """Return ``batch`` with the attributes of the seeds of each type, also of types that it has none of."""
    types = tensors.frame.array(SEED_TYPE)  # On the host: its copy on the device would make the host wait.
    if len(types) and not 0 <= types.min() <= types.max() < len(plan.seed_types):
        raise FormatError(f"frame: {SEED_TYPE} leaves the {len(plan.seed_types)} types of seeds")
    seeds, input_id = tensors.tensor("seeds"), tensors.tensor("input_id")
    for number, node_type in enumerate(plan.seed_types):
        store = batch[node_type]
        entries = torch.from_numpy(np.flatnonzero(types == number)).to(seeds.device)
        own, distinct = seeds.index_select(0, entries), store.num_sampled_nodes[0]
        if distinct > len(own):
            raise FormatError(f"frame: {distinct} distinct seeds of {node_type} among {len(own)}")
        store.batch_size = distinct
        store.input_id = input_id.index_select(0, entries)
        if not plan.hops.disjoint:  # There, nodes have the numbers of their trees.
            store.batch = own
        store.seed_index = seed_index(own, store.n_id[:distinct])
        if plan.hops.time_attr is not None:
            store.seed_time = tensors.tensor(SEED_TIME).index_select(0, entries)
    return batch
