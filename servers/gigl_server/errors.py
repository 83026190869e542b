"""Refusals of the sampling service, by status."""

from __future__ import annotations

from enum import Enum

__all__ = ["Refusal", "Status"]


class Status(Enum):
    """What the caller can do about it. Values are the names of gRPC's status codes."""

    NOT_FOUND = "NOT_FOUND"
    """No such producer or channel of this job: register again."""
    INVALID = "INVALID_ARGUMENT"
    """Mend the call."""
    CONFLICT = "FAILED_PRECONDITION"
    """It is at odds with what is there: another graph, another producer of the same key."""
    BEYOND_LIMIT = "RESOURCE_EXHAUSTED"
    """Ask for less, or later."""
    DAMAGED = "DATA_LOSS"
    """The request does not match its checksum: ask again."""
    UNAVAILABLE = "UNAVAILABLE"
    """Not now: the server starts, or drains."""


class Refusal(Exception):
    """What a call of the service raises, and what becomes of an ask that cannot be worked on."""

    def __init__(self, status: Status, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def message(self) -> str:
        return str(self.args[0])
