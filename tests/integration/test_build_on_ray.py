"""Builds on a Ray cluster of several nodes: the same bytes and errors as anywhere, also when a node dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gigl_loader.partition import build_graph
from tests.support.executors import rich_tables, waiting_tables, write_rich_files
from tests.support.leftovers import wait_until
from tests.support.ray_cluster import ENVIRONMENT, RayCluster
from tests.support.tables import files_of

pytestmark = pytest.mark.timeout(600)

_TASK_BYTES = 200 << 20
_BUILD = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from gigl_loader.partition import RayExecutor, build_graph, runner
from tests.support.executors import rich_tables, waiting_tables

runner._FEW_ROWS = 100

inputs, out, address, memory_bytes, *signs = sys.argv[1:]
build_graph(
    waiting_tables(Path(signs[0])) if signs else rich_tables(inputs), out,
    num_partitions=3, assigner="hash", memory_limit=int(memory_bytes), executor=RayExecutor(address),
    summary=lambda totals: print(json.dumps(asdict(totals)), flush=True),
)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_rich_files(folder)
    return folder


@pytest.fixture(scope="module")
def expected(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("expected")
    build_graph(rich_tables(inputs), folder / "graph", num_partitions=3, assigner="hash")
    return files_of(folder / "graph")


def _start(
    inputs: Path | str, out: Path, cluster: RayCluster, *signs: str, memory_bytes: int = _TASK_BYTES
) -> subprocess.Popen[str]:
    arguments = [str(inputs), str(out), cluster.address, str(memory_bytes), *signs]
    command = [sys.executable, "-c", _BUILD, *arguments]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | ENVIRONMENT,
    )


def _end(child: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    """Return exit code, the summary, and the last line of an error."""
    out, err = child.communicate(timeout=300)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return child.returncode, lines[-1] if lines else {}, (err.strip().splitlines() or [""])[-1]


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_any_number_of_nodes_writes_the_same_bytes(
    nodes: int, cluster: RayCluster, inputs: Path, expected: Any, tmp_path: Path
) -> None:
    while cluster.size < nodes:
        cluster.add()
    code, totals, error = _end(_start(inputs, tmp_path / "graph", cluster))
    assert code == 0, error
    assert files_of(tmp_path / "graph") == expected
    assert (totals["num_workers"], totals["lost"]) == (nodes, 0)
    assert totals["task_bytes"] <= _TASK_BYTES
    assert totals["peak_bytes"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


@pytest.mark.slow
def test_a_node_that_is_killed_costs_nothing_but_time(cluster: RayCluster, tmp_path: Path) -> None:
    while cluster.size < 2:
        cluster.add()
    signs = tmp_path / "signs"
    signs.mkdir()
    child = _start("waiting", tmp_path / "graph", cluster, str(signs))
    # Every node is at a task when one of them is killed.
    assert wait_until(lambda: len(list(signs.iterdir())) == cluster.size, seconds=120)
    at_work = [int(sign.name) for sign in signs.iterdir()]
    cluster.kill()
    # Processes end when they notice that their node is gone: until then one could still finish its task.
    assert wait_until(lambda: not all(map(psutil.pid_exists, at_work)), seconds=60)
    (signs / "go").touch()
    code, totals, error = _end(child)
    assert code == 0, error
    assert totals["lost"] >= 1
    build_graph(waiting_tables(signs), tmp_path / "alone", num_partitions=3, assigner="hash")
    assert files_of(tmp_path / "graph") == files_of(tmp_path / "alone")


@pytest.mark.slow
def test_a_bad_row_in_the_last_file_gives_the_same_error(cluster: RayCluster, tmp_path: Path) -> None:
    if not cluster.size:
        cluster.add()
    inputs = tmp_path / "inputs"
    inputs.mkdir()
    write_rich_files(inputs)
    last = inputs / "buys" / "2.parquet"
    columns = pq.read_table(last).to_pydict()
    columns["dst"][-3] = 4
    pq.write_table(pa.table(columns, schema=pq.read_schema(last)), last, row_group_size=500)
    with pytest.raises(Exception, match="unknown node id 4") as here:
        build_graph(rich_tables(inputs), tmp_path / "here", num_partitions=3, assigner="hash")
    code, _, error = _end(_start(inputs, tmp_path / "there", cluster))
    assert code == 1
    assert error.endswith(str(here.value)) or str(here.value) in error
    assert [path.name for path in tmp_path.iterdir()] == ["inputs"]


@pytest.mark.slow
def test_a_task_that_fits_on_no_node_is_told_at_once(
    cluster: RayCluster, inputs: Path, tmp_path: Path
) -> None:
    if not cluster.size:
        cluster.add()
    code, _, error = _end(_start(inputs, tmp_path / "graph", cluster, memory_bytes=64 << 30))
    assert code == 1
    assert "a task of 68,719 MB fits on no machine of the Ray cluster" in error
    assert not (tmp_path / "graph").exists()
