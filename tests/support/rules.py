"""Rules of draws as the kernels take them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader import native

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def native_rules(fanouts: Iterable[Sequence[int]], *, replace: bool = False) -> list[list[native.DrawRule]]:
    """Return the kernels' rules of some edge types."""
    return [[native.DrawRule(fanout, replace=replace) for fanout in hops] for hops in fanouts]
