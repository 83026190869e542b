"""A loader's arguments: their names, and a function per kind that returns a checked value or says
which rule is broken.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import torch
from typing_extensions import TypedDict, Unpack

from gigl_loader.graph.column_names import check_column_names
from gigl_loader.graph.schema import EdgeType, NodeType
from gigl_loader.loaders.dequantize import value_dtype
from gigl_loader.options import START_METHODS, StoreOptions, WorkerOptions, byte_count, whole_number
from gigl_loader.sampling.khop import SUBGRAPH_TYPES
from gigl_loader.sampling.plan import ColumnPlan, SamplerArguments
from gigl_loader.sampling.plans.neighbor import KHopNeighborSamplerOptions, LaborSamplerOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.sampling.plan import SamplerOptions
    from gigl_loader.shared import SharedTensors

__all__ = [
    "CheckedOptions",
    "EdgeColumns",
    "LoaderOptions",
    "NodeColumns",
    "byte_count",
    "check_other_arguments",
    "check_sampler_options",
    "flag",
    "full_signature",
    "khop_arguments",
    "optional_callable",
    "read_columns",
    "run_seed",
    "sampler_arguments",
    "seconds",
    "sharding",
    "start_gap",
    "start_method",
    "target_device",
    "whole_epoch",
    "whole_number",
    "worker_options",
]

NodeColumns: TypeAlias = "Sequence[str] | Mapping[NodeType, Sequence[str]] | None"
EdgeColumns: TypeAlias = "Sequence[str] | Mapping[EdgeType, Sequence[str]] | None"

_Kind = TypeVar("_Kind", NodeType, EdgeType)


def read_columns(schema: GraphSchema, node_columns: Any, edge_columns: Any) -> ColumnPlan:
    """Return the columns that a user chose. ``None`` stands for all.

    A list is for all types, each of which has those of its columns; a mapping is by type, and types that it
    leaves out keep all. ``ValueError`` and ``TypeError`` name what is not in the graph, and a column that an
    attribute of batches would hide.
    """
    columns = ColumnPlan(
        nodes=_chosen("node_columns", node_columns, {k: v.columns for k, v in schema.nodes.items()}),
        edges=_chosen("edge_columns", edge_columns, {k: v.columns for k, v in schema.edges.items()}),
    )
    check_column_names(columns.nodes, columns.edges, homogeneous=schema.homogeneous)
    return columns


def _chosen(
    option: str, given: Any, known: Mapping[_Kind, Mapping[str, object]]
) -> dict[_Kind, tuple[str, ...]]:
    if given is None:
        return {kind: tuple(columns) for kind, columns in known.items()}
    if isinstance(given, Mapping):
        for kind in given:
            if kind not in known:
                raise ValueError(f"{option}: unknown type {kind!r}; known: {_listed(known)}")
        wanted = {kind: _names(f"{option} of {kind!r}", names) for kind, names in given.items()}
        for kind, names in wanted.items():
            _check_known(f"{option} of {kind!r}", names, known[kind])
        return {kind: _kept(columns, wanted.get(kind)) for kind, columns in known.items()}
    names = _names(option, given)
    _check_known(option, names, {name for columns in known.values() for name in columns})
    return {kind: _kept(columns, names) for kind, columns in known.items()}


def _kept(columns: Mapping[str, object], wanted: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(name for name in columns if wanted is None or name in wanted)


def _names(what: str, given: Any) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"{what} must be a list of names, or a mapping of types to lists, got {given!r:.200}")
    wrong = [name for name in given if not isinstance(name, str)]
    if wrong:
        raise TypeError(f"{what} must be names, got {wrong[0]!r:.200}")
    return list(given)


def _check_known(what: str, names: Sequence[str], known: Any) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{what}: no column {name!r}; known: {_listed(known)}")


def _listed(names: Any) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


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


class LoaderOptions(TypedDict, total=False):
    """The keyword arguments of every loader, for the ``**options`` of a subclass."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int | None
    num_workers: int
    worker_concurrency: int
    channel_size: int | str
    prefetch_size: int | None
    worker_key: str | None
    max_concurrent_producer_inits: int | None
    seed_weights: SharedTensors | torch.Tensor | None
    node_columns: NodeColumns
    edge_columns: EdgeColumns
    sharding: str | None
    even_batches: bool
    device: torch.device | str | int | None
    pin_memory_device: torch.device | str | int | None
    non_blocking_transfers: bool
    dequantize_to: torch.dtype
    process_start_gap_seconds: float | None
    multiprocessing_context: str
    timeout: float
    transform: Callable[[Any], Any] | None
    in_order: bool
    max_worker_restarts: int
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOptions:
    """The options of a loader, checked, but for those of its place among the ranks (``PlacementOptions``)."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int | None
    """Run seed; ``None``: a random one."""
    num_workers: int
    workers: WorkerOptions
    store: StoreOptions
    device: Any
    pin_memory_device: Any
    non_blocking_transfers: bool
    dequantize_to: torch.dtype
    start_gap_s: float | None
    transform: Callable[[Any], Any] | None

    @classmethod
    def read(cls, **options: Unpack[LoaderOptions]) -> CheckedOptions:
        """Return a user's options. ``ValueError`` and ``TypeError`` name option, value and rule."""
        flag("even_batches", options["even_batches"])
        store = StoreOptions(
            prefetch_size=options["prefetch_size"],
            worker_key=options["worker_key"],
            max_producer_inits=options["max_concurrent_producer_inits"],
        )
        num_workers = whole_number("num_workers", options["num_workers"], minimum=0)
        return cls(
            store=store,
            start_gap_s=start_gap(options["process_start_gap_seconds"]),
            batch_size=whole_number("batch_size", options["batch_size"], minimum=1),
            shuffle=flag("shuffle", options["shuffle"]),
            drop_last=flag("drop_last", options["drop_last"]),
            num_workers=num_workers,
            workers=worker_options(
                num_workers=num_workers,
                worker_concurrency=options["worker_concurrency"],
                channel_size=options["channel_size"],
                in_order=options["in_order"],
                max_worker_restarts=options["max_worker_restarts"],
                multiprocessing_context=options["multiprocessing_context"],
            ),
            device=options["device"],
            pin_memory_device=options["pin_memory_device"],
            non_blocking_transfers=flag("non_blocking_transfers", options["non_blocking_transfers"]),
            dequantize_to=value_dtype(options["dequantize_to"]),
            transform=optional_callable("transform", options["transform"]),
            seed=run_seed(options["seed"]),
        )


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return value


def check_sampler_options(value: Any) -> SamplerOptions:
    """Return the options of a kind of sampler."""
    if isinstance(value, type) or not callable(getattr(value, "plan", None)):
        raise TypeError(
            "sampler_options must be options of a kind of sampler, such as KHopNeighborSamplerOptions() or "
            f"CustomSamplerOptions(...), got {value!r}"
        )
    return value  # type: ignore[no-any-return]


def sampler_arguments(
    num_neighbors: Any,
    *,
    replace: Any,
    with_edge: Any,
    weight_attr: Any,
    disjoint: Any,
    time_attr: Any = None,
    temporal_strategy: Any = "uniform",
    with_times: bool = False,
    subgraph_type: Any = "directional",
) -> SamplerArguments:
    """Return the arguments that say how neighbours are drawn; sampler options check the rest of them."""
    if with_times and time_attr is None:
        raise ValueError("input_time has no meaning without time_attr, the column that it bounds")
    return SamplerArguments(
        num_neighbors=num_neighbors,
        replace=flag("replace", replace),
        with_edge=None if with_edge is None else flag("with_edge", with_edge),
        weight_attr=weight_attr,
        disjoint=flag("disjoint", disjoint),
        time_attr=time_attr,
        last=_is_last(temporal_strategy, time_attr),
        with_times=with_times,
        subgraph_type=_subgraph_type(subgraph_type),
    )


def _is_last(strategy: Any, time_attr: Any) -> bool:
    if strategy not in ("uniform", "last"):
        raise ValueError(f"temporal_strategy must be 'uniform' or 'last', got {strategy!r}")
    if strategy == "last" and time_attr is None:
        raise ValueError("temporal_strategy 'last' needs time_attr, the column that says what is last")
    return bool(strategy == "last")


def _subgraph_type(value: Any) -> str:
    """Return the name of a type of subgraphs, also of a ``SubgraphType`` of PyG."""
    name = getattr(value, "value", value)
    if not isinstance(name, str) or name not in SUBGRAPH_TYPES:
        raise ValueError(f"subgraph_type must be one of {', '.join(SUBGRAPH_TYPES)}, got {value!r:.200}")
    return name


def khop_arguments(arguments: SamplerArguments, options: Any, what: str) -> SamplerArguments:
    """Return the arguments with what the sampler options say of hops.

    ``ValueError`` for options of a sampler that only nodes are sampled by.
    """
    if isinstance(check_sampler_options(options), LaborSamplerOptions):
        return replace(arguments, labor=True)
    if not isinstance(options, KHopNeighborSamplerOptions):
        raise ValueError(
            f"{options!r} samples around nodes: {what} need KHopNeighborSamplerOptions() or "
            "LaborSamplerOptions()"
        )
    return arguments


def seconds(name: str, value: Any, *, above_zero: bool = False) -> float:
    """Return a finite, non-negative number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    number = float(value)
    if not math.isfinite(number) or number < 0 or (above_zero and number == 0):
        rule = "positive" if above_zero else "not negative"
        raise ValueError(f"{name} must be finite and {rule}, got {value!r}")
    return number


def run_seed(value: Any) -> int | None:
    if value is None:
        return None
    seed = whole_number("seed", value, minimum=0)
    if seed >= 2**64:
        raise ValueError(f"seed must be below 2**64, got {seed}")
    return seed


def whole_epoch(value: Any) -> int:
    epoch = whole_number("epoch", value, minimum=0)
    if epoch >= 2**63:
        raise ValueError(f"epoch must be below 2**63, got {epoch}")
    return epoch


def sharding(value: Any, *, many_ranks: bool) -> str:
    """Return how ranks share the input: by batches where there are several, unless told otherwise."""
    if value is None:
        return "batches" if many_ranks else "none"
    if value not in ("batches", "none"):
        raise ValueError(f"sharding must be 'batches', 'none' or None, got {value!r}")
    return str(value)


def start_gap(value: Any) -> float | None:
    return None if value is None else seconds("process_start_gap_seconds", value)


def worker_options(
    *,
    num_workers: int,
    worker_concurrency: Any,
    channel_size: Any,
    in_order: Any,
    max_worker_restarts: Any,
    multiprocessing_context: Any,
) -> WorkerOptions:
    """Return the options of sampling processes, checked also where there are none (``num_workers=0``)."""
    return WorkerOptions(
        num_workers=max(num_workers, 1),
        worker_concurrency=whole_number("worker_concurrency", worker_concurrency, minimum=1),
        channel_bytes=byte_count("channel_size", channel_size),
        in_order=flag("in_order", in_order),
        max_worker_restarts=whole_number("max_worker_restarts", max_worker_restarts, minimum=0),
        start_method=start_method(multiprocessing_context, num_workers=num_workers),
    )


def start_method(value: Any, *, num_workers: int) -> str:
    if value not in START_METHODS:
        raise ValueError(f"multiprocessing_context must be one of {', '.join(START_METHODS)}, got {value!r}")
    if value == "fork" and num_workers and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ValueError(
            "multiprocessing_context='fork' after CUDA was initialised would break CUDA in this process; "
            "use 'spawn', or build the loader before the first use of CUDA"
        )
    return str(value)


def optional_callable(name: str, value: Any) -> Callable[[Any], Any] | None:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be callable, got {value!r}")
    return value  # type: ignore[no-any-return]


def target_device(device: Any, alias: Any, *, local_rank: int) -> torch.device:
    """Return the device batches go to: the one asked for, else this rank's CUDA device, else the CPU.

    ``alias`` is ``pin_memory_device``, the name that GiGL gives the same argument.
    """
    if alias is not None:
        if device is not None and torch.device(device) != torch.device(alias):
            raise ValueError(f"device={device!r} and its alias pin_memory_device={alias!r} differ")
        device = alias
    if device is None:
        if not torch.cuda.is_available():
            return torch.device("cpu")
        return torch.device("cuda", local_rank % torch.cuda.device_count())
    return _usable(device)


def _usable(value: Any) -> torch.device:
    try:
        device = torch.device(value)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device {value!r} is not a device: {str(error).splitlines()[0]}") from None
    if device.type == "cpu":
        return torch.device("cpu")
    if device.type != "cuda":
        raise ValueError(f"device must be a cpu or cuda device, got {value!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.index if device.index is not None else 0
    if index >= count:
        raise ValueError(f"device {value!r} does not exist: this process sees {count} CUDA devices")
    return torch.device("cuda", torch.cuda.current_device() if device.index is None else index)


def full_signature(cls: type) -> inspect.Signature:
    """Return the signature of a class with the keyword arguments of its bases in place of ``**options``."""
    parameters: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if "__init__" not in vars(base):
            continue
        own = list(inspect.signature(base.__init__).parameters.values())[1:]  # type: ignore[misc]
        inherited = bool(parameters)
        for parameter in own:
            # What a base takes by place is for its subclass to give.
            if parameter.kind is parameter.KEYWORD_ONLY or not inherited:
                parameters.setdefault(parameter.name, parameter)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in own):
            break
    return inspect.Signature([p for p in parameters.values() if p.kind is not p.VAR_KEYWORD])
