"""Base class of all loaders: options, the place among the ranks, the run, epochs, state and shutdown.

A loader is made of parts with a file each: its options (``arguments``), its place among the ranks of a
process group (``placement``), the input (``inputs``), epochs and state (``state``), the source of frames
(``stream``), and the way of a frame to a batch (``transfer``, ``collate``). The dataset makes the source.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

import torch
from typing_extensions import Self, Unpack

from gigl_loader.loaders import state as states
from gigl_loader.loaders.accelerated import AcceleratePrepared
from gigl_loader.loaders.arguments import (
    CheckedOptions,
    FixedArguments,
    LoaderOptions,
    whole_epoch,
    with_defaults,
)
from gigl_loader.loaders.dataset import Dataset, DatasetOfLoader, check_dataset
from gigl_loader.loaders.dequantize import dequantizing
from gigl_loader.loaders.device_rows import ResidentTransfer
from gigl_loader.loaders.input_times import request_alone
from gigl_loader.loaders.inputs import SeedNodes, read_seed_weights, seed_draw
from gigl_loader.loaders.ledger import Ledger, Run, run_digests
from gigl_loader.loaders.placement import Placement, PlacementOptions
from gigl_loader.loaders.seeds_by_type import SeedsByType, entries_at, read_seeds_of
from gigl_loader.loaders.single_batches import SingleBatches
from gigl_loader.loaders.stream import (
    BatchPipeline,
    EpochIterator,
    FrameStream,
    IdleCores,
    RowCounter,
    SeedWatch,
)
from gigl_loader.loaders.transfer import target_device, transfer_to
from gigl_loader.native import draws
from gigl_loader.options import workers_of
from gigl_loader.sampling.columns import read_columns
from gigl_loader.sampling.plan import SamplerArguments
from gigl_loader.sampling.request import BatchRequest
from gigl_loader.sampling.schedule import Progress, Schedule
from gigl_loader.sampling.source import SourceRequest
from gigl_loader.topology import Topology
from gigl_loader.tracing import BatchSpans

if TYPE_CHECKING:
    from gigl_loader.loaders.dataset import NodeDirectory, SizedDataset
    from gigl_loader.loaders.inputs import LoaderInput
    from gigl_loader.loaders.transfer import FrameTensors, Transfer
    from gigl_loader.sampling.columns import ColumnPlan
    from gigl_loader.sampling.plan import BatchPlan

logger = logging.getLogger(__name__)

_IDLE_S = 600.0
"""In an interactive session, a loader that is not used for so long ends its workers until it is."""


class BaseDistLoader(FixedArguments, AcceleratePrepared):
    """Batches of a graph, epoch after epoch: functions of run seed, epoch, and places and ids of the seeds.

    A loader is iterated like a list: each ``iter()`` is the next epoch. It is a context manager;
    ``shutdown`` ends its processes, and so does collecting it.

    **Iterators.** Each is one epoch and keeps its place, so ``break``, nested iteration and several
    iterators over one loader are safe; going back to an iterator after using another starts its
    prefetching again. ``next(loader)`` advances the latest.

    **Subclassing.** A subclass turns its arguments into three things and inherits the rest::

        class MyLoader(BaseDistLoader):
            def __init__(self, dataset, fanouts, **options):
                self.fanouts = fanouts
                super().__init__(dataset, **options)      # checks the options, then calls:

            def seed_nodes(self):                         # 1. the input
                return read_seed_nodes(self.dataset, "train")

            def sampling_plan(self, seed_type, run_seed): # 2. what is sampled around each seed
                return BatchPlan(sampler=NeighborPlan(seed_type=seed_type, ...), run_seed=run_seed)

            def collate(self, tensors):                   # 3. a batch of a frame's tensors
                return MyBatch(...)

    Everything that can be wrong with the first two is raised before any process starts.
    """

    batch_size: int
    columns: ColumnPlan
    """Which columns batches carry, for the plan of a subclass."""
    dataset: SizedDataset
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
    _made_with: dict[str, Any]
    _sampling = SamplerArguments()
    _has_warned = False
    _ledger: Ledger | None = None

    def __init__(self, dataset: Dataset, **options: Unpack[LoaderOptions]) -> None:
        """Check the arguments, then start what makes the batches.

        ``dataset``
            A ``DistDataset``, or a ``RemoteDistDataset`` for a graph store.
        ``options``
            Those of :class:`~gigl_loader.loaders.arguments.LoaderOptions`, which says what each means.
        """
        given = with_defaults(type(self), options)
        check_dataset(dataset)
        self.dataset = cast("SizedDataset", dataset)
        self._take(Placement.find(PlacementOptions.read(type(self).__name__, given, self.resolve_runtime)))
        with self._placement.telling_failures():
            self._options = checked = CheckedOptions.read(given, ranks=self.topology.local_world_size)
            dataset.check_options(checked.store)
            self.columns = read_columns(dataset.schema, given["node_columns"], given["edge_columns"])
            self.batch_size, self.num_workers = checked.batch_size, checked.num_workers
            self.shuffle, self.drop_last = checked.shuffle, checked.drop_last
            self._pipeline = BatchPipeline(self._transfer(), checked.transform)
            self._epochs = states.Epochs()
            self._owner = os.getpid()
            self._seeds = self.read_input()
            self._seed_weights = read_seed_weights(
                given["seed_weights"], self._seeds, dataset.schema, shuffle=self.shuffle
            )
            self._random_seed = checked.seed is None
            self._plan(self._placement.run_seed(checked.seed))
            self._rows = RowCounter.of(dataset, self.plan.frame(dataset.schema))
            self._seed_watch = SeedWatch(self.name, self.plan, self._sampling, dataset.schema)
            most = 0 if self.dataset.num_servers else workers_of("auto", ranks=self.topology.local_world_size)
            self._idle_cores = IdleCores(self.name, num_workers=self.num_workers, most=most)
            # Now, since the dataset may not be reachable later, when the state is needed most.
            self._made_with = states.describe_run(dataset, self.plan, self._seeds, self._schedule)
            self._seeds = self._seeds.without_ids()
        self._join()
        self.dataset = cast("SizedDataset", DatasetOfLoader(dataset, self._schedule.num_entries))
        if not (self._schedule.num_entries or self._has_warned) and self._placement.logs_for_all:
            logger.warning("%s: the input has no %s: its epochs have no batch", self.name, self._seeds.what)
        self._is_built = True

    # What a subclass supplies

    def read_input(self) -> LoaderInput:
        """Return the input of an epoch: by default, ``seed_nodes()``. Called once, first."""
        return self.seed_nodes()

    def seed_nodes(self) -> SeedNodes | SeedsByType:
        """Return the seeds of an epoch, where they are nodes."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its seeds are")

    def sampling_plan(self, seed_type: Any, run_seed: int) -> BatchPlan:
        """Return which subgraph belongs to a batch. Called after ``read_input``; again by a resume.

        ``seed_type`` is that of the input: of links, their edge type; of several node types, a frozenset.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say what it samples")

    def collate(self, tensors: FrameTensors) -> Any:
        """Return the batch of one frame, whose tensors are on the target device."""
        raise NotImplementedError(f"{type(self).__name__} does not say what a batch is")

    # What users call

    @staticmethod
    def resolve_runtime(timeout: float = 300.0) -> Topology:
        """Return where this process stands among the trainers. Waits at most ``timeout`` seconds."""
        return Topology.detect(timeout=timeout)

    def __len__(self) -> int:
        """Batches per epoch, exactly; in a process group, of this rank."""
        return self._schedule.sharded(self._placement.next_shard).num_batches

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the next epoch, or the rest of the one that ``load_state_dict`` put back.

        The epoch is the iterator's from its first batch on: one that is never advanced takes no epoch. Where
        a process group has appeared since the loader was built, this rank takes its share first.
        """
        self._check_usable()
        self._follow_group()
        self._epochs.latest = place = states.Place(self._placement)
        self._frames.turn_to(self._epochs.next_up())
        self._warn_of_missing_state()
        return EpochIterator(partial(self._next, place))

    def __next__(self) -> Any:
        """Return the next batch of the latest iterator, beginning one if there is none."""
        if self._epochs.latest is None:
            iter(self)
        assert self._epochs.latest is not None
        return self._next(self._epochs.latest)

    def collate_fn(self, places: Any) -> Any:
        """Return the batch of the entries at these places of the input, integers [B], in the present epoch.

        The batch is the one that an epoch has where these entries come together. Places count from 0 to
        ``len(loader.dataset) - 1``; of a mask, they count the selected nodes; of seeds by type, type after
        type, or each type alone in a mapping. By itself, as :meth:`sample`. For ``ZipLoader``, ``DataLoader(
        range(len(loader.dataset)), collate_fn=loader.collate_fn)``; also forked, if the graph lies here.
        """
        if os.getpid() == self._owner or not getattr(self.dataset, "_is_on_this_host", False):
            self._check_usable()
        return self._single_batch(self._schedule.request_of(entries_at(self._seeds, places), self.epoch))

    __call__ = collate_fn

    def filter_fn(self, batch: Any) -> Any:
        """Return ``batch``, which has all of its rows: PyG's ``ZipLoader`` calls it."""
        return batch

    def sample(
        self, nodes: Any, *, epoch: int | None = None, time: Any = None, time_start: Any = None
    ) -> Any:
        """Return the batch whose seeds are ``nodes``: ids of this loader's seed type, as for ``input_nodes``.

        A loader of links takes links. ``time``, ``time_start``: of each seed, where the input has them.

        By itself: it counts for no epoch and no ``stats``. Equal seeds and epochs (by default, :attr:`epoch`)
        give equal batches: the first batch of a loader over just these seeds. The first call opens a sampler
        of its own, in this process or on the servers.
        """
        self._check_usable()
        epoch = self.epoch if epoch is None else whole_epoch(epoch)
        seeds, unit = self._input_of(nodes, self.dataset), self._sampling.time_unit(self.dataset.schema)
        times = {"unit": unit, "time": time, "time_start": time_start}
        return self._single_batch(request_alone(seeds, epoch, self.plan.inputs, **times))

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, from 0."""
        return self._epochs.current.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next ``iter()`` begin ``epoch``, as ``DistributedSampler`` does.

        Not needed: epochs follow each other by themselves. A loaded state of this epoch stays where it is.
        """
        if left := self._epochs.turn_to(whole_epoch(epoch)):
            text = (
                "%s: set_epoch(%d) sets the state of epoch %d aside that was loaded, and loses what was left"
            )
            logger.warning(text, self.name, epoch, left.epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the latest iterator stands, as plain values (JSON will do).

        Counts the batches that all ranks were handed, not batches sampled ahead. Loaders of the same inputs
        and options that load it, on any number of ranks and with any number of workers, go on with the very
        next batch. With ``in_order=False``, each of several ranks needs its own.
        """
        digests = run_digests(self.plan, self._made_with, self.dataset.graph_digest)
        run = {"run_seed": self.seed, "made_with": self._made_with, "digests": digests}
        in_order = self._options.workers.in_order
        return states.state_of(self._epochs.current, self._schedule, run, in_order=in_order)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next ``iter()``, or ``next(loader)``, go on where ``state`` was taken.

        Ranks that load the same state share the batches that are left, however many ranks there were.

        ``ValueError`` says what differs when the state is of other inputs or options, or of a version that
        draws otherwise. A random run seed gives way to the state's; a seed that was given must be the same.
        """
        self._check_usable()
        self._follow_group()
        progress = states.read_state(state, self._made_with, self._schedule)
        if state["run_seed"] != self.seed:
            if not self._random_seed:
                raise ValueError(
                    f"the state is of another run: seed is {self.seed} here, {state['run_seed']} there"
                )
            self._frames.close()
            with self._placement.telling_failures():
                self._plan(state["run_seed"])
                self._start()
        self._epochs.resume(progress)

    def reshard(self, topology: Topology | None = None) -> None:
        """Deal the batches that are left of the epoch to the ranks that there are now.

        For launchers that form the process group anew while a script runs. Every rank of it calls this, or
        builds its loader; all load one state where they may stand at different batches. The next ``iter()``
        goes on. ``topology``: of this process, where the group is not the default one; none is compared then.
        """
        self._check_usable()
        self._move_to(self._placement.among(topology), self._epochs.current)

    def stats(self) -> dict[str, Any]:
        """Return counters since construction: batches, seconds by kind, and the counters of the source.

        ``seconds_waiting`` for batches, ``seconds_copying`` to the device, ``seconds_collating``, and
        ``seconds_transforming`` in ``transform``. ``seeds_without_neighbours``: of batches without an edge;
        ``seeds_without_past``: see ``time_attr``. ``rows`` counts rows of features ``wanted``, and by origin:
        ``cache``, ``memory``, ``disk``, ``wire``. ``advice``: a sentence where other options would be faster,
        else empty.
        """
        rows = {"rows": self._rows.read()}  # Where the source does not count them.
        return {
            **rows,
            **self._frames.stats(),
            **self._pipeline.stats(),
            **self._seed_watch.stats(),
            "advice": self._idle_cores.advice,
        }

    def ledger(self, path: str | os.PathLike[str]) -> Ledger:
        """Write a line, with digests, for every batch of the epochs from now on; return the :class:`Ledger`.

        A file of the same run goes on, after ``load_state_dict``; of another run it is a ``ValueError``, and
        ``FormatError`` where it was changed. ``gigl-loader replay`` makes its batches again.
        """
        self._check_usable()
        self._close_ledger()
        self._ledger = Ledger(self._run(), path)
        return self._ledger

    def shutdown(self) -> None:
        """End the sampling processes. Calling it again does nothing; ``state_dict`` still works."""
        self._close_ledger()
        self._frames.close()
        self._singles.close()

    @cached_property
    def data(self) -> Any:
        """PyG's ``(FeatureStore, GraphStore)`` of the graph: ``dataset.as_pyg()``."""
        return self.dataset.as_pyg()  # type: ignore[attr-defined]  # Users' own datasets may lack it.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def __repr__(self) -> str:
        state = "" if self._frames.is_open else ", shut down"
        memory = self._frames.stats().get("feature_memory")
        features = f", {memory['decision']}" if memory else ""
        return (
            f"{type(self).__name__}({len(self):,} batches of {self.batch_size}, "
            f"{self.num_workers} workers, seed {self.seed}, on {self.device}{features}{state})"
        )

    # Inside

    def _input_of(self, nodes: Any, directory: NodeDirectory, negatives: Any = None) -> LoaderInput:
        """Return the entries that a user passes to ``sample``. Only links take ``negatives``."""
        return read_seeds_of(directory, self._seeds.kind, nodes)

    def _take(self, placement: Placement) -> None:
        """Take a place among the ranks."""
        self._placement = placement
        self._set(name=placement.name, sharding=placement.sharding, topology=placement.topology)

    def _transfer(self) -> Transfer:
        """Return the transfer to the device of the options, by default that of this local rank."""
        options, rank = self._options, self.topology.local_rank
        self._set(device=target_device(options.device, options.pin_memory_device, local_rank=rank))
        way = transfer_to(self.device, non_blocking=options.non_blocking_transfers)
        schema = self.dataset.schema
        self._resident = ResidentTransfer(way, self.device, self.columns.stored(schema))
        if options.features.device_bytes is not None:
            way = self._resident
        return dequantizing(way, schema, options.dequantize_to)

    def _join(self) -> None:
        """Compare with the ranks that share the input, then start what makes the batches."""
        self._placement.publish(
            {
                **self._made_with,
                "draw specification": draws.DRAW_SPECIFICATION,
                "seed": self.seed,
                "loader": type(self).__name__,
                "graph": self.dataset.graph_digest[:16],  # Enough to tell graphs apart, short in a message.
            }
        )
        with self._placement.starting():
            self._start()
        if self._random_seed:
            logger.info("%s: random run seed %d", self.name, self.seed)

    def _follow_group(self) -> None:
        """Become the loader that would have been built now, where a process group has appeared since.

        A state that was loaded before is gone on with by the ranks that there are now. ``RuntimeError`` where
        the group that shared the input is gone.
        """
        if self._placement.has_changed():
            pending = self._epochs.pending
            # The seed is that of a loaded state; ``begin`` finds a rank that loaded another one.
            is_free = self._random_seed and not pending.loaded
            self._move_to(Placement.find(self._placement.options, known_as=self.name), pending, is_free)

    def _move_to(self, placement: Placement, progress: Progress, is_seed_free: bool = False) -> None:
        """Take another place among the ranks, and go on with what ``progress`` leaves of its epoch."""
        given = states.Given.of(progress, self._schedule)
        self._take(placement)
        self._frames.close()
        with placement.telling_failures():
            self._pipeline.transfer = self._transfer()
            self._plan(placement.run_seed(None, random=self.seed) if is_seed_free else self.seed)
            self._made_with = {**self._made_with, "sharding": str(placement.shard)}
        self._epochs.resume(given.progress(self._schedule, loaded=progress.loaded))
        self._join()
        logger.info("%s: the process group has changed; this is %s", self.name, placement)

    def _plan(self, run_seed: int) -> None:
        """Say what the batches of this run seed are."""
        self._set(seed=run_seed, plan=self.sampling_plan(self._seeds.kind, run_seed))
        self._schedule = Schedule(
            self._seeds.columns,
            batch_size=self.batch_size,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            run_seed=run_seed,
            shard=self._placement.shard,
            places=self._seeds.places,
            draw=seed_draw(self._seed_weights, self._seeds, self._placement, run_seed),
        )
        self._singles = SingleBatches(self.dataset.open_source, self._source_request())

    def _start(self) -> None:
        """Start what makes the batches."""
        request = self._source_request()
        # A displayed loader is kept by the history of a notebook. Ranks start and end together.
        idle_s = _IDLE_S if request.alone and hasattr(sys, "ps1") else None
        self._frames = FrameStream(self.dataset.open_source, request, idle_s=idle_s)

    def _single_batch(self, request: BatchRequest) -> Any:
        pipeline = BatchPipeline(self._pipeline.transfer, self._options.transform)  # Not in ``stats``.
        return pipeline.make(self._singles.receive(request), self.collate)

    def _source_request(self) -> SourceRequest:
        return SourceRequest(
            plan=self.plan,
            schedule=self._schedule,
            name=self.name,
            num_workers=self.num_workers,
            workers=self._options.workers,
            store=self._options.store,
            features=self._options.features,
            device=self._resident,
            timeout_s=self._placement.options.timeout_s,
            topology=self.topology,
            group=self._placement.group,
            alone=self._placement.agreement is None,
            start_gap_s=self._options.start_gap_s,
            shared=self._options.shared,
            values=self.device.type == "cpu" and self._options.features.device_bytes is None,
            spans=BatchSpans.found(self.name),
        )

    def _run(self) -> Run:
        return Run(
            loader=type(self).__name__,
            plan=self.plan,
            made_with=self._made_with,
            schedule=self._schedule,
            dataset=self.dataset,
            placement=self._placement,
            resident=self._resident,
        )

    def _close_ledger(self) -> None:
        if self._ledger is not None:
            self._ledger.close()

    def _begin(self, place: states.Place) -> Progress:
        """Give an iterator the next epoch, once all ranks that share the input begin the same one."""
        progress = self._epochs.next_up()
        if self._placement.agreement is not None:
            where = {"seed": self.seed, **states.agreed_place(progress, self._schedule)}
            self._placement.agreement.begin(where, self._placement.options.timeout_s)
        return self._epochs.begin(place)

    def _next(self, place: states.Place) -> Any:
        self._check_usable()
        if place.placement is not self._placement:
            raise RuntimeError(
                f"{self.name}: the ranks have changed since this epoch was begun: begin another iterator"
            )
        progress = place.progress or self._begin(place)
        if progress.ended:
            raise StopIteration
        self._epochs.latest = place
        try:
            frame = self._frames.receive(progress, self._placement.options.timeout_s)
            if frame is None:
                progress.ended = True
                self._seed_watch.end_epoch()
                raise StopIteration
            try:
                ledger = self._ledger
                recording = ledger.recording(frame, self._run(), progress.origin) if ledger else None
                batch = self._pipeline.make(frame, self.collate, recording)
            except StopIteration as error:  # It would pass for the end of the epoch.
                raise RuntimeError(f"{self.name}: StopIteration while a batch was made") from error
        except Exception:
            raise
        except BaseException:
            # Interrupted: the next call must not miss the batch that was in hand.
            self._frames.lose_place()
            raise
        self._rows.add(frame)
        progress.give(frame.batch)
        self._seed_watch.look(frame)
        self._idle_cores.look(self._frames.seconds_waiting)
        return batch

    def _check_usable(self) -> None:
        if os.getpid() != self._owner:
            raise RuntimeError(
                f"{self.name} belongs to process {self._owner}: a forked process must build its own loader "
                "(Lightning: in train_dataloader(); DataLoader and ZipLoader: num_workers=0)"
            )
        if not self._frames.is_open:
            raise RuntimeError(f"{self.name} was shut down; build a new loader")
