"""Place of one loader among the ranks: its process group, and how the group shares the loader's input."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.group import RankGroup
from gigl_loader.loaders import arguments
from gigl_loader.loaders.rank_consistency import RankConsistency
from gigl_loader.sampling.schedule import Shard
from gigl_loader.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = ["Placement", "PlacementOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """What a user said about the ranks of one loader, checked."""

    kind: str
    """Class of the loader: names it where ``name`` does not."""
    name: str | None
    sharding: str | None
    """``None``: by batches in a process group, else none."""
    even_batches: bool
    timeout_s: float
    resolve: Callable[[float], Topology]
    """Returns the topology of this process within so many seconds."""

    def __post_init__(self) -> None:
        arguments.sharding(self.sharding, many_ranks=False)
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise ValueError(f"name must be a text that is not empty, got {self.name!r}")

    def shard_now(self, placement: Placement) -> Shard:
        """Return the share of the next epoch: in the group of now, else in that of ``placement``."""
        group = RankGroup.current()
        if group is None or arguments.sharding(self.sharding, many_ranks=True) == "none":
            return placement.shard(even_batches=self.even_batches)
        return Shard(rank=group.rank, world_size=group.world_size, even_batches=self.even_batches)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """The process group that a loader was built in, and its place there."""

    group: RankGroup | None
    sharding: str
    topology: Topology
    agreement: RankConsistency | None
    """With the ranks that share the input; ``None`` where none does."""

    @classmethod
    def find(cls, options: PlacementOptions) -> Placement:
        """Return the place of this process, now.

        Without torchrun's variables, a rank that shares its input waits until all ranks say where they run.
        """
        group = RankGroup.current(patience_s=options.timeout_s)
        sharding = arguments.sharding(options.sharding, many_ranks=group is not None)
        # A loader that shall stand alone must not wait for others, not even to know where it stands.
        alone = options.sharding == "none"
        topology = Topology.without_asking() if alone else options.resolve(options.timeout_s)
        agreement = None
        if group is not None and sharding != "none":
            agreement = RankConsistency(group, options.kind, options.name)
        return cls(group=group, sharding=sharding, topology=topology, agreement=agreement)

    def shard(self, *, even_batches: bool) -> Shard:
        """Return which share of the input is this rank's."""
        if self.sharding == "none":
            return Shard()
        topology = self.topology
        return Shard(rank=topology.rank, world_size=topology.world_size, even_batches=even_batches)

    def telling_failures(self) -> AbstractContextManager[None]:
        """Let ranks that share the input hear why this one cannot build its loader."""
        return nullcontext() if self.agreement is None else self.agreement.telling_failures()

    def has_changed(self) -> bool:
        """Whether this process has joined, left or changed a process group since."""
        current = RankGroup.current()
        if current is None or self.group is None:
            return current is not self.group
        return not current.is_same(self.group)
