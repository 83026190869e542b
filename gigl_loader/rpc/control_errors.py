"""From the status of a control call to the exception for whoever made it: the one door for gRPC's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.errors import SamplingError, StorageUnavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["Busy", "Unknown", "control_error"]

_MOST_CHARACTERS = 1_000


class Unknown(SamplingError):
    """The server knows no such producer or channel of this job: it was restarted, or the lease is over.

    Registering again mends it.
    """


class Busy(SamplingError):
    """Beyond a limit of the server: asking again later may do."""


_BY_STATUS: Mapping[grpc.StatusCode, type[Exception]] = {
    grpc.StatusCode.UNAVAILABLE: StorageUnavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: StorageUnavailable,
    grpc.StatusCode.CANCELLED: StorageUnavailable,
    grpc.StatusCode.NOT_FOUND: Unknown,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Busy,
    grpc.StatusCode.INVALID_ARGUMENT: ValueError,
    grpc.StatusCode.FAILED_PRECONDITION: ValueError,
    grpc.StatusCode.UNAUTHENTICATED: SamplingError,
    grpc.StatusCode.PERMISSION_DENIED: SamplingError,
}
_WORDS: Mapping[grpc.StatusCode, str] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "no answer in time",
    grpc.StatusCode.CANCELLED: "the call was cancelled",
    grpc.StatusCode.UNIMPLEMENTED: "it is no storage server, or one of another version",
}
"""What says more than gRPC's own text."""

_NOISE = ("failed to connect to all addresses; last error: ", "UNKNOWN: ", "UNAVAILABLE: ", "INTERNAL: ")


def control_error(endpoint: Endpoint, error: grpc.RpcError) -> Exception:
    """Return what to raise instead of ``error``, which a call to ``endpoint`` came to."""
    code, details = _read(error)
    if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification" in details:
        return ValueError(
            f"{endpoint}: its certificate is not good for this address, or signed by nobody that is "
            f"trusted here: {details}"
        )
    if "WRONG_VERSION_NUMBER" in details:
        return ValueError(f"{endpoint}: it does not use TLS, and is said to")
    kind = _BY_STATUS.get(code, SamplingError)
    return kind(f"{endpoint}: {_WORDS.get(code, details or code.name)}")


def _read(error: Any) -> tuple[grpc.StatusCode, str]:
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = str(error.details() or "") if hasattr(error, "details") else str(error)
    for noise in _NOISE:
        details = details.rpartition(noise)[2]
    return code, " ".join(details.split())[:_MOST_CHARACTERS]
