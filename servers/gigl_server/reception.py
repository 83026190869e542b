"""What stands between gRPC and an answer: bytes become messages here, and mistakes become a status."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from gigl_server.ledger import Ledger

__all__ = ["Reception", "read_message"]

_LOGGER = logging.getLogger(__name__)
_MOST_BYTES = 1 << 30
_READ_S = 20.0


class Reception:
    """Reads the messages of calls, and has them answered.

    gRPC alone would hold a message for each of thousands of calls before we saw one, log a traceback for
    bytes that are no message, and tell callers the text of any exception.
    """

    def __init__(self, ledger: Ledger, *, message_bytes: int) -> None:
        """Messages have at most ``message_bytes`` each: as many are read at a time as fit 1 GiB."""
        self._ledger = ledger
        self._turns = asyncio.Semaphore(max(_MOST_BYTES // message_bytes, 1))

    def handlers(self, answers: Mapping[str, Any], methods: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
        """Return gRPC's handler for each call, given what answers it and its request and reply."""
        return {name: self._handler(answers[name], *methods[name]) for name in methods}

    def _handler(self, answer: Callable[[Any, Any], Awaitable[Any]], request: Any, reply: Any) -> Any:
        async def call(_: Any, context: Any) -> Any:
            message = await self._message(context, request)
            try:
                return await answer(message, context)
            except grpc.aio.AbortError:
                raise
            except Exception:
                _LOGGER.exception("a control call failed")
                return await context.abort(
                    grpc.StatusCode.INTERNAL, "the server failed to answer; its log says why"
                )

        # As a stream: of a call of one message, gRPC reads it before it asks us. Callers see no difference.
        return grpc.stream_unary_rpc_method_handler(call, response_serializer=reply.SerializeToString)

    async def _message(self, context: Any, request: Any) -> Any:
        async with self._turns:
            data = await read_message(context, _READ_S)
        if data is None:
            return await self._refuse(context, f"the message did not come within {_READ_S:g} s")
        try:
            return request.FromString(data)
        except DecodeError:
            return await self._refuse(context, f"the message is no {request.DESCRIPTOR.name}")

    async def _refuse(self, context: Any, why: str) -> None:
        self._ledger.add(refused=1)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)


async def read_message(context: Any, timeout_s: float) -> bytes | None:
    """Return the first message of a call, empty where none follows. ``None`` if it does not come in time."""
    reading = asyncio.ensure_future(context.read())
    try:
        # Not wait_for: it forgets that the call was cancelled, if its message came just then.
        await asyncio.wait({reading}, timeout=timeout_s)
    finally:
        came = reading.done()
        reading.cancel()
    if not came:
        return None
    message = reading.result()
    return b"" if message is grpc.aio.EOF else bytes(message)
