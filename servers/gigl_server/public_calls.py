"""Calls that need no token: health and reflection."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from gigl_server.reception import read_message

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PublicCalls"]

_MOST = 128
_READ_S = 2.0


class PublicCalls:
    """Gives few places to calls of strangers, so that they cannot take those of trainers by holding on.

    Nor those of probes: calls that last have places of their own, and of calls that ask for one reply the
    oldest has to go whose message has not come. All are run as streams: of a call of one message, gRPC would
    wait for it before it asks us, for ever.
    """

    def __init__(self) -> None:
        self._lasting = 0
        self._unread: dict[asyncio.Future[Any], None] = {}  # Oldest first.

    def limited(self, handler: Any) -> Any:
        """Return a handler that does what ``handler`` does, while there is a place."""
        if handler.stream_stream is not None:

            async def stream(requests: Any, context: Any) -> None:
                with self._place() as found:
                    await _check(found, context)
                    async for reply in handler.stream_stream(requests, context):
                        await context.write(reply)

            return grpc.stream_stream_rpc_method_handler(
                stream, handler.request_deserializer, handler.response_serializer
            )
        if handler.unary_unary is not None:

            async def call(_: Any, context: Any) -> Any:
                return await handler.unary_unary(await self._message(context, handler), context)

            return grpc.stream_unary_rpc_method_handler(call, None, handler.response_serializer)

        async def watch(_: Any, context: Any) -> Any:
            with self._place() as found:
                await _check(found, context)
                return await handler.unary_stream(await self._message(context, handler), context)

        return grpc.stream_stream_rpc_method_handler(watch, None, handler.response_serializer)

    @contextmanager
    def _place(self) -> Iterator[bool]:
        """Take a place for a call that lasts and return whether there was one."""
        self._lasting += 1
        try:
            yield self._lasting <= _MOST
        finally:
            self._lasting -= 1

    async def _message(self, context: Any, handler: Any) -> Any:
        if len(self._unread) >= _MOST:
            next(iter(self._unread)).cancel()
        data = await read_message(context, _READ_S, reading=self._unread)
        try:
            if data is not None:
                return handler.request_deserializer(data)
        except DecodeError:
            pass
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no message of this call came")


async def _check(found: bool, context: Any) -> None:
    if not found:
        await context.abort(
            grpc.StatusCode.RESOURCE_EXHAUSTED, f"{_MOST} calls without a token are open: close some"
        )
