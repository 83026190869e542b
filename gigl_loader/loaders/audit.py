"""Audit of a loader: its batches are made again, and each is checked for leaks.

The checks know the graph, the plan and the frames, and nothing of how edges are drawn or removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from gigl_loader.loaders.arguments import whole_epoch
from gigl_loader.loaders.audit_batches import AuditedBatch, TargetCheck, TimeCheck, audited_plan
from gigl_loader.loaders.audit_report import CHECKS, AuditReport, Tally, Violation
from gigl_loader.loaders.audit_splits import split_findings
from gigl_loader.loaders.base import BaseDistLoader
from gigl_loader.loaders.dataset import check_dataset
from gigl_loader.loaders.link import DistLinkNeighborLoader
from gigl_loader.loaders.replay import Replay
from gigl_loader.loaders.single_batches import SingleBatches
from gigl_loader.options import whole_number
from gigl_loader.sampling.source import SourceRequest

if TYPE_CHECKING:
    from gigl_loader.arrays import Int64Array
    from gigl_loader.loaders.audit_report import Check, Finding
    from gigl_loader.loaders.dataset import Dataset
    from gigl_loader.loaders.replay import Recording
    from gigl_loader.options import EdgeType
    from gigl_loader.sampling.request import BatchRequest
    from gigl_loader.sampling.schedule import Schedule

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with the step, the number done, and the number of all."""


def audit(
    subject: BaseDistLoader | Dataset,
    *,
    epoch: int | None = None,
    batches: int | None = None,
    checks: Collection[Check] = CHECKS,
    progress: Progress | None = None,
) -> AuditReport:
    """Check the batches of a loader for leaks; of a dataset, its splits alone. The loader stays where it is.

    Batches of all ranks are made again in this process, by themselves and before ``transform``. Checks:

    - ``"targets"``: no message edge of a batch is one of its links or labels (positive or negative), or the
      reverse of one. Reverses are those that ``exclude_targets`` means, whether it is on or off. A type that
      holds a tenth of the targets the other way round counts as a reverse, unless ``reverse_edge_types`` of
      the loader decides.
    - ``"times"``: with ``time_attr``, no edge is later than the seed of its tree, or is not earlier, with
      ``temporal_comparison="<"``.
    - ``"splits"``: no node or edge of the graph is in two splits, no edge in one split and its reverse in
      another, and no edge that is held out, nor its reverse, is among the message edges.
    - ``"seeds"``: every entry of the input comes once, in the batch that was requested. In some batches of an
      epoch, none comes twice.

    ``epoch``
        By default, the loader's present one.
    ``batches``
        Number of batches from the start of the epoch. ``None``: all.
    ``progress``
        Called with a step, the number of batches done, and the number of all.

    Return an :class:`AuditReport`, which is true if no check found a violation. ``TypeError`` and
    ``ValueError`` name a wrong argument; what loaders raise is raised.
    """
    chosen = _checked(checks)
    count = None if batches is None else whole_number("batches", batches, minimum=1)
    show = progress or _nothing
    if not isinstance(subject, BaseDistLoader):
        check_dataset(subject)
        return AuditReport(subject=f"graph {subject.graph_digest}", findings=_splits(subject, chosen, show))
    subject._check_usable()
    number = subject.epoch if epoch is None else whole_epoch(epoch)
    request = replace(
        subject._source_request(),
        plan=audited_plan(subject.plan, subject.dataset.schema),
        name=f"audit of {subject.name}",
        device=None,
    )
    schedule = subject._schedule
    total = sum(each.num_batches for each in _ranks(schedule))
    reverses: dict[EdgeType, tuple[EdgeType, ...]] = {}
    if isinstance(subject, DistLinkNeighborLoader) and subject._reverses_are_told:
        reverses[cast("EdgeType", subject._seeds.kind)] = subject._reverses
    run = _Run(subject.dataset, request, reverses, chosen, num_entries=schedule.num_entries)
    if schedule.draw is not None:
        run.seeds_unchecked = "seed_weights draws seeds with replacement"
    run.may_leave_out = schedule.drop_last
    made = run.look(islice(_of_schedule(schedule, number), count), min(total, count or total), show)
    return AuditReport(
        subject=f"{subject.name}: {made:,} of {total:,} batches of epoch {number}",
        findings=_in_order(run.findings(is_whole=made == total), _splits(subject.dataset, chosen, show)),
    )


def audit_ledgers(
    recordings: Sequence[Recording],
    dataset: Dataset,
    *,
    checks: Collection[Check] = CHECKS,
    allowed_samplers: Collection[str] = (),
    timeout_s: float = 300.0,
    progress: Progress | None = None,
) -> AuditReport:
    """Check the batches that ledgers of one run record, as :func:`audit` does.

    ``recordings``: of all ranks whose batches are to be checked, with these batches chosen. ``ValueError``
    where they cannot be replayed on this graph.
    """
    chosen, show = _checked(checks), progress or _nothing
    batches: dict[tuple[int, int], _Batch] = {}
    run: _Run | None = None
    for recording in recordings:
        with Replay(recording, dataset, allowed_samplers=allowed_samplers, timeout_s=timeout_s) as replay:
            if run is None:
                plan = audited_plan(replay.plan, dataset.schema)
                request = SourceRequest.single(plan, name="audit", timeout_s=timeout_s)
                run = _Run(dataset, request, {}, chosen, num_entries=replay.num_entries)
            is_uneven = (recording.run.get("world_size") or 1) > 1
            for each in recording.chosen:  # A resumed run records some batches twice.
                request_again, entries = replay.request(each)
                batch = _Batch(request_again, entries, is_again=is_uneven and len(entries) == 1)
                batches.setdefault((each.epoch, each.batch), batch)
    assert run is not None
    made = run.look((batches[key] for key in sorted(batches)), len(batches), show)
    return AuditReport(
        subject=f"{', '.join(str(each.path) for each in recordings)}: {made:,} batches",
        findings=_in_order(run.findings(is_whole=False), _splits(dataset, chosen, show)),
    )


def _checked(checks: Collection[Check]) -> frozenset[Check]:
    if isinstance(checks, str) or not checks or (unknown := [each for each in checks if each not in CHECKS]):
        named = checks if isinstance(checks, str) else next(iter(unknown if checks else ["none"]))
        raise ValueError(f"checks are some of {', '.join(CHECKS)}, got {named!r}")
    return frozenset(checks)


def _nothing(step: str, done: int, total: int) -> None:
    """Show no progress."""


def _splits(dataset: Dataset, checks: Collection[Check], show: Progress) -> tuple[Finding, ...]:
    return tuple(split_findings(dataset, show)) if "splits" in checks else ()


def _in_order(*findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(chain(*findings), key=lambda each: CHECKS.index(each.check)))


@dataclass(frozen=True, slots=True)
class _Batch:
    """A batch that is to be made again."""

    request: BatchRequest
    """Its ``number`` is that of all ranks."""
    entries: Int64Array
    """Of the input, [B]."""
    is_again: bool = False
    """A rank without a seed repeats one in the last step: it does not count."""


def _ranks(schedule: Schedule) -> list[Schedule]:
    shard = schedule.shard
    return [schedule.sharded(replace(shard, rank=rank)) for rank in range(shard.world_size)]


def _of_schedule(schedule: Schedule, epoch: int) -> Iterator[_Batch]:
    """Yield the batches of all ranks, step by step."""
    ranks, end = _ranks(schedule), 0
    for step in range(schedule.num_steps):
        for rank in ranks:
            if step < rank.num_batches:
                span = rank.span(step)
                yield _Batch(rank.request(epoch, step), rank.entries(epoch, span), span.start < end)
                end = max(end, span.stop)


class _Run:
    """The checks of one run, over its batches."""

    def __init__(
        self,
        dataset: Dataset,
        request: SourceRequest,
        reverses: Any,
        checks: Collection[Check],
        *,
        num_entries: int,
    ) -> None:
        self._dataset, self._request, self._num_entries = dataset, request, num_entries
        schema = dataset.schema
        self._checks = [
            check
            for name, check in (
                ("targets", TargetCheck(schema, request.plan, reverses)),
                ("times", TimeCheck(schema, request.plan)),
            )
            if name in checks
        ]
        self._seeds = Tally("seeds", "entries of the input") if "seeds" in checks else None
        self.seeds_unchecked: str | None = None
        self.may_leave_out = False
        """The last batch of an epoch may be left out."""
        self._counts: dict[int, Int64Array] = defaultdict(lambda: np.zeros(num_entries, np.int64))
        """By epoch: how often each entry came."""

    def look(self, batches: Iterator[_Batch], total: int, show: Progress) -> int:
        """Make batches again and look at them. Return their number."""
        made = 0
        single = SingleBatches(self._dataset.open_source, self._request)
        try:
            for batch in batches:
                show("batches", made, total)
                frame = single.receive(replace(batch.request, batch=0))
                seen = AuditedBatch(frame, batch.request, self._dataset.schema)
                for check in self._checks:
                    check.look(seen)
                self._count(batch, frame.array("input_id"))
                made += 1
        finally:
            single.close()
        show("batches", made, total)
        return made

    def _count(self, batch: _Batch, places: Int64Array) -> None:
        if self._seeds is None or self.seeds_unchecked is not None:
            return
        if not np.array_equal(places, batch.request.index):
            number, epoch = batch.request.number, batch.request.epoch
            text = f"batch {number} of epoch {epoch} is not of the entries that were requested"
            self._seeds.found([0], lambda _: Violation(check="seeds", text=text, epoch=epoch, batch=number))
        if not batch.is_again:
            np.add.at(self._counts[batch.request.epoch], batch.entries, 1)

    def findings(self, *, is_whole: bool) -> Iterator[Finding]:
        """Yield what the checks of batches found. ``is_whole``: every batch of the epoch was looked at."""
        for check in self._checks:
            yield from check.findings()
        if self._seeds is None:
            return
        for epoch, counts in self._counts.items():
            self._seeds.looked(seeds=int((counts > 0).sum()))
            wrong = counts > 1
            if is_whole and not self.may_leave_out:
                wrong |= counts == 0

            def describe(place: int, epoch: int = epoch, counts: Int64Array = counts) -> Violation:
                text = f"the seed at place {place} of the input comes {counts[place]} times in epoch {epoch}"
                return Violation(check="seeds", text=text, epoch=epoch)

            self._seeds.found(np.flatnonzero(wrong), describe)
        yield self._seeds.finding(self.seeds_unchecked)
