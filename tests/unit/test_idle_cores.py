from __future__ import annotations

import logging

import pytest

from gigl_loader.loaders import stream
from gigl_loader.loaders.stream import IdleCores


class _Trainer:
    """A trainer whose batches take 1 s each, of which it waits a part, while some cores idle."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, num_workers: int, waiting: float, idle: float
    ) -> None:
        monkeypatch.setattr(stream, "workers_of", lambda value, *, ranks: 16 // ranks - 1)
        self.now = 100.0
        self._waiting, self._idle = waiting, idle
        self.cores = IdleCores(
            "loader",
            num_workers=num_workers,
            ranks=2,
            clock=lambda: self.now,
            idle=lambda: self._idle * self.now,
        )

    def train(self, batches: int) -> None:
        for _ in range(batches):
            self.now += 1
            self.cores.look(self._waiting * self.now)


def test_cores_that_idle_while_the_trainer_waits_are_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    trainer = _Trainer(monkeypatch, num_workers=1, waiting=0.6, idle=5.5)
    trainer.train(20)
    assert (trainer.cores.advice, caplog.records) == ("", [])
    trainer.train(100)
    assert trainer.cores.advice == (
        'waiting 60% of the time while 5.5 cores idle: num_workers=7 ("auto") would use them, in place of 1'
    )
    assert [record.getMessage() for record in caplog.records] == [f"loader: {trainer.cores.advice}"]


@pytest.mark.parametrize(
    "given",
    [
        {"num_workers": 7, "waiting": 0.6, "idle": 5.5},
        {"num_workers": 1, "waiting": 0.2, "idle": 5.5},
        {"num_workers": 1, "waiting": 0.6, "idle": 0.9},
        {"num_workers": 1, "waiting": 0.6, "idle": float("nan")},
    ],
    ids=["enough workers", "little waiting", "busy cores", "unknown"],
)
def test_else_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, given: dict[str, float]
) -> None:
    trainer = _Trainer(monkeypatch, **given)  # type: ignore[arg-type]
    trainer.train(200)
    assert (trainer.cores.advice, caplog.records) == ("", [])
