"""Grants of tokens: the graphs that the holder of a token may read, and what it may take of a server."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from gigl_loader.sizes import byte_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["EVERYTHING", "Grant", "is_grant", "parse_grant"]

_DIGEST = re.compile(r"[0-9a-f]{12,64}")
_GRAPH = re.compile(r"[A-Za-z0-9._-]{1,255}")
_WORD = re.compile(r"([a-z]{1,12})=(.*)")
_MAX_SHARE = 1000.0
_LEAST_FRAMES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Rights and quotas of one token. By default: every graph, and the server's own limits alone."""

    graph: tuple[str, ...] = ()
    """Names of the folders of graphs that it may read."""
    digest: tuple[str, ...] = ()
    """Beginnings of the digests of graphs that it may read, of at least 12 hexadecimal digits.

    With neither ``graph`` nor ``digest``, it may read every graph; with both, those that either names."""
    jobs: int | None = None
    """Jobs at once on each server."""
    channels: int | None = None
    """Channels at once on each server: one for each loader of each rank."""
    frames: int | None = None
    """Bytes of frames on each server that wait to be fetched or are being sent."""
    seconds: float | None = None
    """Seconds of a sampling thread that one batch may take. ``None``: as many as the server grants."""
    share: float = 1.0
    """Weight of each of its owners when sampling threads are shared by time."""

    def __post_init__(self) -> None:
        if not all(_GRAPH.fullmatch(name) for name in self.graph):
            raise ValueError("graph is the name of a graph's folder: letters, digits, dots, - and _")
        if not all(_DIGEST.fullmatch(digest) for digest in self.digest):
            raise ValueError("digest is the beginning of a graph's digest: 12 to 64 hexadecimal digits")
        for name, least in (("jobs", 1), ("channels", 1), ("frames", _LEAST_FRAMES)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be positive and finite, got {self.seconds:g}")
        if not (math.isfinite(self.share) and 1 / _MAX_SHARE <= self.share <= _MAX_SHARE):
            raise ValueError(f"share must lie in [{1 / _MAX_SHARE:g}, {_MAX_SHARE:g}], got {self.share:g}")

    @property
    def reads_all(self) -> bool:
        """Whether it may read every graph."""
        return not self.graph and not self.digest

    def reads(self, *, name: str, digest: str) -> bool:
        """Return whether it may read the graph in a folder called ``name``."""
        return self.reads_all or name in self.graph or any(map(digest.startswith, self.digest))

    def to_json(self) -> dict[str, Any]:
        """Return what differs from ``EVERYTHING``."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(EVERYTHING, name)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Grant:
        """Undo ``to_json``."""
        lists = {name: tuple(value) for name, value in document.items() if isinstance(value, list)}
        return cls(**{**document, **lists})


EVERYTHING = Grant()
"""Grant of a token of which nothing is said."""

_NAMES = tuple(each.name for each in fields(Grant))


def is_grant(word: str) -> bool:
    """Return whether a word of a token's line has the form of a part of its grant."""
    found = _WORD.fullmatch(word)
    return found is not None and found[1] in _NAMES


def parse_grant(words: Sequence[str]) -> Grant:
    """Return the grant in words such as ``graph=ads``, ``jobs=4``, ``frames=2GB`` and ``share=2``.

    ``graph`` and ``digest`` may be there several times. ``ValueError`` names what is wrong.
    """
    given: dict[str, Any] = {}
    for word in words:
        found = _WORD.fullmatch(word)
        if found is None or found[1] not in _NAMES:
            what = f"no {found[1]!r} among" if found else "after a token come"
            raise ValueError(f"{what} {', '.join(f'{name}=' for name in _NAMES)}")
        name, text = found[1], found[2]
        if name in ("graph", "digest"):
            given[name] = (*given.get(name, ()), text)
        elif name in given:
            raise ValueError(f"{name} is there twice")
        else:
            given[name] = _number(name, text)
    return Grant(**given)


def _number(name: str, text: str) -> float:
    if name == "frames":
        return byte_count(name, text)
    try:
        return float(text) if name in ("share", "seconds") else int(text)
    except ValueError:
        kind = "a number" if name in ("share", "seconds") else "a whole number"
        raise ValueError(f"{name} must be {kind}, got {text[:20]!a}") from None
