"""Threads as ranks: each believes to be a process of its own in a process group."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

from torch._C._distributed_c10d import HashStore

from gigl_loader.group import RankGroup

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Result = TypeVar("Result")
_PATIENCE = 60.0


def run_ranks(
    world_size: int,
    program: Callable[[RankGroup], Result],
    *,
    hosts: Sequence[str] | None = None,
    store: Any = None,
) -> list[Result | Exception]:
    """Run ``program`` on every rank at once. Return what each returned or raised.

    ``hosts`` has the boot id of each rank's host; all ranks share one by default.
    """
    store = HashStore() if store is None else store
    place = threading.local()

    def run(rank: int) -> Result | Exception:
        place.group = RankGroup(store, rank, world_size)
        place.host = hosts[rank] if hosts else "one host"
        try:
            return program(place.group)
        except Exception as error:
            return error

    with (
        mock.patch.object(RankGroup, "current", side_effect=lambda **_: getattr(place, "group", None)),
        mock.patch("gigl_loader.topology._boot_id", side_effect=lambda _: place.host),
        ThreadPoolExecutor(world_size) as threads,
    ):
        running = [threads.submit(run, rank) for rank in range(world_size)]
        return [each.result(_PATIENCE) for each in running]
