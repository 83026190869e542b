"""Topology: the place of this process among the trainers, as a frozen value."""

from __future__ import annotations

import json
import os
import socket
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.group import RankGroup

if TYPE_CHECKING:
    from collections.abc import Mapping

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_LOOPBACK = "127.0.0.1"


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

    @property
    def node_rank(self) -> int:
        """``host_index``, as GiGL names it."""
        return self.host_index

    @property
    def node_world_size(self) -> int:
        """``num_hosts``, as GiGL names it."""
        return self.num_hosts

    @property
    def master_ip_address(self) -> str:
        """``master_address``, as GiGL names it."""
        return self.master_address

    @classmethod
    def detect(
        cls,
        environment: Mapping[str, str] | None = None,
        *,
        group: RankGroup | None = None,
        timeout: float = 300.0,
    ) -> Topology:
        """Return the place of this process.

        With a process group and torchrun's variables, they tell. With a process group alone, ranks
        share a host when they share its boot id and its address towards the master; all ranks must then
        ask, and ``TimeoutError`` names those that did not within ``timeout`` seconds. Without a process
        group the process is alone, and ``ValueError`` says so where its variables speak of others.
        ``ValueError`` also where hosts have different numbers of ranks.

        ``environment`` and ``group`` stand in for ``os.environ`` and the default process group.
        """
        variables = os.environ if environment is None else environment
        group = group or RankGroup.current(patience_s=timeout)
        master = _master(variables)
        if group is None:
            _refuse_missing_group(variables)
            return cls(master_address=master)
        of_torchrun = _torchrun_numbers(variables, group)
        if of_torchrun is not None:
            return cls._from_torchrun(of_torchrun, group, master)
        return cls._from_hosts(_collect_hosts(variables, group, timeout), group, master)

    @classmethod
    def without_asking(cls, environment: Mapping[str, str] | None = None) -> Topology:
        """Return the place of this process as far as it can be known without the other ranks.

        That is all with torchrun's variables; without them, a rank takes itself to be alone on its host.
        """
        variables = os.environ if environment is None else environment
        group = RankGroup.current()
        if group is None:
            return cls()
        if _torchrun_numbers(variables, group) is not None:
            return cls.detect(variables, group=group)
        return cls(rank=group.rank, world_size=group.world_size)

    @classmethod
    def _from_torchrun(cls, numbers: dict[str, int], group: RankGroup, master: str) -> Topology:
        here, hosts = numbers["LOCAL_WORLD_SIZE"], numbers["GROUP_WORLD_SIZE"]
        group.publish("local_world_size", json.dumps([numbers["GROUP_RANK"], here]))
        known = [json.loads(text) for text in group.published("local_world_size").values()]
        counts = dict(sorted((host, count) for host, count in known))
        if here * hosts != group.world_size or set(counts.values()) != {here}:
            raise _uneven(counts, group.world_size, hosts)
        return cls(
            rank=group.rank,
            world_size=group.world_size,
            local_rank=numbers["LOCAL_RANK"],
            local_world_size=here,
            host_index=numbers["GROUP_RANK"],
            num_hosts=hosts,
            master_address=master,
        )

    @classmethod
    def _from_hosts(cls, hosts: list[str], group: RankGroup, master: str) -> Topology:
        """``hosts`` has one text per rank, equal for ranks of one host."""
        by_host = list(dict.fromkeys(hosts))  # In the order of their lowest rank.
        counts = Counter(by_host.index(host) for host in hosts)
        if len(set(counts.values())) > 1:
            raise _uneven(counts, group.world_size, len(by_host))
        here = hosts[group.rank]
        neighbours = [rank for rank, host in enumerate(hosts) if host == here]
        return cls(
            rank=group.rank,
            world_size=group.world_size,
            local_rank=neighbours.index(group.rank),
            local_world_size=len(neighbours),
            host_index=by_host.index(here),
            num_hosts=len(by_host),
            master_address=master,
        )


def _refuse_missing_group(variables: Mapping[str, str]) -> None:
    world_size = variables.get("WORLD_SIZE", "")
    if "RANK" in variables and world_size.isdecimal() and int(world_size) > 1:
        raise ValueError(
            f"this process is one of WORLD_SIZE={world_size} ranks but has no process group: call "
            "torch.distributed.init_process_group(...) first (Lightning: return loaders from "
            "train_dataloader()); to train alone, unset WORLD_SIZE, or build loaders with sharding='none'"
        )


def _torchrun_numbers(variables: Mapping[str, str], group: RankGroup) -> dict[str, int] | None:
    """Return torchrun's variables, if they are all there and are of this process group."""
    if not all(variables.get(name, "").isdecimal() for name in _TORCHRUN):
        return None
    numbers = {name: int(variables[name]) for name in _TORCHRUN}
    same = (numbers["RANK"], numbers["WORLD_SIZE"]) == (group.rank, group.world_size)
    return numbers if same else None


def announce_host(group: RankGroup, environment: Mapping[str, str] | None = None) -> None:
    """Tell the other ranks where this one runs, in case that they detect their topology and it does not."""
    variables = os.environ if environment is None else environment
    group.publish("host", json.dumps([_boot_id(variables), own_address(_master(variables))]))


def _collect_hosts(variables: Mapping[str, str], group: RankGroup, timeout: float) -> list[str]:
    announce_host(group, variables)
    what = (
        "tell which host they are on (without torchrun's variables, all ranks must build the first dataset "
        "or loader, or pass shared=False and sharding='none')"
    )
    return group.collect("host", timeout=timeout, what=what)


def _master(variables: Mapping[str, str]) -> str:
    return variables.get("MASTER_ADDR") or "localhost"


def _boot_id(variables: Mapping[str, str]) -> str:
    """Return what is equal in all processes of a running machine. ``GIGL_BOOT_ID`` stands in for it."""
    return variables.get("GIGL_BOOT_ID") or machine_id()


def machine_id() -> str:
    """Return what is equal in all processes of this machine, and never made up."""
    try:
        with open(_BOOT_ID_FILE) as file:
            return file.read().strip()
    except OSError:  # Not Linux.
        return socket.gethostname()


def own_address(towards: str) -> str:
    """Return the address that this host uses towards another. Nothing is sent."""
    addresses = (_source_address(family, address) for family, _, _, _, address in _resolved(towards))
    return next((address for address in addresses if address), _LOOPBACK)


def _source_address(family: int, destination: tuple[str, int]) -> str:
    """Return the address that datagrams to ``destination`` would leave from; "" where there is no way."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(destination)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _resolved(host: str) -> list[tuple[int, int, int, str, tuple[str, int]]]:
    try:
        return socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)  # type: ignore[return-value]
    except OSError:
        return []


def _uneven(counts: Mapping[int, int], world_size: int, hosts: int) -> ValueError:
    listed = ", ".join(f"host {host} has {count}" for host, count in sorted(counts.items()))
    return ValueError(
        f"every host needs the same number of ranks: {listed} ({world_size} on {hosts} hosts in all); "
        "start as many on each (torchrun: the same --nproc-per-node)"
    )
