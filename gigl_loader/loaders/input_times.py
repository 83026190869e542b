"""Times of the entries of an input, in the forms in which users pass them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch

from gigl_loader.arrays import Int64Array, first_true, plain_values, tensor_of
from gigl_loader.graph.times import in_unit
from gigl_loader.loaders.inputs import SeedNodes, num_entries
from gigl_loader.loaders.seeds_by_type import SeedsByType, times_by_type
from gigl_loader.sampling.request import TIME, TIME_START, BatchRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.loaders.inputs import LoaderInput
    from gigl_loader.sampling.plan import SamplerArguments
    from gigl_loader.sampling.request import InputColumn

_Input = TypeVar("_Input", bound="LoaderInput")

_TIMES = {
    "input_time": TIME,
    "edge_label_time": TIME,
    "time": TIME,
    "input_time_start": TIME_START,
    "time_start": TIME_START,
}
"""The columns of times, by the arguments that give them."""


def timed_input(seeds: _Input, *, unit: str | None, **given: Any) -> _Input:
    """Return the input with the times that a user gave, by argument. ``None``: not given.

    ``unit``: that of the column of times. ``TypeError`` and ``ValueError`` name the rule that is broken.
    """
    times = {name: _times(name, value, seeds, unit) for name, value in given.items() if value is not None}
    if len(times) == 2:
        (name, ends), (start_name, starts) = times.items()
        if (entry := first_true(starts > ends)) is not None:
            raise ValueError(
                f"{start_name} is later than {name} for entry {entry} of the input: {starts[entry]}, "
                f"{ends[entry]}"
            )
    return seeds.with_times({_TIMES[name]: array for name, array in times.items()}) if times else seeds


def _times(name: str, value: Any, seeds: LoaderInput, unit: str | None) -> Int64Array:
    """Return the time of each entry, int64 [N]. Of seeds of several types, they are given by type."""
    if isinstance(seeds, SeedsByType):
        by_type = times_by_type(name, value, seeds)
        parts = [
            _times(f"{name} of {kind!r}", by_type[kind], each, unit) for kind, each in seeds.by_type.items()
        ]
        return np.concatenate(parts)
    if isinstance(seeds, SeedNodes) and isinstance(value, Mapping) and [*value] == [seeds.node_type]:
        value = value[seeds.node_type]
    return read_times(name, value, count=num_entries(seeds), places=seeds.places, unit=unit)


def request_alone(
    seeds: LoaderInput, epoch: int, wanted: Iterable[InputColumn], *, unit: str | None, **given: Any
) -> BatchRequest:
    """Return the request for entries sampled by themselves, with the times that the plan wants of each.

    ``wanted``: columns of the plan's requests. ``ValueError`` where a time lacks, or has no meaning.
    """
    names = {column.name for column in wanted}
    for name, value in given.items():
        is_needed = _TIMES[name] in names
        if is_needed != (value is not None):
            rule = "is needed, as the loader has times with its input" if is_needed else "has no meaning here"
            raise ValueError(f"{name}, that of each seed, {rule}")
    if not num_entries(seeds):
        raise ValueError(f"a batch needs at least one {seeds.what}")
    timed = timed_input(seeds, unit=unit, **given)
    places = np.arange(num_entries(timed)) if timed.places is None else timed.places
    return BatchRequest(epoch, 0, places, timed.columns)


def read_times(
    name: str, value: Any, *, count: int, places: Int64Array | None = None, unit: str | None = None
) -> Int64Array:
    """Return the time of each entry, int64 [count].

    ``places``: where each entry stands in a mask; ``value`` may then have a time for each place of the mask.
    ``unit``: that of the column of times. ``TypeError`` and ``ValueError`` name the rule that is broken.
    """
    if not count:
        return np.empty(0, np.int64)
    value = plain_values(name, in_unit(name, value, unit))
    try:
        times = tensor_of(name, value)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be a tensor of integers, got a {type(value).__name__}") from None
    if times.is_floating_point() or times.is_complex() or times.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, got {times.dtype}")
    if times.ndim != 1 and times.shape[1:] != (1,):
        raise ValueError(f"{name} must be 1-D, got shape {list(times.shape)}")
    array = np.ascontiguousarray(times.to(torch.int64).numpy().reshape(-1))
    if places is not None and len(array) != count and len(array) > int(places.max()):
        array = array[places]
    if len(array) != count:
        raise ValueError(
            f"{name} needs one time for each of the {count} entries of the input, got {len(array)}"
        )
    return array


def without_past(arguments: SamplerArguments, schema: GraphSchema) -> str:
    """Return the warning where no seed of a batch has an edge that is early enough for it."""
    shown = "nanoseconds since 1970" if arguments.time_unit(schema) else "numbers without a unit"
    return (
        "no seed of a batch has an edge or neighbour that is early enough for it: are the times of seeds in "
        f"the unit of {arguments.time_attr!r} ({shown})? stats()['seeds_without_past'] counts such seeds"
    )
