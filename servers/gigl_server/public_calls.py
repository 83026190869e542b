"""Calls that need no token: health and reflection."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from gigl_server.reception import read_message

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PublicCalls"]

_MOST = 128
_READ_S = 20.0


class PublicCalls:
    """Gives few places to calls of strangers, so that they cannot take those of trainers by holding on.

    All are run as streams: of a call of one message, gRPC would wait for it before it asks us, for ever.
    """

    def __init__(self) -> None:
        self._open = 0

    def limited(self, handler: Any) -> Any:
        """Return a handler that does what ``handler`` does, while there is a place."""
        if handler.stream_stream is not None:

            async def stream(requests: Any, context: Any) -> None:
                with self._place() as found:
                    await self._check(found, context)
                    async for reply in handler.stream_stream(requests, context):
                        await context.write(reply)

            return grpc.stream_stream_rpc_method_handler(
                stream, handler.request_deserializer, handler.response_serializer
            )
        answer = handler.unary_stream or handler.unary_unary
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )

        async def call(_: Any, context: Any) -> Any:
            with self._place() as found:
                await self._check(found, context)
                return await answer(await _message(context, handler.request_deserializer), context)

        return make(call, None, handler.response_serializer)

    @contextmanager
    def _place(self) -> Iterator[bool]:
        """Take a place and return whether there was one."""
        self._open += 1
        try:
            yield self._open <= _MOST
        finally:
            self._open -= 1

    async def _check(self, found: bool, context: Any) -> None:
        if not found:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MOST} calls without a token are open: close some"
            )


async def _message(context: Any, parse: Any) -> Any:
    data = await read_message(context, _READ_S)
    try:
        if data is not None:
            return parse(data)
    except DecodeError:
        pass
    return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no message of this call came")
