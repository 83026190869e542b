"""Entries of manifests: mappings whose values are checked when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gigl_loader.graph.schema import EdgeType


@dataclass(frozen=True, slots=True)
class Entry:
    """Mapping of a manifest. ``ValueError`` of its methods names the place and what must be there."""

    where: str
    values: Any

    def __post_init__(self) -> None:
        if not isinstance(self.values, dict):
            raise ValueError(f"{self.where} must be a mapping")

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text, or number as text. Without a ``default`` it must be there."""
        value = self.values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, (str, int)):
            raise ValueError(f"{self._at(key)} must be a text")
        return str(value)

    def number(self, key: str) -> int:
        """Return an integer that must be there."""
        value = self.values.get(key)
        if not isinstance(value, int) or value < 0:
            raise ValueError(f"{self._at(key)} must be a number")
        return value

    def texts(self, key: str) -> list[str]:
        """Return a list of texts, of one where there is a text. Nothing there is an empty list."""
        value = self.values.get(key)
        values = value if isinstance(value, list) else [] if value is None else [value]
        if not all(isinstance(each, str) for each in values):
            raise ValueError(f"{self._at(key)} must be a list of texts")
        return values

    def numbers(self, key: str) -> list[int]:
        """Return a list of integers, of sums where it has lists of them. Nothing there is an empty list."""
        values = self.values.get(key) or []
        found = [sum(each) if isinstance(each, list) else each for each in values]
        if not all(isinstance(each, int) for each in found):
            raise ValueError(f"{self._at(key)} must be a list of numbers")
        return found

    def edge_type(self, key: str, default: EdgeType | None = None) -> EdgeType:
        """Return a type of edges: three texts, or one with two colons."""
        value = self.values.get(key)
        return default if value is None and default is not None else edge_type(value, self._at(key))

    def entry(self, key: str) -> Entry:
        """Return a mapping. Nothing there is an empty one."""
        return Entry(self._at(key), self.values.get(key) or {})

    def entries(self, key: str) -> Iterator[Entry]:
        """Yield the mappings of a list. Nothing there is an empty one."""
        value = self.values.get(key) or []
        if not isinstance(value, list):
            raise ValueError(f"{self._at(key)} must be a list")
        for number, each in enumerate(value):
            yield Entry(f"{self._at(key)}[{number}]", each)

    def require(self, *keys: str) -> None:
        """Raise ``ValueError`` for the first key that is missing."""
        if missing := next((key for key in keys if key not in self), None):
            raise ValueError(f"{self.where}: no {missing!r}")

    def _at(self, key: str) -> str:
        return f"{self.where}: {key}"


def edge_type(value: object, where: str) -> EdgeType:
    """Return a type of edges from a list of three texts, or from a text with two colons."""
    parts = value.split(":") if isinstance(value, str) else value
    if not isinstance(parts, list) or len(parts) != 3 or not all(isinstance(each, str) for each in parts):
        raise ValueError(f"{where} must be a type of edges: source, relation, destination")
    return parts[0], parts[1], parts[2]
