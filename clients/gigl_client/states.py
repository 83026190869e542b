"""What a storage server says of itself, as plain values."""

from __future__ import annotations

from typing import Any

__all__ = ["load_of"]


def load_of(message: Any) -> dict[str, Any]:
    """Return the fields of a message and of those inside it, by name."""
    return {field.name: _plain(getattr(message, field.name), field) for field in message.DESCRIPTOR.fields}


def _plain(value: Any, field: Any) -> Any:
    several = hasattr(value, "__len__") and not isinstance(value, (str, bytes))
    if field.message_type is None:
        return list(value) if several else value
    return [load_of(each) for each in value] if several else load_of(value)
