"""Locations of tables, graphs and scratch: paths of this machine, or URIs of Arrow's file systems."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

if TYPE_CHECKING:
    from gigl_loader.partition.remote_files import RemotePath

_URI = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_uri(location: str) -> bool:
    """Return whether a location is a URI, such as ``s3://bucket/path``, and not a path."""
    return _URI.match(location) is not None


def absolute(location: str | os.PathLike[str]) -> str:
    """Return a location that means the same in every process: an absolute path, or the URI as it is.

    ``file:///path`` is a path, too.
    """
    text = os.fspath(location)
    if text.startswith("file://"):
        text = text.removeprefix("file://")
    return text if is_uri(text) else os.path.abspath(Path(text))


def shown(location: str) -> str:
    """Return a location for people: a URI without user, password and options, which may be secret."""
    if not is_uri(location):
        return location
    parts = urlsplit(location)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def file_stamp(path: Path | RemotePath) -> tuple[str, int, int]:
    """Return the name of a file with what changes when its content does: size and time of the last change."""
    if not isinstance(path, Path):
        return path.stamp()
    found = path.stat()
    return str(path), found.st_size, found.st_mtime_ns
