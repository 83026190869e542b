"""Status codes of refused control calls, and the exceptions that callers raise for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.tcp_probe import NOBODY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["NO_TOKEN", "control_error", "speaks_otherwise", "status_of"]

NO_TOKEN = (
    "it wants a token, and none was given: Caller.from_files(token=PATH) in a script, --token-file PATH"
)

_MAX_CHARACTERS = 1_000


_STATUSES: Mapping[RefusalKind, grpc.StatusCode] = {
    RefusalKind.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalKind.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
    RefusalKind.DAMAGED: grpc.StatusCode.DATA_LOSS,
    RefusalKind.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    RefusalKind.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
    RefusalKind.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    RefusalKind.GONE: grpc.StatusCode.NOT_FOUND,
    RefusalKind.CONFLICT: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.OTHER_GRAPH: grpc.StatusCode.FAILED_PRECONDITION,
    RefusalKind.BUSY: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefusalKind.TOO_LARGE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    RefusalKind.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    RefusalKind.UNIMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    RefusalKind.FAILED: grpc.StatusCode.INTERNAL,
}
"""Status of each kind. Where several kinds share a status, callers read it as the first of them."""

_KINDS: Mapping[grpc.StatusCode, RefusalKind] = {
    # Statuses that gRPC itself or a proxy sends, and no service of this library.
    grpc.StatusCode.DEADLINE_EXCEEDED: RefusalKind.UNAVAILABLE,
    grpc.StatusCode.CANCELLED: RefusalKind.UNAVAILABLE,
    **{status: kind for kind, status in reversed(list(_STATUSES.items()))},
}
"""Any other status, such as ``UNKNOWN``, is a failure of the service."""

_WORDS: Mapping[grpc.StatusCode, str] = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "no answer in time",
    grpc.StatusCode.CANCELLED: "the call was cancelled",
    grpc.StatusCode.UNIMPLEMENTED: (
        "no control port of a storage server of this version: if it is a data port, give the port of "
        "--listen, by default the one before"
    ),
}
"""Texts that say more than those of gRPC."""

_NO_GRPC = "Expected SETTINGS frame as the first frame"
_PLAIN_WORDS = {
    "Connection refused": NOBODY,
    "timed out before receiving SETTINGS frame": "it takes connections and does not answer: is it stopped?",
    _NO_GRPC: (
        "what listens there does not speak gRPC: is it the port of --metrics? Give that of --listen, its "
        "control port"
    ),
}
"""Reasons that gRPC gives only in its text."""

_NOISE = ("failed to connect to all addresses; last error: ", "UNKNOWN: ", "UNAVAILABLE: ", "INTERNAL: ")


def status_of(kind: RefusalKind) -> grpc.StatusCode:
    """Return the status code that the control port sends for a refusal."""
    return _STATUSES[kind]


def control_error(endpoint: Endpoint, caller: Caller, error: grpc.RpcError) -> Exception:
    """Return the exception for ``error``, which a call of ``caller`` to ``endpoint`` raised."""
    return _refusal(caller, error).error(str(endpoint))


def _refusal(caller: Caller, error: grpc.RpcError) -> Refusal:
    code, details = _read(error)
    if code is grpc.StatusCode.UNAUTHENTICATED and not caller.token:
        return Refusal(RefusalKind.UNAUTHENTICATED, NO_TOKEN)
    if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification" in details:
        return Refusal(
            RefusalKind.INVALID,
            "its certificate is not good for this address, or signed by nobody that is trusted here: "
            f"{details}",
        )
    if "WRONG_VERSION_NUMBER" in details:
        return Refusal(RefusalKind.INVALID, "it does not use TLS, and is said to")
    plain = next((words for text, words in _PLAIN_WORDS.items() if text in details), details or code.name)
    return Refusal(_KINDS.get(code, RefusalKind.FAILED), _WORDS.get(code, plain))


def speaks_otherwise(error: grpc.RpcError) -> bool:
    """Return whether the port seems to belong to another program, or to be another port of the server."""
    return _NO_GRPC in _read(error)[1]


def _read(error: Any) -> tuple[grpc.StatusCode, str]:
    code = error.code() if hasattr(error, "code") else grpc.StatusCode.UNKNOWN
    details = str(error.details() or "") if hasattr(error, "details") else str(error)
    for noise in _NOISE:
        details = details.rpartition(noise)[2]
    return code, " ".join(details.split())[:_MAX_CHARACTERS]
