"""Where this process stands among the trainers, as a frozen value."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Topology"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """One trainer's place: counts and indices, checked against each other at birth.

    A *host* is a machine; ranks are trainers, as in ``torch.distributed``.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Rank among the trainers of this host."""
    local_world_size: int = 1
    host_index: int = 0
    num_hosts: int = 1
    master_address: str = "localhost"
    """Host name or address of rank 0."""

    def __post_init__(self) -> None:
        for index, count in (
            ("rank", "world_size"),
            ("local_rank", "local_world_size"),
            ("host_index", "num_hosts"),
        ):
            if not 0 <= getattr(self, index) < getattr(self, count):
                raise ValueError(
                    f"{index} {getattr(self, index)} does not lie in [0, {getattr(self, count)}), "
                    f"the range that {count} allows"
                )
        if not self.master_address:
            raise ValueError("master_address must not be empty")

    @classmethod
    def detect(cls, environment: Mapping[str, str] | None = None) -> Topology:
        """Return the place of this process: alone, unless a process group says otherwise.

        ``environment`` stands in for ``os.environ``. Raises ``NotImplementedError`` when the process
        group has several ranks, which this version does not serve.
        """
        group = _process_group()
        if group is None:
            return cls()
        world_size = int(group.get_world_size())
        if world_size > 1:
            raise NotImplementedError(
                f"several ranks are not supported by this version: the process group has {world_size}, "
                "a loader serves 1"
            )
        variables = os.environ if environment is None else environment
        return cls(master_address=variables.get("MASTER_ADDR") or "localhost")


def _process_group() -> Any:
    """Return ``torch.distributed`` when its default group is initialised, else ``None``."""
    # A process that never imported torch has no process group, and need not import it to know.
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
