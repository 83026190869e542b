"""A run: services, honest callers beside the attack, and a look at every part when it is over."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.partition import build_graph, tables_from_pyg
from tests.fuzz.live.attack import attack
from tests.fuzz.live.honest import Honest, Neighbor, Trainer
from tests.fuzz.live.services import Service, peer_service, storage_server
from tests.fuzz.live.vitals import Vitals, dead_parts
from tests.support.leftovers import wait_until
from tests.support.pyg_graphs import homogeneous
from tests.support.training import FANOUT, OPTIONS, digest

MAX_MEMORY = 1.2
"""Of a service after an attack, over that after its first requests."""
_SPARE_BYTES = 16 << 20
"""Of noise in that, for services that are small."""
_MORE_DESCRIPTORS = 8
_POOL_THREADS = 64
"""Beyond those of a fresh service: bounded pools, whose threads come with the first calls and stay."""
_WARM_ANSWERS = 40
_WARM_REQUESTS = 50_000
_LOG_BYTES, _LOG_BYTES_PER_REQUEST = 100_000, 2
"""A line for the refusals of some seconds is welcome, one for each is not."""
_WARM_S, _SETTLE_S = 60.0, 60.0
_STALL_S = 60.0
"""Longest gap between two answers to an honest caller."""


def run(requests: int, seed: int) -> dict[str, Any]:
    """Throw ``requests`` requests at three services and return what came of it.

    ``defects`` lists dead parts, wrong answers and leaks; it is empty where all is well.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gigl-fuzz-")))
        graph = folder / "graph"
        build_graph(tables_from_pyg(homogeneous(1_000, 8_000)), graph, num_partitions=2)
        expected = _undisturbed(graph)
        services = [
            stack.enter_context(storage_server(graph, folder / "plain", tls=False)),
            stack.enter_context(storage_server(graph, folder / "tls", tls=True)),
            stack.enter_context(peer_service(graph)),
        ]
        with ExitStack() as callers:
            honest: list[Honest] = [callers.enter_context(Trainer(each, expected)) for each in services[:2]]
            honest.append(callers.enter_context(Neighbor(services[2], graph)))
            warm = wait_until(lambda: all(each.right > _WARM_ANSWERS for each in honest), seconds=_WARM_S)
            assert warm, [(each.service.target.name, each.right, each.wrong[:3]) for each in honest]
            fresh = {each.target.name: Vitals.of(each.pid) for each in services}
            targets = [each.target for each in services]
            watch = _Watch(services, honest)
            # Pools of threads and their memory grow to their bounds under the first thousands of requests.
            warm_up = min(_WARM_REQUESTS, requests // 4)
            warming = attack(targets, seed=seed + 1, requests=warm_up, looked=watch.look)
            before = {each.target.name: Vitals.of(each.pid) for each in services}
            outcome = attack(targets, seed=seed, requests=requests - warm_up, looked=watch.look)
            outcome.sent += warming.sent
            outcome.seconds += warming.seconds
        defects = [*warming.defects, *outcome.defects, *_wrong(honest)]
        after = _settled(services, fresh, before, defects)
        for service in services[:2]:
            defects += _sampling(service, expected)
            defects += _told(service, outcome.sent.total())
        return {
            "seed": seed,
            "requests": outcome.sent.total(),
            "seconds": round(outcome.seconds, 1),
            "per_second": round(outcome.sent.total() / max(outcome.seconds, 1e-9)),
            "sent": dict(sorted(outcome.sent.items())),
            "honest": {
                each.service.target.name: {"right": each.right, "worst_gap_s": round(each.worst_gap_s, 2)}
                for each in honest
            },
            "fresh": {name: asdict(vitals) for name, vitals in fresh.items()},
            "before": {name: asdict(vitals) for name, vitals in before.items()},
            "after": {name: asdict(vitals) for name, vitals in after.items()},
            "defects": defects,
        }


class _Watch:
    """Looks after services and honest callers during an attack."""

    def __init__(self, services: Sequence[Service], honest: Sequence[Honest]) -> None:
        self._services, self._honest = services, honest
        self._right = [each.right for each in honest]
        self._last = time.monotonic()

    def look(self, tasks: Sequence[str]) -> list[str]:
        """Return what died while these tasks ran."""
        dead = [each.target.name for each in self._services if not each.alive()]
        dead += [part for each in self._services for part in dead_parts(each.target)]
        return [f"{part}, after one of: {'; '.join(tasks)}" for part in dead]


def _undisturbed(graph: Path) -> list[int]:
    options = OPTIONS | {"num_workers": 0}
    with DistNeighborLoader(DistDataset.open(graph), FANOUT, "train", **options) as loader:
        return [digest(batch) for batch in loader]


def _wrong(honest: Sequence[Honest]) -> list[str]:
    """Return what honest callers of services found wrong."""
    found = []
    for each in honest:
        name = each.service.target.name
        found += [f"honest caller of the {name}: {text}" for text in each.wrong[:5]]
        if each.worst_gap_s > _STALL_S:
            found.append(f"honest caller of the {name} waited {each.worst_gap_s:.0f} s for an answer")
    return found


def _settled(
    services: Sequence[Service], fresh: dict[str, Vitals], before: dict[str, Vitals], defects: list[str]
) -> dict[str, Vitals]:
    """Give services time to let go of what attackers held, and note what they keep."""
    after: dict[str, Vitals] = {}
    for service in services:
        name = service.target.name
        if not service.alive():
            defects.append(f"the {name} is not the process that it was")
            continue
        wait_until(
            lambda service=service, name=name: not _leaks(fresh[name], before[name], Vitals.of(service.pid)),
            seconds=_SETTLE_S,
        )
        after[name] = Vitals.of(service.pid)
        defects += [f"the {name} {leak}" for leak in _leaks(fresh[name], before[name], after[name])]
        defects += dead_parts(service.target)
    return after


def _leaks(fresh: Vitals, before: Vitals, after: Vitals) -> list[str]:
    found = []
    if after.rss_bytes > max(MAX_MEMORY * before.rss_bytes, before.rss_bytes + _SPARE_BYTES):
        found.append(f"keeps {after.rss_bytes >> 20} MiB; it had {before.rss_bytes >> 20}")
    if after.descriptors > before.descriptors + _MORE_DESCRIPTORS:
        found.append(f"keeps {after.descriptors} descriptors; it had {before.descriptors}")
    if after.threads > fresh.threads + _POOL_THREADS:
        found.append(f"keeps {after.threads} threads; it had {fresh.threads}")
    return found


def _told(service: Service, requests: int) -> list[str]:
    """Return what is wrong with the log: tokens, bytes that no terminal should get, too much of it."""
    assert service.log is not None
    log = service.log.read_bytes()
    found = []
    if service.target.token[:12].encode() in log or service.target.token[-12:].encode() in log:
        found.append("shows a token, or most of one")
    if set(log) & (set(range(32)) - {10} | set(range(127, 256))):
        found.append("has bytes that are not printable")
    if len(log) > _LOG_BYTES + requests * _LOG_BYTES_PER_REQUEST:
        found.append(f"has {len(log):,} bytes after {requests:,} requests")
    if b"Traceback" in log:
        found.append(f"has {log.count(b'Traceback')} tracebacks")
    return [f"the log of the {service.target.name} {text}" for text in found]


def _sampling(service: Service, expected: Sequence[int]) -> list[str]:
    """Return what is wrong with an epoch of a newcomer: one through a ring, one over the network."""
    ways: tuple[Literal["ring", "network"], ...] = ("ring", "network")
    found = {way: _epoch_of_a_newcomer(service, way) for way in ways}
    return [
        f"a newcomer to the {service.target.name} got {digests}, {way}"
        for way, digests in found.items()
        if digests != list(expected)
    ]


def _epoch_of_a_newcomer(service: Service, transport: Literal["ring", "network"]) -> list[int] | str:
    """Return the digests of an epoch, or why there are none."""
    try:
        with (
            RemoteDistDataset.connect(
                service.target.control, credentials=service.caller, transport=transport, timeout=20.0
            ) as dataset,
            DistNeighborLoader(dataset, FANOUT, "train", **OPTIONS | {"timeout": 20.0}) as loader,
        ):
            return [digest(batch) for batch in loader]
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
