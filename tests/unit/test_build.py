"""The builder makes exactly the graph that its tables describe, whatever the memory limit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigl_loader.graph import Graph, MemoryFolder
from gigl_loader.partition import build_graph
from tests.support.tables import PlainGraph, check_built, files_of, plain_graphs

_SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])

options = st.fixed_dictionaries(
    {
        "num_partitions": st.integers(1, 4),
        "edge_dir": st.sampled_from(["in", "out"]),
        "assigner": st.sampled_from(["range", "hash"]),
    }
)


@_SETTINGS
@given(plain_graphs(), options)
def test_a_built_graph_is_the_graph_of_its_tables(plain: PlainGraph, chosen: dict[str, Any]) -> None:
    folder = MemoryFolder()
    schema = build_graph(plain.tables(), folder, **chosen)
    graph = Graph.open(folder)
    assert graph.schema == schema
    check_built(graph, plain)


@_SETTINGS
@given(plain_graphs(), options, st.sampled_from([2000, 5000]))
def test_the_memory_limit_changes_no_byte(plain: PlainGraph, chosen: dict[str, Any], limit: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        build_graph(plain.tables(), Path(name) / "much", **chosen)
        build_graph(plain.tables(), Path(name) / "little", memory_limit=limit, **chosen)
        assert files_of(Path(name) / "much") == files_of(Path(name) / "little")
        check_built(Graph.open(Path(name) / "little"), plain)
