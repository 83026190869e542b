"""Builds whose tables, scratch and output lie in an object store: the same bytes, or nothing at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.graph import Graph
from gigl_loader.partition import build_graph
from tests.support.command_line import COMMAND
from tests.support.executors import write_rich_files
from tests.support.object_store import object_store
from tests.support.tables import files_of

_BUILD = """
import json, sys
from dataclasses import asdict
from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.partition import LocalExecutor, build_graph, runner

runner._FEW_ROWS = 100
options, arguments, stop = json.loads(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]

def progress(step, done, total):
    if stop and step.startswith(stop) and done:
        raise KeyboardInterrupt

build_graph(
    open_tables(TableOptions(**options)), executor=LocalExecutor(2), num_partitions=3, assigner="hash",
    memory_limit=1 << 30, progress=progress,
    summary=lambda totals: print(json.dumps(asdict(totals))), **arguments,
)
"""
_SORTING = "edges user,buys,item: sorting"


@pytest.fixture(scope="module")
def store() -> Iterator[Mapping[str, str]]:
    with object_store("bucket") as environment:
        yield environment


@pytest.fixture(scope="module")
def inputs(store: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_rich_files(folder, edges=3000)
    _copy(store, str(folder), "s3://bucket/in")
    return folder


def _copy(store: Mapping[str, str], source: str, target: str) -> None:
    program = "import sys; from pyarrow import fs; fs.copy_files(*sys.argv[1:], use_threads=False)"
    command = [sys.executable, "-c", program, source, target]
    subprocess.run(command, check=True, env=os.environ | store, timeout=60)


def _names(store: Mapping[str, str], location: str) -> list[str]:
    program = (
        "import sys; from gigl_loader.partition.remote_files import RemotePlace; "
        "print(*RemotePlace(sys.argv[1]).names())"
    )
    command = [sys.executable, "-c", program, location]
    done = subprocess.run(
        command, check=True, env=os.environ | store, timeout=60, capture_output=True, text=True
    )
    return done.stdout.split()


def _options(folder: str) -> dict[str, Any]:
    return {
        "nodes": [f"user={folder}/users.csv", f"item={folder}/items.parquet"],
        "edges": [f"user,buys,item={folder}/buys/*.parquet"],
        "fill": ["user:age=mean"],
        "weights": ["user,buys,item:w"],
        "times": ["item:t"],
    }


def _build(
    store: Mapping[str, str], *, folder: str = "s3://bucket/in", stop: str = "", **arguments: Any
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _BUILD, json.dumps(_options(folder)), json.dumps(arguments), stop]
    return subprocess.run(
        command, check=False, env=os.environ | store, timeout=110, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def expected(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, bytes]:
    path = tmp_path_factory.mktemp("expected") / "graph"
    build_graph(open_tables(TableOptions(**_options(str(inputs)))), path, num_partitions=3, assigner="hash")
    return files_of(path)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.slow
def test_a_build_in_a_store_resumes_and_is_that_of_a_disk(
    store: Mapping[str, str], expected: Mapping[str, bytes], tmp_path: Path
) -> None:
    place = {"out": "s3://bucket/graph", "scratch": "s3://bucket/scratch"}
    done = _build(store, stop=_SORTING, **place)
    assert _last_line(done) == "KeyboardInterrupt"
    kept = _names(store, "s3://bucket/scratch")
    assert "build.json" in kept
    assert any(name.startswith("rows/edges/") for name in kept)
    assert "graph.json" not in _names(store, "s3://bucket/graph")
    done = _build(store, **place)
    assert "s3://bucket/scratch holds a build that was cut off" in _last_line(done)
    done = _build(store, resume=True, **place)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["resumed"] == len([name for name in kept if name.startswith("done/")])
    assert _names(store, "s3://bucket/scratch") == []
    command = [*COMMAND, "fetch", "s3://bucket/graph", str(tmp_path / "graph")]
    subprocess.run(command, check=True, env=os.environ | store, timeout=60)
    assert files_of(tmp_path / "graph") == expected
    Graph.open(tmp_path / "graph").verify()
    assert "s3://bucket/graph exists: give another name" in _last_line(_build(store, out="s3://bucket/graph"))


@pytest.mark.slow
def test_a_build_that_fails_leaves_nothing_in_the_store(store: Mapping[str, str], tmp_path: Path) -> None:
    write_rich_files(tmp_path, edges=3000)
    items = (tmp_path / "users.csv").read_text().replace("u7,", "u7x,")
    (tmp_path / "users.csv").write_text(items)
    _copy(store, str(tmp_path), "s3://bucket/bad")
    done = _build(store, folder="s3://bucket/bad", out="s3://bucket/other")
    assert done.returncode == 1
    assert "s3://bucket/bad/buys/" in _last_line(done)
    assert "unknown node id 'u7' of type 'user'" in _last_line(done)
    assert _names(store, "s3://bucket/other") == []


def test_mistakes_with_uris_are_told_in_a_line(store: Mapping[str, str], inputs: Path) -> None:
    for folder, words in [
        ("s3://bucket/nowhere", "no such file"),
        ("nix://user:secret@bucket/in", "nix://bucket/in/buys/*.parquet: Unrecognized filesystem type"),
    ]:
        error = _last_line(_build(store, folder=folder, out="s3://bucket/none"))
        assert words in error
        assert "secret" not in error


def test_overwriting_removes_nothing_but_a_graph(store: Mapping[str, str], inputs: Path) -> None:
    before = _names(store, "s3://bucket/in")
    assert before
    error = _last_line(_build(store, out="s3://bucket/in", overwrite=True))
    assert "s3://bucket/in is not overwritten: it holds '" in error
    assert _names(store, "s3://bucket/in") == before
