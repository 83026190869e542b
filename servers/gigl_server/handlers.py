"""What stands between gRPC and an answer: bytes become messages here, and mistakes become a status."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from gigl_server.ledger import Ledger

__all__ = ["handler_of"]

_LOGGER = logging.getLogger(__name__)


def handler_of(answer: Callable[[Any, Any], Awaitable[Any]], request: Any, reply: Any, ledger: Ledger) -> Any:
    """Return gRPC's handler for a call that takes a ``request`` and returns a ``reply``.

    gRPC would log a traceback for every message that is none, and tell the caller the text of any
    exception.
    """

    async def call(data: bytes, context: Any) -> Any:
        try:
            message = request.FromString(data)
        except DecodeError:
            ledger.add(refused=1)
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"the message is no {request.DESCRIPTOR.name}"
            )
        try:
            return await answer(message, context)
        except grpc.aio.AbortError:
            raise
        except Exception:
            _LOGGER.exception("a control call failed")
            await context.abort(grpc.StatusCode.INTERNAL, "the server failed to answer; its log says why")

    return grpc.unary_unary_rpc_method_handler(call, response_serializer=reply.SerializeToString)
