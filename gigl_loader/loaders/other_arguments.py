"""Arguments of the loaders of other libraries: those that are accepted, and what to use instead of others."""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_other_arguments"]

_WITHOUT_EFFECT = ("persistent_workers", "pin_memory", "is_sorted", "filter_per_worker")
"""No batch depends on them: accepted with any value."""

_DEFAULTS: dict[str, Any] = {
    "directed": True,
}
"""Defaults that are not ``None``. The default of any other argument of theirs is accepted, too."""

_IN_PLACE = (
    "pass the seeds as input_nodes, which ranks share by themselves; seed_weights= draws them by weight"
)
_BY_ITSELF = "the place of this process among the ranks is found from the process group"
_INSTEAD = {
    "batch_sampler": _IN_PLACE,
    "collate_fn": "use transform=, which is called on every batch, or override collate() in a subclass",
    "collect_features": "batches have all columns: pass node_columns=[] and edge_columns=[] for none",
    "context": _BY_ITSELF,
    "custom_cls": "use transform=",
    "data": "the first argument is dataset, such as DistDataset.from_pyg(data)",
    "directed": "use subgraph_type='induced', or leave it out",
    "generator": "pass seed=: all draws depend on it",
    "input_id": "batches have input_id, the place of each seed in the input",
    "input_type": "pass (node type, nodes) as input_nodes",
    "local_process_rank": _BY_ITSELF,
    "local_process_world_size": _BY_ITSELF,
    "neighbor_sampler": "use sampler_options=CustomSamplerOptions(...)",
    "neg_sampling_ratio": "use neg_sampling={'mode': 'binary', 'amount': ...}",
    "num_cpu_threads": "use num_workers=",
    "prefetch_factor": "use worker_concurrency=, the batches in flight per worker",
    "sampler": _IN_PLACE,
    "to_device": "use device=",
    "transform_sampler_output": "use transform=, or sampler_options=CustomSamplerOptions(...)",
    "worker_init_fn": "sampling processes run no code of the script, but that of CustomSamplerOptions(...)",
    "worker_options": "use num_workers=, worker_concurrency= and channel_size=",
}


def check_other_arguments(cls: type, others: Mapping[str, Any]) -> None:
    """Accept what changes nothing in a loader of class ``cls``.

    ``TypeError`` names the class and an argument that it does not have, with what to use instead.
    """
    for name, value in others.items():
        if name in _WITHOUT_EFFECT or (name in _INSTEAD and _is_default(name, value)):
            continue
        remedy = _INSTEAD.get(name) or _suggestion(name, list(inspect.signature(cls).parameters))
        raise TypeError(f"{cls.__name__}() has no argument {name!r}: {remedy}")


def _is_default(name: str, value: Any) -> bool:
    return bool(value == _DEFAULTS[name]) if name in _DEFAULTS else value is None


def _suggestion(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"
