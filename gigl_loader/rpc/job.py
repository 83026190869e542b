"""Job secret: shared by the processes of one training job, and unknown to other jobs."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["JOB_HEADER", "job_key", "new_job"]

JOB_HEADER = "gigl-job"
"""Header, on both ports, of every call that creates or uses what belongs to a job."""

_FORM = re.compile(r"[0-9a-f]{64}")


def new_job() -> str:
    """Return a fresh random secret (256 bits)."""
    return secrets.token_hex(32)


def job_key(values: Sequence[str | bytes]) -> bytes | None:
    """Return the key of the job whose header has these values: SHA-256 of the secret, 32 bytes.

    ``None`` unless there is exactly one value of 64 hexadecimal digits. Services store keys, not secrets: the
    time of a lookup reveals nothing of a secret, and a key in a log gives no access.
    """
    if len(values) != 1:
        return None
    value = values[0].decode("ascii", "replace") if isinstance(values[0], bytes) else values[0]
    return hashlib.sha256(value.encode()).digest() if _FORM.fullmatch(value) else None
