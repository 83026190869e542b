"""Options of sampling processes and of the graph store: frozen values that are checked when they are made.

They never change a batch.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, TypeVar

from gigl_loader.resources import free_frame_bytes, usable_cores

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)I?B?\s*", re.IGNORECASE)
_Value = TypeVar("_Value")
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


def whole_number(name: str, value: Any, *, minimum: int) -> int:
    """Return ``value`` as an int of at least ``minimum``. Bools and floats are no whole numbers."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if number < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {number}")
    return number


def flag(name: str, value: Any) -> bool:
    """Return a flag, given as a bool of Python or NumPy, or as 0 or 1. ``TypeError`` for anything else."""
    is_numpy_bool = getattr(getattr(value, "dtype", None), "kind", "") == "b" and value.ndim == 0
    if not (is_numpy_bool or isinstance(value, Integral)) or value not in (0, 1):
        raise TypeError(f"{name} must be True or False, got {value!r:.200}")
    return bool(value)


def real_number(name: str, value: Any, what: str = "a number") -> float:
    """Return a number of Python or NumPy as a float. ``TypeError`` for anything else, bools too."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be {what}, got {value!r}")
    return float(value)


def byte_count(name: str, value: Any, *, minimum: int = 1) -> int:
    """Return a size in bytes, given as a number or as text such as ``"4GB"``.

    Units are K, M, G and T, with or without ``B`` or ``iB``: all are powers of 1024, as in GLT.
    """
    if isinstance(value, str):
        match = _SIZE.fullmatch(value)
        size = int(float(match[1]) * 2 ** _UNITS[match[2].upper()]) if match else 0
        if match is None or size < minimum:
            raise ValueError(f'{name} must be a size such as "4GB" or a number of bytes, got {value!r}')
    else:
        size = whole_number(name, value, minimum=minimum)
    if size >= 1 << 63:
        raise ValueError(f"{name} must be less than 2**63 bytes, got {value!r}")
    return size


def byte_text(nbytes: int) -> str:
    """Return a size as ``byte_count`` reads it, in the largest unit of which it is a multiple."""
    fitting = [(shift, unit) for unit, shift in _UNITS.items() if nbytes % (1 << shift) == 0]
    shift, unit = max(fitting)
    return f"{nbytes >> shift}{unit}B" if unit and nbytes else str(nbytes)


def size_text(nbytes: float) -> str:
    """Return a size for people, such as ``1.5 GB``. Units are powers of 1000."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"


NodeType = str
EdgeType = tuple[str, str, str]


def is_edge_type(value: Any) -> bool:
    """Return whether a value has the form of an edge type: three names, or only those of its ends."""
    return isinstance(value, tuple) and len(value) in (2, 3) and all(isinstance(part, str) for part in value)


def known_edge_type(known: Collection[EdgeType], value: Any, what: str) -> EdgeType:
    """Return an edge type that a user named, also as (source, destination) where one type joins these.

    PyG's ``EdgeTypeStr`` is taken, too. ``TypeError`` and ``ValueError`` list the known types.
    """
    value = value.to_tuple() if hasattr(value, "to_tuple") else value
    if not is_edge_type(value):
        raise TypeError(f"{what} must be (source, relation, destination), got {value!r:.200}")
    for edge_type in known:
        if edge_type == value:
            return edge_type
    step = 3 - len(value)  # 1 compares the ends alone.
    fitting = [each for each in sorted(known) if step and each[:: 1 + step] == value]
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise ValueError(f"{what}: several edge types join {value}: {', '.join(map(str, fitting))}: name one")
    listed = ", ".join(map(str, sorted(known))) or "none"
    turned = next((each for each in known if each[:: -1 - step] == value), None)
    hint = "" if turned is None else f"; edge types run from source to destination: pass {turned}"
    raise ValueError(f"{what}: unknown edge type {value}; known: {listed}{hint}")


def by_edge_type(
    known: Collection[EdgeType], given: Mapping[Any, _Value], what: str
) -> dict[EdgeType, _Value]:
    """Return a user's mapping with the known edge types that its keys name. ``ValueError`` for one twice."""
    found = {known_edge_type(known, key, what): value for key, value in given.items()}
    if len(found) < len(given):
        raise ValueError(f"{what} names an edge type twice: {list(given)}")
    return found


TopologyScope: TypeAlias = Literal["own", "all"]
"""Adjacency to open: of the partitions whose features are open (``own``), or of every partition (``all``)."""
Verify: TypeAlias = Literal["full", "lazy", "none"]
"""``"full"``: opening reads every byte. ``"lazy"``: topology, ids and splits are read before their first use,
features in the background. ``"none"``: only headers are checked."""

TOPOLOGY_SCOPES: tuple[TopologyScope, ...] = ("own", "all")
VERIFY_MODES: tuple[Verify, ...] = ("full", "lazy", "none")

START_METHODS = ("spawn", "forkserver", "fork")
START_METHOD_VARIABLE = "GIGL_START_METHOD"


def start_method_from_environment(environment: Mapping[str, str] | None = None) -> str:
    """Return how sampling processes start where a program does not say: ``GIGL_START_METHOD``, or spawn.

    For programs whose configuration does not reach the arguments of their loaders. ``ValueError`` names the
    variable.
    """
    given = (os.environ if environment is None else environment).get(START_METHOD_VARIABLE) or "spawn"
    if given not in START_METHODS:
        raise ValueError(f"{START_METHOD_VARIABLE} must be one of {', '.join(START_METHODS)}, got {given!r}")
    return given


_MOST_WORKERS = 64
"""That ``"auto"`` takes. No device takes the batches of more."""


def workers_of(value: Any, *, ranks: int) -> int:
    """Return ``num_workers``. ``"auto"``: the usable cores over the ranks of this host, less one to train."""
    if value == "auto":
        return min(max(usable_cores() // ranks - 1, 1), _MOST_WORKERS)
    return whole_number("num_workers", value, minimum=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """Options of the sampling processes of a loader. They never change a batch."""

    num_workers: int = 1
    """Sampling processes. One saturates about one core."""
    worker_concurrency: int = 4
    """Batches in flight per worker. From 2 on, one is sampled while one waits to be used; where partitions
    lie on other hosts, all are sampled at the same time, so that one waits while another is drawn."""
    channel_bytes: int | None = None
    """Memory that batches in flight may take, over all workers. ``None``: half of what is free."""
    in_order: bool = True
    """Deliver batches in their order. False delivers each when it is ready."""
    max_worker_restarts: int = 2
    """How often, over the life of the loader, a dead worker is replaced before ``WorkerDied``."""
    start_method: str = "spawn"
    """``spawn`` starts a fresh interpreter, ``forkserver`` and ``fork`` are as in multiprocessing."""

    def __post_init__(self) -> None:
        if self.num_workers < 1:
            raise ValueError(f"num_workers must be at least 1 for sampling processes, got {self.num_workers}")
        if self.worker_concurrency < 1:
            raise ValueError(f"worker_concurrency must be at least 1, got {self.worker_concurrency}")
        if self.channel_bytes is not None and self.channel_bytes < self.num_workers << 20:
            raise ValueError(f"channel_size must be at least 1 MiB a worker, got {self.channel_bytes} bytes")
        if self.max_worker_restarts < 0:
            raise ValueError(f"max_worker_restarts must not be negative, got {self.max_worker_restarts}")
        if self.start_method not in START_METHODS:
            known = ", ".join(START_METHODS)
            raise ValueError(f"multiprocessing_context must be one of {known}, got {self.start_method!r}")

    def frame_bytes(self, *, ranks: int = 1) -> int:
        """Return the memory that batches in flight may take now, where ``ranks`` share this host."""
        return free_frame_bytes(ranks=ranks) if self.channel_bytes is None else self.channel_bytes


_MAX_PREFETCHED = 64
MAX_KEY = 200
"""Characters. Servers take 256, of which some tell loaders apart that were given one name."""

MAX_TEXT_ID = 2048
"""Characters of a text id, at most."""

MAX_MANIFEST_BYTES = 64 << 20
"""Of ``graph.json``, at most: enough for some 300,000 files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options of a graph store's loaders. They never change a batch, and are refused elsewhere."""

    prefetch_size: int | None = None
    """Batches in flight per storage server."""
    worker_key: str | None = None
    """Loaders of a job with equal keys share one producer. By default, a loader's is its own."""
    max_producer_inits: int | None = None
    """Leaders that create producers at the same time, over all ranks. By default, as many as there are."""

    def __post_init__(self) -> None:
        if self.prefetch_size is not None:
            whole_number("prefetch_size", self.prefetch_size, minimum=1)
            if self.prefetch_size > _MAX_PREFETCHED:
                raise ValueError(f"prefetch_size must be at most {_MAX_PREFETCHED}, got {self.prefetch_size}")
        key = self.worker_key
        if key is not None and (not isinstance(key, str) or not 0 < len(key) <= MAX_KEY):
            raise ValueError(f"worker_key must be a text of 1 to {MAX_KEY} characters, got {key!r}")
        if self.max_producer_inits is not None:
            whole_number("max_concurrent_producer_inits", self.max_producer_inits, minimum=1)

    def given(self) -> dict[str, Any]:
        """Return the options that were given, by the names that loaders have for them."""
        named = {
            "prefetch_size": self.prefetch_size,
            "worker_key": self.worker_key,
            "max_concurrent_producer_inits": self.max_producer_inits,
        }
        return {name: value for name, value in named.items() if value is not None}


CachePolicy: TypeAlias = Literal["census", "degree", "none"]
"""By what rows without a known next use are kept: how often batches wanted them, degrees, or neither."""

CACHE_POLICIES: tuple[CachePolicy, ...] = ("census", "degree", "none")


def _device_memory(value: Any) -> tuple[int | None, bool]:
    """Return bytes of the device, and whether it reads the host's memory."""
    name = "feature_memory_device"
    if value is None:
        return None, False
    if not isinstance(value, str) or "host" not in value:
        return byte_count(name, value), False
    size, plus, host = value.rpartition("+")
    if host.strip() != "host" or bool(plus) != bool(size):
        raise ValueError(f'{name} must be a size such as "4GB", "host", or both, "4GB+host", got {value!r}')
    return (byte_count(name, size.strip()) if size else 0), True


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureOptions:
    """Memory that features may take on a host, and how it is used. They never change a batch."""

    memory_bytes: int | None = None
    """Bytes of memory of the host. ``None``: what is free, less what batches need."""
    device_bytes: int | None = None
    """Bytes of each rank's device for rows that stay there. ``None``: none."""
    device_reads_host: bool = False
    """The device reads other rows of the host's memory itself, where it can."""
    window: int | None = None
    """Batches whose rows are fetched together, at most. ``None``: as many as fit."""
    cache_policy: CachePolicy = "census"

    @classmethod
    def read(cls, memory: Any, device: Any, window: Any, cache_policy: Any) -> FeatureOptions:
        """Check the arguments of a loader. Errors name argument, value and rule."""
        device_bytes, device_reads_host = _device_memory(device)
        return cls(
            memory_bytes=None if memory == "auto" else byte_count('feature_memory, if not "auto",', memory),
            device_bytes=device_bytes,
            device_reads_host=device_reads_host,
            window=None if window == "auto" else whole_number('window, if not "auto",', window, minimum=1),
            cache_policy=cache_policy,
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes that were given, by the names that loaders have for them."""
        named = {"feature_memory": self.memory_bytes, "feature_memory_device": self.device_bytes}
        return {name: value for name, value in named.items() if value is not None}

    def __post_init__(self) -> None:
        for name, value in (*self.sizes.items(), ("window", self.window)):
            is_host_alone = name == "feature_memory_device" and self.device_reads_host
            if value is not None:
                whole_number(name, value, minimum=0 if is_host_alone else 1)
        if self.cache_policy not in CACHE_POLICIES:
            known = ", ".join(map(repr, CACHE_POLICIES))
            raise ValueError(f"cache_policy must be one of {known}, got {self.cache_policy!r}")


def check_topology(topology: object) -> TopologyScope:
    """Return ``topology``, if it is one of the choices. ``ValueError`` lists them."""
    for choice in TOPOLOGY_SCOPES:
        if topology == choice:
            return choice
    raise ValueError(f"topology must be 'own' or 'all', got {topology!r}")


def check_verify(verify: object) -> Verify:
    """Return ``verify``, if it is one of the modes. ``ValueError`` lists them."""
    for mode in VERIFY_MODES:
        if verify == mode:
            return mode
    raise ValueError(f"verify must be one of {', '.join(map(repr, VERIFY_MODES))}, got {verify!r}")


def check_sampler_name(name: str, sampler: object) -> str:
    """Return ``sampler``, if it is ``"package.module:Class"``. ``ValueError`` begins with ``name``."""
    module, _, found = sampler.partition(":") if isinstance(sampler, str) else ("", "", "")
    if not all(part.isidentifier() for part in (*module.split("."), *found.split("."))):
        raise ValueError(f"{name} must be package.module:Class, got {str(sampler)[:200]!r}")
    return f"{module}:{found}"
