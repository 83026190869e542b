"""OpenTelemetry spans of batches, by the real SDK, over both ports and in every mode."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.tracing import find_tracer, trace_headers, trace_in
from tests.support.clusters import addresses_of, check_same, embedded, servers_of
from tests.support.leftovers import wait_until
from tests.support.pyg_graphs import homogeneous
from tests.support.spans import Tree, batches_in, recorded, trees

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

ARGUMENTS: tuple[Any, ...] = ([3, 2], "train")
OPTIONS: dict[str, Any] = {"batch_size": 150, "seed": 7}
IN_TRAINER = {"gigl.batch", "gigl.wait", "gigl.sample", "gigl.gather", "gigl.copy", "gigl.collate"}
OF_SERVER = {"gigl.serve sample", "gigl.queue", "gigl.sample", "gigl.gather", "gigl.send"}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "graph"
    build_graph(tables_from_pyg(homogeneous(1000, 8000)), path, num_partitions=2)
    return path


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    return recorded(monkeypatch)


@contextmanager
def remote(graph: Path, count: int = 2, **options: Any) -> Iterator[RemoteDistDataset]:
    with ExitStack() as stack:
        servers = stack.enter_context(servers_of(graph, count))
        yield stack.enter_context(RemoteDistDataset.connect(addresses_of(servers), **options))


def epoch_of(dataset: Any, **options: Any) -> list[Any]:
    with DistNeighborLoader(dataset, *ARGUMENTS, **{**OPTIONS, **options}) as loader:
        return list(loader)


def finished(spans: InMemorySpanExporter, count: int, name: str = "gigl.batch") -> list[Tree]:
    """Return the ``count`` roots of a name, once all within them have ended. Servers end theirs later."""

    def found() -> list[Tree]:
        with suppress(KeyError):  # A parent has not ended yet.
            return [each for each in trees(spans.get_finished_spans()) if each.name == name]
        return []

    assert wait_until(lambda: len(found()) == count)
    return found()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_that_is_sampled_here_is_a_trace(
    graph: Path, spans: InMemorySpanExporter, num_workers: int
) -> None:
    batches = epoch_of(DistDataset.open(graph), num_workers=num_workers)
    found = batches_in(spans)
    assert [each.attributes["gigl.batch"] for each in found] == list(range(len(batches)))
    assert len({each.context.trace_id for each in found}) == len(batches)
    for each in found:
        assert {child.name for child in each.children} == IN_TRAINER - {"gigl.batch"}
        sample, gather = each.only("gigl.sample"), each.only("gigl.gather")
        assert sample.began < sample.ended <= gather.began < gather.ended
        assert gather.ended < each.only("gigl.copy").began
        assert all(child.ended <= each.ended for child in each.children)


@pytest.mark.parametrize("transport", ["network", "ring"])
def test_spans_of_servers_are_within_that_of_the_trainer(
    graph: Path, spans: InMemorySpanExporter, transport: str
) -> None:
    expected = embedded(graph, *ARGUMENTS, **OPTIONS)
    spans.clear()
    with remote(graph, transport=transport, rows="through") as dataset:
        check_same(epoch_of(dataset), expected)
    for batch in finished(spans, len(expected)):
        request = batch.only("gigl.request")
        assert request.span.kind is SpanKind.CLIENT
        assert request.attributes["server.address"] == "127.0.0.1"
        served = request.only("gigl.serve sample")
        assert served.span.kind is SpanKind.SERVER
        assert {served.name, *(each.name for each in served.children)} == OF_SERVER
        assert {"gigl.wait", "gigl.copy", "gigl.collate"} <= {each.name for each in batch.children}
        # The other server is asked for neighbours and rows.
        assert served.only("gigl.sample").all("gigl.serve neighbors")
        assert served.only("gigl.gather").all("gigl.serve rows")


def test_features_that_the_trainer_fetches_itself_are_a_step(
    graph: Path, spans: InMemorySpanExporter
) -> None:
    with remote(graph, transport="network", rows="direct") as dataset:
        count = len(epoch_of(dataset))
    for batch in finished(spans, count):
        assert batch.only("gigl.gather").all("gigl.serve rows")


def test_control_calls_are_within_the_span_that_builds_the_loader(
    graph: Path, spans: InMemorySpanExporter
) -> None:
    with remote(graph) as dataset:
        with trace.get_tracer("test").start_as_current_span("build"):
            loader = DistNeighborLoader(dataset, *ARGUMENTS, **OPTIONS)
        loader.shutdown()
    (build,) = finished(spans, 1, "build")
    assert {"gigl.serve CreateProducer", "gigl.serve OpenChannel"} <= build.names


def test_a_batch_links_to_the_span_that_takes_it(graph: Path, spans: InMemorySpanExporter) -> None:
    with DistNeighborLoader(DistDataset.open(graph), *ARGUMENTS, **OPTIONS) as loader:
        steps = []
        for _ in loader:
            with trace.get_tracer("test").start_as_current_span("step") as step:
                steps.append(step.get_span_context().span_id)
                next(loader, None)
    linked = {link.context.span_id for each in batches_in(spans) for link in each.span.links}
    assert linked == set(steps)


@pytest.mark.parametrize("mode", ["embedded", "store"])
def test_a_call_of_a_sampler_is_within_the_span_of_its_caller(
    graph: Path, spans: InMemorySpanExporter, mode: str
) -> None:
    tracer = trace.get_tracer("test")
    with ExitStack() as stack:
        dataset: Any = DistDataset.open(graph) if mode == "embedded" else stack.enter_context(remote(graph))
        sampler = stack.enter_context(dataset.sampler([3, 2]))
        with tracer.start_as_current_span("waits"):
            sampler.sample([1, 2])

        async def call() -> None:
            with tracer.start_as_current_span("awaits"):
                await sampler.asample([3])

        asyncio.run(call())
    for name in ("waits", "awaits"):
        (found,) = finished(spans, 1, name)
        assert {"gigl.sample", "gigl.gather", "gigl.collate"} <= found.only("gigl.batch").names


def test_features_that_are_read_in_windows_are_gathered_within_the_batch(
    graph: Path, spans: InMemorySpanExporter
) -> None:
    batches = epoch_of(DistDataset.open(graph), num_workers=1, feature_memory=1 << 14, window=2)
    assert all(each.only("gigl.sample") for each in batches_in(spans))
    assert all(len(each.all("gigl.gather")) == 2 for each in batches_in(spans))  # Skeleton, then features.
    assert len(batches_in(spans)) == len(batches)


def test_an_epoch_that_is_left_ends_its_spans(graph: Path, spans: InMemorySpanExporter) -> None:
    with DistNeighborLoader(DistDataset.open(graph), *ARGUMENTS, **OPTIONS, num_workers=1) as loader:
        list(islice(loader, 2))
    dropped = [each.attributes.get("gigl.dropped", False) for each in batches_in(spans)]
    assert dropped[:2] == [False, False]
    assert dropped[2:] == [True] * len(dropped[2:])
    assert dropped[2:]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_transform_that_raises_fails_the_span(
    graph: Path, spans: InMemorySpanExporter, num_workers: int
) -> None:
    def fail(batch: Any) -> Any:
        raise ArithmeticError("no")

    with (
        DistNeighborLoader(
            DistDataset.open(graph), *ARGUMENTS, **OPTIONS, num_workers=num_workers, transform=fail
        ) as loader,
        pytest.raises(ArithmeticError),
    ):
        next(loader)
    failed = batches_in(spans)[0].span
    assert failed.status.status_code is StatusCode.ERROR
    assert dict(failed.events[0].attributes or {})["exception.type"] == "ArithmeticError"


def test_without_a_provider_there_are_no_spans_and_no_headers(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert find_tracer() is None
    assert trace_headers() == ()
    batches = epoch_of(DistDataset.open(graph))
    assert batches


def test_servers_leave_out_what_the_sampler_of_the_trainer_left_out(
    graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every server has the decision of the trainer, which made it for the whole batch."""
    half = ParentBased(TraceIdRatioBased(0.5))
    spans, sent = recorded(monkeypatch, half), list[int]()
    headers = trace_headers

    def noted() -> tuple[tuple[str, str], ...]:
        found = headers()
        sent.append(int(found[0][1][-2:], 16) & 1)  # The other bit: the id is random.
        return found

    monkeypatch.setattr("gigl_loader.rpc.connection.trace_headers", noted)
    with remote(graph, transport="network") as dataset:
        count = len(epoch_of(dataset, batch_size=10))
    assert set(sent) == {0, 1}
    found = batches_in(spans)
    assert 0 < len(found) < count
    assert all(each.only("gigl.request").only("gigl.serve sample") for each in found)
    outside = {each.name for each in trees(spans.get_finished_spans())} - {"gigl.batch"}
    assert outside.isdisjoint({"gigl.serve sample", "gigl.serve neighbors", "gigl.serve rows"})


def test_only_trace_headers_are_read_and_wrong_ones_begin_a_trace(
    graph: Path, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = b"authorization: Bearer x\ntraceparent: 00-1-2-3\ntracestate: \xff\n\nbad"
    assert trace_in(text) == {"traceparent": "00-1-2-3", "tracestate": "\ufffd"}
    wrong = (("traceparent", "00-nothing"), ("tracestate", "\x01,,=="), ("more", "1"))
    monkeypatch.setattr("gigl_loader.rpc.connection.trace_headers", lambda: wrong)
    with remote(graph, 1, transport="network") as dataset:
        count = len(epoch_of(dataset))
    assert len(finished(spans, count, "gigl.serve sample")) == count


def test_a_server_that_does_not_trace_ignores_the_headers(
    graph: Path, spans: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(trace, "_TRACER_PROVIDER", None)
        servers = servers_of(graph, 1)
        (server,) = servers.__enter__()
    try:
        with RemoteDistDataset.connect(addresses_of([server]), transport="network") as dataset:
            check_same(epoch_of(dataset), embedded(graph, *ARGUMENTS, **OPTIONS))
    finally:
        servers.__exit__(None, None, None)
    names = set().union(*(each.names for each in trees(spans.get_finished_spans())))
    assert "gigl.request" in names
    assert not any(name.startswith("gigl.serve") for name in names)
