"""Graph store: one or two servers, over ring or network, rows direct or through."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

from gigl_client import RemoteDistDataset
from gigl_loader import DistNeighborLoader
from tests.chaos.client import OtherClient
from tests.chaos.cluster import SERVER_KINDS, ProxiedCluster
from tests.chaos.drive import drive
from tests.chaos.faults import Fault, draw_faults
from tests.chaos.ground import LOADER, Ground, Repairs
from tests.chaos.lines import ADDRESS
from tests.chaos.record import HANG_S, Record
from tests.support.training import FANOUT

KINDS = (*SERVER_KINDS, "SIGKILL of another client", "SIGSTOP of another client")


@dataclass(frozen=True, slots=True)
class Way:
    """Number of servers, and how frames and rows come from them."""

    servers: int
    transport: Literal["ring", "network"]
    rows: Literal["auto", "direct", "through"]

    @property
    def name(self) -> str:
        return f"store, {self.servers} server{'s' * (self.servers > 1)}, {self.transport}, rows {self.rows}"

    def run(self, ground: Ground, seed: int, leg: int, count: int) -> Record:
        """Run a leg of ``count`` faults, beside another client that trains on the same servers."""
        record = Record(self.name, leg)
        repairs = Repairs(self.servers + 1)  # The last is for the other client.
        with ExitStack() as stack:
            cluster = stack.enter_context(ProxiedCluster(ground.graph, servers=self.servers))
            address = f"{ADDRESS}:{cluster.addresses[0].rpartition(':')[2]}"
            dataset = stack.enter_context(
                RemoteDistDataset.connect(
                    address,
                    transport=self.transport,
                    rows=self.rows,
                    timeout=HANG_S,
                )
            )
            loader = stack.enter_context(
                DistNeighborLoader(dataset, FANOUT, "train", **LOADER | {"prefetch_size": 2})
            )
            other = stack.enter_context(OtherClient(ground, [address], f"other-{self.name}-{leg}"))

            def commit(fault: Fault) -> None:
                if fault.kind.endswith("another client"):
                    repairs.run(self.servers, lambda _: other.harm(fault))
                else:
                    repairs.run(fault.target % self.servers, lambda server: cluster.harm(server, fault))

            faults = draw_faults(seed, self.name, leg, count, kinds=KINDS)
            drive(loader, faults, commit, ground=ground, record=record)
            repairs.finish()
            for server in range(self.servers):
                if not cluster.running(server):
                    record.defect(f"server {server} {cluster.describe(server)} by itself")
        record.defects.extend(f"{error} [{self.name} leg {leg}]" for error in repairs.errors)
        return record


WAYS = (
    Way(1, "ring", "auto"),
    Way(1, "network", "auto"),
    Way(2, "ring", "auto"),
    Way(2, "network", "through"),
    Way(2, "network", "direct"),
)
