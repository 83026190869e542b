"""``serve --otel``: spans of a server's process, as an OTLP collector gets them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_server.config import ServeOptions
from tests.support.command_line import COMMAND, address_in, line_with, run_here
from tests.support.ports import free_port
from tests.support.spans import batches_in, collector, recorded
from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("otel") / "graph")


@contextmanager
def serving(graph: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [*COMMAND, "serve", str(graph), "--listen", "127.0.0.1:0", "--otel"]
    process = subprocess.Popen(command, text=True, stderr=subprocess.PIPE, env={**os.environ, **environment})
    try:
        yield process, address_in(line_with(process, "ready"))
    finally:
        process.kill()
        process.communicate(timeout=20)


@pytest.mark.parametrize("protocol", ["grpc", pytest.param("http/protobuf", marks=pytest.mark.slow)])
def test_spans_of_a_server_are_exported_before_it_ends(
    graph: Path, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = recorded(monkeypatch)
    with collector(protocol) as found:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{found.port}",
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=one",
            "OTEL_BSP_SCHEDULE_DELAY": "60000",  # What comes, comes at the end.
        }
        with serving(graph, **variables) as (process, address):
            with (
                RemoteDistDataset.connect([address], transport="network") as dataset,
                DistNeighborLoader(dataset, [2], batch_size=20, seed=1) as loader,
            ):
                batches = len(list(loader))
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        by_parent = found.by_parent()
    assert found.resources[0]["service.name"] == "gigl-loader"
    assert found.resources[0]["service.instance.id"] == "one"
    requests = [batch.only("gigl.request").context for batch in batches_in(spans)]
    assert len(requests) == batches
    for context in requests:
        (served,) = by_parent[format(context.span_id, "016x")]
        assert served.name == "gigl.serve sample"
        assert served.trace_id.hex() == format(context.trace_id, "032x")
        steps = {each.name for each in by_parent[served.span_id.hex()]}
        assert steps == {"gigl.queue", "gigl.sample", "gigl.gather", "gigl.send"}


@pytest.mark.slow
def test_a_collector_that_is_away_does_not_hold_the_end_of_a_server(graph: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    with serving(graph, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint) as (process, address):
        with (
            RemoteDistDataset.connect([address]) as dataset,
            DistNeighborLoader(dataset, [2], batch_size=20, seed=1) as loader,
        ):
            assert list(loader)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        assert time.monotonic() - began < 10


def test_mistakes_are_told_before_a_port_is_bound(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_here("serve", str(graph), "--otel", "--listen", "127.0.0.1")
    assert found.returncode == 2
    monkeypatch.setattr("gigl_server.config.has_exporter", lambda: False)
    with pytest.raises(ValueError, match=r"pip install 'gigl-loader\[otel\]'"):
        ServeOptions(graph_dir=graph, otel=True)


def test_an_unknown_protocol_is_refused(graph: Path) -> None:
    command = [*COMMAND, "serve", str(graph), "--listen", "127.0.0.1:0", "--otel"]
    environment = {**os.environ, "OTEL_EXPORTER_OTLP_PROTOCOL": "carrier-pigeon"}
    ended = subprocess.run(command, text=True, capture_output=True, env=environment, timeout=60, check=False)
    assert ended.returncode == 2
    assert "OTEL_EXPORTER_OTLP_PROTOCOL must be one of grpc, http/protobuf" in ended.stderr.splitlines()[-1]
