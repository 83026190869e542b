"""Options as dataclass fields: one declaration gives argument, variable, key, default, help and checks."""

from __future__ import annotations

import os
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigl_loader.options import (
    byte_count,
    byte_text,
    check_sampler_name,
    check_topology,
    check_verify,
    whole_number,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off", "")
_MAX_SECONDS = 86_400
_DECLARED = "option"
_PREFIX = "GIGL_"


def _no_rule(name: str, value: Any) -> None:
    del name, value


@dataclass(frozen=True, slots=True)
class ValueKind:
    """A kind of value. Both functions take the option's name, for messages, and the value."""

    read: Callable[[str, Any], Any]
    """Returns the value, given as text or as YAML has it. ``ValueError`` or ``TypeError`` in one line."""
    check: Callable[[str, Any], object] = _no_rule
    """Raises ``ValueError`` or ``TypeError`` in one line for a value outside the range of the option."""
    argument_type: Any = str
    """Type of the command line argument."""
    show: Callable[[Any], str] = str
    """Returns the value as a user would write it."""


def whole(minimum: int, maximum: int) -> ValueKind:
    """Return the kind of a whole number from ``minimum`` to ``maximum``."""

    def check(name: str, value: Any) -> None:
        if whole_number(name, value, minimum=minimum) > maximum:
            raise ValueError(f"{name} must be at most {maximum}, got {value}")

    return ValueKind(_whole, check, int)


def seconds(minimum: float) -> ValueKind:
    """Return the kind of a time in seconds, from ``minimum`` to a day."""

    def check(name: str, value: float) -> None:
        if not minimum <= value <= _MAX_SECONDS:
            raise ValueError(f"{name} must lie between {minimum:g} and {_MAX_SECONDS} s, got {value:g}")

    return ValueKind(_seconds, check, float, "{:g}".format)


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {value:g}")


def size(minimum: int) -> ValueKind:
    """Return the kind of a number of bytes, at least ``minimum``, which may be written as ``4GB``."""
    read = partial(byte_count, minimum=min(minimum, 1))  # 0 is a size where the option allows it.
    return ValueKind(read, partial(whole_number, minimum=minimum), show=byte_text)


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
    return _number(name, value, "a number of seconds")


def _share(name: str, value: Any) -> float:
    return _number(name, value, "a number from 0 to 1")


def _number(name: str, value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{name} must be {what}, got {value!r}")
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"{name} must be {what}, got {value!r}") from None


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if isinstance(value, str) and text in _TRUE + _FALSE:
        return text in _TRUE
    raise TypeError(f"{name} must be true or false, got {value!r}")


def _check_samplers(name: str, samplers: tuple[str, ...]) -> None:
    for sampler in samplers:
        check_sampler_name(name, sampler)


def _check_address(name: str, text: str) -> int:
    """Return the port."""
    from gigl_loader.rpc.endpoint import Address

    try:
        return Address.parse(text).port
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_addresses(name: str, texts: tuple[str, ...]) -> None:
    for text in texts:
        if _check_address(name, text) == 0:
            raise ValueError(f"{name}: {text}: port 0 cannot be asked")


def _check_port(name: str, port: int) -> None:
    if not 0 <= port < 65536:
        raise ValueError(f"{name} {port} does not lie in [0, 65536)")


def _check_partitions(name: str, partitions: tuple[int, ...]) -> None:
    if not partitions:
        raise ValueError(f"{name}: name at least one, or leave it out to serve all that lie there")
    for partition in partitions:
        whole_number(name, partition, minimum=0)
    if len(set(partitions)) != len(partitions):
        raise ValueError(f"{name}: {list(partitions)} names one twice")


def _check_verify(name: str, mode: str) -> None:
    del name  # It is "verify" everywhere.
    check_verify(mode)


def _check_topology(name: str, topology: str) -> None:
    del name  # It is "topology" everywhere.
    check_topology(topology)


TEXT = ValueKind(_text)
PATH = ValueKind(_text, argument_type=Path)
FLAG = ValueKind(_flag, argument_type=bool, show=lambda value: "true" if value else "")
TOPOLOGY = ValueKind(_text, _check_topology)
SHARE = ValueKind(_share, _check_share, float, "{:g}".format)
VERIFY = ValueKind(_text, _check_verify)
ADDRESS = ValueKind(_text, _check_address)
"""``HOST:PORT`` to listen at."""
ADDRESSES = ValueKind(_texts, _check_addresses, list[str], ", ".join)
"""``HOST:PORT`` of any number of servers."""
SAMPLERS = ValueKind(_texts, _check_samplers, list[str], ", ".join)
"""``package.module:Class`` of any number of users' samplers."""
PORT = ValueKind(_whole, _check_port, int)
PARTITIONS = ValueKind(_parts, _check_partitions, list[str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, in all its spellings."""

    field: str
    """Field of the dataclass."""
    name: str
    """Key in a YAML file."""
    flags: tuple[str, ...]
    """Command line arguments, the long one first. Empty: the option is positional."""
    kind: ValueKind
    default: str
    """Default as ``--help`` shows it. Empty: none."""
    help: str

    @property
    def argument(self) -> str:
        """Command line argument, for messages."""
        return self.flags[0] if self.flags else self.name.upper()

    @property
    def variable(self) -> str:
        """Environment variable."""
        return _PREFIX + self.name.upper()


def option(default: Any, kind: ValueKind, help: str, **spelling: str) -> Any:
    """Return a field that declares an option. ``spelling`` is that of ``declaration``."""
    return field(default=default, metadata=declaration(kind, help, **spelling))


def declaration(
    kind: ValueKind, help: str, *, name: str = "", short_flag: str = "", shown: str = ""
) -> dict[str, Any]:
    """Return the metadata of a field that declares an option; positional, unless the field has a default.

    ``name`` differs from the field's where units or plurals are left out. ``shown`` is the default in words.
    """
    return {_DECLARED: {"kind": kind, "help": help, "name": name, "short_flag": short_flag, "shown": shown}}


def options_of(options: type[Any]) -> dict[str, Option]:
    """Return the options that a dataclass declares, by name and in order."""
    found = (_option_of(each.name, each.default, **each.metadata[_DECLARED]) for each in fields(options))
    return {each.name: each for each in found}


def _option_of(
    field_name: str, default: Any, *, kind: ValueKind, help: str, name: str, short_flag: str, shown: str
) -> Option:
    name = name or field_name
    long_flag = "" if default is MISSING else "--" + name.replace("_", "-")
    has_value = not (default is MISSING or default is None)
    return Option(
        field=field_name,
        name=name,
        flags=tuple(flag for flag in (long_flag, short_flag) if flag),
        kind=kind,
        default=shown or (kind.show(default) if has_value else ""),
        help=help,
    )
