"""The secret that the processes of one training job share, and that no other job knows."""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["JOB_HEADER", "job_key", "new_job"]

JOB_HEADER = "gigl-job"
"""Of every call that makes or takes what belongs to a job, on both ports."""

_FORM = re.compile(r"[0-9a-f]{64}")


def new_job() -> str:
    """Return a fresh random secret (256 bits)."""
    return secrets.token_hex(32)


def job_key(values: Sequence[str | bytes]) -> bytes | None:
    """Return under which key a service keeps the job whose header has these values: SHA-256, 32 bytes.

    ``None`` unless there is exactly one value, of 64 hexadecimal digits. Services keep keys, not
    secrets: looking one up tells nothing by its time, and nothing that is shown opens anything.
    """
    if len(values) != 1:
        return None
    value = values[0].decode("ascii", "replace") if isinstance(values[0], bytes) else values[0]
    return hashlib.sha256(value.encode()).digest() if _FORM.fullmatch(value) else None
