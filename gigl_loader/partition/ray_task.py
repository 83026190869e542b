"""Tasks as a process of Ray does them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gigl_loader.partition.tasks import OpenedStage, packed_error

if TYPE_CHECKING:
    from gigl_loader.partition.tasks import TaskSetting

__all__ = ["do_task"]

_FETCH_SECONDS = 600.0


def do_task(setting: TaskSetting, stage: list[Any], task: int) -> bytes:
    """Do a task of the stage that ``stage`` refers to. Return its result, or its error in place of one."""
    try:
        return _opened(setting, stage[0]).do(task)
    except Exception as error:
        return packed_error(error)


@lru_cache(maxsize=1)
def _opened(setting: TaskSetting, stage: Any) -> OpenedStage:
    """Open a stage once for all of its tasks that this process does."""
    import ray

    return OpenedStage(setting, ray.get(stage, timeout=_FETCH_SECONDS))
