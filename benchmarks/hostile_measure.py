"""Resources of a storage server that callers without a token take, while a trainer checks its batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from hostile_server import HostileServer
from hostile_strangers import STRANGERS

from gigl_client import RemoteDistDataset
from gigl_loader.bench.loading import open_loader
from gigl_loader.bench.workload import QUICK
from gigl_loader.errors import GiglError

__all__ = ["ALL", "STRANGER_MB", "STRANGER_S", "measure_strangers", "missed_by_strangers"]

ALL = "all at once"
STRANGER_MB, STRANGER_S = 64.0, 30.0
"""Limits of callers without a token: memory in all, and life of a connection."""
_PROGRAM = Path(__file__).with_name("hostile_strangers.py")
_TIMEOUT_S, _SETTLED_S, _END_S = 30.0, 30.0, 120.0
_SPARE = 4
"""Descriptors and threads that come and go with the honest trainer."""


def measure_strangers(
    graph: Path, folder: Path, behaviours: Sequence[str], seconds: float, cores: Sequence[int]
) -> dict[str, dict[str, float]]:
    """Return figures by behaviour, in plain text and over TLS. ``ALL`` is every behaviour at the same time.

    Strangers have ``cores``, and open connections for ``seconds``.
    """
    figures: dict[str, dict[str, float]] = {}
    for tls in (False, True):
        if not behaviours:
            break
        with (
            HostileServer.running(graph, folder, callers=0, tls=tls) as server,
            _Honest(server, folder) as honest,
        ):
            for behaviour in behaviours:
                name = f"{behaviour}, {'TLS' if tls else 'plain'}"
                print(name, file=sys.stderr, flush=True)
                chosen = list(STRANGERS) if behaviour == ALL else [behaviour]
                figures[name] = _attacked(server, honest, chosen, seconds, cores)
    return figures


def missed_by_strangers(figures: dict[str, dict[str, float]]) -> list[str]:
    """Return the targets that were missed."""
    found = []
    for name, each in figures.items():
        if each["peak_mb"] > STRANGER_MB:
            found.append(f"{name}: callers without a token hold {each['peak_mb']:.0f} MB")
        if each["longest_s"] > STRANGER_S:
            found.append(f"{name}: a connection lives {each['longest_s']:.0f} s")
        if each["settled_s"] > STRANGER_S:
            found.append(f"{name}: descriptors or threads are held for {each['settled_s']:.0f} s")
        if each["wrong_batches"]:
            found.append(f"{name}: {each['wrong_batches']:.0f} batches of the honest trainer are wrong")
        if not each["batches"]:
            found.append(f"{name}: the honest trainer gets no batch")
    return found


class _Honest:
    """A trainer that compares the batches of each epoch with the batches of an undisturbed epoch."""

    def __init__(self, server: HostileServer, folder: Path) -> None:
        self._server = server
        self._seeds = np.load(folder / "train.npy")[: QUICK.num_seeds].astype(np.int64)
        self._stack = ExitStack()
        self.right = self.wrong = 0
        self.longest_wait_s = 0.0

    def __enter__(self) -> _Honest:
        self._dataset = self._stack.enter_context(self._server.connected(timeout_s=_TIMEOUT_S))
        self._expected = self._epoch(self._dataset, [])
        self._epoch(self._dataset, self._expected)  # The server's memory is warm now.
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def begin(self) -> None:
        self.right = self.wrong = 0
        self.longest_wait_s = 0.0

    def train(self) -> None:
        """Train for an epoch. An error ends it, and counts as a wrong batch: nobody may disturb trainers."""
        try:
            self._epoch(self._dataset, self._expected)
        except (GiglError, TimeoutError) as error:
            print(f"the honest trainer: {error}", file=sys.stderr, flush=True)
            self.wrong += 1

    def _epoch(self, dataset: RemoteDistDataset, expected: Sequence[int]) -> list[int]:
        with open_loader(dataset, QUICK, self._seeds, 1, timeout=_TIMEOUT_S) as loader:
            seen: list[int] = []
            last = time.monotonic()
            for batch in loader:
                seen.append(_digest(batch))
                now = time.monotonic()
                self.longest_wait_s, last = max(self.longest_wait_s, now - last), now
        equal = [one == other for one, other in zip(seen, expected, strict=False)]
        self.right += sum(equal)
        self.wrong += len(equal) - sum(equal)
        return seen


def _digest(batch: Any) -> int:
    value = 0
    for name in ("n_id", "edge_index", "e_id", "x"):
        value = zlib.crc32(batch[name].numpy().tobytes(), value)
    return value


def _attacked(
    server: HostileServer,
    honest: _Honest,
    behaviours: Sequence[str],
    seconds: float,
    cores: Sequence[int],
) -> dict[str, float]:
    """Attack for a while, and wait until the last connection has ended."""
    honest.begin()
    before, deadline = server.held, time.monotonic() + seconds + _END_S
    with server.watched():
        scene = json.dumps(asdict(server.scene) | {"token": ""})
        started = [
            subprocess.Popen(
                [sys.executable, str(_PROGRAM), behaviour, str(seconds), scene],
                stdout=subprocess.PIPE,
                text=True,
            )
            for behaviour in behaviours
        ]
        for each in started:
            os.sched_setaffinity(each.pid, cores)
        try:
            while any(each.poll() is None for each in started) and time.monotonic() < deadline:
                honest.train()
        finally:
            for each in started:
                each.kill()
        outcomes = [_outcome(each) for each in started]
        ended = time.monotonic()
        while _holds_more(server, before) and time.monotonic() - ended < 2 * _SETTLED_S:
            time.sleep(0.2)
        settled = time.monotonic() - ended
    held = server.held - before
    peak = server.peak - before
    return {
        "connections": float(sum(each["opened"] for each in outcomes)),
        "longest_s": max(each["longest_s"] for each in outcomes),
        "peak_mb": peak.memory_mb,
        "peak_threads": float(peak.threads),
        "peak_descriptors": float(peak.descriptors),
        "held_mb": held.memory_mb,
        "settled_s": settled,
        "batches": float(honest.right),
        "wrong_batches": float(honest.wrong),
        "longest_wait_s": honest.longest_wait_s,
    }


def _outcome(stranger: subprocess.Popen[str]) -> dict[str, float]:
    """Return what a program of strangers printed."""
    printed = stranger.communicate()[0].splitlines()
    if len(printed) != 2:
        raise RuntimeError(f"{stranger.args} ended with {stranger.returncode} and printed {printed}")
    return dict(json.loads(printed[1]))


def _holds_more(server: HostileServer, before: Any) -> bool:
    more = server.held - before
    return bool(more.threads > _SPARE or more.descriptors > _SPARE)
