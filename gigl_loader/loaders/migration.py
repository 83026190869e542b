"""Arguments, objects and attributes of torch, PyG, GLT and GiGL: their equals here, or what to use instead.

Objects are known by their fields: no other library is imported. ``docs/migration.md`` has the tables.
"""

from __future__ import annotations

import difflib
import inspect
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_WITHOUT_EFFECT = ("persistent_workers", "pin_memory", "is_sorted", "filter_per_worker")
"""No batch depends on them: accepted with any value."""

_AS_HERE: dict[str, Any] = {
    "async_sampling": True,
    "collect_features": True,
    "directed": True,
    "neg_sampling_ratio": 0.0,
    "prefetch_factor": 2,
    "strategy": "random",
    "with_weight": False,
}
"""Values of other libraries' arguments that say what happens here, as ``None`` does."""

_DEFAULTS_OF_TORCH: dict[str, Any] = {"pin_memory_device": "", "shuffle": None, "timeout": 0}
"""Values that torch's ``DataLoader`` has for arguments that are not given. They mean the defaults here."""

_IN_PLACE = (
    "pass the seeds as input_nodes, which ranks share by themselves; seed_weights= draws them by weight"
)
_SEEDS = "pass its nodes as input_nodes; a subclass of BaseDistLoader returns them from seed_nodes()"
_BY_ITSELF = "the place of this process among the ranks is found from the process group"
_CUSTOM = "use sampler_options=CustomSamplerOptions(...)"
_HOSTS = "hosts are found from the process group"
_THREADS = "as many as are needed"
_INSTEAD = {
    "async_sampling": "use worker_concurrency=1, or leave it out",
    "backend_key": "use worker_key=, in a graph store",
    "batch_sampler": _IN_PLACE,
    "collate_fn": "use transform=, which is called on every batch, or override collate() in a subclass",
    "collect_features": "batches have all columns: pass node_columns=[] and edge_columns=[] for none",
    "concurrency": "use worker_concurrency=, the batches in flight per worker",
    "context": _BY_ITSELF,
    "current_ctx": _BY_ITSELF,
    "custom_cls": "use transform=",
    "data": "the first argument is dataset, such as DistDataset.from_pyg(data)",
    "directed": "use subgraph_type='induced', or leave it out",
    "dataset_schema": "the dataset has it: dataset.schema",
    "dist_sampler": _CUSTOM,
    "edge_dir": "it is that of the graph, given when it is built: dataset.edge_dir",
    "generator": "pass seed=: all draws depend on it",
    "input_data": _SEEDS,
    "input_id": "batches have input_id, the place of each seed in the input",
    "input_type": "pass (node type, nodes) as input_nodes",
    "link_sampler": _CUSTOM,
    "local_process_rank": _BY_ITSELF,
    "local_process_world_size": _BY_ITSELF,
    "master_addr": _HOSTS,
    "master_port": _HOSTS,
    "master_ip_address": _HOSTS,
    "max_labels_per_anchor_node": "use max_labels_per_anchor= of DistABLPLoader",
    "neighbor_sampler": _CUSTOM,
    "neg_sampling_ratio": "use neg_sampling={'mode': 'binary', 'amount': ...}",
    "node_rank": _BY_ITSELF,
    "node_sampler": _CUSTOM,
    "node_world_size": _BY_ITSELF,
    "num_cpu_threads": "use num_workers=",
    "num_rpc_threads": f"leave it out: there are {_THREADS}",
    "num_samples": "use num_neighbors=",
    "prefetch_factor": "use worker_concurrency=, the batches in flight per worker",
    "producer": "the dataset starts what makes batches: workers here, or servers",
    "random_seed": "use seed=",
    "rpc_timeout": "use timeout=",
    "rpc_worker_names": _BY_ITSELF,
    "runtime": _BY_ITSELF,
    "sampler": _IN_PLACE,
    "sampler_input": _SEEDS,
    "sampling_config": "use num_neighbors=, batch_size=, shuffle=, drop_last=, with_edge= and seed=",
    "sampling_type": "the class of the loader says it",
    "strategy": "use replace= and weight_attr=",
    "to_device": "use device=",
    "transform_sampler_output": "use transform=, or sampler_options=CustomSamplerOptions(...)",
    "use_label_edge_index_output": "use as_dict= of DistABLPLoader",
    "with_weight": "use weight_attr=, the name of the column that edges are drawn by",
    "worker_init_fn": "sampling processes run no code of the script, but that of CustomSamplerOptions(...)",
    "worker_options": "use num_workers=, worker_concurrency= and channel_size=",
}


def is_default_of_torch(name: str, value: Any) -> bool:
    """Return whether a value means the default of an argument that loaders here have, too."""
    if name not in _DEFAULTS_OF_TORCH or isinstance(value, bool):
        return False
    return value is None or (isinstance(value, (str, Real)) and value == _DEFAULTS_OF_TORCH[name])


def changes_nothing(name: str, value: Any) -> bool:
    """Return whether an argument of other libraries' loaders says what happens here anyway."""
    if name in _WITHOUT_EFFECT:
        return True
    return name in _INSTEAD and (value is None or (name in _AS_HERE and bool(value == _AS_HERE[name])))


_OF_WORKER_OPTIONS = {
    "num_workers": "num_workers=",
    "worker_concurrency": "worker_concurrency=",
    "channel_size": "channel_size=",
    "buffer_size": "channel_size=",
    "prefetch_size": "prefetch_size=",
    "worker_key": "worker_key=",
    "rpc_timeout": "timeout=",
    "worker_devices": "sampling runs on CPUs",
    "master_addr": _HOSTS,
    "master_port": "likewise",
    "num_rpc_threads": _THREADS,
    "pin_memory": "always",
    "use_all2all": "rows come from their owners",
    "server_rank": "RemoteDistDataset.connect(address) finds all servers",
}
"""Fields of GLT's options of sampling workers: the argument that replaces each, or why none is needed."""


def remedy(cls: type, name: str, value: Any) -> str:
    """Return what to use instead of an argument. GLT's options are read by their fields, without GLT."""
    if name == "sampling_config" and hasattr(value, "sampling_type"):
        return _of_config(value)
    fields = getattr(value, "__dict__", {}) if name == "worker_options" else {}
    if "rpc_timeout" not in fields:
        return _INSTEAD.get(name) or _suggestion(name, list(inspect.signature(cls).parameters))
    if not fields.keys() & {"channel_size", "buffer_size"}:  # GLT's collocated sampler.
        fields = {**fields, "num_workers": 0, "worker_concurrency": None}
    known = {each: told for each, told in _OF_WORKER_OPTIONS.items() if each in fields}
    passed = [
        f"{told}{fields[each]!r}"
        for each, told in known.items()
        if told.endswith("=") and fields[each] is not None
    ]
    left = [f"{each} ({told})" for each, told in known.items() if not told.endswith("=")]
    return f"for {type(value).__name__}, pass {', '.join(passed)}; leave out {', '.join(left)}"


def _suggestion(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"it has {', '.join(known)}"


_IN_CONFIG = ("num_neighbors", "batch_size", "shuffle", "drop_last", "with_edge", "seed")
_KINDS = {"LINK": "DistLinkNeighborLoader", "SUBGRAPH": "DistSubgraphLoader"}


def _of_config(config: Any) -> str:
    """Return the arguments that stand for a ``SamplingConfig`` of GLT, and what to leave out."""
    passed = [f"{name}={getattr(config, name)!r:.80}" for name in _IN_CONFIG if hasattr(config, name)]
    kind = getattr(config.sampling_type, "name", "")
    passed += ["weight_attr= the column"] if getattr(config, "with_weight", False) else []
    by = f" to {_KINDS[kind]}" if kind in _KINDS else ""
    return (
        f"for {type(config).__name__}, pass {', '.join(passed)}{by}; leave out sampling_type (the class of "
        "the loader), edge_dir (that of the graph), with_neg (neg_sampling= of links) and collect_features "
        "(always)"
    )


def check_fanouts(value: Any) -> None:
    """Raise ``TypeError`` for a ``SamplingConfig`` in place of fanouts."""
    if hasattr(value, "sampling_type"):
        raise TypeError(f"num_neighbors must be the fanouts alone: {_of_config(value)}")


_OF_INPUTS = {
    "time": "its time as input_time=",
    "input_id": "the seeds alone: batches have input_id, the place of each",
    "positive_label_by_edge_types": "its node alone, and supervision_edge_type=: DistABLPLoader finds labels",
}
_OF_LINKS = {
    "label": "its label as edge_label=",
    "neg_sampling": "its neg_sampling as neg_sampling=",
    "time": "its time as edge_label_time=",
    "input_id": "the links alone: batches have input_id, the place of each",
}
"""Fields of sampler inputs that are arguments of their own here, and what to pass for them."""


def nodes_of(value: Any) -> Any:
    """Return ``input_nodes`` in place of sampler inputs of PyG, GLT or GiGL, and other values as they are.

    A ``NodeSamplerInput`` is its nodes with their type, GLT's input of a split the split. ``TypeError`` says
    what to pass instead of inputs that have more, or that a server of GLT would load.
    """
    if isinstance(value, list) and value and _is_input(value[0]):
        found = [nodes_of(each) for each in value]
        if len(found) > 1 and not all(_is_split(each) and each == found[0] for each in found):
            raise TypeError("input_nodes is a list of inputs by server: pass all nodes at once, or a mapping")
        return found[0]
    if not _is_input(value):
        return value
    _refuse_fields("input_nodes", value, _OF_INPUTS)
    if hasattr(value, "node"):
        nodes = value.node
    elif hasattr(value, "split"):  # GLT: Split.valid.
        name = str(getattr(value.split, "value", value.split))
        nodes = "val" if name == "valid" else name
    else:
        path = getattr(value, "node_path", "FILE")
        raise TypeError(
            f"input_nodes is a {type(value).__name__}, which a server of GLT loads: read the file and pass "
            f"what it holds, such as torch.load({path!r})"
        )
    return nodes if value.input_type is None else (value.input_type, nodes)


def links_of(value: Any) -> Any:
    """Return ``edge_label_index`` in place of an ``EdgeSamplerInput``, and other values as they are."""
    if not (hasattr(value, "row") and hasattr(value, "col") and hasattr(value, "input_type")):
        return value
    _refuse_fields("edge_label_index", value, _OF_LINKS)
    links = (value.row, value.col)
    return links if value.input_type is None else (value.input_type, links)


def _is_input(value: Any) -> bool:
    has_nodes = any(hasattr(value, name) for name in ("node", "split", "node_path"))
    return hasattr(value, "to_local_sampler_input") or (has_nodes and hasattr(value, "input_type"))


def _is_split(nodes: Any) -> bool:
    return isinstance(nodes, str) or (isinstance(nodes, tuple) and isinstance(nodes[1], str))


def _refuse_fields(argument: str, value: Any, told: Mapping[str, str]) -> None:
    for name, what in told.items():
        if getattr(value, name, None) is not None:
            raise TypeError(f"{argument} is a {type(value).__name__}: pass {what}")


_ALIASES: dict[str, Callable[[Any], Any]] = {
    "edge_dir": lambda loader: loader.dataset.edge_dir,
    "num_data_partitions": lambda loader: loader.dataset.schema.num_partitions,
    "num_neighbors": lambda loader: loader._sampling.num_neighbors,
    "to_device": lambda loader: loader.device,
    "with_edge": lambda loader: loader._sampling.with_edge,
    "with_weight": lambda loader: loader._sampling.weight_attr is not None,
}
"""Attributes of GLT's and GiGL's loaders."""

_OWN_LOADER = "a subclass defines seed_nodes(), sampling_plan() and collate() instead (docs/extend.md)"
_NO_SAMPLER = (
    "a loader has none, and skip_first_batches does not take it: load_state_dict() goes on with the very "
    "next batch; accelerator.prepare_data_loader(loader) lets load_state() call it"
)
_IN_PLACE_OF = {
    "collect_features": "loader.columns names the columns of batches",
    "input_data": "len(loader.dataset) counts it, and loader.sample(ids) takes other seeds",
    "sampling_config": "its fields are attributes of the loader: batch_size, num_neighbors, seed, ...",
    "sampling_type": "the class of the loader says it",
    "worker_options": "loader.num_workers; the other fields are arguments of the loader",
    **dict.fromkeys(("batch_sampler", "sampler"), _NO_SAMPLER),
    **dict.fromkeys(
        (
            *("create_sampling_config", "create_colocated_channel", "create_mp_producer"),
            *("create_colocated_worker_options", "create_graph_store_worker_options"),
            *("initialize_colocated_sampling_worker", "validate_for_weighted_sampling"),
        ),
        _OWN_LOADER,
    ),
}


def attribute_of(loader: Any, name: str) -> Any:
    """Return an attribute by another library's name for it. ``AttributeError`` says what to use."""
    if name in _ALIASES:
        return _ALIASES[name](loader)
    kind = type(loader).__name__
    told = f": {_IN_PLACE_OF[name]}" if name in _IN_PLACE_OF else ""
    raise AttributeError(f"{kind!r} object has no attribute {name!r}{told}", name=name, obj=loader)
