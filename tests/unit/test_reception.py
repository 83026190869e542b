"""What the control port makes of calls whose caller is gone."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_server.ledger import Ledger
from gigl_server.reception import Reception


class Gone:
    """A call that nobody waits for any more, as gRPC shows it: what is sent fails."""

    def __init__(self) -> None:
        self.aborts = 0

    async def read(self) -> bytes:
        return b""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:10.0.0.7:1"

    def done(self) -> bool:
        return self.aborts > 0

    async def abort(self, status: grpc.StatusCode, details: str) -> None:
        self.aborts += 1
        raise RuntimeError("failed to execute a batch")


def answered(answer: Any, context: Gone) -> None:
    methods = {"Load": (messages.LoadRequest, messages.ServerLoad)}
    handler = Reception(Ledger(), message_bytes=1 << 20).handlers({"Load": answer}, methods)["Load"]
    asyncio.run(handler.stream_unary(None, context))


def test_a_refusal_that_nobody_hears_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(request: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such channel")

    gone = Gone()
    with caplog.at_level(logging.WARNING), pytest.raises(asyncio.CancelledError):
        answered(refuse, gone)
    assert gone.aborts == 1
    assert not caplog.records


def test_a_mistake_of_ours_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: Any, context: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(RuntimeError, match="failed to execute"):
        answered(fail, Gone())
    assert "a control call failed" in caplog.text
