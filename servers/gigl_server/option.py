"""Options as dataclass fields: one declaration gives argument, variable, key, default and help."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gigl_server.option_kinds import ValueKind

__all__ = ["Option", "declaration", "option", "options_of"]

_DECLARED = "option"
_PREFIX = "GIGL_"


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
