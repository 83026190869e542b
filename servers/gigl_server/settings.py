"""The three ways to say an option: by flag, by variable, in a YAML file. The first of them wins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from gigl_loader.sizes import byte_count, whole_number
from gigl_server.config import ServeOptions

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["PREFIX", "SETTINGS", "read_settings", "read_yaml"]

PREFIX = "GIGL_"
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")


def read_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], document: Mapping[str, Any], origin: str = ""
) -> ServeOptions:
    """Return the options. ``flags`` that are ``None`` or ``()`` were not given.

    ``document`` is that of a YAML file, which ``origin`` names. ``ValueError`` or ``TypeError`` in one
    line that says where the wrong value comes from.
    """
    for name in document:
        if name not in SETTINGS:
            known = ", ".join(SETTINGS)
            raise ValueError(f"{origin}: unknown key {str(name)[:100]!r}; known: {known}")
    chosen: dict[str, Any] = {}
    for name, (field, read) in SETTINGS.items():
        variable = PREFIX + name.upper()
        if flags.get(name) not in (None, ()):
            chosen[field] = read("--" + name.replace("_", "-"), flags[name])
        elif variable in environment:
            chosen[field] = read(variable, environment[variable])
        elif name in document:
            chosen[field] = read(f"{origin}: {name}", document[name])
    if "graph_dir" not in chosen:
        raise ValueError("which graph? give GRAPH_DIR, GIGL_GRAPH_DIR, or graph_dir in the file")
    return ServeOptions(**chosen)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping. ``ValueError`` in one line for anything else, ``OSError`` if it cannot be read."""
    import yaml

    try:
        document = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ValueError(f"{path} must hold one mapping of options, not a {type(document).__name__}")
    return document


def _text(name: str, value: Any) -> str:
    if not isinstance(value, (str, os.PathLike)) or not str(value):
        raise TypeError(f"{name} must be text, got {value!r}")
    return str(value)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    """Read a list, or text with commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise TypeError(f"{name} must be a list, or text with commas, got {value!r}")
    pieces = [piece for item in items for piece in _text(name, item).split(",")]
    return tuple(piece.strip() for piece in pieces if piece.strip())


def _parts(name: str, value: Any) -> tuple[int, ...]:
    items = value if isinstance(value, (list, tuple)) else [value]
    pieces = [piece for item in items for piece in (item.split(",") if isinstance(item, str) else [item])]
    return tuple(_whole(name, piece) for piece in pieces)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, str):
        text = value.strip()
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
        return int(text)
    return whole_number(name, value, minimum=0)


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{name} must be a number of seconds, got {value!r}")
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{name} must be a number of seconds, got {value!r}") from None


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if isinstance(value, str) and text in _TRUE + _FALSE:
        return text in _TRUE
    raise TypeError(f"{name} must be true or false, got {value!r}")


SETTINGS: Mapping[str, tuple[str, Callable[[str, Any], Any]]] = {
    "graph_dir": ("graph_dir", _text),
    "partition": ("partitions", _parts),
    "listen": ("listen", _text),
    "data_port": ("data_port", _whole),
    "advertise": ("advertise", _text),
    "peer": ("peers", _texts),
    "workers": ("workers", _whole),
    "token_file": ("token_file", _text),
    "cluster_key_file": ("cluster_key_file", _text),
    "tls_cert": ("tls_cert", _text),
    "tls_key": ("tls_key", _text),
    "tls_ca": ("tls_ca", _text),
    "tls_client_ca": ("tls_client_ca", _text),
    "insecure": ("insecure", _flag),
    "metrics": ("metrics", _text),
    "lease": ("lease_s", _seconds),
    "drain": ("drain_s", _seconds),
    "frame_memory": ("frame_memory", byte_count),
    "log_file": ("log_file", _text),
    "join_timeout": ("join_timeout_s", _seconds),
}
"""By name of the setting: the field of ``ServeOptions``, and what reads its value."""
