"""Statistics of a loader over time: shares of the time, and rates, for TensorBoard and its like."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.loaders.base import BaseDistLoader

_STEPS = ("seconds_waiting", "seconds_copying", "seconds_collating", "seconds_transforming")
_COUNTS = ("batches", "bytes")


class StatsRates:
    """What ``loader.stats()`` has counted since the last look, per second."""

    def __init__(self, loader: BaseDistLoader, *, clock: Callable[[], float] = time.perf_counter) -> None:
        """The first period begins now."""
        self._loader = loader
        self._clock = clock
        self._read()

    def read(self) -> dict[str, float]:
        """Return shares and rates since the last call, and begin the next period.

        ``seconds_waiting_share``: share of the time that the trainer waited for batches, 0 to 1. So are those
        of ``copying``, ``collating`` and ``transforming``. ``batches_per_second`` and ``bytes_per_second``.
        Empty where no time has passed.
        """
        before, began = self._counts, self._at
        self._read()
        seconds = self._at - began
        if seconds <= 0:
            return {}
        # A loader whose source was opened anew counts from 0 again.
        more = {name: max(self._counts[name] - before[name], 0.0) / seconds for name in before}
        shares = {f"{name}_share": min(more[name], 1.0) for name in _STEPS}
        return {**shares, **{f"{name}_per_second": more[name] for name in _COUNTS}}

    def _read(self) -> None:
        stats = self._loader.stats()
        self._counts = {name: float(stats[name]) for name in (*_STEPS, *_COUNTS)}
        self._at = self._clock()


class ScalarWriter(Protocol):
    """Writer of scalars: ``torch.utils.tensorboard.SummaryWriter``, or any class with this method."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Write one value of a step."""


class StatsWriter:
    """Writes where the time of a loader goes to TensorBoard.

    ::

        stats = StatsWriter(SummaryWriter(), loader)
        for step, batch in enumerate(loader):
            ...
            if step % 50 == 0:
                stats.write(step)
    """

    def __init__(self, writer: ScalarWriter, loader: BaseDistLoader, *, tag: str = "loader") -> None:
        """``tag`` begins the names of the scalars. Use one for each loader.

        ``TypeError`` for a writer without ``add_scalar``.
        """
        if not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(f"writer needs a method add_scalar(tag, value, step), got {writer!r:.200}")
        self._writer, self._tag = writer, tag
        self._rates = StatsRates(loader)

    def write(self, step: int) -> None:
        """Write the shares and rates since the last call, or since construction: see ``StatsRates.read``."""
        for name, value in self._rates.read().items():
            self._writer.add_scalar(f"{self._tag}/{name}", value, step)
