"""``gigl-loader fetch``: graphs at URIs, copied whole or in part, verified, and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from gigl_loader import DistDataset
from gigl_loader.arrays import Bytes
from gigl_loader.cli.app import build_app
from gigl_loader.graph import Graph
from gigl_loader.graph.local_partitions import open_partitions
from gigl_loader.partition import ArrayTable, GraphTables, build_graph
from gigl_loader.partition.remote_files import RemoteSource
from tests.support.tables import files_of


def _fetch(*arguments: Any, code: int = 0) -> str:
    result = CliRunner().invoke(build_app(), ["fetch", *map(str, arguments)])
    assert result.exit_code == code, result.output
    if code:
        assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    return result.stderr if code else result.stdout


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    ends = {name: random.integers(0, 40_000, 60_000) for name in ("src", "dst")}
    edges = ArrayTable("edges", ends | {"w": random.random(60_000)})
    build_graph(GraphTables({("node", "to", "node"): edges}), tmp_path / "graph", num_partitions=3)
    return tmp_path / "graph"


def test_a_copy_is_the_graph_byte_for_byte(graph: Path, tmp_path: Path) -> None:
    printed = _fetch(graph.as_uri(), tmp_path / "copy")
    assert printed.startswith(f"{tmp_path / 'copy'}: all partitions of {graph.as_uri()}")
    assert files_of(tmp_path / "copy") == files_of(graph)
    assert "of which 0 bytes were copied" in _fetch(graph, tmp_path / "copy")


def test_partitions_are_added_and_damage_is_mended(graph: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    _fetch(graph, copy, "-p", 1)
    assert {path.name for path in copy.glob("part-*")} == {"part-00001"}
    assert Graph.open(copy, parts=[1]).parts == (1,)
    [damaged] = copy.glob("part-00001/topology/*")
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    _fetch(graph, copy, "-p", "0,1", "-p", 2)
    assert files_of(copy) == files_of(graph)


def test_a_server_of_all_topology_needs_what_fetch_copies(graph: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    _fetch(graph, copy, "-p", 1)
    with pytest.raises(ValueError, match=r"lacks part-00000/topology/.*: .* --partition 1 --topology all"):
        open_partitions(copy, None, topology="all")
    assert "partitions [1] and the topology of all" in _fetch(graph, copy, "-p", 1, "--topology", "all")
    assert not list(copy.glob("part-00000/edges/*"))
    found = open_partitions(copy, None, topology="all")
    assert (found.parts, found.topology_parts) == ((1,), (0, 1, 2))
    assert Graph.from_reference(found.reference).topology_parts == (0, 1, 2)
    _fetch(graph, copy, "--topology", "some", code=2)


def test_an_interrupted_copy_goes_on(graph: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    fetch = RemoteSource.fetch

    def recorded(source: RemoteSource, name: str, first: int, count: int) -> Bytes:
        if len(names) == 4:
            names.append("")
            raise KeyboardInterrupt
        names.append(name)
        return fetch(source, name, first, count)

    monkeypatch.setattr(RemoteSource, "fetch", recorded)
    copy = tmp_path / "copy"
    CliRunner().invoke(build_app(), ["fetch", str(graph), str(copy)])
    assert not (copy / "graph.json").exists()
    _fetch(graph, copy)
    assert files_of(copy) == files_of(graph)
    assert names[4] == ""
    assert not set(names[:4]) & set(names[5:]), "a file that was complete is fetched again"


def test_wrong_bytes_at_the_source_are_refused(graph: Path, tmp_path: Path) -> None:
    [damaged] = graph.glob("part-00002/edges/*")
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    error = _fetch(graph, tmp_path / "copy", code=2)
    assert "do not match their checksum at file://" in error
    assert not (tmp_path / "copy" / "graph.json").exists()


def test_mistakes_are_told_in_a_line(graph: Path, tmp_path: Path) -> None:
    assert "has no partition 3: it has 0 to 2" in _fetch(graph, tmp_path / "copy", "-p", 3, code=2)
    assert "--partition must be a whole number, got 'x'" in _fetch(
        graph, tmp_path / "copy", "-p", "x", code=2
    )
    assert "no such file" in _fetch(tmp_path / "none", tmp_path / "copy", code=2).lower()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("")
    assert "letter.txt is no file of the graph" in _fetch(graph, tmp_path / "mine", code=2)
    edges = ArrayTable("edges", {"src": np.arange(2), "dst": np.arange(2)})
    build_graph(GraphTables({("node", "to", "node"): edges}), tmp_path / "other")
    assert "holds another graph: digest" in _fetch(graph, tmp_path / "other", code=2)
    with pytest.raises(ValueError, match="gigl-loader fetch s3://bucket/graph DIRECTORY"):
        DistDataset.open("s3://user:secret@bucket/graph")
