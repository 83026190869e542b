"""Arguments of a loader: their names, defaults, meaning and checks.

A function for each kind of argument returns the checked value, or raises ``ValueError`` or ``TypeError`` with
the rule that is broken.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, TypeAlias

import torch
from typing_extensions import TypedDict

from gigl_loader.loaders.dequantize import value_dtype
from gigl_loader.loaders.migration import attribute_of, changes_nothing, is_default_of_torch, remedy
from gigl_loader.options import (
    FeatureOptions,
    StoreOptions,
    WorkerOptions,
    byte_count,
    flag,
    real_number,
    start_method_from_environment,
    whole_number,
    workers_of,
)
from gigl_loader.shared import SharedTensors, check_shared

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.context import BaseContext

    from torch_geometric.sampler import NumNeighbors

    from gigl_loader.options import CachePolicy, EdgeType, NodeType

NodeColumns: TypeAlias = "Sequence[str] | Mapping[NodeType, Sequence[str]] | None"
EdgeColumns: TypeAlias = "Sequence[str] | Mapping[EdgeType, Sequence[str]] | None"
Fanouts: TypeAlias = "Sequence[int] | Mapping[Any, Sequence[int]] | NumNeighbors"
"""Neighbours per hop, for all edge types, or by edge type (in full, or its two ends)."""
ColumnByType: TypeAlias = "str | Mapping[Any, str] | None"
"""A declared column, for all types that have it, or by type: a node type, an edge type, or its two ends."""


class LoaderOptions(TypedDict, total=False):
    """Keyword arguments of every loader, for the ``**options`` of a subclass.

    Options of sampling processes (``worker_concurrency``, ``multiprocessing_context``,
    ``max_worker_restarts``) have no effect with a graph store, so that a script may go from one kind of
    dataset to the other. Those that only a graph store has are refused elsewhere.

    ``persistent_workers``, ``pin_memory``, ``is_sorted`` and ``filter_per_worker`` are accepted and have no
    effect: workers always persist, frames are always pinned for CUDA. ``TypeError`` for any other name,
    with what to use instead.
    """

    batch_size: int
    """Seeds per batch, by default 1."""
    shuffle: bool
    """A new order of the seeds each epoch."""
    drop_last: bool
    """Leave out a last batch that is short."""
    seed: int | None
    """Run seed. Random (the same on all ranks), and logged, when ``None``."""
    num_workers: int | Literal["auto"]
    """Sampling processes, by default 1. ``"auto"``: the usable cores over the ranks of the host, less one for
    the trainer. 0 samples in this process, when the batch is requested. Graph store:
    this loader's share of the servers' threads; 0 requests a batch when it is needed."""
    worker_concurrency: int
    """Batches in flight per sampling process, by default 4. Fewer where ``channel_size`` holds fewer."""
    channel_size: int | str | None
    """Memory that batches in flight may take, in bytes or as ``"4GB"``. By default, half of what is free,
    shared by the ranks of the host. Where it is short, fewer batches are in flight."""
    feature_memory: int | str
    """Memory of this host that features may take, in bytes or as ``"4GB"``. ``"auto"`` (default): what is
    free, less what batches need. Features that do not fit are read when they are wanted, through a cache.
    Rows of other hosts and of storage servers are kept so only where a size is given."""
    feature_memory_device: int | str | None
    """Memory of this rank's device for rows of nodes that batches want most, in bytes or as ``"2GB"``. These
    rows stay there, and batches bring the other rows. With ``"2GB+host"`` a CUDA device reads the other rows
    (of edges, too) itself, out of this host's memory, which is page-locked; with ``"host"`` all rows."""
    window: int | str
    """Batches whose rows are fetched together, each row once, at most. ``"auto"`` (default): what fits."""
    cache_policy: CachePolicy
    """By what the cache keeps rows of no known next use: ``"census"`` (default) counts how often batches
    wanted them, ``"degree"`` takes degrees, ``"none"`` neither."""
    prefetch_size: int | None
    """Graph store: batches in flight per server, by default 4."""
    worker_key: str | None
    """Graph store: loaders of equal keys share one producer, which must be the same. By default, the loaders
    of one name on all ranks have one key."""
    max_concurrent_producer_inits: int | None
    """Graph store: how many ranks create producers at the same time, by default any number."""
    seed_weights: SharedTensors | torch.Tensor | None
    """Draw the seeds of each batch with replacement, in proportion to weights that may change while batches
    are made: shared tensors, one of which is named ``weight``, one float32 or float64 for each entry of the
    input. A plain tensor is copied and never changes. Not together with ``shuffle``."""
    shared_tensors: SharedTensors | None
    """Tensors that a sampler of your own sees as ``graph.shared`` and may write to. Not in a graph store."""
    node_columns: NodeColumns
    """Columns that batches carry: names, for every type that has them, or lists of names by type, where types
    that are left out keep all. ``[]`` for none. By default, all. Other columns are neither read nor sent."""
    edge_columns: EdgeColumns
    """The same for columns of edges."""
    sharding: str | None
    """How the ranks of a process group share the input, which every rank passes whole: ``"batches"`` (the
    default there) gives each a share, ``"none"`` gives this rank all of it, whatever other ranks do."""
    even_batches: bool
    """Ranks get equally many batches, also where fewer seeds remain than there are ranks: ranks without a
    seed then repeat one each. False gives them one batch less."""
    device: torch.device | str | int | None
    """Where batches go: by default this rank's CUDA device if there is one, else the CPU."""
    pin_memory_device: torch.device | str | int | None
    """Alias of ``device``."""
    non_blocking_transfers: bool
    """Copy to CUDA on a side stream while the trainer computes. The default."""
    dequantize_to: torch.dtype
    """Dtype of quantised columns in batches: float32 (the default), float16, bfloat16 or float64. Values are
    computed on the device, as float32, and converted."""
    process_start_gap_seconds: float | None
    """Seconds between the starts of local ranks. ``None``: each starts its sampling processes when the
    processes of another are up. No effect with one rank on a host. Graph store: seconds between the starts
    of ranks that create producers, where their number at the same time is limited."""
    multiprocessing_context: str | BaseContext | None
    """``"spawn"`` (fresh interpreters without torch), ``"forkserver"`` or ``"fork"``, or a context of
    ``multiprocessing`` or ``torch.multiprocessing``, of which only the start method is used. Without it, or
    with ``None``, the environment's ``GIGL_START_METHOD``, else ``"spawn"``."""
    timeout: float
    """Seconds that any wait may take before ``TimeoutError``, by default 300. Torch's 0 means the default."""
    transform: Callable[[Any], Any] | None
    """Called on every batch in this process, on the target device; its result is the batch."""
    in_order: bool
    """False hands out batches as they become ready."""
    max_worker_restarts: int
    """How many sampling processes that died are replaced before ``WorkerDied``, by default 2."""
    name: str | None
    """Of this loader, in messages. Ranks that share an input find each other's loaders by it."""


DEFAULTS: LoaderOptions = {
    "batch_size": 1,
    "shuffle": False,
    "drop_last": False,
    "seed": None,
    "num_workers": 1,
    "worker_concurrency": 4,
    "channel_size": None,
    "feature_memory": "auto",
    "feature_memory_device": None,
    "window": "auto",
    "cache_policy": "census",
    "prefetch_size": None,
    "worker_key": None,
    "max_concurrent_producer_inits": None,
    "seed_weights": None,
    "shared_tensors": None,
    "node_columns": None,
    "edge_columns": None,
    "sharding": None,
    "even_batches": True,
    "device": None,
    "pin_memory_device": None,
    "non_blocking_transfers": True,
    "dequantize_to": torch.float32,
    "process_start_gap_seconds": None,
    "multiprocessing_context": "spawn",
    "timeout": 300.0,
    "transform": None,
    "in_order": True,
    "max_worker_restarts": 2,
    "name": None,
}
"""Every option, in the order of the signature."""


def with_defaults(cls: type, options: Mapping[str, Any]) -> LoaderOptions:
    """Return the options that a loader of class ``cls`` was given, and the defaults of all other options.

    ``TypeError`` names the class and an argument that it does not have, with what to use instead. Arguments
    of other libraries' loaders that change nothing are accepted and left out.
    """
    known: Any = {**DEFAULTS, **options}
    if options.get("multiprocessing_context") is None:
        known["multiprocessing_context"] = start_method_from_environment()
    for name, value in options.items():
        if name in DEFAULTS:
            if is_default_of_torch(name, value):
                known[name] = DEFAULTS[name]  # type: ignore[literal-required]
            continue
        del known[name]
        if not changes_nothing(name, value):
            raise TypeError(f"{cls.__name__}() has no argument {name!r}: {remedy(cls, name, value)}")
    return known  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedOptions:
    """Checked options of a loader, except for its place among the ranks (``PlacementOptions``)."""

    batch_size: int
    shuffle: bool
    drop_last: bool
    seed: int | None
    """Run seed; ``None``: a random one."""
    num_workers: int
    workers: WorkerOptions
    store: StoreOptions
    features: FeatureOptions
    device: Any
    pin_memory_device: Any
    non_blocking_transfers: bool
    dequantize_to: torch.dtype
    shared: SharedTensors | None
    start_gap_s: float | None
    transform: Callable[[Any], Any] | None

    @classmethod
    def read(cls, given: LoaderOptions, *, ranks: int) -> CheckedOptions:
        """Check ``given``, which has every option. Errors name option, value and rule.

        ``ranks``: of this host.
        """
        flag("even_batches", given["even_batches"])
        store = StoreOptions(
            prefetch_size=given["prefetch_size"],
            worker_key=given["worker_key"],
            max_producer_inits=given["max_concurrent_producer_inits"],
        )
        gap, transform = given["process_start_gap_seconds"], given["transform"]
        channel = given["channel_size"]
        num_workers = workers_of(given["num_workers"], ranks=ranks)
        if transform is not None and not callable(transform):
            raise TypeError(f"transform must be callable, got {transform!r}")
        return cls(
            store=store,
            features=FeatureOptions.read(
                given["feature_memory"],
                given["feature_memory_device"],
                given["window"],
                given["cache_policy"],
            ),
            start_gap_s=None if gap is None else seconds("process_start_gap_seconds", gap),
            batch_size=whole_number("batch_size", given["batch_size"], minimum=1),
            shuffle=flag("shuffle", given["shuffle"]),
            drop_last=flag("drop_last", given["drop_last"]),
            num_workers=num_workers,
            # Checked also where there are no sampling processes.
            workers=WorkerOptions(
                num_workers=max(num_workers, 1),
                worker_concurrency=whole_number("worker_concurrency", given["worker_concurrency"], minimum=1),
                channel_bytes=None if channel is None else byte_count("channel_size", channel),
                in_order=flag("in_order", given["in_order"]),
                max_worker_restarts=whole_number(
                    "max_worker_restarts", given["max_worker_restarts"], minimum=0
                ),
                start_method=start_method(given["multiprocessing_context"], num_workers=num_workers),
            ),
            device=given["device"],
            pin_memory_device=given["pin_memory_device"],
            non_blocking_transfers=flag("non_blocking_transfers", given["non_blocking_transfers"]),
            dequantize_to=value_dtype(given["dequantize_to"]),
            shared=check_shared("shared_tensors", given["shared_tensors"]),
            transform=transform,
            seed=run_seed(given["seed"]),
        )


class FixedArguments:
    """Base of the loaders: their full signatures, and the refusal to assign what was settled at construction.

    Names of a subclass's own, which are no arguments, may be assigned.
    """

    name: str
    _arguments: ClassVar[frozenset[str]] = frozenset()
    """Names of the arguments of the constructors of the class and its bases."""
    _settled: ClassVar[frozenset[str]] = frozenset()
    """Attributes that follow from the arguments."""
    _is_built = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show the arguments behind a subclass's ``**options`` in its signature."""
        super().__init_subclass__(**kwargs)
        if FixedArguments in cls.__bases__:
            cls._settled = frozenset(cls.__annotations__)
        signature = full_signature(cls)
        cls.__signature__ = signature  # type: ignore[attr-defined]
        cls._arguments |= frozenset(signature.parameters)

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse, with ``AttributeError``, what was settled at construction."""
        if self._is_built and self._is_settled(name):
            remedy = f"shut this loader down and build another, {type(self).__name__}(..., {name}=...)"
            if name not in self._arguments:
                remedy = "it follows from the arguments of the loader"
            raise AttributeError(f"{self.name}: {name} is fixed at construction: {remedy}")
        super().__setattr__(name, value)

    def _set(self, **attributes: Any) -> None:
        """Assign what users cannot assign once the loader is built."""
        vars(self).update(attributes)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self.name} cannot be pickled or copied: it owns processes and memory of this process; "
            "build a loader in the process that uses it (torch.multiprocessing.spawn: in the function; "
            "Lightning: in train_dataloader()), and carry its state_dict() over"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what other libraries' loaders have by another name, or say what has taken its place."""
            return attribute_of(self, name)

    def __getitem__(self, index: Any) -> NoReturn:
        raise TypeError(
            f"{self.name} makes batches by itself: iterate it in place of DataLoader(loader) or "
            "StatefulDataLoader(loader), whose state_dict() and load_state_dict() it has; loader([i, j]) is "
            "the batch of these places of the input"
        )

    def _is_settled(self, name: str) -> bool:
        """Whether a name is an argument of the loader, or follows from its arguments."""
        if name.startswith("_"):
            return False
        if name in self._settled or name in DEFAULTS:
            return True
        # A subclass may keep an argument of its own after the base is built, but only once.
        kept = vars(self)
        is_kept = name in kept or f"_{name}" in kept or hasattr(kept.get("_sampling"), name)
        return is_kept and name in self._arguments


def seconds(name: str, value: Any, *, above_zero: bool = False) -> float:
    """Return a finite, non-negative number of seconds."""
    number = real_number(name, value, "a number of seconds")
    if not math.isfinite(number) or number < 0 or (above_zero and number == 0):
        rule = "positive" if above_zero else "not negative"
        raise ValueError(f"{name} must be finite and {rule}, got {value!r}")
    return number


def run_seed(value: Any) -> int | None:
    return None if value is None else _whole_below("seed", value, bits=64)


def whole_epoch(value: Any) -> int:
    return _whole_below("epoch", value, bits=63)


def _whole_below(name: str, value: Any, *, bits: int) -> int:
    number = whole_number(name, value, minimum=0)
    if number >= 2**bits:
        raise ValueError(f"{name} must be below 2**{bits}, got {number}")
    return number


def start_method(value: Any, *, num_workers: int) -> Any:
    """Return the name of a start method, also of a context of ``multiprocessing``. Its use checks it."""
    if callable(getattr(value, "get_start_method", None)):
        value = value.get_start_method()
    if value == "fork" and num_workers and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise ValueError(
            "multiprocessing_context='fork' after CUDA was initialised would break CUDA in this process; "
            "use 'spawn', or build the loader before the first use of CUDA"
        )
    return value


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
    else:
        for name, default in DEFAULTS.items():
            kind = LoaderOptions.__annotations__[name].__forward_arg__
            parameter = inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind
            )
            parameters.setdefault(name, parameter)
    return inspect.Signature([p for p in parameters.values() if p.kind is not p.VAR_KEYWORD])
