"""Single batches of one plan, drawn by a source that stays open."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING

import numpy as np
import torch

from gigl_loader.loaders.collate import Collator
from gigl_loader.loaders.transfer import transfer_to
from gigl_loader.options import StoreOptions, WorkerOptions
from gigl_loader.sampling.request import BatchRequest
from gigl_loader.sampling.schedule import Schedule
from gigl_loader.sampling.source import SourceRequest
from gigl_loader.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.arrays import Int64Array
    from gigl_loader.loaders.transfer import FrameTensors
    from gigl_loader.pyg.dataset import PygDataset
    from gigl_loader.sampling.plan import BatchPlan, SamplerArguments
    from gigl_loader.sampling.source import BatchSource

__all__ = ["SingleBatches"]


class SingleBatches:
    """Batches of any input, one at a time. The source opens with the first. Any thread may draw."""

    def __init__(
        self, dataset: PygDataset, plan: BatchPlan, asked: SamplerArguments, *, timeout_s: float
    ) -> None:
        self.plan = plan
        self.collate = Collator.of(dataset.schema, plan, asked)
        """Makes ``Data`` or ``HeteroData`` of the tensors of a batch."""
        self._dataset = dataset
        self._timeout_s = timeout_s
        self._transfer = transfer_to(torch.device("cpu"), non_blocking=True)
        self._drawing = threading.Lock()
        self._schedule: _OneBatch | None = None
        self._source: BatchSource | None = None

    def draw(self, columns: Mapping[str, Int64Array], epoch: int) -> FrameTensors:
        """Return the batch of an input, whose columns are those of the plan, int64 [B] each.

        It equals the batch that a loader of this plan makes of these entries in ``epoch``.
        """
        with self._drawing:
            if self._source is None or self._schedule is None:
                self._schedule = _OneBatch(columns, run_seed=self.plan.run_seed)
                self._source = self._open(self._schedule)
                self._end = weakref.finalize(self, _close, self._source, os.getpid())
            self._schedule.columns = columns
            self._source.start_epoch(epoch)
            return self._transfer.load(self._source.receive(self._timeout_s))

    def close(self) -> None:
        """Close the source. Closing twice is fine."""
        with self._drawing:
            if self._source is not None:
                self._source = None
                self._end()

    def _open(self, schedule: Schedule) -> BatchSource:
        request = SourceRequest(
            plan=self.plan,
            schedule=schedule,
            name="GiglSampler",
            num_workers=0,
            workers=WorkerOptions(),
            store=StoreOptions(),
            timeout_s=self._timeout_s,
            topology=Topology.without_asking(),
        )
        return self._dataset.open_source(request)


class _OneBatch(Schedule):
    """Epochs of one batch, whose entries are the present ``columns``."""

    def __init__(self, columns: Mapping[str, Int64Array], *, run_seed: int) -> None:
        super().__init__(columns, batch_size=1, shuffle=False, drop_last=False, run_seed=run_seed)
        self.columns = columns

    @property
    def num_batches(self) -> int:
        return 1

    def request(self, epoch: int, batch: int) -> BatchRequest:
        count = len(next(iter(self.columns.values())))
        return BatchRequest(epoch, batch, np.arange(count, dtype=np.int64), self.columns)


def _close(source: BatchSource, owner: int) -> None:
    # A forked child runs the finalizers it inherited: connections are its parent's.
    if os.getpid() == owner:
        source.close()
