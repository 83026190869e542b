"""Decision where features are read from: a table, and rules that hold for every graph and every limit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.graph.graph import Graph
from gigl_loader.options import FeatureOptions
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.resources import FreeMemory
from gigl_loader.sampling import feature_memory
from gigl_loader.sampling.feature_memory import (
    ColumnSize,
    FeatureMemory,
    decide,
    decide_here,
    place_of,
    sizes_of,
)
from tests.support.pyg_graphs import graph_of, heterogeneous, homogeneous

if TYPE_CHECKING:
    from pathlib import Path

MB, GB = 10**6, 10**9
PAPERS = {"paper": ColumnSize(8 * MB, 500)}  # 4 GB
SMALL = {"venue": ColumnSize(1000, 100), "field": ColumnSize(2000, 100)}
TAGS = {("paper", "has", "tag"): ColumnSize(20 * MB, 100)}  # 2 GB


def decided(sizes: Any, free: int = 0, memory: int | None = None, **facts: Any) -> FeatureMemory:
    facts = {"where": "files", "free": FreeMemory(free, "memory.max of /a"), **facts}
    return decide(sizes, FeatureOptions(memory_bytes=memory), **facts)


CASES: list[tuple[dict[str, Any], str, int, str]] = [
    ({"free": 6 * GB}, "memory", 0, "all features fit in 5.2 GB: what graph and batches leave of 6.0 GB"),
    ({"free": 4600 * MB}, "memory", 0, "all features fit in 4.0 GB: what graph"),
    ({"free": 4500 * MB}, "disk", 3375 * MB, "4.0 GB of features do not fit in 3.4 GB: what graph"),
    ({"free": 6 * GB, "structure_bytes": 2 * GB}, "disk", 3 * GB, "4.0 GB of features do not fit in 3.0 GB"),
    ({"free": 6 * GB, "taken": 3 * GB}, "disk", 2250 * MB, "4.0 GB of features do not fit in 2.2 GB"),
    ({"free": 6 * GB, "num_workers": 5, "ranks": 4}, "disk", 2140704000, "do not fit in 2.1 GB"),
    ({"free": GB, "structure_bytes": GB}, "disk", 64 << 20, "do not fit in 67.1 MB"),
    ({"free": GB, "structure_bytes": GB, "ranks": 2}, "disk", 128 << 20, "do not fit in 134.2 MB"),
    (
        {"sizes": SMALL},
        "memory memory",
        0,
        "all features fit in 67.1 MB: what graph and batches leave of 0.0 MB",
    ),
    ({"memory": 4 * GB}, "memory", 0, "all features fit in 4.0 GB: feature_memory"),
    ({"memory": GB, "free": 9 * GB}, "disk", GB, "4.0 GB of features do not fit in 1.0 GB: feature_memory"),
    ({"memory": GB, "where": "memory"}, "memory", 0, "the graph was built in memory"),
    ({"memory": GB, "where": "elsewhere"}, "owners", GB, "rows of other hosts are kept in 1.0 GB"),
    ({"memory": 9 * GB, "where": "elsewhere", "ranks": 2}, "owners", 8 * GB, "rows of other hosts are"),
    (
        {"sizes": {**PAPERS, **SMALL}, "memory": GB},
        "disk memory memory",
        GB - 300_000,
        "do not fit in 1.0 GB",
    ),
    ({"sizes": {**PAPERS, **SMALL}, "memory": 2 * MB}, "disk memory disk", 1_900_000, "do not fit in 2.0 MB"),
    ({"sizes": {**PAPERS, **TAGS}, "memory": 3 * GB}, "disk disk", 3 * GB, "6.0 GB of features"),
    (
        {"sizes": {**PAPERS, "tag": ColumnSize(9, 0)}, "memory": GB},
        "disk",
        GB,
        "4.0 GB of features do not fit",
    ),
]
"""Facts, readers of the types, bytes of the caches, and the reason of the first type."""


@pytest.mark.parametrize(("facts", "readers", "cache_bytes", "reason"), CASES, ids=range(len(CASES)))
def test_decisions(facts: dict[str, Any], readers: str, cache_bytes: int, reason: str) -> None:
    found = decided(**{"sizes": PAPERS, **facts})
    assert [each.reader for each in found.types] == readers.split()
    assert found.cache_bytes == cache_bytes
    assert reason in found.types[0].reason


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        ({"free": 32 * MB}, r"4\.0 GB of features, and no room for a cache of 67\.1 MB in .* of 32\.0 MB"),
        ({"free": 600 * MB, "num_workers": 6}, "lower num_workers, or set feature_memory"),
        ({"memory": 999, "ranks": 2}, "999 bytes are left .* each of 2 ranks needs at least one row, 500"),
    ],
)
def test_no_room_for_a_cache(facts: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        decided(PAPERS, **facts)


SIZES = st.dictionaries(
    st.sampled_from("abcdef"), st.builds(ColumnSize, st.integers(0, 10**9), st.integers(0, 10**4)), max_size=6
)


@given(SIZES, st.integers(10**8, 10**14), st.integers(1, 8), st.sampled_from(["files", "elsewhere"]))
def test_memory_stays_within_feature_memory(sizes: Any, memory: int, ranks: int, where: Any) -> None:
    found = decided(sizes, memory=memory, ranks=ranks, where=where)
    assert [each.kind for each in found.types] == [kind for kind, size in sizes.items() if size.nbytes]
    assert found.mapped_bytes + ranks * found.share <= memory
    total = sum(size.nbytes for size in sizes.values())
    assert bool(found.cached) == (total > 0 and (where == "elsewhere" or total > memory))
    assert sum(size.nbytes for kind, size in sizes.items() if kind not in found.cached) == found.mapped_bytes


def test_what_is_decided_is_told_in_one_clause() -> None:
    assert str(decided({})) == "no features"
    assert str(decided(PAPERS, 9 * GB)) == "features in memory"
    found = decided({**PAPERS, **SMALL}, memory=3 * GB, ranks=2)
    assert str(found) == "features from disk (cache of 1.5 GB)"
    assert str(replace(found, ranks=1)) == "features from disk (cache of 3.0 GB)"
    assert str(decided(TAGS, memory=GB, where="elsewhere")) == "features from owners (cache of 1.0 GB)"
    plain = json.loads(json.dumps(decided({**TAGS, **SMALL}, memory=GB).to_json()))
    assert (plain["mapped_bytes"], plain["cache_bytes"]) == (300_000, GB - 300_000)
    assert [each.pop("reader") for each in plain["types"]] == ["disk", "memory", "memory"]
    reason = "2.0 GB of features do not fit in 1.0 GB: feature_memory"
    assert plain["types"][0] == {"type": ["paper", "has", "tag"], "bytes": 2 * GB, "reason": reason}


def test_a_later_loader_counts_what_earlier_ones_may_still_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = homogeneous(4000, 8000)
    data.x = data.x.repeat(1, 100)  # 9.6 MB
    build_graph(tables_from_pyg(data), tmp_path / "graph")
    free = 8 * MB
    monkeypatch.setattr(feature_memory, "_LEAST_CACHE", 100_000)
    monkeypatch.setattr(feature_memory, "free_memory", lambda: FreeMemory(free, "memory.max of /a"))
    dataset = DistDataset.open(tmp_path / "graph")

    def opened(**options: Any) -> DistNeighborLoader:
        return DistNeighborLoader(dataset, [2], np.arange(300), batch_size=100, num_workers=0, **options)

    def cache_of(loader: DistNeighborLoader) -> int:
        found: int = loader.stats()["feature_memory"]["cache_bytes"]
        return found

    with opened() as alone:
        most = cache_of(alone)
        with opened() as second:
            reason = second.stats()["feature_memory"]["types"][0]["reason"]
            assert "what graph, batches and caches of other loaders leave of 8.0 MB" in reason
            early = cache_of(second)
            cached = 7 / 8 * most  # An eighth is for skeletons.
            assert early == pytest.approx(most - 3 / 4 * cached, rel=0.01)
        list(alone)
        with opened() as second:
            assert early < cache_of(second) < most  # What is filled is no longer free.
        with opened(feature_memory="1MB") as given, opened() as third:
            assert cache_of(given) == 1 << 20
            assert cache_of(third) < cache_of(second)
    with opened() as again:
        assert cache_of(again) == most


def test_a_request_is_decided_for_the_columns_that_its_batches_carry(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(heterogeneous()), tmp_path / "graph", num_partitions=2)
    graph = Graph.open(tmp_path / "graph")
    assert [place_of(graph), place_of(Graph.open(tmp_path / "graph", parts=[1]))] == ["files", "elsewhere"]
    assert place_of(graph_of(heterogeneous())) == "memory"
    sizes = sizes_of(graph.schema)
    features = sum(size.nbytes for size in sizes.values())
    files = (path for kind in ("nodes", "edges") for path in (tmp_path / "graph").glob(f"*/{kind}/*"))
    assert features <= sum(path.stat().st_size for path in files) <= graph.nbytes - graph.structure_bytes

    options: dict[str, Any] = {"node_columns": {"user": []}, "num_workers": 0, "feature_memory": 2000}
    with DistNeighborLoader(DistDataset(graph), [2, 2], ("item", None), **options) as loader:
        of_loader = loader._source_request().features
        found = decide_here(graph, loader.plan.frame(graph.schema), of_loader, loader=loader.name)
    assert {each.kind: each.size for each in found.types} == {
        kind: size for kind, size in sizes.items() if kind != "user" and size.nbytes
    }
    assert {each.reader for each in found.types} == {"disk"}
    assert found.share == 2000
