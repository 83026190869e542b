"""Train with TorchFT: processes are lost and join in mid-epoch, and every seed of the epoch still comes once.

    torchft_lighthouse --bind [::]:29510 --min_replicas 2 --join_timeout_ms 5000
    TORCHFT_LIGHTHOUSE=http://HOST:29510 python examples/fault_tolerant.py      # on each machine

Needs ``pip install torchft-nightly``. Kill a process, and the others go on after a moment; start it again,
and it takes model, optimizer and place in the epoch from them. The processes that take part in a step share
the batches that are left.
"""

import argparse
import json
import time
from datetime import timedelta
from typing import Any

import torch
from elastic import NUM_CLASSES, made_graph
from torch.distributed import TCPStore
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE
from torchft import Manager, ProcessGroupGloo

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.topology import Topology


class Training:
    """Model, optimizer, and the batches of the processes of now."""

    def __init__(self, options: argparse.Namespace, loader: DistNeighborLoader) -> None:
        torch.manual_seed(0)
        self.model = GraphSAGE(16, 32, num_layers=2, out_channels=NUM_CLASSES)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.loader = loader
        self.done = loader.state_dict()
        """State of the loader after the last step that was committed."""
        self._store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
            state_dict=self.state_dict,
            load_state_dict=self.load_state_dict,
            min_replica_size=2,
            use_async_quorum=False,  # Who takes part is known before a batch is taken.
            replica_id=options.name,
            rank=0,  # A replica of the model is one process here.
            world_size=1,
            store_addr="localhost",
            store_port=self._store.port,
        )
        self._place: Topology | None = None
        self._batches: Any = None

    def state_dict(self) -> dict[str, Any]:
        """Return what a process that joins needs."""
        parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**parts, "loader": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take the place of the others."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done, self._place = state["loader"], None

    def next_batch(self, epochs: int) -> Any:
        """Return this process' batch of the next step, ``None`` after all epochs.

        After a change of processes, the batches that are left are dealt out anew.
        """
        rank, ranks = self.manager.participating_rank(), self.manager.num_participants()
        place = Topology(rank=rank or 0, world_size=ranks)
        if place != self._place:
            self.loader.reshard(place)
            self.loader.load_state_dict(self.done)
            self._place, self._batches = place, iter(self.loader)
        batch = next(self._batches, None)
        if batch is None and self.loader.epoch < epochs:
            self._batches = iter(self.loader)
            batch = next(self._batches)
        return batch

    def step(self, epochs: int, show: Any) -> bool:
        """Take part in a step. It counts where no process was lost; else the batches come again.

        ``False`` after all epochs.
        """
        self.manager.start_quorum()
        batch = self.next_batch(epochs)
        if batch is None:
            return False
        epoch, number = self.loader.epoch, self.manager.current_step()
        show("tries", number, epoch, self._place, batch)
        self.optimizer.zero_grad()
        out = self.model(batch.x, batch.edge_index)[batch.seed_index]
        loss = cross_entropy(out, batch.y[batch.seed_index])
        loss.backward()
        for work in [self.manager.allreduce(each.grad) for each in self.model.parameters()]:
            work.wait()
        if self.manager.should_commit():
            self.optimizer.step()
            self.done = self.loader.state_dict()
            show("commits", number, epoch, self._place, batch, loss=round(loss.item(), 4))
        else:
            self._place = None
        return True


def main() -> None:
    parser = argparse.ArgumentParser(description="training that goes on while processes come and go")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--name", default=None, help="of this process, in the lighthouse's page")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds of a step, as a larger model takes")
    parser.add_argument("--json", action="store_true", help="print JSON lines, with the seeds of each batch")
    options = parser.parse_args()

    def show(word: str, number: int, epoch: int, place: Any, batch: Any, **more: Any) -> None:
        line = {"step": number, "epoch": epoch, "rank": place.rank, "ranks": place.world_size, **more}
        if options.json:
            print(json.dumps({word: line | {"seeds": batch.input_id.tolist()}}), flush=True)
        elif word == "commits" and place.rank == 0:
            print(line, flush=True)

    dataset = DistDataset.from_pyg(made_graph(), shared=False)
    with DistNeighborLoader(
        dataset, [5, 5], batch_size=options.batch_size, shuffle=True, seed=1, num_workers=0
    ) as loader:
        training = Training(options, loader)
        try:
            while training.step(options.epochs, show):
                time.sleep(options.pause)
        finally:
            training.manager.shutdown()


if __name__ == "__main__":
    main()
