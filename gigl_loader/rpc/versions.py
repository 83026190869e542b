"""Versions that two builds compare before they work together: of the wire, and of the draws.

Wire versions are ranges: two builds use the newest version that both have. Draw specifications must be equal,
because batches would differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gigl_loader import __version__
from gigl_loader.native import draws
from gigl_loader.printable import printable

WIRE_VERSION = 5
"""Newest version of requests and replies, of both ports. Raised by every change of them."""

OLDEST_WIRE_VERSION = 5
"""Oldest version of requests that services still read, and callers still send: usually the one before."""

_FIRST_DRAWS = 1
"""Draw specification of builds that do not name theirs: they are older than its second number."""

# Functions read the constants when they are called, so that tests can run a build of other versions.


class _Described(Protocol):
    """Versions as a service describes them: ``gigl.v1.Description`` and its copies."""

    @property
    def version(self) -> str: ...
    @property
    def wire_version(self) -> int: ...
    @property
    def oldest_wire_version(self) -> int: ...
    @property
    def draw_specification(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildVersions:
    """Versions of one build of the library."""

    library: str
    """For people; never compared."""
    wire: int
    """Newest wire version."""
    oldest_wire: int
    draws: int
    """Draw specification."""

    @classmethod
    def own(cls) -> BuildVersions:
        """Return the versions of this build."""
        return cls(
            library=__version__,
            wire=WIRE_VERSION,
            oldest_wire=OLDEST_WIRE_VERSION,
            draws=draws.DRAW_SPECIFICATION,
        )

    @classmethod
    def of(cls, found: _Described) -> BuildVersions:
        """Return the versions in a description. A build that names no range has one wire version."""
        return cls(
            library=printable(found.version),
            wire=found.wire_version,
            oldest_wire=min(found.oldest_wire_version or found.wire_version, found.wire_version),
            draws=found.draw_specification or _FIRST_DRAWS,
        )

    def agree(self, who: str) -> int:
        """Return the newest wire version that these versions, of ``who``, and this build have.

        ``ValueError``, in one line with the numbers of both, where there is none or draws would differ.
        """
        own = BuildVersions.own()
        wire = min(self.wire, own.wire)
        if wire < max(self.oldest_wire, own.oldest_wire):
            raise ValueError(
                f"{who} runs gigl-loader {self.library}, whose wire version is {self.shown_wire}; here it is "
                f"{own.shown_wire}: install the same version on all servers, hosts and trainers"
            )
        check_draws(f"{who} runs gigl-loader {self.library}, and", self.draws)
        return wire

    @property
    def shown_wire(self) -> str:
        """Return ``5``, or ``5 to 6``."""
        return str(self.wire) if self.oldest_wire == self.wire else f"{self.oldest_wire} to {self.wire}"


def check_draws(who: str, number: int) -> None:
    """Raise ``ValueError``, in one line with both numbers, unless ``who`` draws as this build does.

    ``number`` is the draw specification of ``who``, 0 where it names none.
    """
    number, own = number or _FIRST_DRAWS, draws.DRAW_SPECIFICATION
    if number != own:
        raise ValueError(
            f"{who} has draw specification {number}; here it is {own}, and batches would differ: install "
            "the same version of gigl-loader on all servers, hosts and trainers"
        )


def newest_wire() -> int:
    """Return the newest wire version of this build."""
    return WIRE_VERSION


def serves_wire(version: str) -> bool:
    """Return whether this build reads requests of a version, as text."""
    return version in map(str, range(OLDEST_WIRE_VERSION, WIRE_VERSION + 1))


def wire_range() -> str:
    """Return the versions of requests that this build reads, as text."""
    return BuildVersions.own().shown_wire
