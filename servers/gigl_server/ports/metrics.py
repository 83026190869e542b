"""Metrics of a storage server, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_server.cluster.readiness import View
    from gigl_server.counters import Counters
    from gigl_server.sampling.load import ServiceLoad
    from gigl_server.sampling.service import SamplingService

__all__ = ["LoadCollector"]

_Family = CounterMetricFamily | GaugeMetricFamily


class LoadCollector:
    """Reads the state at each scrape: nothing is counted twice, and closed channels disappear."""

    def __init__(
        self,
        service: SamplingService,
        counters: Counters,
        view: Callable[[], View],
        memory: Callable[[], Mapping[str, int]],
    ) -> None:
        self._service, self._counters, self._view, self._memory = service, counters, view, memory

    def describe(self) -> Iterator[_Family]:
        """Yield families without values: registering must not collect."""
        return iter(())

    def collect(self) -> Iterator[_Family]:
        load, view = self._service.load(), self._view()
        yield _gauge("ready", "1 while the server serves", int(view.ready))
        yield _gauge("servers", "Servers of the cluster that are known", len(view.members))
        yield from _of_server(load)
        yield _of_memory(self._memory())
        totals = self._counters.read()
        yield _counter("data_requests", "Requests to the data port", totals.calls)
        yield _counter("data_received_bytes", "Bodies of requests", totals.bytes_in)
        yield _counter("data_sent_bytes", "Bodies of replies", totals.bytes_out)
        yield _counter("refused", "Requests that broke a rule, on either port", totals.refused)
        yield _counter("adoptions", "Partitions taken over while the server runs", totals.adoptions)
        yield _counter("adopted_bytes", "Bytes pulled for them", totals.adopted_bytes)
        yield _counter("repairs", "Repairs of damaged files from another server", totals.repairs)
        yield _counter("repaired_bytes", "Bytes pulled for them", totals.repaired_bytes)
        yield _counter("neighbors_cpu_seconds", "CPU time of answering other servers", totals.sampling_s)
        yield _counter("gathering_cpu_seconds", "CPU time of gathering rows for others", totals.gathering_s)
        yield from _of_calls(self._counters)
        yield from _of_channels(load)
        yield from _of_peers(view)


def _of_server(load: ServiceLoad) -> Iterator[_Family]:
    yield _gauge("workers", "Batches that are sampled at once, at most", load.workers)
    yield _gauge("busy_workers", "Batches that are being sampled", load.busy)
    yield _gauge("jobs", "Training jobs that hold something", load.jobs)
    yield _gauge("producers", "Producers", load.producers)
    yield _gauge("channels", "Channels", len(load.channels))
    yield _gauge("queued", "Batches asked for that nobody samples yet", sum(e.queued for e in load.channels))
    yield _gauge("ready_bytes", "Bytes of batches that lie ready to be fetched", load.ready_bytes)
    yield _gauge("frame_memory_bytes", "Memory of frames: written, ready, being sent", load.frame_bytes)
    yield _gauge("ring_memory_bytes", "Memory of rings that was written to", load.ring_bytes)
    yield _counter("batches", "Batches sampled", load.batches)
    yield _counter("batch_bytes", "Bytes of sampled batches", load.nbytes)
    yield _counter(
        "sampling_seconds", "Time from the beginning of a batch to its end, summed", load.sampling_s
    )
    yield _counter(
        "waiting_seconds", "Time from an ask to the beginning of its batch, summed", load.waiting_s
    )


def _of_memory(kinds: Mapping[str, int]) -> _Family:
    text = "Memory of the process beyond its start, by kind of object"
    metric = GaugeMetricFamily("gigl_memory_bytes", text, labels=("of",))
    for kind, nbytes in kinds.items():
        metric.add_metric((kind,), nbytes)
    return metric


_CALL_METRICS = (
    ("calls", "calls", "Calls by method"),
    ("bytes_in", "call_received_bytes", "Messages of calls, without headers and framing"),
    ("bytes_out", "call_sent_bytes", "Replies to calls, without headers and framing"),
)


def _of_calls(counters: Counters) -> Iterator[_Family]:
    calls = counters.calls()
    for of_port in ("control", "data"):
        for field, name, text in _CALL_METRICS:
            metric = CounterMetricFamily(f"gigl_{of_port}_{name}", text, labels=("method",))
            for (port, method), counts in calls.items():
                if port == of_port:
                    metric.add_metric((method,), getattr(counts, field))
            yield metric


_CHANNEL_NAMES = ("job", "channel", "transport")
_CHANNEL_METRICS: tuple[tuple[type[Any], str, str, str], ...] = (
    (CounterMetricFamily, "batches", "channel_batches", "Batches of the channel"),
    (CounterMetricFamily, "nbytes", "channel_bytes", "Bytes of its batches"),
    (GaugeMetricFamily, "queued", "channel_queued", "Its batches that nobody samples yet"),
    (GaugeMetricFamily, "ready", "channel_ready", "Its batches that lie ready to be fetched"),
    (CounterMetricFamily, "sampling_s", "channel_sampling_seconds", "Time of sampling its batches, summed"),
    (CounterMetricFamily, "waiting_s", "channel_waiting_seconds", "Time that its asks waited, summed"),
)


def _of_channels(load: ServiceLoad) -> Iterator[_Family]:
    for family, field, name, text in _CHANNEL_METRICS:
        metric = family(f"gigl_{name}", text, labels=_CHANNEL_NAMES)
        sums: dict[tuple[str, ...], float] = {}
        for each in load.channels:  # Channels of equal names are summed: a label set may appear only once.
            labels: tuple[str, ...] = (
                each.short_job,
                f"{each.key}/{each.name}" if each.name else each.key,
                each.transport,
            )
            sums[labels] = sums.get(labels, 0) + getattr(each, field)
        for names, value in sums.items():
            metric.add_metric(names, value)
        yield metric


_PEER_METRICS = (
    ("calls", "peer_calls", "Asks to another server"),
    ("bytes_in", "peer_received_bytes", "Bytes received from another server"),
    ("bytes_out", "peer_sent_bytes", "Bytes sent to another server"),
    ("retries", "peer_retries", "Asks to another server that were made again"),
    ("damaged", "peer_damaged", "Replies of another server that came damaged"),
)


def _of_peers(view: View) -> Iterator[_Family]:
    for field, name, text in _PEER_METRICS:
        metric = CounterMetricFamily(f"gigl_{name}", text, labels=("server",))
        for peer in view.peers:
            metric.add_metric((str(peer.server),), getattr(peer.counts, field))
        yield metric


def _gauge(name: str, text: str, value: float) -> _Family:
    return GaugeMetricFamily(f"gigl_{name}", text, value=value)


def _counter(name: str, text: str, value: float) -> _Family:
    return CounterMetricFamily(f"gigl_{name}", text, value=value)
