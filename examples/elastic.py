"""Train with any number of ranks, lose some, and go on with others: every seed of an epoch comes once.

    torchrun --nproc-per-node 4 examples/elastic.py --checkpoints DIR

Every few steps the ranks write one checkpoint of model, optimizer and loader. Kill a rank, or all of them,
and start the script again, with another --nproc-per-node if you like: it goes on from the last checkpoint,
and the ranks that there are share the batches that are left of the epoch.
"""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader

NUM_NODES, NUM_CLASSES = 4_000, 4


def made_graph() -> Data:
    """Return a graph whose classes the features of neighbours tell. All ranks make the same one."""
    random = torch.Generator().manual_seed(0)
    label = torch.arange(NUM_NODES) % NUM_CLASSES
    source, target = torch.randint(NUM_NODES, (2, 10 * NUM_NODES), generator=random)
    target = target - target % NUM_CLASSES + source % NUM_CLASSES
    x = torch.randn(NUM_NODES, 16, generator=random) + torch.eye(NUM_CLASSES).repeat(1, 4)[label]
    return Data(x=x, y=label, edge_index=torch.stack([source, target.clamp(max=NUM_NODES - 1)]))


def latest(folder: Path) -> Path | None:
    """Return the last checkpoint that is whole: its name was given after all of it was written."""
    found = sorted(folder.glob("step-*"), key=lambda path: int(path.name.removeprefix("step-")))
    return found[-1] if found else None


def train(options: argparse.Namespace) -> None:
    dataset = DistDataset.from_pyg(made_graph())
    torch.manual_seed(0)
    model = DistributedDataParallel(GraphSAGE(16, 32, num_layers=2, out_channels=NUM_CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = DistNeighborLoader(
        dataset, [5, 5], batch_size=options.batch_size, shuffle=True, seed=1, num_workers="auto"
    )
    steps_done = torch.zeros(1, dtype=torch.int64)
    state = {"model": model, "optimizer": optimizer, "loader": loader, "steps": steps_done}
    folder = Path(options.checkpoints)

    def save() -> None:
        unfinished = folder / f"unfinished-{int(steps_done)}"
        dcp.save(state, checkpoint_id=unfinished)
        if dist.get_rank() == 0:
            unfinished.rename(folder / f"step-{int(steps_done)}")

    with loader:
        if (checkpoint := latest(folder)) is not None:
            dcp.load(state, checkpoint_id=checkpoint)
        while loader.epoch < options.epochs:
            epoch = loader.epoch
            for batch in loader:
                out = model(batch.x, batch.edge_index)[batch.seed_index]
                loss = cross_entropy(out, batch.y[batch.seed_index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps_done += 1
                line = {"rank": dist.get_rank(), "ranks": dist.get_world_size(), "epoch": epoch}
                line |= {"step": int(steps_done), "loss": round(loss.item(), 4)}
                if options.json:  # A line in one piece: ranks share the output.
                    line["seeds"] = batch.input_id.tolist()
                    print(json.dumps(line) + "\n", end="", flush=True)
                elif dist.get_rank() == 0:
                    print(line, flush=True)
                if int(steps_done) % options.every == 0:
                    save()


def main() -> None:
    parser = argparse.ArgumentParser(description="training whose ranks come and go")
    parser.add_argument("--checkpoints", metavar="DIR", required=True, help="on a disk that all hosts share")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="print JSON lines, with the seeds of each batch")
    options = parser.parse_args()
    Path(options.checkpoints).mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    try:
        train(options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
