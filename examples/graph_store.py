"""Train GraphSAGE on a graph that lies here, or that storage servers hold. One line tells the two apart.

python examples/graph_store.py --graph DIR             a partitioned graph in DIR
python examples/graph_store.py --store HOST:PORT       storage servers hold it: the address of any one of them
gigl-loader local-cluster DIR -- python examples/graph_store.py     two servers on this machine, for a try
torchrun ... examples/graph_store.py ...               any number of ranks, in either case

DIR is what `gigl-loader partition` writes, with node columns x and y and the splits train and test, for
example the graph of `gigl-loader demo --dataset synthetic --workdir work`, in work/graph.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader


def open_dataset(options: argparse.Namespace) -> DistDataset | RemoteDistDataset:
    """Return the graph: the only place that knows where it is."""
    if options.store is None:
        return DistDataset.open(options.graph)
    caller = Caller.from_files(token=options.token_file, ca=options.tls_ca, insecure=options.insecure)
    return RemoteDistDataset.connect(options.store.split(","), credentials=caller)


@torch.no_grad()
def accuracy_of(model: torch.nn.Module, loader: DistNeighborLoader) -> float:
    """Return the share of seeds, over all ranks, that the model gets right."""
    model.eval()
    counts = torch.zeros(2, device=loader.device)
    # Without gradients nothing is exchanged, so ranks may have different numbers of batches.
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    for batch in loader:
        out = inner(batch.x, batch.edge_index)[batch.seed_index]
        hits = (out.argmax(dim=1) == batch.y[batch.seed_index]).sum()
        counts += torch.stack([hits, out.new_tensor(len(out))])
    if dist.is_initialized():
        dist.all_reduce(counts)
    right, seeds = counts.tolist()
    return float(right / seeds)


def train(options: argparse.Namespace) -> float:
    """Train, let rank 0 print a line per epoch, and return the test accuracy."""
    fanout = [10, 5]
    workers = "auto" if options.num_workers is None else options.num_workers
    run = {"batch_size": options.batch_size, "seed": options.seed, "num_workers": workers}
    accuracy = 0.0
    with (
        open_dataset(options) as dataset,
        DistNeighborLoader(dataset, fanout, "train", shuffle=True, **run) as train_loader,
        DistNeighborLoader(dataset, fanout, "test", even_batches=False, **run) as test_loader,
    ):
        torch.manual_seed(options.seed)  # the same first weights on every rank
        width = dataset.schema.nodes["node"].columns["x"].shape[0]
        model: torch.nn.Module = GraphSAGE(width, 64, num_layers=2, out_channels=options.classes)
        model = model.to(train_loader.device)
        if dist.is_initialized():
            model = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(options.epochs):
            model.train()
            for batch in train_loader:
                out = model(batch.x, batch.edge_index)[batch.seed_index]
                loss = cross_entropy(out, batch.y[batch.seed_index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            accuracy = accuracy_of(model, test_loader)
            if not dist.is_initialized() or dist.get_rank() == 0:
                print(f"epoch {epoch}: loss {loss:.3f}, test accuracy {accuracy:.1%}", flush=True)
    return accuracy


def main() -> None:
    """Read the options, join the other ranks, train."""
    parser = argparse.ArgumentParser(description="GraphSAGE on a graph that lies here or on storage servers")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--graph", metavar="DIR", help="partitioned graph in DIR")
    where.add_argument("--store", metavar="HOST:PORT", help="of any storage server, or of some  [GIGL_STORE]")
    parser.add_argument("--token-file", default=os.environ.get("GIGL_TOKEN_FILE"), help="[GIGL_TOKEN_FILE]")
    parser.add_argument("--tls-ca", default=os.environ.get("GIGL_TLS_CA"), help="PEM to trust  [GIGL_TLS_CA]")
    plain = os.environ.get("GIGL_INSECURE", "").lower() == "true"
    parser.add_argument("--insecure", action="store_true", default=plain, help="plain text to other machines")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256, help="seeds per batch of each rank")
    parser.add_argument("--num-workers", type=int, help="of each rank; default: as the cores allow")
    parser.add_argument("--classes", type=int, default=16, help="labels y lie in [0, CLASSES)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.graph is None and options.store is None:
        options.store = os.environ.get("GIGL_STORE")
        if options.store is None:
            parser.error("where is the graph? give --graph DIR or --store HOST:PORT")

    if int(os.environ.get("WORLD_SIZE", "1")) == 1:  # torchrun sets it
        train(options)
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        train(options)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
