"""Quotas: what one owner may have of what all share.

Dynamic thresholds (Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998): an owner may
take more while it has at most 8 times what is free. One alone comes to 8/9 of a limit, two to 8/17
each, n to 8/(8 n + 1) each, and something is free for a newcomer, always. Owners are identities, which cannot
be made up; jobs and channels can.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_server.identity import LOCAL

if TYPE_CHECKING:
    from gigl_server.identity import Identity

__all__ = ["has_quota"]

_FACTOR = 8


def has_quota(owner: Identity, *, own: int, used: int, limit: int, more: int = 1) -> bool:
    """Return whether ``owner``, which has ``own`` of the ``used``, may take ``more`` of ``limit``.

    A call that came by no port (``LOCAL``) is bounded by the limit alone.
    """
    free = limit - used - more
    return free >= 0 and (owner == LOCAL or own <= _FACTOR * free)
