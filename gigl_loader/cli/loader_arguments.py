"""Arguments of loaders on a command line: ``num_neighbors=10,5``, or a function that makes the loader."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gigl_loader.loaders.base import BaseDistLoader
    from gigl_loader.loaders.dataset import Dataset

_ARGUMENT = re.compile(r"([a-z_]+)=(.*)", re.DOTALL)
_BATCH_SIZE = 512


def is_argument(word: str) -> bool:
    """Return whether a word of a command line is ``name=value``."""
    return _ARGUMENT.fullmatch(word) is not None


def read_arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``name=value``: JSON, numbers with commas, a type, or ``type:split``.

    ``ValueError`` for a name that comes twice.
    """
    found: dict[str, Any] = {}
    for word in words:
        match = _ARGUMENT.fullmatch(word)
        assert match is not None
        if match[1] in found:
            raise ValueError(f"{match[1]} is given twice")
        found[match[1]] = _value(match[2])
    if isinstance(found.get("num_neighbors"), int):
        found["num_neighbors"] = [found["num_neighbors"]]
    return found


def _value(text: str) -> Any:
    try:
        return _with_types(json.loads(text))
    except ValueError:
        pass
    name, colon, split = text.partition(":")
    return (_name(name), _name(split)) if colon else _name(text)


def _with_types(value: Any) -> Any:
    """Return JSON values with the types in mappings, and in what these map to, as tuples."""
    if not isinstance(value, dict):
        return value
    return {_name(key): _name(each) if isinstance(each, str) else each for key, each in value.items()}


def _name(text: str) -> Any:
    """Return a text without commas as it is, whole numbers as a list, and names as a tuple."""
    parts = text.split(",")
    if len(parts) == 1:
        return text
    try:
        return list(map(int, parts))
    except ValueError:
        return tuple(parts)


def build_loader(dataset: Dataset, arguments: dict[str, Any]) -> BaseDistLoader:
    """Return a loader of the kind that the arguments belong to: of anchors, of links, else of nodes.

    What is left out has the loader's default, but batches have 512 entries and the run seed is 0. Errors are
    those of the loader.
    """
    from gigl_loader.loaders.ablp import DistABLPLoader
    from gigl_loader.loaders.link import DistLinkNeighborLoader
    from gigl_loader.loaders.neighbor import DistNeighborLoader

    given = {"batch_size": _BATCH_SIZE, "seed": 0, "num_workers": 0, "device": "cpu", **arguments}
    if "num_neighbors" not in given:
        raise ValueError("a loader needs its fanouts: num_neighbors=10,5")
    kind: Any = DistNeighborLoader
    if given.keys() & {"edge_label_index", "neg_sampling"}:
        kind = DistLinkNeighborLoader
    elif given.keys() & {"supervision_edge_type", "max_labels_per_anchor", "num_random_negatives"}:
        kind = DistABLPLoader
    loader: BaseDistLoader = kind(dataset, **given)
    return loader


def is_function(word: str) -> bool:
    """Return whether a word names a function: ``train.py:make_loader`` or ``package.module:make_loader``."""
    place, colon, name = word.rpartition(":")
    return bool(colon and place) and all(part.isidentifier() for part in name.split("."))


def loader_of(word: str, arguments: dict[str, Any]) -> BaseDistLoader:
    """Return the loader that a function of the user makes, called with ``arguments``.

    ``ValueError`` and ``TypeError`` say why there is none. What the function raises is raised.
    """
    from gigl_loader.loaders.base import BaseDistLoader

    place, _, name = word.rpartition(":")
    found: Any = _module(place)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{place} has no {name}")
        found = getattr(found, part)
    if not isinstance(found, BaseDistLoader):
        if not callable(found):
            raise TypeError(f"{word} is a {type(found).__name__}: name a function that returns a loader")
        found = found(**arguments)
    if not isinstance(found, BaseDistLoader):
        raise TypeError(f"{word} returns a {type(found).__name__}: it has to return a loader")
    return found


def _module(place: str) -> Any:
    """Import a module by its name, with the working directory on the path, or by the path of its file."""
    path = Path(place)
    is_file = path.suffix == ".py" or path.exists()
    if is_file and not path.is_file():
        raise FileNotFoundError(2, "no such file", place)
    sys.path.insert(0, str(path.resolve().parent if is_file else Path.cwd()))
    if not is_file:
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name and not place.startswith(error.name):
                raise
            raise ValueError(f"there is no module {place}, and no file of that name") from None
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{place} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
