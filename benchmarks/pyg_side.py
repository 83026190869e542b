"""PyG's side of ``pyg_peer.py``: one case, measured in a process of its own, in PyG's environment."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peer_case import Case, Counted, answer, input_links, input_nodes, measure


def measure_pyg(case: Case) -> dict[str, Any]:
    if case.backend == "torch-sparse":
        sys.modules["pyg_lib"] = None  # type: ignore[assignment]  # PyG then finds no pyg-lib.
    warnings.filterwarnings("ignore", message=".*'pyg-lib' installation is deprecated.*")
    import torch_geometric
    from torch_geometric.data import Data
    from torch_geometric.sampler import NeighborSampler

    if case.threads is not None:
        torch.set_num_threads(case.threads)
    with_pyg_lib = torch_geometric.typing.WITH_PYG_LIB
    if case.backend == "pyg-lib" and not with_pyg_lib:
        raise SystemExit("--backend pyg-lib: PyG's environment has no pyg-lib; see pyg_peer.sh")
    arrays = {name: np.load(Path(case.data) / f"{name}.npy") for name in ("src", "dst", "feat", "label")}
    data = Data(
        x=torch.from_numpy(arrays["feat"]),
        y=torch.from_numpy(arrays["label"]),
        edge_index=torch.from_numpy(np.stack([arrays.pop("src"), arrays.pop("dst")])),
    )
    sampler = NeighborSampler(data, list(case.fanout), share_memory=case.num_workers > 0)

    def make() -> AbstractContextManager[Iterable[Any]]:
        return nullcontext(
            Neighbourhoods(case, sampler) if case.sampler_only else pyg_loader(case, data, sampler)
        )

    versions = {
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "backend": backend_version(with_pyg_lib),
    }
    return {"figures": measure(case, make), "versions": versions}


def pyg_loader(case: Case, data: Any, sampler: Any) -> Iterable[Any]:
    from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

    options: dict[str, Any] = {
        "neighbor_sampler": sampler,
        "filter_per_worker": case.filter_per_worker,
        "batch_size": case.batch_size,
        "shuffle": False,
        "drop_last": True,
        "num_workers": case.num_workers,
        "persistent_workers": case.num_workers > 0,
    }
    if case.task == "node":
        return NeighborLoader(data, list(case.fanout), input_nodes(case), **options)  # type: ignore[no-any-return]
    links = {"edge_label_index": input_links(case), "neg_sampling": case.neg_sampling}
    return LinkNeighborLoader(data, list(case.fanout), **links, **options)  # type: ignore[no-any-return]


class Neighbourhoods:
    """Neighbourhoods of an epoch's batches, without rows."""

    def __init__(self, case: Case, sampler: Any) -> None:
        self._sampler = sampler
        self._batches = torch.split(input_nodes(case), case.batch_size)

    def __iter__(self) -> Iterator[Counted]:
        from torch_geometric.sampler import NodeSamplerInput

        for seeds in self._batches:
            out = self._sampler.sample_from_nodes(NodeSamplerInput(input_id=None, node=seeds))
            yield Counted(len(seeds), out.row[None], len(out.node))


def backend_version(with_pyg_lib: bool) -> str:
    name = "pyg-lib" if with_pyg_lib else "torch-sparse"
    return f"{name} {version(name.replace('-', '_'))}"


if __name__ == "__main__":
    answer(measure_pyg)
