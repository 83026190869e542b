"""Graph store of three servers with two copies of each partition: one at a time may be gone for good."""

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
from tests.chaos.jumping_clock import JumpingClock
from tests.chaos.lines import ADDRESS
from tests.chaos.record import HANG_S, Record
from tests.support.training import FANOUT

_GONE = "server gone for good"
_JUMP = "wall clock jump"
KINDS = (*SERVER_KINDS, _GONE, _GONE, _GONE, _JUMP, "SIGKILL of another client", "SIGSTOP of another client")
_SERVERS, _COPIES = 3, 2
_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Way:
    """How frames come from the servers."""

    transport: Literal["ring", "network"]

    @property
    def name(self) -> str:
        return f"replicas, {_SERVERS} servers with {_COPIES} copies, {self.transport}"

    def run(self, ground: Ground, seed: int, leg: int, count: int) -> Record:
        """Run a leg of ``count`` faults, beside another client that trains on the same servers."""
        record = Record(self.name, leg)
        folder = ground.fresh_folder(f"{self.name}-{leg}")
        clock = JumpingClock(folder / "clock")
        repairs = Repairs(2)  # Servers, one at a time: the other copy must stand; and the other client.
        with ExitStack() as stack:
            stack.enter_context(clock.spread())
            cluster = stack.enter_context(
                ProxiedCluster(ground.graph_of_three, servers=_SERVERS, replicas=_COPIES)
            )
            addresses = [f"{ADDRESS}:{address.rpartition(':')[2]}" for address in cluster.addresses]
            dataset = stack.enter_context(
                RemoteDistDataset.connect(addresses, transport=self.transport, timeout=HANG_S)
            )
            loader = stack.enter_context(
                DistNeighborLoader(dataset, FANOUT, "train", **LOADER | {"prefetch_size": 2})
            )
            other = stack.enter_context(OtherClient(ground, addresses, f"other-{self.name}-{leg}"))

            def harm(fault: Fault) -> None:
                server = fault.target % _SERVERS
                if fault.kind == _GONE:
                    cluster.vanish(server)
                elif fault.kind == _JUMP:
                    clock.jump((fault.choice % 49 - 24) * _HOUR)
                else:
                    cluster.harm(server, fault)

            def commit(fault: Fault) -> None:
                if fault.kind.endswith("another client"):
                    repairs.run(1, lambda _: other.harm(fault))
                else:
                    repairs.run(0, lambda _: harm(fault))

            faults = draw_faults(seed, self.name, leg, count, kinds=KINDS, spacing=(4, 12))
            drive(loader, faults, commit, ground=ground, record=record)
            repairs.finish()
            for server in range(_SERVERS):
                if not cluster.running(server):
                    record.defect(f"server {server} {cluster.describe(server)} by itself")
            for seen in other.runs:
                _check_prefix(seen, ground, record)
        record.defects.extend(f"{error} [{self.name} leg {leg}]" for error in repairs.errors)
        return record


def _check_prefix(seen: list[int], ground: Ground, record: Record) -> None:
    """Compare the batches of the other client, which ends somewhere within an epoch."""
    expected: list[int] = []
    epoch = 0
    while len(expected) < len(seen):
        expected += ground.expected(epoch)
        epoch += 1
    if seen != expected[: len(seen)]:
        record.defect("the batches of the other client differ from the undisturbed run")


WAYS = (Way("ring"), Way("network"))
