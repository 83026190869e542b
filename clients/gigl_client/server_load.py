"""Loads of storage servers, as plain values."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gigl_loader.errors import GiglError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_client.cluster import Server

__all__ = ["loads_of"]

_MAX_AT_ONCE = 32


def loads_of(servers: Sequence[Server], timeout_s: float) -> dict[int, dict[str, Any]]:
    """Return the load of each server by rank, or ``{"error": reason}`` where a server does not respond."""

    def load(server: Server) -> dict[str, Any]:
        try:
            return _fields(server.client.load(timeout_s))
        except (GiglError, ValueError) as error:
            return {"error": str(error)}

    with ThreadPoolExecutor(min(len(servers), _MAX_AT_ONCE)) as threads:
        return dict(enumerate(threads.map(load, servers)))


def _fields(message: Any) -> dict[str, Any]:
    """Return the fields of a protobuf message by name, nested messages as dictionaries."""
    return {field.name: _plain(getattr(message, field.name), field) for field in message.DESCRIPTOR.fields}


def _plain(value: Any, field: Any) -> Any:
    several = hasattr(value, "__len__") and not isinstance(value, (str, bytes))
    if field.message_type is None:
        return list(value) if several else value
    return [_fields(each) for each in value] if several else _fields(value)
