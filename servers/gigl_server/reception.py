"""What stands between gRPC and an answer: who may call, and how the bytes of a call become its message."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import grpc
from google.protobuf.message import DecodeError

from gigl_loader.rpc.control import SERVICE, STORE_SERVICE
from gigl_loader.rpc.job import JOB_HEADER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from gigl_loader.rpc.credentials import Credentials
    from gigl_server.ledger import Ledger

__all__ = ["Reception", "TokenGuard", "header_values", "read_message"]

_LOGGER = logging.getLogger(__name__)
_GUARDED = tuple(f"/{service}/" for service in (SERVICE, STORE_SERVICE))
_MOST_BYTES = 1 << 30
_MOST_OF_A_CALLER = 4
_READ_S = 20.0
_READ_WHILE_OTHERS_WAIT_S = 2.0  # Messages come with the headers of their calls, but for those of megabytes.


class TokenGuard(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Lets no call of our services pass without the token. Health and reflection are anyone's."""

    def __init__(self, credentials: Credentials, ledger: Ledger, public: Callable[[Any], Any]) -> None:
        """``public`` makes the handlers of calls that need no token fit for strangers."""
        self.credentials = credentials
        self._ledger = ledger
        self._public = public

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Return who answers a call: decided by its headers, before a byte of its message is read."""
        if not details.method.startswith(_GUARDED):
            handler = await continuation(details)
            return None if handler is None else self._public(handler)
        if self.credentials.accepts(header_values(details.invocation_metadata, "authorization")):
            return await continuation(details)
        self._ledger.add(refused=1)
        # As a stream that is not read: for a call of one message, gRPC would read it first.
        return grpc.stream_unary_rpc_method_handler(_refuse)


class Reception:
    """Reads the messages of calls, and has them answered.

    gRPC alone would hold a message for each of thousands of calls before we saw one, log a traceback for
    bytes that are no message, and tell callers the text of any exception.
    """

    def __init__(self, ledger: Ledger, *, message_bytes: int) -> None:
        """Messages have at most ``message_bytes`` each: as many are read at a time as fit 1 GiB."""
        self._ledger = ledger
        self._turns = _Turns(max(_MOST_BYTES // message_bytes, 1))

    @property
    def idle(self) -> bool:
        """No message is read or waited for."""
        return self._turns.idle

    def handlers(self, answers: Mapping[str, Any], methods: Mapping[str, tuple[Any, Any]]) -> dict[str, Any]:
        """Return gRPC's handler for each call, given what answers it and its request and reply."""
        return {name: self._handler(answers[name], *methods[name]) for name in methods}

    def _handler(self, answer: Callable[[Any, Any], Awaitable[Any]], request: Any, reply: Any) -> Any:
        async def call(_: Any, context: Any) -> Any:
            try:
                # Kept by nobody but the answer: it may hold megabytes, and wait for minutes.
                return await answer(await self._message(context, request), context)
            except grpc.aio.AbortError:
                raise
            except Exception:
                if context.done():  # A refusal was under way, and whoever should hear it is gone.
                    raise asyncio.CancelledError from None
                _LOGGER.exception("a control call failed")
                return await context.abort(
                    grpc.StatusCode.INTERNAL, "the server failed to answer; its log says why"
                )

        # As a stream: of a call of one message, gRPC reads it before it asks us. Callers see no difference.
        return grpc.stream_unary_rpc_method_handler(call, response_serializer=reply.SerializeToString)

    async def _message(self, context: Any, request: Any) -> Any:
        async with self._turns.turn(_caller(context)):
            data = await read_message(context, _READ_S, hurry=self._turns.someone_waits)
            others_wait = self._turns.someone_waits()
        if data is None and others_wait:
            return await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "the message was slow to come, and others wait: send it again",
            )
        if data is None:
            return await self._refuse(context, f"the message did not come within {_READ_S:g} s")
        try:
            return request.FromString(data)
        except DecodeError:
            return await self._refuse(context, f"the message is no {request.DESCRIPTOR.name}")

    async def _refuse(self, context: Any, why: str) -> None:
        self._ledger.add(refused=1)
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)


class _Turns:
    """Turns at sending a message: few at once, and of one caller few of these."""

    def __init__(self, most: int) -> None:
        self._all = asyncio.Semaphore(most)
        self._of_a_caller = max(min(most // 2, _MOST_OF_A_CALLER), 1)
        self._callers: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._waiting = 0

    @property
    def idle(self) -> bool:
        return not self._callers

    def someone_waits(self) -> bool:
        return self._waiting > 0

    @asynccontextmanager
    async def turn(self, caller: str) -> AsyncIterator[None]:
        own = self._callers.setdefault(caller, asyncio.Semaphore(self._of_a_caller))
        self._waiting += 1
        try:
            await own.acquire()
        except BaseException:
            self._waiting -= 1
            raise
        try:
            try:
                await self._all.acquire()
            finally:
                self._waiting -= 1
            try:
                yield
            finally:
                self._all.release()
        finally:
            own.release()


async def read_message(
    context: Any,
    timeout_s: float,
    *,
    hurry: Callable[[], bool] = lambda: False,
    reading: dict[asyncio.Future[Any], None] | None = None,
) -> bytes | None:
    """Return the first message of a call, empty where none follows. ``None`` if it does not come in time.

    Time is shorter while ``hurry`` says so. Whoever ends the future that lies in ``reading`` ends the wait.
    """
    message = asyncio.ensure_future(context.read())
    if reading is not None:
        reading[message] = None
    deadline = asyncio.get_running_loop().time() + timeout_s
    try:
        while not message.done() and (left := deadline - asyncio.get_running_loop().time()) > 0:
            # Not wait_for: it forgets that the call was cancelled, if its message came just then.
            await asyncio.wait({message}, timeout=min(left, _READ_WHILE_OTHERS_WAIT_S))
            if hurry():
                break
    finally:
        if reading is not None:
            del reading[message]
        came = message.done() and not message.cancelled()
        message.cancel()
    if not came:
        return None
    data = message.result()
    return b"" if data is grpc.aio.EOF else bytes(data)


def header_values(metadata: Sequence[tuple[str, str | bytes]], name: str) -> list[str | bytes]:
    """Return all values of a header."""
    return [value for key, value in metadata or () if key == name]


def _caller(context: Any) -> str:
    """Return what tells callers apart: the job, where there is one, else the connection."""
    values = header_values(context.invocation_metadata(), JOB_HEADER)
    return str(values[0]) if values else str(context.peer())


async def _refuse(_: Any, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token: all hosts must use the same one")
