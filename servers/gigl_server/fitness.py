"""Whether two storage servers can be in one cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError
from gigl_loader.rpc.requests import WIRE_VERSION

if TYPE_CHECKING:
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["Answer", "JoinRefused", "check_fit", "listed"]


class JoinRefused(GiglError):
    """This server and another cannot be in one cluster. The message names both sides of the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a server says of itself and of others."""

    version: str
    wire_version: int
    graph: str
    """Digest."""
    itself: Endpoint
    others: tuple[str, ...]
    """Control addresses of servers that it knows."""


def check_fit(
    address: str, answer: Answer, *, graph: str, own: Endpoint, members: Iterable[Endpoint]
) -> None:
    """Raise ``JoinRefused`` unless the server that answered at ``address`` fits.

    It must speak our version of the wire, have our graph, and serve nothing that one of ``members`` does.
    """
    if answer.wire_version != WIRE_VERSION:
        raise JoinRefused(
            f"storage server at {address} runs gigl-loader {answer.version}, whose wire version is "
            f"{answer.wire_version}; here it is {WIRE_VERSION}: install the same version on all servers"
        )
    if answer.graph != graph:
        raise JoinRefused(
            f"storage server at {address} has another graph: digest {answer.graph[:12]} vs {graph[:12]} "
            "here: give all servers parts of one and the same partitioned graph"
        )
    for member in members:
        twice = sorted(set(member.partitions) & set(answer.itself.partitions))
        if twice and member.control_address != answer.itself.control_address:
            other = "this one" if member is own else f"that at {member.control_address}"
            raise JoinRefused(
                f"storage server at {address} serves partitions {listed(twice)}, and so does {other}: "
                "give each partition to one server"
            )


def listed(partitions: Sequence[int]) -> str:
    """Return ``[0, 1, 2, ... 61 more]``: a message stays one line."""
    shown = list(map(str, partitions[:10]))
    more = len(partitions) - len(shown)
    return f"[{', '.join(shown)}{f', ... {more} more' if more else ''}]"
