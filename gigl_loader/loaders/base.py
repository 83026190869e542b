"""Base class of all loaders: checked arguments, epochs, state, faults and shutdown."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import torch
from typing_extensions import Self

from gigl_loader.group import RankGroup
from gigl_loader.loaders import arguments
from gigl_loader.loaders.arguments import (
    CheckedOptions,
    LoaderOptions,
    check_other_arguments,
    full_signature,
    read_columns,
    whole_epoch,
)
from gigl_loader.loaders.dataset import Dataset, check_dataset
from gigl_loader.loaders.dequantize import dequantizing
from gigl_loader.loaders.inputs import SeedNodes, read_seed_nodes, read_seed_weights, read_times, seed_draw
from gigl_loader.loaders.placement import Placement, PlacementOptions
from gigl_loader.loaders.stream import (
    FORMAT,
    BatchPipeline,
    FrameStream,
    Progress,
    check_same_run,
    describe_run,
    read_state,
)
from gigl_loader.loaders.transfer import transfer_to
from gigl_loader.native import draws
from gigl_loader.sampling.request import TIME
from gigl_loader.sampling.schedule import Schedule
from gigl_loader.sampling.source import SourceRequest
from gigl_loader.topology import Topology

if TYPE_CHECKING:
    from gigl_loader.loaders.arguments import EdgeColumns, NodeColumns
    from gigl_loader.loaders.inputs import LoaderInput
    from gigl_loader.loaders.transfer import FrameTensors, Transfer
    from gigl_loader.sampling.plan import BatchPlan, ColumnPlan
    from gigl_loader.shared import SharedTensors

__all__ = ["BaseDistLoader", "Dataset"]

logger = logging.getLogger(__name__)

_IDLE_S = 600.0
"""In an interactive session, a loader that is not used for so long ends its workers until it is."""

_DIGITS = 16  # Of a digest: enough to tell graphs apart, short enough for a message.


class BaseDistLoader:
    """Batches of a graph, epoch after epoch. Each batch is a pure function of run seed, epoch and seeds.

    A loader is iterated like a list: each ``iter()`` is the next epoch. It is a context manager;
    ``shutdown`` ends its processes, and so does collecting it.

    **Iterators.** Each is one epoch and keeps its place, so ``break``, nested iteration and several
    iterators over one loader are safe; going back to an iterator after using another starts its
    prefetching again. ``next(loader)`` advances the latest.

    **Subclassing.** A subclass turns its arguments into three things and inherits the rest::

        class MyLoader(BaseDistLoader):
            def __init__(self, dataset, fanouts, **options):
                self.fanouts = fanouts
                super().__init__(dataset, **options)      # checks the options, then asks for:

            def seed_nodes(self):                         # 1. the input
                return read_seed_nodes(self.dataset, "train")

            def sampling_plan(self, seed_type, run_seed): # 2. what is sampled around each seed
                return BatchPlan(sampler=NeighborPlan(seed_type=seed_type, ...), run_seed=run_seed)

            def collate(self, tensors):                   # 3. a batch of a frame's tensors
                return MyBatch(...)

    Everything that can be wrong with the first two is raised before any process starts.
    """

    _count: ClassVar[Counter[str]] = Counter()
    """Loaders made so far, by class: the default name is class and count."""
    _arguments: ClassVar[frozenset[str]] = frozenset()
    """Names of the arguments of the constructor, and of those of its bases."""
    _is_built = False

    batch_size: int
    columns: ColumnPlan
    """Which columns batches carry, for the plan of a subclass."""
    dataset: Dataset
    device: torch.device
    drop_last: bool
    name: str
    num_workers: int
    plan: BatchPlan
    """Which subgraph belongs to a batch."""
    seed: int
    """Run seed."""
    sharding: str
    shuffle: bool
    topology: Topology
    """Where this process stands among the trainers."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int | None = None,
        num_workers: int = 1,
        worker_concurrency: int = 4,
        channel_size: int | str = "4GB",
        prefetch_size: int | None = None,
        worker_key: str | None = None,
        max_concurrent_producer_inits: int | None = None,
        seed_weights: SharedTensors | torch.Tensor | None = None,
        node_columns: NodeColumns = None,
        edge_columns: EdgeColumns = None,
        sharding: str | None = None,
        even_batches: bool = True,
        device: torch.device | str | int | None = None,
        pin_memory_device: torch.device | str | int | None = None,
        non_blocking_transfers: bool = True,
        dequantize_to: torch.dtype = torch.float32,
        process_start_gap_seconds: float | None = None,
        multiprocessing_context: str = "spawn",
        timeout: float = 300.0,
        transform: Callable[[Any], Any] | None = None,
        in_order: bool = True,
        max_worker_restarts: int = 2,
        name: str | None = None,
        **others: Any,
    ) -> None:
        """Check the arguments, then start what makes the batches.

        Arguments of sampling processes (``worker_concurrency``, ``multiprocessing_context``,
        ``max_worker_restarts``) have no effect with a graph store, so that a script may go from one kind of
        dataset to the other. Those that only a graph store has are refused elsewhere.

        ``dataset``
            A ``DistDataset``, or a ``RemoteDistDataset`` for a graph store.
        ``batch_size``, ``shuffle``, ``drop_last``
            Seeds per batch; a new order each epoch; leave out a last batch that is short.
        ``seed``
            Run seed. Random (the same on all ranks), and logged, when ``None``. :attr:`seed` tells it.
        ``num_workers``
            Sampling processes. 0 samples in this process, when the batch is asked for. Graph store: this
            loader's share of the servers' threads; 0 asks for a batch when it is needed.
        ``worker_concurrency``
            Batches in flight per sampling process. Fewer, but two, of batches larger than a slot of the ring.
        ``channel_size``
            Address space for batches in flight, in bytes or as ``"4GB"``. Memory is used on demand.
        ``prefetch_size``
            Graph store: batches in flight per server, by default 4.
        ``worker_key``
            Graph store: loaders of equal keys share one producer, which must be the same. By default,
            that is this loader on all ranks.
        ``max_concurrent_producer_inits``
            Graph store: how many ranks create producers at the same time, by default any number.
        ``seed_weights``
            Draw the seeds of each batch with replacement, in proportion to weights that may change while
            batches are made: shared tensors, one of which is named ``weight``, one float32 or float64 for
            each entry of the input. A tensor alone stays as it is. ``shuffle`` has no place beside it.
        ``node_columns``, ``edge_columns``
            Columns that batches carry: names, for every type that has them, or lists of names by type, where
            types that are left out keep all. ``[]`` for none. By default, all. Others are neither read nor
            sent.
        ``sharding``
            How the ranks of a process group share the input, which every rank passes whole: "batches"
            (the default there) gives each a share, ``"none"`` gives this rank all of it, whatever others do.
        ``even_batches``
            Ranks get equally many batches, also where fewer seeds remain than there are ranks: those left
            out then repeat one seed each. False gives them one batch less.
        ``device`` (alias ``pin_memory_device``)
            Where batches go: this rank's CUDA device if there is one, else the CPU.
        ``non_blocking_transfers``
            Copy to CUDA on a side stream while the trainer computes.
        ``dequantize_to``
            Dtype of quantised columns in batches: float32, float16, bfloat16 or float64. Values are computed
            on the device, as float32, and converted.
        ``process_start_gap_seconds``
            Seconds between the starts of local ranks. ``None``: each starts its sampling processes when
            those of another are up. No effect with one rank on a host. Graph store: seconds between the
            starts of ranks that create producers, where their number at the same time is limited.
        ``multiprocessing_context``
            ``"spawn"`` (fresh interpreters without torch), ``"forkserver"`` or ``"fork"``.
        ``timeout``
            Seconds that any wait may take before ``TimeoutError``.
        ``transform``
            Called on every batch in this process, on the target device; its result is the batch.
        ``in_order``
            False hands out batches as they become ready.
        ``max_worker_restarts``
            How many sampling processes that died are replaced before ``WorkerDied``.
        ``name``
            Of this loader, in messages. Ranks that share an input find each other's loaders by it.
        ``others``
            ``persistent_workers``, ``pin_memory``, ``is_sorted`` and ``filter_per_worker`` are accepted and
            have no effect: workers always persist, frames are always pinned for CUDA. ``TypeError`` for any
            other name, with what to use instead.
        """
        check_other_arguments(type(self), others)
        check_dataset(dataset)
        self.dataset = dataset
        self._timeout = arguments.seconds("timeout", timeout, above_zero=True)
        self._placement_options = PlacementOptions(
            kind=type(self).__name__,
            name=name,
            sharding=sharding,
            even_batches=even_batches,
            timeout_s=self._timeout,
            resolve=self.resolve_runtime,
        )
        self._place()
        with self._placement.telling_failures():
            self._options = CheckedOptions.read(
                batch_size=batch_size,
                shuffle=shuffle,
                drop_last=drop_last,
                seed=seed,
                num_workers=num_workers,
                worker_concurrency=worker_concurrency,
                channel_size=channel_size,
                prefetch_size=prefetch_size,
                worker_key=worker_key,
                max_concurrent_producer_inits=max_concurrent_producer_inits,
                even_batches=even_batches,
                device=device,
                pin_memory_device=pin_memory_device,
                non_blocking_transfers=non_blocking_transfers,
                dequantize_to=dequantize_to,
                process_start_gap_seconds=process_start_gap_seconds,
                multiprocessing_context=multiprocessing_context,
                transform=transform,
                in_order=in_order,
                max_worker_restarts=max_worker_restarts,
            )
            dataset.check_options(self._options.store)
            self.columns = read_columns(dataset.schema, node_columns, edge_columns)
            self._prepare(seed_weights)
        self._join()
        self._is_built = True

    def _prepare(self, seed_weights: Any) -> None:
        """Say what the batches are. Nothing is started."""
        options = self._options
        self.batch_size, self.shuffle, self.drop_last = options.batch_size, options.shuffle, options.drop_last
        self.num_workers = options.num_workers
        self._maker = BatchPipeline(self._transfer(), options.transform)
        self._random_seed = options.seed is None
        self._delivered = 0
        self._owner = os.getpid()
        self._latest: _Place | None = None
        """Of the latest iterator; ``None`` also when a state was loaded since."""
        self._pending = Progress(epoch=0)
        """Of the epoch that the next iterator to be advanced begins."""
        self._seeds = self.read_input()
        self._seed_weights = read_seed_weights(
            seed_weights, self._seeds, self.dataset.schema, shuffle=self.shuffle
        )
        self._plan(self._agreed(secrets.randbits(63) if options.seed is None else options.seed))
        # Now, as nobody may answer later, when the state is wanted most.
        self._made_with = self._describe()
        self._seeds = self._seeds.without_ids()

    # What a subclass supplies

    def read_input(self) -> LoaderInput:
        """Return the input of an epoch: by default, ``seed_nodes()``. Called once, first."""
        return self.seed_nodes()

    def seed_nodes(self) -> SeedNodes:
        """Return the seeds of an epoch, where they are nodes."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its seeds are")

    def sampling_plan(self, seed_type: Any, run_seed: int) -> BatchPlan:
        """Return which subgraph belongs to a batch. Called after ``read_input``; again by a resume.

        ``seed_type`` is the type of the input's entries: of links, their edge type.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it samples")

    def collate(self, tensors: FrameTensors) -> Any:
        """Return the batch of one frame, whose tensors are on the target device."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a batch is")

    # What users call

    @staticmethod
    def resolve_runtime(timeout: float = 300.0) -> Topology:
        """Return where this process stands among the trainers, asked for at most ``timeout`` seconds."""
        return Topology.detect(timeout=timeout)

    def __len__(self) -> int:
        """Batches per epoch, exactly; in a process group, of this rank."""
        shard = self._placement_options.shard_now(self._placement)
        return self._schedule.sharded(shard).num_batches

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the next epoch, or the rest of the one that ``load_state_dict`` put back.

        The epoch is the iterator's from its first batch on: one that is never advanced takes no epoch. Where
        a process group has appeared since the loader was built, this rank takes its share first.
        """
        self._check_usable()
        self._look_around(self._pending if self._pending.loaded else None)
        self._latest = place = _Place()
        self._frames.turn_to(self._pending)
        return _EpochIterator(self, place)

    def __next__(self) -> Any:
        """Return the next batch of the latest iterator, beginning one if there is none."""
        if self._latest is None:
            iter(self)
        assert self._latest is not None
        return self._next(self._latest)

    def __call__(self, nodes: Any) -> Any:
        """Return the batch of ``nodes`` (or links) in the present epoch: ``sample(nodes)``."""
        return self.sample(nodes)

    def sample(self, nodes: Any, *, epoch: int | None = None, time: Any = None) -> Any:
        """Return the batch whose seeds are ``nodes``: ids of this loader's seed type, as for ``input_nodes``.

        A loader of links takes links, as for ``edge_label_index``. ``time``: that of each seed, where
        the loader has times with its input.

        By itself: it counts for no epoch and no ``stats``. Equal seeds and epochs (by default, :attr:`epoch`)
        give equal batches, the same as when the seeds come in the course of an epoch. It costs what opening
        a sampler costs: build a loader for many.
        """
        self._check_usable()
        epoch = self.epoch if epoch is None else whole_epoch(epoch)
        seeds = self._timed_input(self._input_of(nodes), time)
        schedule = Schedule(
            seeds.columns,
            batch_size=len(next(iter(seeds.columns.values()))),
            shuffle=False,
            drop_last=False,
            run_seed=self.seed,
            places=seeds.places,
        )
        request = replace(
            self._source_request(schedule), num_workers=0, group=None, alone=True, start_gap_s=None
        )
        with closing(self.dataset.open_source(request)) as source:
            source.start_epoch(epoch, 0)
            return self._maker.make(source.receive(self._timeout), self.collate)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        epoch: int = self._standing().state()["epoch"]
        return epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` begin ``epoch``, as ``DistributedSampler`` does.

        Not needed: epochs follow each other by themselves. A state that was loaded stays where it is of this
        epoch.
        """
        epoch = whole_epoch(epoch)
        if epoch != self._pending.epoch:
            if self._pending.loaded:
                logger.warning(
                    "%s: set_epoch(%d) sets the state of epoch %d aside that was loaded",
                    self.name,
                    epoch,
                    self._pending.epoch,
                )
            self._pending = Progress(epoch=epoch)
        self._latest = None

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iterator stands, as plain values (JSON will do).

        Counts the batches that were handed out, not those sampled ahead. A loader of the same inputs
        and options that loads it, with any number of workers, goes on with the very next batch.
        """
        state = self._standing().state()
        return {
            "format": FORMAT,
            "draws": draws.DRAW_SPECIFICATION,
            "run_seed": self.seed,
            **state,
            "made_with": self._made_with,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next ``iter()``, or ``next(loader)``, go on where ``state`` was taken.

        ``ValueError`` says what differs when the state is of other inputs or options, or of a version of
        this library that would go on with other batches (another draw specification). A random run
        seed gives way to the state's; a seed that was asked for must be the same.
        """
        self._check_usable()
        self._look_around(None)
        check_same_run(state, self._made_with)
        progress = read_state(state, num_batches=len(self), most_batches=self._schedule.num_steps)
        if state["run_seed"] != self.seed:
            if not self._random_seed:
                raise ValueError(
                    f"the state is of another run: seed is {self.seed} here, {state['run_seed']} there"
                )
            self._frames.close()
            with self._placement.telling_failures():
                self._plan(state["run_seed"])
                self._start()
        self._pending, self._latest = progress, None

    def stats(self) -> dict[str, Any]:
        """Return counters since construction: batches, seconds by kind, and those of the source.

        ``seconds_waiting`` for batches, ``seconds_copying`` to the device, ``seconds_collating``, and
        ``seconds_transforming`` in the user's ``transform``.
        """
        seconds = {f"seconds_{kind}": value for kind, value in self._maker.seconds.items()}
        return {
            **self._frames.source_stats(),
            **seconds,
            "seconds_waiting": self._frames.seconds_waiting,
            "batches": self._delivered,
        }

    def shutdown(self) -> None:
        """End the sampling processes. Calling it again does nothing; ``state_dict`` still works."""
        self._frames.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.name} cannot be pickled or copied: it owns processes and memory of this process; "
            "build a loader in the process that uses it (torch.multiprocessing.spawn: in the function; "
            "Lightning: in train_dataloader()), and carry its state_dict() over"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse, with ``AttributeError``, what was settled at construction. Other names are a subclass's."""
        if self._is_built and self._is_settled(name):
            remedy = f"shut this loader down and build another, {type(self).__name__}(..., {name}=...)"
            if name not in self._arguments:
                remedy = "it follows from the arguments of the loader"
            raise AttributeError(f"{self.name}: {name} is fixed at construction: {remedy}")
        super().__setattr__(name, value)

    def _is_settled(self, name: str) -> bool:
        """Whether a name is an argument of the loader, or follows from its arguments."""
        if name.startswith("_"):
            return False
        if name in BaseDistLoader.__annotations__ or name in LoaderOptions.__annotations__:
            return True
        # A subclass may keep an argument of its own after the base is built, but only once.
        kept = vars(self)
        is_kept = name in kept or f"_{name}" in kept or hasattr(kept.get("_sampling"), name)
        return is_kept and name in self._arguments

    def __repr__(self) -> str:
        state = "" if self._frames.is_open else ", shut down"
        return (
            f"{type(self).__name__}({len(self):,} batches of {self.batch_size}, "
            f"{self.num_workers} workers, seed {self.seed}, on {self.device}{state})"
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show the arguments behind a subclass's ``**options`` in its signature."""
        super().__init_subclass__(**kwargs)
        signature = full_signature(cls)
        cls.__signature__ = signature  # type: ignore[attr-defined]
        cls._arguments |= frozenset(signature.parameters)

    # Inside

    def _input_of(self, nodes: Any) -> LoaderInput:
        """Return what a user asks to be sampled by itself."""
        return read_seed_nodes(self.dataset, (str(self._seeds.kind), nodes))

    def _timed_input(self, seeds: LoaderInput, time: Any) -> LoaderInput:
        """Return the input with its times, where the plan has times with the input."""
        wanted = any(column.name == TIME for column in self.plan.inputs)
        if wanted != (time is not None):
            rule = "is needed, as the loader has times with its input" if wanted else "has no meaning here"
            raise ValueError(f"time, that of each seed, {rule}")
        if not wanted:
            return seeds
        count = len(next(iter(seeds.columns.values())))
        return seeds.with_times(read_times("time", time, count=count, places=seeds.places))

    def _place(self) -> None:
        """Find this process's place among the ranks, as it is now."""
        placement = Placement.find(self._placement_options)
        name = self._name_alone() if placement.agreement is None else placement.agreement.name
        self._placement = placement
        # Not by assignment, which is refused once the loader is built.
        vars(self).update(name=name, sharding=placement.sharding, topology=placement.topology)
        self._shard = placement.shard(even_batches=self._placement_options.even_batches)

    def _name_alone(self) -> str:
        given, kind = self._placement_options.name, type(self).__name__
        if given is not None or self._is_built:
            return given or self.name
        self._count[kind] += 1
        return f"{kind}-{self._count[kind]}"

    def _transfer(self) -> Transfer:
        """Return the way of frames to the device asked for, or to that of this local rank."""
        device, alias = self._options.device, self._options.pin_memory_device
        chosen = arguments.target_device(device, alias, local_rank=self.topology.local_rank)
        vars(self).update(device=chosen)
        transfer = transfer_to(chosen, non_blocking=self._options.non_blocking_transfers)
        return dequantizing(transfer, self.dataset.schema, self._options.dequantize_to)

    def _agreed(self, run_seed: int) -> int:
        """Return ``run_seed``, or that of the first rank to come where each has drawn its own."""
        agreement = self._placement.agreement
        return agreement.run_seed(run_seed) if agreement is not None and self._random_seed else run_seed

    def _join(self) -> None:
        """Compare with the ranks that share the input, then start what makes the batches."""
        if self._placement.agreement is not None:
            self._placement.agreement.publish(
                {
                    **self._made_with,
                    "draw specification": draws.DRAW_SPECIFICATION,
                    "seed": self.seed,
                    "loader": type(self).__name__,
                    "graph": self.dataset.graph_digest[:_DIGITS],
                }
            )
        with self._placement.telling_failures():
            self._start()
        if self._random_seed:
            logger.info("%s: random run seed %d", self.name, self.seed)

    def _look_around(self, resumed: Progress | None) -> None:
        """Take this rank's share where a process group has appeared since the loader was built.

        ``resumed`` is what was loaded and is to be gone on with: ``ValueError`` where the share does not
        allow it. ``RuntimeError`` where the group that shared the input is gone: this rank's share would
        pass for the whole.
        """
        if not self._placement.has_changed():
            return
        if RankGroup.current() is None:
            if self._placement.agreement is None:
                return
            raise RuntimeError(
                f"{self.name} has the share of {self._describe_rank()}, of a process group that was "
                "destroyed since: build a new loader"
            )
        before, now = str(self._shard), str(self._placement_options.shard_now(self._placement))
        if now != before and resumed is not None and resumed.is_under_way:
            raise ValueError(
                f"{self.name}: the state that was loaded is of sharding {before}, and that is {now} since "
                "a process group has appeared: load a state of these ranks, after init_process_group"
            )
        self._place_again(resumed)

    def _place_again(self, resumed: Progress | None) -> None:
        """Become the loader that would have been built now."""
        self._place()
        self._frames.close()
        self._latest = None
        with self._placement.telling_failures():
            self._maker.transfer = self._transfer()
            # A loaded state says which run this is; ranks that loaded another one are told apart later.
            self._plan(self._agreed(self.seed) if resumed is None else self.seed)
            self._made_with = {**self._made_with, "sharding": str(self._shard)}
        self._join()
        logger.info("%s: a process group has appeared; this is %s", self.name, self._describe_rank())

    def _describe_rank(self) -> str:
        return f"rank {self.topology.rank} of {self.topology.world_size}"

    def _plan(self, run_seed: int) -> None:
        """Say what the batches of this run seed are."""
        plan = self.sampling_plan(self._seeds.kind, run_seed)
        vars(self).update(seed=run_seed, plan=plan)
        self._schedule = Schedule(
            self._seeds.columns,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            run_seed=run_seed,
            shard=self._shard,
            places=self._seeds.places,
            draw=seed_draw(
                self._seed_weights,
                self._seeds,
                run_seed=run_seed,
                rank=self.topology.rank,
                timeout=self._timeout,
            ),
        )

    def _start(self) -> None:
        """Start what makes the batches."""
        request = self._source_request(self._schedule)
        # A displayed loader is kept by the history of a notebook. Ranks start and end together.
        idle_s = _IDLE_S if request.alone and hasattr(sys, "ps1") else None
        self._frames = FrameStream(partial(self.dataset.open_source, request), idle_s=idle_s)

    def _source_request(self, schedule: Schedule) -> SourceRequest:
        return SourceRequest(
            plan=self.plan,
            schedule=schedule,
            name=self.name,
            num_workers=self.num_workers,
            workers=self._options.workers,
            store=self._options.store,
            timeout_s=self._timeout,
            topology=self.topology,
            group=self._placement.group,
            alone=self._placement.agreement is None,
            start_gap_s=self._options.start_gap_s,
        )

    def _standing(self) -> Progress:
        """Return the progress of the latest iterator, or of the epoch that it is to begin."""
        latest = self._latest
        return self._pending if latest is None or latest.progress is None else latest.progress

    def _begin(self, place: _Place) -> Progress:
        """Give an iterator the next epoch."""
        progress = self._pending
        if self._placement.agreement is not None:
            # The end of a rank with one batch less is the last batch of the others.
            given = min(progress.first + len(progress.ahead), self._schedule.num_steps - 1)
            where = {"seed": self.seed, "epoch": progress.epoch, "batch": given}
            self._placement.agreement.begin(where, self._timeout)
        place.progress, self._pending = progress, Progress(epoch=progress.epoch + 1)
        return progress

    def _next(self, place: _Place) -> Any:
        self._check_usable()
        progress = place.progress or self._begin(place)
        if progress.ended:
            raise StopIteration
        self._latest = place
        try:
            frame = self._frames.receive(progress, self._timeout)
            if frame is None:
                progress.ended = True
                raise StopIteration
            try:
                batch = self._maker.make(frame, self.collate)
            except StopIteration as error:  # It would pass for the end of the epoch.
                raise RuntimeError(f"{self.name}: StopIteration while a batch was made") from error
        except Exception:
            raise
        except BaseException:
            # Interrupted: whoever goes on must not miss the batch that was in hand.
            self._frames.lose_place()
            raise
        progress.give(frame.batch)
        self._delivered += 1
        return batch

    def _check_usable(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"{self.name} belongs to process {self._owner}: a forked process must build its own loader "
                "(Lightning: in train_dataloader())"
            )
        if not self._frames.is_open:
            raise RuntimeError(f"{self.name} was shut down; build a new loader")

    def _describe(self) -> dict[str, Any]:
        return describe_run(
            self.dataset,
            self.plan,
            self._seeds,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            sharding=str(self._shard),
            **({} if self._seed_weights is None else {"drawn_by_weights": True}),
        )


@dataclass(slots=True, eq=False)
class _Place:
    """Place of one iterator."""

    progress: Progress | None = None
    """``None`` until its first batch is requested."""


class _EpochIterator(Iterator[Any]):
    """One epoch of a loader, at its own place."""

    def __init__(self, loader: BaseDistLoader, place: _Place) -> None:
        self._loader = loader
        self._place = place
        self._placement = loader._placement

    def __next__(self) -> Any:
        if self._placement is not self._loader._placement:
            raise RuntimeError(
                f"{self._loader.name}: this epoch was begun before the process group appeared, when this "
                "process had the whole input: begin another"
            )
        return self._loader._next(self._place)
