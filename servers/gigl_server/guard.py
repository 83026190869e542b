"""Who may call what on the control port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc

from gigl_loader.rpc.control import SERVICE, STORE_SERVICE
from gigl_server.public_calls import PublicCalls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.ledger import Ledger

__all__ = ["TokenGuard", "header_values"]

_GUARDED = tuple(f"/{service}/" for service in (SERVICE, STORE_SERVICE))


class TokenGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets no call of our services pass without the token. Health and reflection are anyone's."""

    def __init__(self, credentials: Credentials, ledger: Ledger) -> None:
        self._credentials = credentials
        self._ledger = ledger
        self._public = PublicCalls()

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Return who answers a call: decided by its headers, before a byte of its message is read."""
        if not details.method.startswith(_GUARDED):
            handler = await continuation(details)
            return None if handler is None else self._public.limited(handler)
        if self._credentials.accepts(header_values(details.invocation_metadata, "authorization")):
            return await continuation(details)
        self._ledger.add(refused=1)
        # As a stream that is not read: for a call of one message, gRPC would read it first.
        return grpc.stream_unary_rpc_method_handler(_refuse)


def header_values(metadata: Sequence[tuple[str, str | bytes]], name: str) -> list[str | bytes]:
    """Return all values of a header."""
    return [value for key, value in metadata or () if key == name]


async def _refuse(_: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token: all hosts must use the same one")
