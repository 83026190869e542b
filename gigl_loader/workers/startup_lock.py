"""Start-up lock: the ranks of one host start their sampling processes one after the other."""

from __future__ import annotations

import logging
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gigl_loader.group import RankLock, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gigl_loader.group import RankGroup
    from gigl_loader.sampling.source import BatchSource
    from gigl_loader.topology import Topology

__all__ = ["start_source", "startup_turn"]

logger = logging.getLogger(__name__)


def start_source(
    open_source: Callable[[], BatchSource],
    *,
    group: RankGroup | None,
    topology: Topology,
    gap_s: float | None,
    timeout: float,
) -> BatchSource:
    """Open a source when it is this rank's turn.

    With ``gap_s``, the rank waits ``gap_s`` seconds for each lower local rank. Without it, the sampling
    processes of one rank are up before the next rank starts its own.
    """
    if gap_s is not None:
        time.sleep(topology.local_rank * gap_s)
        return open_source()
    with startup_turn(group, topology, timeout) as others_wait:
        source = open_source()
        try:
            if others_wait:
                source.wait_until_up(timeout)
        except BaseException:
            source.close()
            raise
        return source


@contextmanager
def startup_turn(group: RankGroup | None, topology: Topology, timeout: float) -> Iterator[bool]:
    """Hold this host's start-up lock. Yields whether other ranks may be waiting for it.

    Ranks take the lock in the order in which they request it. A rank never waits for one that is not
    starting, so ranks may build loaders in any order. The lock of a process that died is free again.
    ``TimeoutError`` names the rank that has held it for more than ``timeout`` seconds.
    """
    if group is None or topology.local_world_size == 1:
        yield False
        return
    turn = RankLock(group, f"start/host-{topology.host_index}", abandoned=_abandoned)
    if not wait_for(turn.take, timeout):
        raise TimeoutError(
            f"rank {turn.holder} (pid {turn.holder_pid}) has been starting its sampling processes for more "
            f"than {timeout:g} s, and those of this rank come after: look at that rank, or pass "
            "process_start_gap_seconds=0"
        )
    try:
        yield True
    finally:
        turn.give_back()


def _abandoned(rank: int, pid: int) -> bool:
    if _alive(pid):
        return False
    logger.warning("rank %d died while it started its sampling processes", rank)
    return True


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
