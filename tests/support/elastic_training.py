"""A training script for any number of ranks, which commits each step with the state, and is killed.

    torchrun --nproc-per-node 4 -m tests.support.elastic_training '{"graph": ..., "journal": ..., ...}'

A step is committed when every rank has its batch: rank 0 then writes, at once, the state and the batches of
all steps so far. A run that starts again goes on from there, with as many ranks as it has.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from gigl_loader import DistABLPLoader, DistDataset, DistLinkNeighborLoader, DistNeighborLoader

FANOUT = [3, 2]
OPTIONS: dict[str, Any] = {
    "batch_size": 8,
    "shuffle": True,
    "seed": 9,
    "num_workers": 1,
    "even_batches": False,
    "timeout": 60.0,
}


def open_loader(kind: str, dataset: Any, **options: Any) -> Any:
    """Return a loader of 100 nodes, links or anchors."""
    options = {**OPTIONS, **options}
    first, second = torch.arange(100), torch.arange(100).flip(0)
    if kind == "links":
        return DistLinkNeighborLoader(
            dataset, FANOUT, torch.stack([first, second]), neg_sampling="binary", **options
        )
    if kind == "anchors":
        return DistABLPLoader(dataset, FANOUT, first, supervision_edge_type=("node", "to", "node"), **options)
    return DistNeighborLoader(dataset, FANOUT, first, **options)


def described(batch: Any) -> dict[str, Any]:
    """Return the places of a batch's entries, and a digest of all of its tensors."""
    digest = hashlib.sha256()
    for name, value in sorted(batch.to_dict().items()):
        if isinstance(value, torch.Tensor):
            digest.update(f"{name} {value.dtype} {list(value.shape)}".encode())
            digest.update(value.contiguous().numpy().tobytes())
    return {"places": batch.input_id.tolist(), "digest": digest.hexdigest()}


def main(
    *,
    graph: str,
    addresses: list[str],
    kind: str,
    journal: str,
    killed_at: int,
    options: dict[str, Any],
    checkpoints: bool = False,
    ledger: str | None = None,
) -> None:
    """Train the rest of the epoch; rank 0 is killed before step ``killed_at`` of this run is committed.

    ``checkpoints`` of torch.distributed keep the state, in place of the journal.
    """
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    path = Path(journal)
    committed = json.loads(path.read_text()) if path.exists() else {"state": None, "batches": {}}
    if addresses:
        from gigl_client import RemoteDistDataset

        dataset: Any = RemoteDistDataset.connect(addresses)
    else:
        dataset = DistDataset.open(graph)
    with dataset, open_loader(kind, dataset, **options) as loader:
        if committed["state"] is not None and checkpoints:
            load({"loader": loader}, checkpoint_id=committed["checkpoint"])
        elif committed["state"] is not None:
            loader.load_state_dict(committed["state"])
        if ledger is not None:
            loader.ledger(ledger)
        first = committed["state"]["batches"] if committed["state"] else 0
        iterator = iter(loader)
        step = 0
        while True:
            batch = next(iterator, None)
            told: list[Any] = [None] * world_size
            if rank == 0 and step == killed_at:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_gather_object(told, None if batch is None else described(batch))
            if not any(told):
                break
            for other, each in enumerate(told):
                if each is not None:
                    committed["batches"][str(first + step * world_size + other)] = each
            if checkpoints:
                committed["checkpoint"] = f"{journal}-{loader.state_dict()['batches']}"
                save({"loader": loader}, checkpoint_id=committed["checkpoint"])
            if rank == 0:
                committed["state"] = loader.state_dict()
                part = path.with_suffix(".part")
                part.write_text(json.dumps(committed))
                part.replace(path)
            step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
