"""Train GraphSAGE on any number of GPUs or processes, on one host or many, with the same script.

One process:                   python examples/ddp.py
Four on this host:             torchrun --nproc-per-node 4 examples/ddp.py
Two hosts of two, on each:     torchrun --nnodes 2 --nproc-per-node 2 --node-rank 0|1
                                   --master-addr HOST --master-port 29500 examples/ddp.py --graph DIR

On several hosts DIR, made by `gigl-loader partition`, may hold just some partitions on each host, as long
as every partition is somewhere: a host fetches what it lacks from the host that holds it.

A step consists of a fixed number of micro-batches, which the ranks share. Therefore training does the
same, but for the rounding of sums, with any number of ranks: compare what --json prints.
"""

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import DistDataset, DistNeighborLoader


def digits() -> Data:
    """Return the handwritten digits of scikit-learn, each linked with its ten nearest neighbours."""
    from sklearn.datasets import load_digits
    from sklearn.neighbors import NearestNeighbors

    pixels, labels = load_digits(return_X_y=True)
    # All ranks must build the same graph. The default algorithm breaks ties by number of threads.
    search = NearestNeighbors(n_neighbors=10, algorithm="kd_tree").fit(pixels)
    nearest = search.kneighbors_graph().tocoo()
    chosen = torch.rand(len(labels), generator=torch.Generator().manual_seed(0)) < 0.7
    return Data(
        x=torch.from_numpy(pixels / 16).float(),
        y=torch.from_numpy(labels),
        edge_index=torch.tensor([nearest.row.tolist(), nearest.col.tolist()]),
        train_mask=chosen,
        test_mask=~chosen,
    )


def open_dataset(options: argparse.Namespace) -> DistDataset:
    """Return the graph: every rank opens it, and a host's first rank serves what other hosts lack."""
    if options.graph is None:
        return DistDataset.from_pyg(digits())
    partitions = None  # all that lie there
    if options.partition == "host":
        partitions = int(os.environ.get("GROUP_RANK", "0"))
    elif options.partition != "auto":
        partitions = int(options.partition)
    return DistDataset.open(options.graph, partitions=partitions)


def steps_of(loader: DistNeighborLoader, micro_batches: int) -> Iterator[list[Data]]:
    """Yield this rank's share of each step; a last step that lacks micro-batches is left out."""
    batches = iter(loader)
    while len(step := list(islice(batches, micro_batches))) == micro_batches:
        yield step


def loss_of(model: torch.nn.Module, batch: Data) -> torch.Tensor:
    out = model(batch.x, batch.edge_index)[batch.seed_index]
    return cross_entropy(out, batch.y[batch.seed_index])


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: list[Data]) -> torch.Tensor:
    """Learn from a step and return its mean loss, over all ranks."""
    optimizer.zero_grad()
    total = torch.zeros(())
    for number, batch in enumerate(step, start=1):
        # Gradients of a rank add up; the last micro-batch averages those of all ranks.
        waits = number < len(step) and isinstance(model, DistributedDataParallel)
        with model.no_sync() if waits else nullcontext():
            loss = loss_of(model, batch) / len(step)
            loss.backward()
        total = total + loss.detach().cpu()
    optimizer.step()
    return mean_over_ranks(total)


@torch.no_grad()
def accuracy_of(model: torch.nn.Module, loader: DistNeighborLoader) -> float:
    """Return the share of seeds, over all ranks, that the model gets right."""
    right = torch.zeros(2)
    # Without gradients nothing is exchanged, so ranks may have different numbers of batches.
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    for batch in loader:
        out = inner(batch.x, batch.edge_index)[batch.seed_index]
        right += torch.tensor([(out.argmax(dim=1) == batch.y[batch.seed_index]).sum(), len(out)])
    hits, seeds = mean_over_ranks(right).tolist()
    return hits / seeds


def mean_over_ranks(value: torch.Tensor) -> torch.Tensor:
    if not dist.is_initialized():
        return value
    if dist.get_backend() == "nccl":
        value = value.cuda()
    dist.all_reduce(value)
    return value.cpu() / dist.get_world_size()


def train(options: argparse.Namespace) -> None:
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    if options.micro_batches % world_size:
        raise SystemExit(f"--micro-batches {options.micro_batches} cannot be shared by {world_size} ranks")

    def say(**what: object) -> None:
        if rank == 0:
            line = json.dumps(what) if options.json else "  ".join(f"{k} {v:.6g}" for k, v in what.items())
            print(line, flush=True)

    # Every rank gives the same, whole input, and takes its share of the batches. The same run seed lets
    # runs be compared; without one, the ranks agree on a random one.
    run = {
        "batch_size": options.batch_size,
        "seed": options.seed,
        "num_workers": "auto" if options.num_workers is None else options.num_workers,
        "timeout": options.timeout,
    }
    fanout = [10, 5]
    with (
        open_dataset(options) as dataset,
        DistNeighborLoader(dataset, fanout, "train", shuffle=True, drop_last=True, **run) as train_loader,
        DistNeighborLoader(dataset, fanout, "test", even_batches=False, **run) as test_loader,
    ):
        torch.manual_seed(options.seed)  # the same first weights on every rank
        columns = dataset.schema.nodes["node"].columns
        model: torch.nn.Module = GraphSAGE(columns["x"].shape[0], 64, num_layers=2, out_channels=10)
        model = model.to(train_loader.device)
        if world_size > 1:
            model = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(options.epochs):
            steps = steps_of(train_loader, options.micro_batches // world_size)
            for number, step in enumerate(islice(steps, options.max_steps)):
                say(epoch=epoch, step=number, loss=train_step(model, optimizer, step).item())
            say(epoch=epoch, test_accuracy=accuracy_of(model, test_loader))


def main() -> None:
    parser = argparse.ArgumentParser(description="GraphSAGE with DistributedDataParallel")
    parser.add_argument("--graph", metavar="DIR", help="partitioned graph; none: handwritten digits")
    parser.add_argument(
        "--partition",
        default="auto",
        help="what this host holds of DIR: auto (all that lies there), host (by index of host), or a number",
    )
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--max-steps", type=int, help="of each epoch")
    parser.add_argument("--batch-size", type=int, default=32, help="seeds of a micro-batch")
    parser.add_argument("--micro-batches", type=int, default=4, help="of each step, over all ranks")
    parser.add_argument(
        "--num-workers", type=int, help="sampling processes of each rank; default: as the cores allow"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that a batch may take")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    options = parser.parse_args()

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:  # torchrun sets it
        train(options)
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(minutes=5))
    try:
        train(options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
