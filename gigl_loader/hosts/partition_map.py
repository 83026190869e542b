"""Map from partitions to the ranks that have opened them, and the check that no partition is missing."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from gigl_loader.group import name_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Holding", "check_holdings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """Graph and partitions that one rank has opened."""

    host_index: int
    local_rank: int
    digest: str
    """Digest of the graph."""
    partitions: tuple[int, ...]
    address: str
    """Address under which other hosts may reach this host."""
    machine: str = ""
    """Machine of the rank: the same for hosts that a test simulates on one machine."""
    where: str
    """Path of the graph."""
    versions: tuple[int, int, int] = (0, 0, 0)
    """Newest and oldest wire version of the rank's build, and its draw specification."""
    library: str = ""
    """Version of the library, for people."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Holding:
        """Return the holding that a rank published as ``asdict``. Fields of later builds are ignored."""
        known = {each.name: document[each.name] for each in fields(cls) if each.name in document}
        for name in ("partitions", "versions"):
            known[name] = tuple(known.get(name, ()))
        return cls(**known)


def check_holdings(holdings: Sequence[Holding], num_partitions: int) -> None:
    """Raise ``ValueError``, on every rank alike, unless all draw alike, and hold one whole graph together.

    ``holdings`` are by rank. The message lists the partitions of each rank.
    """
    _require_same(
        holdings,
        lambda each: f"draw specification {each.versions[2]}",
        lambda each: each.versions[2],
        "ranks would draw different batches: {}; install the same version of gigl-loader on all hosts",
    )
    _require_same(
        holdings,
        lambda each: f"{each.digest[:12]} at {each.where}",
        lambda each: each.digest,
        "hosts have different graphs: {}; copy one and the same partitioned graph to all hosts",
    )
    for host in sorted({each.host_index for each in holdings}):
        _require_same(
            [each if each.host_index == host else None for each in holdings],
            lambda each: f"partitions {_listed(each.partitions)}",
            lambda each: each.partitions,
            f"ranks of host {host} opened different partitions: {{}}; all ranks of a host share one "
            "service and pass the same partitions",
        )
    held = {each.host_index: each.partitions for each in holdings}
    missing = sorted(set(range(num_partitions)).difference(*held.values()))
    if missing:
        who = "; ".join(f"host {host} holds {_listed(parts)}" for host, parts in sorted(held.items()))
        raise ValueError(
            f"no host holds {_named(missing)} of {num_partitions}: {who}; copy what is missing to a host, "
            "or pass each host its own (partitions=)"
        )


def _require_same(
    holdings: Sequence[Holding | None],
    shown: Callable[[Holding], str],
    compared: Callable[[Holding], object],
    message: str,
) -> None:
    ranks: dict[object, list[int]] = defaultdict(list)
    texts: dict[object, str] = {}
    for rank, holding in enumerate(holdings):
        if holding is not None:
            ranks[compared(holding)].append(rank)
            texts[compared(holding)] = shown(holding)
    if len(ranks) > 1:
        raise ValueError(
            message.format(", ".join(f"{texts[key]} on {name_ranks(who)}" for key, who in ranks.items()))
        )


def _named(partitions: Sequence[int]) -> str:
    return f"partition{'s' if len(partitions) > 1 else ''} {_listed(partitions)}"


def _listed(partitions: Sequence[int]) -> str:
    shown = [str(part) for part in partitions]
    return ", ".join(shown if len(shown) <= 16 else [*shown[:8], "...", shown[-1]]) or "none"
