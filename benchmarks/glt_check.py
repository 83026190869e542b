"""``import_glt`` and the ``[glt]`` extra beside graphlearn-torch itself (GLT), in its environment.

    benchmarks/glt_check.sh setup && benchmarks/glt_check.sh

GLT's partitioners write directories; each is loaded by GLT, and imported. Compared are whole neighbourhoods
with edge ids and features, from GLT's own sampler, ours and ``GltStore``; the frequencies of drawn edges; and
batches of loaders over ``GltDataset``. Prints a line for each comparison. The exit code is 1 where one fails.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import tempfile
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gigl_loader import DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from gigl_loader.glt import GltDataset, GltStore
from gigl_loader.graph import Graph
from gigl_loader.partition import import_glt
from gigl_loader.sampling.local_store import LocalStore
from gigl_loader.sampling.store import DrawRule, FeatureRequest, NeighborRequest

ROUNDS = 600
SIGMAS = 6.0
CPU = torch.device("cpu")
BUYS, BOUGHT, KNOWS = ("user", "buys", "item"), ("item", "rev_buys", "user"), ("user", "knows", "user")
EDGE = ("node", "to", "node")


@dataclass
class Case:
    """A directory of GLT, and the graph that was imported from it."""

    name: str
    edge_dir: str
    directory: Path
    graph: Graph
    path: Path
    parts: list[Any]
    """GLT's datasets."""

    def lists(self, part: int, edge_type: Any) -> Any:
        graph = self.parts[part].graph
        return graph[edge_type] if isinstance(graph, dict) else graph

    def node_features(self, part: int, node_type: str) -> Any:
        found = self.parts[part].node_features
        return found[node_type] if isinstance(found, dict) else found

    def edge_features(self, part: int, edge_type: Any) -> Any:
        found = self.parts[part].edge_features
        return found[edge_type] if isinstance(found, dict) else found

    def own(self, part: int, node_type: str) -> torch.Tensor:
        """Return the node ids of a partition, in the order of positions."""
        low, high = self.graph.bounds(node_type)[part : part + 2]
        ids = self.graph.node_ids(node_type)
        positions = np.arange(low, high)
        return torch.from_numpy(positions if ids is None else ids[positions])


def main() -> int:
    checks = (same_neighbourhoods, same_features, same_in_threads, same_frequencies, same_batches, refusals)
    with tempfile.TemporaryDirectory() as folder:
        found = [passes(check, case) for case in cases(Path(folder)) for check in checks]
    return 0 if all(found) else 1


def passes(check: Callable[[Case], str], case: Case) -> bool:
    try:
        print(f"ok    {case.name}: {check(case)}", flush=True)
    except AssertionError as error:
        print(f"FAIL  {case.name}: {check.__name__}: {error}", flush=True)
        return False
    return True


def cases(folder: Path) -> Iterator[Case]:
    glt = library()
    draws = torch.Generator().manual_seed(0)

    def ends(*sizes: int, count: int) -> torch.Tensor:
        """Few nodes have most of the edges."""
        return torch.stack([(size * torch.rand(count, generator=draws) ** 2).long() for size in sizes])

    edges = ends(500, 500, count=4000)
    plain = {
        "node_feat": torch.rand(500, 8),
        "edge_feat": torch.rand(4000, 3),
        "edge_weights": torch.rand(4000),
    }
    buys = ends(300, 200, count=1500)
    typed = {BUYS: buys, BOUGHT: buys.flip(0), KNOWS: ends(300, 300, count=900)}
    features = {
        "node_feat": {"user": torch.rand(300, 4), "item": torch.rand(200, 6)},
        "edge_feat": {kind: torch.rand(each.shape[1], 2) for kind, each in typed.items()},
    }
    chances = [torch.rand(500), torch.rand(500)]
    partition = glt.partition
    makers: dict[str, Callable[[str, str], Any]] = {
        "random": lambda path, by: partition.RandomPartitioner(
            path, 3, 500, edges, edge_assign_strategy=by, chunk_size=64, **plain
        ),
        "frequency": lambda path, by: partition.FrequencyPartitioner(
            path, 2, 500, edges, chances, edge_assign_strategy=by, chunk_size=64, cache_ratio=0.1, **plain
        ),
        "heterogeneous": lambda path, by: partition.RandomPartitioner(
            path, 2, {"user": 300, "item": 200}, typed, edge_assign_strategy=by, **features
        ),
    }
    for (name, make), edge_dir in itertools.product(makers.items(), ("in", "out")):
        directory, path = folder / f"{name}-{edge_dir}", folder / f"{name}-{edge_dir}-graph"
        with quiet():
            make(str(directory), "by_dst" if edge_dir == "in" else "by_src").partition()
            schema = import_glt(directory, path, edge_dir=edge_dir)
            parts = [glt.distributed.DistDataset(edge_dir=edge_dir) for _ in range(schema.num_partitions)]
            for part, dataset in enumerate(parts):
                dataset.load(str(directory), part, graph_mode="CPU", feature_with_gpu=False)
        yield Case(f"{name}, edge_dir={edge_dir}", edge_dir, directory, Graph.open(path), path, parts)


def same_neighbourhoods(case: Case) -> str:
    """All neighbours with edge ids: GLT's sampler, ours, and GLT's behind the seam."""
    edges = 0
    for edge_type, part in itertools.product(case.graph.schema.edges, range(len(case.parts))):
        ids = case.own(part, case.graph.schema.target_type(edge_type))
        glt = library().sampler.NeighborSampler(
            case.lists(part, edge_type), device=CPU, with_edge=True, edge_dir=case.edge_dir
        )
        for fanout in (-1, 10_000):
            theirs = glt.sample_one_hop(ids, fanout)
            expected = by_target(theirs.nbr.numpy(), theirs.edge.numpy(), theirs.nbr_num.numpy())
            for store in (GltStore(case.graph, part), LocalStore(case.graph, part)):
                found = answer(case, store, edge_type, part, fanout)
                assert found == expected, f"{edge_type}, partition {part}, fanout {fanout}, {store}"
            edges += sum(map(len, expected)) * (fanout == -1)
    total = sum(each.count for each in case.graph.schema.edges.values())
    assert edges == total, f"{edges} of {total} edges"
    return f"{edges} neighbours and edge ids are those of GLT's sampler"


def same_features(case: Case) -> str:
    rows = 0
    schema = case.graph.schema
    for part in range(len(case.parts)):
        store = GltStore(case.graph, part)
        for node_type in schema.nodes:
            ids = case.own(part, node_type)
            positions = case.graph.positions(node_type, ids.numpy())
            rows += compared(store, node_type, "x", positions, case.node_features(part, node_type)[ids])
        for edge_type in schema.edges:
            slots = np.arange(len(case.graph.topology(edge_type, part)["indices"]))
            ids = torch.from_numpy(case.graph.topology(edge_type, part)["edge_ids"].astype(np.int64))
            rows += compared(store, edge_type, "edge_attr", slots, case.edge_features(part, edge_type)[ids])
    return f"{rows} rows of features are those of GLT"


def compared(store: GltStore, kind: Any, column: str, rows: Any, expected: torch.Tensor) -> int:
    out = np.zeros((len(rows), expected.shape[1] * expected.element_size()), np.uint8)
    request = FeatureRequest(kind=kind, columns=(column,), rows=rows.astype(np.int64))
    store.gather(request, np.arange(len(rows), dtype=np.int64), [out])
    assert np.array_equal(out.view(np.float32), expected.numpy()), f"{column} of {kind}"
    return len(rows)


def same_in_threads(case: Case) -> str:
    """Several samplers may ask a store at once."""
    edge_type, store = next(iter(case.graph.schema.edges)), GltStore(case.graph, 0)
    whole = answer(case, store, edge_type, 0, -1)
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda fanout: answer(case, store, edge_type, 0, fanout), [-1, 3] * 40)
        for number, drawn in enumerate(found):
            assert drawn == whole or (number % 2 and all(map(set.issubset, drawn, whole))), "other edges"
    return "80 requests of four threads"


def same_frequencies(case: Case) -> str:
    """Of d edges, ``fanout`` draws with replacement take an edge with chance 1 - (1 - 1/d)^fanout."""
    fanout, worst = 3, 0.0
    for edge_type in case.graph.schema.edges:
        store = GltStore(case.graph, 0)
        whole = answer(case, store, edge_type, 0, -1)
        counts: Counter[tuple[int, Any]] = Counter()
        for _ in range(ROUNDS):
            for target, drawn in enumerate(answer(case, store, edge_type, 0, fanout)):
                assert drawn <= whole[target], "an edge that is not there"
                assert len(drawn) <= fanout, "more than the fanout"
                assert len(whole[target]) > fanout or drawn == whole[target], "a short list comes whole"
                counts.update((target, edge) for edge in drawn)
        for target, edges in enumerate(whole):
            if len(edges) > fanout:
                chance = 1 - (1 - 1 / len(edges)) ** fanout
                spread = (ROUNDS * chance * (1 - chance)) ** 0.5
                worst = max(worst, *(abs(counts[target, edge] - ROUNDS * chance) / spread for edge in edges))
    assert worst < SIGMAS, f"an edge is {worst:.1f} standard deviations off"
    return f"edges come as often as they should, within {worst:.1f} standard deviations"


def same_batches(case: Case) -> str:
    """Of whole neighbourhoods, batches are the same sets; of drawn ones, they are right."""
    plain = DistDataset.open(case.path)
    over_glt = GltDataset(plain, seed=1)
    seed_type = next(iter(plain.schema.nodes))
    options = {"input_nodes": (seed_type, None), "batch_size": 64, "num_workers": 0}
    batches = 0
    for fanouts in ([-1, -1], [4, 3]):
        ours = DistNeighborLoader(plain, fanouts, **options)
        theirs = DistNeighborLoader(over_glt, fanouts, **options)
        for expected, found in zip(ours, theirs, strict=True):
            batches += 1
            for node_type, edge_type in itertools.product(
                plain.schema.nodes, getattr(found, "edge_types", [EDGE])
            ):
                check_batch(case, expected, found, node_type, edge_type, whole=fanouts == [-1, -1])
    links = DistLinkNeighborLoader(
        over_glt, [3], next(iter(plain.schema.edges)), neg_sampling="binary", batch_size=256, num_workers=0
    )
    batches += sum(1 for _ in links)
    return f"{batches} batches of loaders"


def check_batch(
    case: Case, expected: Any, found: Any, node_type: str, edge_type: Any, *, whole: bool
) -> None:
    nodes, edges = part_of(found, node_type), part_of(found, edge_type)
    if whole:
        assert set(part_of(expected, node_type).n_id.tolist()) == set(nodes.n_id.tolist()), "other nodes"
        assert set(part_of(expected, edge_type).e_id.tolist()) == set(edges.e_id.tolist()), "other edges"
    positions = case.graph.positions(node_type, nodes.n_id.numpy())
    assert torch.equal(nodes.x, rows_of(case, node_type, positions)), "other features"


def part_of(batch: Any, kind: Any) -> Any:
    return batch[kind] if hasattr(batch, "node_types") else batch


def rows_of(case: Case, node_type: str, positions: Any) -> torch.Tensor:
    parts = [case.graph.node_column(node_type, "x", part) for part in range(len(case.parts))]
    return torch.from_numpy(np.concatenate(parts)[positions])


def refusals(case: Case) -> str:
    dataset = GltDataset(DistDataset.open(case.path), seed=1)
    seeds = (next(iter(dataset.schema.nodes)), None)
    for word, options in (
        ("num_workers", {"num_workers": 1}),
        ("replace", {"num_workers": 0, "replace": True}),
    ):
        try:
            next(iter(DistNeighborLoader(dataset, [2], seeds, **options)))
            message = "nothing"
        except ValueError as error:
            message = str(error)
        assert word in message, f"{options} is refused with: {message}"
    return "what GLT cannot do is refused by name"


def answer(case: Case, store: Any, edge_type: Any, part: int, fanout: int) -> list[set[tuple[int, int]]]:
    """Return the neighbours of all targets of a partition as (node id, edge id)."""
    schema = case.graph.schema
    low, high = case.graph.bounds(schema.target_type(edge_type))[part : part + 2]
    request = NeighborRequest(
        edge_type=edge_type,
        targets=np.arange(low, high, dtype=np.int64),
        key=1,
        hop=0,
        rule=DrawRule(fanout=fanout),
        with_edge_ids=True,
        with_slots=True,
    )
    found = store.sample(request)
    ids = case.graph.node_ids(schema.neighbor_type(edge_type))
    neighbors = found.positions if ids is None else ids[found.positions]
    return by_target(neighbors, found.edge_ids, found.counts)


def by_target(neighbors: Any, edge_ids: Any, counts: Any) -> list[set[tuple[int, int]]]:
    pairs = list(zip(neighbors.tolist(), edge_ids.tolist(), strict=True))
    ends = np.cumsum(counts).tolist()
    return [set(pairs[end - count : end]) for end, count in zip(ends, counts.tolist(), strict=True)]


def library() -> Any:
    """Return GLT. Of torch-sparse, which it imports, it needs here to sort edges: a stand-in does that."""
    with contextlib.suppress(ImportError):
        import torch_sparse  # noqa: F401
    if "torch_sparse" not in sys.modules:
        module: Any = types.ModuleType("torch_sparse")
        module.SparseTensor = SparseTensor
        sys.modules["torch_sparse"] = module
    import graphlearn_torch

    return graphlearn_torch


class SparseTensor:
    """What GLT uses of torch-sparse's class."""

    def __init__(self, row: Any, col: Any, value: Any = None, sparse_sizes: Any = None) -> None:
        order = torch.argsort(row * sparse_sizes[1] + col, stable=True)
        sizes = torch.bincount(row, minlength=sparse_sizes[0])
        self.storage = types.SimpleNamespace(
            rowptr=lambda: torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)]),
            col=lambda: col[order],
            value=lambda: None if value is None else value[order],
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """GLT loads its own files in a way of which torch warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


if __name__ == "__main__":
    sys.exit(main())
