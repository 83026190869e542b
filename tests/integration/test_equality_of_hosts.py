"""The property of the whole design: however a graph is partitioned and whoever samples, a batch is the same.

Ranks are threads here; peer services and sampling processes are real.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest

from gigl_loader import (
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    LaborSamplerOptions,
    NegativeSampling,
    RandomWalkSamplerOptions,
)
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.sampling import resident
from tests.support.pyg_graphs import heterogeneous, homogeneous, same_batch
from tests.support.thread_ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

    from gigl_loader.group import RankGroup

GRAPHS = {"homogeneous": homogeneous, "heterogeneous": heterogeneous}
INPUT: dict[str, Any] = {"homogeneous": "train", "heterogeneous": ("user", None)}
BUYS = ("user", "buys", "item")
SEED = 11


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a graph is cut and who samples it."""

    parts: int
    hosts: int
    ranks_per_host: int = 1
    workers: int = 0
    assigner: Literal["range", "hash", "ldg"] = "range"
    edge_dir: Literal["in", "out"] = "in"
    graph: str = "homogeneous"
    replace: bool = False
    cache_size: int | str = 0
    feature_memory: str = "auto"
    device_memory: str | None = None
    kind: Literal["nodes", "links", "labor", "walks"] = "nodes"

    def __str__(self) -> str:
        return (
            f"{self.graph}-{self.parts}parts-{self.hosts}hosts-{self.ranks_per_host}ranks-"
            f"{self.workers}workers-{self.assigner}-{self.edge_dir}{'-replace' if self.replace else ''}"
            f"{f'-cache{self.cache_size}' if self.cache_size else ''}"
            f"{'' if self.feature_memory == 'auto' else f'-memory{self.feature_memory}'}-{self.kind}"
            f"{f'-device{self.device_memory}' if self.device_memory else ''}"
        )

    def partitions_of(self, host: int) -> list[int]:
        """Return every so-manieth: what a host holds need not be next to each other."""
        return list(range(self.parts))[host :: self.hosts]


FAST = [
    Case(parts=2, hosts=2, graph="heterogeneous", assigner="hash"),
    Case(parts=4, hosts=2, edge_dir="out"),
    Case(parts=2, hosts=2, workers=1, cache_size=500),
    Case(parts=4, hosts=2, graph="heterogeneous", assigner="hash", cache_size=500, kind="links"),
    Case(parts=2, hosts=2, graph="heterogeneous", assigner="ldg", kind="labor"),
    Case(parts=4, hosts=2, edge_dir="out", assigner="hash", kind="walks"),
    Case(parts=4, hosts=2, graph="heterogeneous", assigner="hash", feature_memory="4KB"),
    Case(parts=2, hosts=2, graph="heterogeneous", workers=1, feature_memory="1GB", kind="links"),
    Case(parts=2, hosts=2, device_memory="1GB"),
    Case(parts=4, hosts=2, graph="heterogeneous", feature_memory="4KB", device_memory="2KB", kind="links"),
]
SLOW = [
    Case(parts=1, hosts=1, ranks_per_host=2, workers=2),
    Case(parts=2, hosts=1, ranks_per_host=2, workers=1, assigner="hash"),
    Case(
        parts=2, hosts=2, ranks_per_host=2, workers=2, graph="heterogeneous", edge_dir="out", cache_size="1MB"
    ),
    Case(parts=4, hosts=2, ranks_per_host=2, assigner="hash", replace=True),
    Case(parts=4, hosts=4, workers=1, graph="heterogeneous", assigner="hash", replace=True, cache_size=300),
    Case(parts=4, hosts=4, workers=2, edge_dir="out"),
    Case(parts=4, hosts=3, ranks_per_host=1, workers=1),
    Case(parts=4, hosts=2, ranks_per_host=2, workers=1, edge_dir="out", kind="links"),
    Case(
        parts=4,
        hosts=4,
        ranks_per_host=2,
        workers=2,
        graph="heterogeneous",
        cache_size=300,
        feature_memory="9KB",
    ),
    Case(parts=4, hosts=3, feature_memory="3KB", edge_dir="out", assigner="hash", kind="links"),
    Case(parts=4, hosts=3, workers=1, feature_memory="20KB", kind="labor"),
    Case(parts=4, hosts=2, workers=1, feature_memory="1GB", assigner="hash", kind="walks"),
]


@pytest.mark.some(4)
@pytest.mark.usefixtures("no_leftovers")
@pytest.mark.parametrize(
    "case", [*FAST, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)], ids=str
)
def test_batches_are_those_of_one_partition_sampled_inline(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "_CENSUS_BATCHES", 2)
    data = GRAPHS[case.graph]()
    path = tmp_path / "graph"
    build_graph(
        tables_from_pyg(data), path, num_partitions=case.parts, assigner=case.assigner, edge_dir=case.edge_dir
    )
    options: dict[str, Any] = {"replace": case.replace, "with_edge": True, "seed": SEED}

    def program(group: RankGroup) -> list[Any]:
        host = group.rank // case.ranks_per_host
        with (
            DistDataset.open(
                path, partitions=case.partitions_of(host), cache_size=case.cache_size, timeout=60
            ) as dataset,
            _loader(
                case,
                dataset,
                batch_size=100 if case.kind == "links" else 16,
                shuffle=True,
                num_workers=case.workers,
                feature_memory=case.feature_memory,
                feature_memory_device=case.device_memory,
                name="train",
                timeout=60,
                **options,
            ) as loader,
        ):
            batches = list(loader)
            if case.device_memory:  # Rows are on the device by now.
                for _ in range(2):
                    loader.set_epoch(0)
                    batches = list(loader)
                assert loader.stats()["rows"]["device"]
            return batches

    world_size = case.hosts * case.ranks_per_host
    hosts = [str(rank // case.ranks_per_host) for rank in range(world_size)]
    shares = run_ranks(world_size, program, hosts=hosts)
    alone = DistDataset.from_pyg(data, edge_dir=case.edge_dir)
    for share in shares:
        assert isinstance(share, list), share
        assert share
        for batch in share:
            assert same_batch(batch, _sampled_alone(alone, batch, case, **options))


def _loader(case: Case, dataset: DistDataset, **options: Any) -> Any:
    if case.kind != "links":
        return _node_loader(case, dataset, INPUT[case.graph], **options)
    links = None if case.graph == "homogeneous" else BUYS
    negatives = NegativeSampling("binary", 1.5, strict=True)
    return DistLinkNeighborLoader(
        dataset, [4, 3], links, neg_sampling=negatives, exclude_targets=True, **options
    )


def _node_loader(case: Case, dataset: DistDataset, seeds: Any, **options: Any) -> DistNeighborLoader:
    if case.kind == "walks":
        walks = RandomWalkSamplerOptions(walk_length=4, walks_per_seed=3, p=0.5, q=2.0)
        plain = {**options, "with_edge": None, "replace": False}
        return DistNeighborLoader(dataset, None, seeds, sampler_options=walks, **plain)
    if case.kind == "labor":
        options["sampler_options"] = LaborSamplerOptions()
    return DistNeighborLoader(dataset, [4, 3, 2], seeds, **options)


def _sampled_alone(dataset: DistDataset, batch: Any, case: Case, **options: Any) -> Any:
    """Return the batch of the same entries from one partition, without processes."""
    kind = BUYS if case.kind == "links" else "user"
    store = batch[kind] if case.graph == "heterogeneous" else batch
    with _loader(case, dataset, num_workers=0, **options) as loader:
        return loader(store.input_id)
