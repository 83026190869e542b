"""Sources of the options of a storage server: command line, environment and YAML file, in this order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gigl_server.config import SERVE_OPTIONS, ServeOptions

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["read_settings", "read_yaml"]


def read_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], document: Mapping[str, Any], origin: str = ""
) -> ServeOptions:
    """Return the options. ``flags`` that are ``None`` or ``()`` were not given.

    ``document`` is the content of a YAML file, which ``origin`` names. Raises ``ValueError`` or ``TypeError``
    with a one-line message that names the unknown option, or the source of the invalid value.
    """
    _check_names(flags, "unknown option")
    _check_names(document, f"{origin}: unknown key")
    chosen: dict[str, Any] = {}
    for name, option in SERVE_OPTIONS.items():
        read = option.kind.read
        if flags.get(name) not in (None, ()):
            chosen[option.field] = read(option.argument, flags[name])
        elif option.variable in environment:
            chosen[option.field] = read(option.variable, environment[option.variable])
        elif name in document:
            chosen[option.field] = read(f"{origin}: {name}", document[name])
    if "graph_dir" not in chosen:
        raise ValueError("which graph? give GRAPH_DIR, GIGL_GRAPH_DIR, or graph_dir in the file")
    return ServeOptions(**chosen)


def _check_names(given: Mapping[str, Any], what: str) -> None:
    for name in given:
        if name not in SERVE_OPTIONS:
            known = ", ".join(SERVE_OPTIONS)
            raise ValueError(f"{what} {str(name)[:100]!r}; known: {known}")


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping. ``ValueError`` for other content, ``OSError`` if the file cannot be read."""
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
