"""Train GraphSAGE with Ray Train on storage servers that Ray places, too.

gigl-loader demo --dataset synthetic --mode embedded --epochs 1 --workdir work
python examples/ray_train.py work/graph                       a Ray cluster is started on this machine
python examples/ray_train.py /shared/graph --address auto     the cluster that runs here

Needs `pip install 'gigl-loader[ray,train]' 'ray[train]'` on all machines; they see the graph at one path.
Batches go from the servers to the workers directly, here in plain text: docs/deploy.md tells of TLS.
"""

import argparse
from typing import Any

import ray
import torch
from ray import train
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device, prepare_model
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_ray import StoreCluster, find_servers


def train_rank(config: dict[str, Any]) -> None:
    """Train one rank of the process group that Ray Train has made."""
    torch.manual_seed(0)  # the same first weights on every rank
    caller = Caller(token=config["token"], insecure=True)
    with (
        RemoteDistDataset.connect(find_servers(), credentials=caller) as dataset,
        DistNeighborLoader(
            dataset, [10, 5], "train", batch_size=config["batch_size"], shuffle=True, device=get_device()
        ) as loader,
    ):
        width = dataset.schema.nodes["node"].columns["x"].shape[0]
        model = prepare_model(GraphSAGE(width, 64, num_layers=2, out_channels=config["classes"]))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(config["epochs"]):
            right = seeds = 0
            for batch in loader:
                out = model(batch.x, batch.edge_index)[batch.seed_index]
                loss = cross_entropy(out, batch.y[batch.seed_index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += int((out.argmax(dim=1) == batch.y[batch.seed_index]).sum())
                seeds += len(out)
            train.report({"epoch": epoch, "loss": loss.item(), "accuracy": right / seeds})
            if train.get_context().get_world_rank() == 0:
                print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {right / seeds:.1%}", flush=True)


def main() -> None:
    """Place servers and workers, and train."""
    parser = argparse.ArgumentParser(
        description="GraphSAGE with Ray Train on storage servers that Ray places"
    )
    parser.add_argument("graph", help="partitioned graph, at this path on all machines")
    parser.add_argument("--address", help="of a Ray cluster, or auto; without it, one is started here")
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--trainers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=256, help="seeds per batch of each rank")
    parser.add_argument("--classes", type=int, default=16, help="labels y lie in [0, CLASSES)")
    parser.add_argument("--token", default="", help="that servers ask for and trainers show")
    parser.add_argument("--results", help="folder, seen by all machines, for what Ray Train keeps")
    options = parser.parse_args()

    # Without a cluster, CPUs are made up, so that servers and trainers fit on a laptop.
    fresh = {} if options.address else {"num_cpus": options.servers + options.trainers + 1}
    ray.init(options.address, **fresh)
    config = {name: getattr(options, name) for name in ("batch_size", "classes", "epochs", "token")}
    with StoreCluster(
        options.graph, servers=options.servers, token=options.token, options={"insecure": True}
    ):
        trainer = TorchTrainer(
            train_rank,
            train_loop_config=config,
            scaling_config=ScalingConfig(num_workers=options.trainers, use_gpu=torch.cuda.is_available()),
            run_config=RunConfig(storage_path=options.results),
        )
        trainer.fit()


if __name__ == "__main__":
    main()
