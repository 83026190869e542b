"""A sampler that stays open: batches on request, from any thread, beside the epochs of loaders."""

from __future__ import annotations

import inspect
import os
import threading
import time
import weakref
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from gigl_loader.loaders.arguments import seconds, whole_epoch
from gigl_loader.loaders.base import BaseDistLoader
from gigl_loader.loaders.input_new_nodes import read_new_nodes
from gigl_loader.loaders.input_times import request_alone
from gigl_loader.loaders.link import DistLinkNeighborLoader
from gigl_loader.loaders.link_labels import LinkLabels
from gigl_loader.loaders.neighbor import DistNeighborLoader
from gigl_loader.loaders.sampler_calls import SamplerCall, Turns, close_turns
from gigl_loader.loaders.seeds_by_type import new_nodes_of
from gigl_loader.loaders.single_batches import SingleBatches
from gigl_loader.loaders.stream import BatchPipeline
from gigl_loader.options import flag, whole_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from typing_extensions import Self

    from gigl_loader.channel.frame import Frame
    from gigl_loader.loaders.arguments import Fanouts
    from gigl_loader.loaders.dataset import Dataset, NodeDirectory
    from gigl_loader.loaders.input_new_nodes import NewNode
    from gigl_loader.options import EdgeType, NodeType
    from gigl_loader.sampling.request import BatchRequest

_CLOSE_S = 5.0
_OF_SEEDS = "seeds come with each call: sample(nodes)"
_OF_EPOCHS = "a sampler has no epochs of an input: a call has the seeds that it is given"
_OF_WORKERS = "calls are served by threads of this process: concurrency= says how many"
_OF_PRODUCERS = "each thread of a sampler has a producer of its own, and one batch in flight"
_OF_RANKS = "a sampler waits for no other rank: each rank has its own"
_OF_FEATURES = "the features of a single batch are read when they are wanted"
_REFUSED = {
    **dict.fromkeys(("input_nodes", "edge_label_index", "edge_label", "seed_weights"), _OF_SEEDS),
    **dict.fromkeys(("batch_size", "shuffle", "drop_last", "in_order"), _OF_EPOCHS),
    **dict.fromkeys(
        ("num_workers", "worker_concurrency", "multiprocessing_context", "max_worker_restarts"), _OF_WORKERS
    ),
    **dict.fromkeys(
        ("prefetch_size", "worker_key", "max_concurrent_producer_inits", "process_start_gap_seconds"),
        _OF_PRODUCERS,
    ),
    **dict.fromkeys(("sharding", "even_batches"), _OF_RANKS),
    **dict.fromkeys(("feature_memory", "feature_memory_device", "window", "cache_policy"), _OF_FEATURES),
}
"""Options of loaders that a sampler has no use for, and why."""
_TIMES = ("input_time", "edge_label_time", "input_time_start")


class Sampler:
    """Batches on request: what :meth:`BaseDistLoader.sample` returns, from open sources and any thread.

    Made by ``dataset.sampler(num_neighbors, ...)``. It keeps its sources of batches open, with their
    channels and memory, and waits for no other rank of a process group. Threads call :meth:`sample`,
    coroutines await :meth:`asample`; ``concurrency`` calls are served at the same time, and further ones wait
    for their turn. A call has a deadline; after an error, the sampler is good for the next call.

    It is a context manager; :meth:`close` ends its threads, and so does collecting it. A forked child that
    uses it opens sources of its own, where the whole graph lies on this host.
    """

    def __init__(
        self,
        dataset: Dataset,
        num_neighbors: Fanouts | None = None,
        seed_type: NodeType | EdgeType | Sequence[NodeType] | None = None,
        *,
        loader_class: type[BaseDistLoader] = DistNeighborLoader,
        concurrency: int = 4,
        **options: Any,
    ) -> None:
        """Check the arguments. Sources are opened by the calls that need them.

        ``num_neighbors``
            As for ``loader_class``.
        ``seed_type``
            Node type of the seeds, or edge type of the links. May be left out where there is one only. A list
            of node types: each call maps some of them to seeds.
        ``loader_class``
            Class whose batches these are: ``DistNeighborLoader``, ``DistLinkNeighborLoader``,
            ``DistABLPLoader``, ``DistSubgraphLoader``, or a subclass that takes their first three arguments.
        ``concurrency``
            Calls that are served at the same time, each by a source of its own.
        ``options``
            Those of ``loader_class`` that concern batches, and ``seed``, ``device``, ``transform``,
            ``channel_size`` (of each source), ``name`` and ``timeout`` (of a call that names none).
            ``input_time=True``, ``edge_label_time=True`` and ``input_time_start=True`` say that each call
            gives the times of its seeds, ``negatives=K`` that it gives K negatives of each link.
            ``TypeError`` says why another option is refused.

        Raises ``ValueError`` and ``TypeError`` as loaders do.
        """
        self._limit = whole_number("concurrency", concurrency, minimum=1)
        self._loader = loader = _without_source(loader_class, dataset, num_neighbors, seed_type, options)
        self._kind = loader_class.__name__
        self._takes_negatives = bool(getattr(loader.plan.sampler, "given", 0))
        self._timeout_s = loader._placement.options.timeout_s
        request = replace(loader._source_request(), interactive=True)
        if loader.topology.world_size > 1:  # Producers of ranks must not have equal keys.
            request = replace(request, name=f"{request.name} of rank {loader.topology.rank}")
        self._open_batches = partial(SingleBatches, dataset.open_source, request)
        self._closed = False
        self._counts: Counter[str] = Counter()
        self._seconds = 0.0
        self._forget()

    def _forget(self) -> None:
        """Begin without threads: a forked child has none of its parent's, and perhaps a held lock."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pipelines: deque[BatchPipeline] = deque()
        """Not in use. A pipeline serves one thread at a time."""
        self._turns = Turns(self._open_batches, limit=self._limit, name=self._loader.name)
        self._end = weakref.finalize(self, close_turns, self._turns, self._pid)

    def sample(
        self,
        nodes: Any = None,
        *,
        new: Sequence[NewNode] | None = None,
        time: Any = None,
        time_start: Any = None,
        negatives: Any = None,
        epoch: int = 0,
        timeout: float | None = None,
    ) -> Any:
        """Return the batch whose seeds are ``nodes``: node ids [B] of the seed type, or links [2, B].

        It equals ``loader.sample(nodes, epoch=epoch)`` of a loader with the same options and run seed: seeds
        have the places 0 to B - 1. ``time``, ``time_start``: of each seed [B], where the options said so.
        ``negatives``: node ids of the destinations of each link's negatives, integers [B, K], -1 for none.

        ``new``: nodes that the graph does not have, which travel with the call and have the ids -1, -2, ...
        by type. The batch is that of a graph to which they, and the edges to them, were added; the neighbours
        of the graph's own nodes stay as they are. Without ``nodes``, the new ones of the seed type are the
        seeds.

        ``timeout`` seconds bound the call, with the wait for its turn. ``TimeoutError`` after them, or
        ``StorageUnavailable`` where a host is known not to respond. ``SamplingError`` where the batch failed,
        ``ValueError`` and ``TypeError`` for wrong seeds, ``RuntimeError`` after :meth:`close`.
        """
        with self._counted():
            times = {"time": time, "time_start": time_start}
            request = partial(self._request, nodes, new, epoch, negatives, times)
            call = self._begin(timeout, request, _as_it_is)
            return self._batch(call.wait())  # Here: the current stream is that of the caller.

    async def asample(
        self,
        nodes: Any = None,
        *,
        new: Sequence[NewNode] | None = None,
        time: Any = None,
        time_start: Any = None,
        negatives: Any = None,
        epoch: int = 0,
        timeout: float | None = None,
    ) -> Any:
        """Return what :meth:`sample` returns, without blocking the event loop.

        The batch is made, and transformed, in a thread of the sampler. Cancelling the task cancels the
        request.
        """
        with self._counted():
            times = {"time": time, "time_start": time_start}
            request = partial(self._request, nodes, new, epoch, negatives, times)
            call = self._begin(timeout, request, self._batch)
            return await call.wait_async()

    def stats(self) -> dict[str, Any]:
        """Return counters of this process: ``calls`` that have ended, ``errors`` among them, ``seconds``.

        ``seconds`` adds up the calls, each with its wait for a turn. ``sources`` is the number of open ones.
        """
        with self._lock:
            counts = {name: self._counts[name] for name in ("calls", "errors")}
            return {**counts, "seconds": self._seconds, "sources": self._turns.num_sources}

    def close(self) -> None:
        """Close the sources. Calls under way raise ``RuntimeError``. Closing twice is fine."""
        self._closed = True
        if self._pid == os.getpid() and self._end.detach() is not None:
            self._turns.close(wait_s=_CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self._loader.name} cannot be pickled or copied: it owns threads and connections of this "
            "process; make a sampler in the process that uses it"
        )

    def __repr__(self) -> str:
        loader = self._loader
        state = ", closed" if self._closed else ""
        types = loader._seeds.kind
        shown = sorted(types) if isinstance(types, frozenset) else types
        return (
            f"Sampler({self._kind}, seeds of type {shown!r}, concurrency {self._limit}, "
            f"seed {loader.seed}, on {loader.device}{state})"
        )

    # Inside

    def _begin(
        self, timeout: float | None, request: Callable[[], BatchRequest], make: Callable[[Frame], Any]
    ) -> SamplerCall:
        if timeout is not None:
            timeout = seconds("timeout", timeout, above_zero=True)
        if self._pid != os.getpid():
            self._forget()
        if self._closed:
            raise RuntimeError(f"{self._loader.name} was closed; make another with dataset.sampler(...)")
        call = SamplerCall(request, make, timeout_s=self._timeout_s if timeout is None else timeout)
        self._turns.put(call)
        return call

    def _request(
        self, nodes: Any, new: Sequence[NewNode] | None, epoch: int, negatives: Any, times: dict[str, Any]
    ) -> BatchRequest:
        """Return the request of a call. Storage servers may be asked for the positions of its seeds."""
        loader = self._loader
        directory: NodeDirectory = loader.dataset
        added = None
        if new:
            added, directory = read_new_nodes(loader.dataset, new, loader.plan.columns)
            if nodes is None:
                nodes = new_nodes_of(loader._seeds.kind, added.counts)
        if nodes is None:
            raise TypeError("a call needs seeds: sample(nodes), or sample(new=[...]) for new nodes")
        unit, wanted = loader._sampling.time_unit(loader.dataset.schema), loader.plan.inputs
        if negatives is not None and not self._takes_negatives:
            raise TypeError("negatives of a call need dataset.sampler(..., negatives=K), of links")
        seeds = loader._input_of(nodes, directory, negatives)
        return replace(request_alone(seeds, whole_epoch(epoch), wanted, unit=unit, **times), new=added)

    def _batch(self, frame: Frame) -> Any:
        try:
            pipeline = self._pipelines.pop()
        except IndexError:
            with self._lock:  # The loader keeps the latest transfer for a moment.
                pipeline = BatchPipeline(self._loader._transfer(), self._loader._options.transform)
        try:
            return pipeline.make(frame, self._loader.collate)
        finally:
            self._pipelines.append(pipeline)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        began, failed = time.perf_counter(), 1
        try:
            yield
            failed = 0
        finally:
            with self._lock:
                self._counts.update(calls=1, errors=failed)
                self._seconds += time.perf_counter() - began


def _without_source(
    loader_class: type[BaseDistLoader],
    dataset: Dataset,
    num_neighbors: Any,
    seed_type: Any,
    options: dict[str, Any],
) -> BaseDistLoader:
    """Return a loader of no seeds that opens no source: its checks, plan, collate step and transfer."""
    if not isinstance(loader_class, type) or not issubclass(loader_class, BaseDistLoader):
        raise TypeError(f"loader_class must be a class of loaders, got {loader_class!r:.200}")
    known = inspect.signature(loader_class).parameters
    for name in options:
        if name in _REFUSED:
            raise TypeError(f"a sampler has no argument {name!r}: {_REFUSED[name]}")
    wants = {name: _is_wanted(name, options.pop(name, None)) for name in _TIMES}
    several = isinstance(seed_type, (list, set, frozenset))
    no_time: Any = {} if several else torch.empty(0, dtype=torch.int64)
    times = {name: no_time for name, is_wanted in wants.items() if is_wanted}
    if times and options.get("time_attr") is None:
        raise ValueError(f"{next(iter(times))} has no meaning without time_attr, the column that it bounds")
    if (width := options.pop("negatives", None)) is not None:
        if "neg_sampling" not in known or options.get("neg_sampling") is not None:
            raise TypeError("negatives=K is for links, instead of neg_sampling")
        count = whole_number("negatives", width, minimum=1)
        options["neg_sampling"] = torch.empty((0, count), dtype=torch.int64)
    none = torch.empty((2, 0) if "edge_label_index" in known else 0, dtype=torch.int64)
    # The name is that of messages.
    kind = type("Sampler", (loader_class,), {"_start": lambda _: None, "_has_warned": True})
    seeds: Any = dict.fromkeys(seed_type, none) if several else (seed_type, none)
    seeds = none if seed_type is None else seeds
    loader: BaseDistLoader = kind(
        dataset, num_neighbors, seeds, **options, **times, num_workers=0, sharding="none"
    )
    if isinstance(loader, DistLinkNeighborLoader):
        loader._labels, loader._own_negatives = LinkLabels(), None  # Links by themselves have none.
    return loader


def _is_wanted(name: str, value: Any) -> bool:
    try:
        return value is not None and flag(name, value)
    except TypeError:
        raise TypeError(f"pass {name}=True, and the times with each call: sample(nodes, time=...)") from None


def _as_it_is(frame: Frame) -> Frame:
    return frame
