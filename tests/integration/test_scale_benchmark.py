"""The benchmark of growing graphs: its tables are the same however they are read, and it runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gigl_loader.graph import HOMOGENEOUS_EDGE, HOMOGENEOUS_NODE

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").exists(), reason="the tests were copied without the benchmarks"
)


def test_rows_do_not_depend_on_how_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    from made_graph import made_tables  # type: ignore[import-not-found]

    tables = made_tables(nodes=5000, edges=700_000, dim=3, dtype="I8")
    for table, names in (
        (tables.edges[HOMOGENEOUS_EDGE], ["src", "dst"]),
        (tables.nodes[HOMOGENEOUS_NODE].rows, ["x"]),
    ):
        for name in names:
            whole = np.concatenate([chunk[name] for chunk in table.read([name], 1 << 30)])
            shards = table.shards(300_000)
            pieces = [chunk[name] for shard in shards for chunk in shard.read(names, 70_001)]
            assert len(whole) == table.num_rows == sum(shard.num_rows for shard in shards)
            np.testing.assert_array_equal(np.concatenate(pieces), whole)
    ends = np.concatenate([chunk["src"] for chunk in tables.edges[HOMOGENEOUS_EDGE].read(["src"], 1 << 20)])
    assert (ends.min(), ends.max()) == (0, 4999)


@pytest.mark.slow
def test_a_small_graph_is_built_and_sampled(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "scale.py"), "--work", str(tmp_path / "work")]
    command += ["--sizes", "1M", "--memory-limit", "300MB", "--json", str(tmp_path / "figures.json")]
    done = subprocess.run(
        [*command, "--plot", str(tmp_path / "plot.png")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    [figures] = json.loads((tmp_path / "figures.json").read_text())
    assert figures["edges"] == 1_000_000
    assert all(figures[name] > 0 for name in ("build_s", "peak_bytes", "graph_bytes", "rows_per_s"))
    assert (tmp_path / "plot.png").stat().st_size > 1000
    assert list((tmp_path / "work").iterdir()) == []
