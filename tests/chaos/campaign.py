"""A campaign: legs of all modes in turn, until so many faults were committed."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import TypeAlias

from tests.chaos.ground import Ground
from tests.chaos.modes import bursts, disk, hosts, replicas, resumed, store, workers
from tests.chaos.record import Record

Mode: TypeAlias = Callable[[Ground, int, int, int], Record]
"""Runs a leg, given ground, seed, number of the leg and number of its faults."""

MODES: dict[str, Mode] = {
    workers.NAME: workers.run,
    hosts.NAME: hosts.run,
    **{way.name: way.run for way in store.WAYS},
    **{way.name: way.run for way in replicas.WAYS},
    **{job.name: job.run for job in resumed.JOBS},
    disk.NAME: disk.run,
}
BURSTS: dict[str, Mode] = {
    hosts.BURSTS_NAME: hosts.run_bursts,
    **{way.name: way.run for way in bursts.WAYS},
}
"""Modes of a campaign of faults of a moment, of which none may be raised."""
LEG_FAULTS = 20


def run_campaign(
    ground: Ground,
    *,
    seed: int,
    faults: int,
    modes: Mapping[str, Mode] = MODES,
    said: Callable[[Record, int], None] = lambda *_: None,
) -> list[Record]:
    """Commit ``faults`` faults and return a record of each leg.

    ``said`` is told of each leg when it ends, and of the faults so far. The first failing leg stops nothing.
    """
    size = max(min(LEG_FAULTS, -(-faults // len(modes))), 1)
    records: list[Record] = []
    done, leg = 0, 0
    while done < faults:
        for name in modes:
            count = min(size, faults - done)
            if count <= 0:
                break
            records.append(run_leg(ground, name, seed=seed, leg=leg, count=count))
            done += count
            said(records[-1], done)
        leg += 1
    return records


def run_leg(ground: Ground, mode: str, *, seed: int, leg: int, count: int) -> Record:
    """Run one leg of one mode. What the harness itself stumbles over is a defect of the leg."""
    try:
        return (MODES | BURSTS)[mode](ground, seed, leg, count)
    except Exception as error:
        record = Record(mode, leg)
        where = traceback.format_exc(limit=-3).replace("\n", " | ")
        record.defect(f"the leg broke: {type(error).__name__}: {str(error)[:500]} {where}")
        return record
