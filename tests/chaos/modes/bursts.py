"""Bursts of damage, cuts and silence on the lines of a graph store: none is raised, and no batch differs."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistNeighborLoader
from tests.chaos.cluster import ProxiedCluster
from tests.chaos.drive import drive
from tests.chaos.faults import Fault, draw_faults
from tests.chaos.ground import LOADER, Ground, Repairs
from tests.chaos.lines import ADDRESS, BURST_KINDS
from tests.chaos.record import HANG_S, Record
from tests.support.certificates import Authority
from tests.support.proxy import Proxy
from tests.support.training import FANOUT

if TYPE_CHECKING:
    from pathlib import Path

_NO_DESCRIPTORS = "cut line to a server without descriptors"
_BURST_S = 0.6
_SPACING = (6, 12)
"""Batches between two bursts: more than are in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Servers of a cluster, and how frames and rows come from them."""

    servers: int = 1
    copies: int = 1
    transport: Literal["ring", "network"] = "network"
    rows: Literal["auto", "direct", "through"] = "auto"
    tls: bool = False

    @property
    def name(self) -> str:
        of = f"{self.servers} server{'s' * (self.servers > 1)}"
        of += f", {self.copies} copies" * (self.copies > 1)
        return f"bursts: {of}, {self.transport}, rows {self.rows}{', TLS' * self.tls}"

    def run(self, ground: Ground, seed: int, leg: int, count: int) -> Record:
        """Run a leg of ``count`` bursts."""
        record = Record(self.name, leg)
        repairs = Repairs(1)  # One burst at a time: each is to end within the timeout.
        kinds = (*BURST_KINDS, *(_NO_DESCRIPTORS,) * (self.transport == "ring"))
        with ExitStack() as stack:
            caller, secrets = _secrets(ground.fresh_folder(f"{self.name}-{leg}"), tls=self.tls)
            cluster = stack.enter_context(
                ProxiedCluster(
                    ground.graph if self.servers < 3 else ground.graph_of_three,
                    servers=self.servers,
                    replicas=self.copies,
                    **secrets,
                )
            )
            addresses = [f"{ADDRESS}:{address.rpartition(':')[2]}" for address in cluster.addresses]
            dataset = stack.enter_context(
                RemoteDistDataset.connect(
                    addresses,
                    credentials=caller,
                    transport=self.transport,
                    rows=self.rows,
                    timeout=HANG_S,
                )
            )
            loader = stack.enter_context(
                DistNeighborLoader(dataset, FANOUT, "train", **LOADER | {"prefetch_size": 2})
            )

            def harm(fault: Fault) -> None:
                server = fault.target % self.servers
                if fault.kind == _NO_DESCRIPTORS:
                    _cut_all(cluster.lines[server])
                    fault = fault.of_kind("few descriptors of a server")
                cluster.harm(server, fault)

            faults = draw_faults(
                seed, self.name, leg, count, kinds=kinds, spacing=_SPACING, most_seconds=_BURST_S
            )

            def commit(fault: Fault) -> None:
                repairs.finish()  # So that each burst falls on batches that are on their way.
                repairs.run(0, lambda _: harm(fault))

            drive(loader, faults, commit, ground=ground, record=record, allowed=())
            repairs.finish()
            for server in range(self.servers):
                if not cluster.running(server):
                    record.defect(f"server {server} {cluster.describe(server)} by itself")
        record.defects.extend(f"{error} [{self.name} leg {leg}]" for error in repairs.errors)
        return record


def _cut_all(lines: list[Proxy]) -> None:
    for line in lines:
        line.cut()
        line.resume()


def _secrets(folder: Path, *, tls: bool) -> tuple[Caller, dict[str, str]]:
    """Return a trainer that trusts the servers' authority, and the files of servers. Nothing without TLS."""
    if not tls:
        return Caller(), {}
    authority = Authority()
    certificate, key = authority.sign(ADDRESS, "127.0.0.1")
    contents = {"cert": certificate, "key": key, "ca": authority.pem}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return Caller(authority=authority.pem.decode()), {f"tls_{name}": str(folder / name) for name in contents}


WAYS = (
    Way(),
    Way(transport="ring"),
    Way(tls=True),
    Way(servers=2, rows="through"),
    Way(servers=2, rows="direct"),
    Way(servers=2, rows="direct", tls=True),
    Way(servers=2, transport="ring"),
    Way(servers=3, copies=2),
    Way(servers=3, copies=2, transport="ring"),
)
