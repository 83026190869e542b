"""What the pages say about storage servers is what there is: options, metrics, limits."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest

from gigl_loader.rpc.control import status_of
from gigl_loader.rpc.refusals import RefusalKind
from gigl_server.admission import Limits
from gigl_server.config import SERVE_OPTIONS
from tests.support.clusters import servers_of
from tests.support.learnable import learnable_graph

DOCS = Path(__file__).parents[2] / "docs"

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="the tests were copied without the pages")


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as reply:
        return str(reply.read().decode())


def test_every_option_is_described() -> None:
    page = (DOCS / "deploy.md").read_text()
    [table] = re.findall(r"^\| flag \(.*\n\|---.*\n((?:\|.*\n)+)", page, re.MULTILINE)
    rows = [re.fullmatch(r"\| (.+?) \| (.*?) ?\| .+ \|", line) for line in table.splitlines()]
    described = [(re.findall(r"`(.+?)`", row[1]), row[2].replace("`", "")) for row in rows if row]
    assert described == [
        *(
            ([*(each.flags or ["GRAPH_DIR"]), each.variable, name], each.default)
            for name, each in SERVE_OPTIONS.items()
        ),
        (["--config", "GIGL_CONFIG"], ""),
    ]
    assert {*re.findall(r"`(GIGL_[A-Z_]+)", page)} == {*re.findall(r"`(GIGL_[A-Z_]+)", table)}


def test_every_refusal_is_described_with_its_status() -> None:
    page = (DOCS / "internals" / "wire.md").read_text()
    described = re.findall(r"^\| `([a-z ]+)` \| `([A-Z_]+)` \| ", page, re.MULTILINE)
    assert dict(described) == {kind.value: status_of(kind).name for kind in RefusalKind}


@pytest.mark.usefixtures("no_leftovers")
def test_every_metric_is_described_and_every_described_one_exists(tmp_path: Path) -> None:
    graph = learnable_graph(tmp_path / "graph", num_partitions=1)
    with servers_of(graph, 1, metrics="127.0.0.1:0") as [server]:
        text = read(f"http://{server.metrics_address}/metrics")
    kinds = re.findall(r"^# TYPE (gigl_\w+) ", text, re.MULTILINE)
    described = set(re.findall(r"`(gigl_\w+)`", (DOCS / "graph-store.md").read_text()))
    assert described == set(kinds)


def test_limits_are_those_of_the_code() -> None:
    page = (DOCS / "security.md").read_text()
    ports = (DOCS / "internals" / "security.md").read_text()
    limits = Limits()
    assert f"{limits.batch_seeds:,}" in page
    assert f"types | {limits.batch_edges:,}, " in page
    assert f"frame of a batch | {limits.batch_bytes >> 30} GiB" in page
    assert f"of all jobs, of one | {limits.channels:,}; {limits.channels_per_job:,}" in page
    assert f"of all jobs, of one | {limits.producers:,}; {limits.producers_per_job:,}" in page
    assert f"| jobs | {limits.jobs:,} |" in page
    assert f"under way | {limits.calls:,} |" in page
    assert f"| {limits.credit} |" in page
    assert f"{limits.ring_bytes >> 40} TiB" in ports
    assert f"| {limits.message_bytes >> 20} MiB; {limits.plan_bytes >> 20} MiB |" in ports
