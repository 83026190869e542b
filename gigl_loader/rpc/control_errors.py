"""Exceptions for the status codes of control calls. Nothing else translates errors of gRPC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.errors import SamplingError, StorageUnavailable
from gigl_loader.rpc.tcp_probe import NOBODY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["NO_TOKEN", "Busy", "Damaged", "Unknown", "control_error", "speaks_otherwise"]

NO_TOKEN = (
    "it wants a token, and none was given: Caller.from_files(token=PATH) in a script, --token-file PATH"
)

_MAX_CHARACTERS = 1_000


class Unknown(SamplingError):
    """The server knows no such producer or channel of this job: it was restarted, or the lease is over.

    Registering again mends it.
    """


class Busy(SamplingError):
    """Beyond a limit of the server: asking again later may do."""


class Damaged(SamplingError):
    """The request or its reply came damaged: asking again may do."""


_BY_STATUS: Mapping[grpc.StatusCode, type[Exception]] = {
    grpc.StatusCode.UNAVAILABLE: StorageUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: StorageUnavailable,
    grpc.StatusCode.CANCELLED: StorageUnavailable,
    grpc.StatusCode.NOT_FOUND: Unknown,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Busy,
    grpc.StatusCode.DATA_LOSS: Damaged,
    grpc.StatusCode.INVALID_ARGUMENT: ValueError,
    grpc.StatusCode.FAILED_PRECONDITION: ValueError,
    grpc.StatusCode.UNIMPLEMENTED: ValueError,
    grpc.StatusCode.UNAUTHENTICATED: SamplingError,
    grpc.StatusCode.PERMISSION_DENIED: SamplingError,
}
_WORDS: Mapping[grpc.StatusCode, str] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "no answer in time",
    grpc.StatusCode.CANCELLED: "the call was cancelled",
    grpc.StatusCode.UNIMPLEMENTED: (
        "no control port of a storage server of this version: if it is a data port, give the port of "
        "--listen, by default the one before"
    ),
}
"""What says more than gRPC's own text."""

_NO_GRPC = "Expected SETTINGS frame as the first frame"
_PLAIN_WORDS = {
    "Connection refused": NOBODY,
    "timed out before receiving SETTINGS frame": "it takes connections and does not answer: is it stopped?",
    _NO_GRPC: (
        "what listens there does not speak gRPC: is it the port of --metrics? Give that of --listen, its "
        "control port"
    ),
}
"""What gRPC says in the text only."""

_NOISE = ("failed to connect to all addresses; last error: ", "UNKNOWN: ", "UNAVAILABLE: ", "INTERNAL: ")


def control_error(endpoint: Endpoint, caller: Caller, error: grpc.RpcError) -> Exception:
    """Return what to raise instead of ``error``, which a call of ``caller`` to ``endpoint`` came to."""
    code, details = _read(error)
    if code is grpc.StatusCode.UNAUTHENTICATED and not caller.token:
        return SamplingError(f"{endpoint}: {NO_TOKEN}")
    if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification" in details:
        return ValueError(
            f"{endpoint}: its certificate is not good for this address, or signed by nobody that is "
            f"trusted here: {details}"
        )
    if "WRONG_VERSION_NUMBER" in details:
        return ValueError(f"{endpoint}: it does not use TLS, and is said to")
    kind = _BY_STATUS.get(code, SamplingError)
    plain = next((words for text, words in _PLAIN_WORDS.items() if text in details), details or code.name)
    return kind(f"{endpoint}: {_WORDS.get(code, plain)}")


def speaks_otherwise(error: grpc.RpcError) -> bool:
    """Return whether the port seems to be another program's, or another one of the server."""
    return _NO_GRPC in _read(error)[1]


def _read(error: Any) -> tuple[grpc.StatusCode, str]:
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = str(error.details() or "") if hasattr(error, "details") else str(error)
    for noise in _NOISE:
        details = details.rpartition(noise)[2]
    return code, " ".join(details.split())[:_MAX_CHARACTERS]
