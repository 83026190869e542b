"""Graph in memory that the ranks of a host share: one rank builds it, the other ranks map its memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.group import name_ranks
from gigl_loader.hosts.rendezvous import Rendezvous
from gigl_loader.topology import Topology, announce_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.group import RankGroup

_STEPS = ("content", "built", "mapped")


def build_on_one_rank(
    group: RankGroup,
    content: Callable[[], str | None],
    build: Callable[[MemoryFolder], object],
    *,
    timeout: float,
) -> MemoryFolder:
    """Return a folder that ``build`` filled on the first rank of this host. All ranks must call this.

    ``content`` returns a digest of what this rank would build, ``None`` for a rank that has nothing to build
    from. Raises ``ValueError`` on all ranks where the digests of a host differ or its first rank has none,
    what another rank of the host raised, and ``TimeoutError`` naming ranks that do not come.
    """
    rendezvous = Rendezvous(group, timeout=timeout, name="from_pyg", steps=_STEPS)
    with rendezvous.telling_failures():
        announce_host(group)
        host = Topology.detect(group=group, timeout=timeout).host_index
        rendezvous.tell("content", [host, content()])
        told = rendezvous.hear("content", what="call DistDataset.from_pyg (all must, or pass shared=False)")
        digests = {rank: digest for rank, (where, digest) in enumerate(told) if where == host}
        builder = min(digests)
        _check_equal(digests, builder)
        if group.rank != builder:
            [built] = rendezvous.hear("built", what="build the graph", ranks=[builder])
            folder = _opened(**built)
            rendezvous.tell("mapped", None)
            return folder
        folder = MemoryFolder()
        build(folder)
        rendezvous.tell("built", {"pid": os.getpid(), **folder.reference})
        others = sorted(digests.keys() - {builder})
        rendezvous.hear("mapped", what="map the graph", ranks=others)
        return folder


def _check_equal(digests: dict[int, Any], builder: int) -> None:
    expected = digests[builder]
    if expected is None:
        raise ValueError(f"rank {builder}, the first of its host, has no data to build the graph from")
    differ = [rank for rank, digest in digests.items() if digest not in (None, expected)]
    if differ:
        raise ValueError(
            f"rank {builder} and {name_ranks(differ)} build graphs from different data: pass the same on all "
            "ranks, or shared=False for a graph on each"
        )


def _opened(pid: int, fd: int, files: dict[str, list[int]]) -> MemoryFolder:
    """Open the memory file of another process of this user. It stays when that process ends."""
    try:
        opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ValueError(
            f"the graph that process {pid} built cannot be mapped here ({error.strerror}): ranks of a host "
            "must see each other's processes; pass shared=False for a graph on each rank"
        ) from None
    try:
        return MemoryFolder.from_reference({"fd": opened, "files": files})
    finally:
        os.close(opened)
