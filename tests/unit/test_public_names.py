"""Every public name, option and message of version 0.1 is still there.

``tests/data/public_names.txt`` is the list, a line each, as ``public_names`` made it then. What comes
later is not on it. A name that leaves with a new version is taken off by hand, and CHANGELOG.md says so.
"""

from __future__ import annotations

import importlib
import inspect
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer.main

from gigl_loader.cli.app import build_app
from gigl_loader.rpc import graph_store_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

LIST = Path(__file__).parents[1] / "data" / "public_names.txt"
PACKAGES = (
    "gigl_client",
    "gigl_loader",
    "gigl_loader.errors",
    "gigl_loader.glt",
    "gigl_loader.lightning",
    "gigl_loader.partition",
    "gigl_loader.pyg",
    "gigl_loader.queries",
    "gigl_loader.splits",
    "gigl_ray",
)


def public_names() -> set[str]:
    """Return one line for each name, parameter, option, message and field that users may rely on."""
    return {*_python_names(), *_options(), *_messages()}


def _python_names() -> Iterator[str]:
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in names_of(module):
            yield from _members(f"{package}.{name}", getattr(module, name))


def names_of(module: ModuleType) -> list[str]:
    """Return the public names of a module."""
    return getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", "") == module.__name__ and not name.startswith("_")
    ]


def _members(path: str, value: Any) -> Iterator[str]:
    yield path
    if callable(value):
        yield from _parameters(path, value)
    if not inspect.isclass(value):
        return
    if issubclass(value, Enum):
        yield from (f"{path}.{member.name}" for member in value)
    ours = {name for base in value.__mro__ if base.__module__.startswith("gigl_") for name in vars(base)}
    for name in ours:
        if name.startswith("_"):
            continue
        yield f"{path}.{name}"
        member = inspect.getattr_static(value, name)
        if inspect.isfunction(member):
            yield from _parameters(f"{path}.{name}", member)


def _parameters(path: str, value: Any) -> Iterator[str]:
    try:
        parameters = inspect.signature(value).parameters
    except ValueError:
        return
    for parameter in parameters.values():
        if parameter.name != "self" and not parameter.name.startswith("_"):
            yield f"{path}({parameter.name}{_default(parameter.default)})"


def _default(value: Any) -> str:
    text = "" if value is inspect.Parameter.empty else f"={value!r}"
    return "" if text.startswith("=<") else text


def _options() -> Iterator[str]:
    root: Any = typer.main.get_command(build_app())
    for name, command in root.commands.items():
        yield f"gigl-loader {name}"
        for parameter in command.params:
            for option in (*parameter.opts, *parameter.secondary_opts):
                yield f"gigl-loader {name} {option}"


def _messages() -> Iterator[str]:
    for service in graph_store_pb2.DESCRIPTOR.services_by_name.values():
        yield from (f"{method.full_name}({method.input_type.name})" for method in service.methods)
    for message in graph_store_pb2.DESCRIPTOR.message_types_by_name.values():
        yield message.full_name
        yield from (f"{message.full_name}.{field.name}={field.number}" for field in message.fields)


def test_every_public_name_of_version_0_1_is_there() -> None:
    listed = set(LIST.read_text().split("\n")) - {""}
    assert sorted(listed - public_names()) == []
    assert len(listed) > 900
