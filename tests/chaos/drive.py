"""Drives a loader of this process through an epoch while faults are committed between its batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gigl_loader import DistNeighborLoader, FormatError, StorageUnavailable
from tests.chaos.faults import Fault
from tests.chaos.ground import Ground
from tests.chaos.record import Record
from tests.support.training import digest

_MAX_ERRORS = 50
"""In one epoch. After as many, the leg is given up."""
_NOTHING_CONSUMED = (StorageUnavailable, TimeoutError, FormatError)
"""After these, ``next`` asks for the same batch again."""


def drive(
    loader: DistNeighborLoader,
    faults: Sequence[Fault],
    commit: Callable[[Fault], None],
    *,
    ground: Ground,
    record: Record,
    allowed: tuple[type[Exception], ...] = _NOTHING_CONSUMED,
) -> None:
    """Take whole epochs until all faults are committed, and compare them with undisturbed ones.

    Any error that is not ``allowed`` is a defect.
    """
    pending = list(faults)
    at, epoch = 0, 0
    while pending:
        seen: list[int] = []
        record.start()
        for batch in _persistent(loader, record, allowed):
            seen.append(digest(batch))
            record.arrived()
            at += 1
            while pending and pending[0].at_batch <= at:
                fault = pending.pop(0)
                record.committed(fault)
                commit(fault)
        record.compare(seen, ground.expected(epoch))
        epoch += 1


def _persistent(
    loader: DistNeighborLoader, record: Record, allowed: tuple[type[Exception], ...]
) -> Iterator[Any]:
    """Yield the batches of an epoch, asking again after errors that consume nothing."""
    batches = iter(loader)
    errors = 0
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception as error:
            errors += 1
            record.raised_to_trainer(error)
            if not isinstance(error, allowed):
                record.defect(f"{type(error).__name__}: {str(error)[:300]}")
            if errors > _MAX_ERRORS:
                record.defect(f"given up after {errors} errors")
                return
            time.sleep(0.05)
            continue
        yield batch
