"""Handlers of control calls, as gRPC calls them."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.checksums import CHECKSUM_HEADER, checksum_text
from gigl_loader.rpc.control import REFUSAL_HEADER, refusal_mark
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.counters import Counters
from gigl_server.logs import AuditLog
from gigl_server.ports.auth import AuthenticatedCalls
from gigl_server.ports.control_call import CallTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gigl_server.ports.control_call import ControlCall

METHODS = {"Load": (messages.LoadRequest, messages.ServerLoad)}


class Aborted(Exception):
    """Raised by ``abort``, as by that of gRPC."""


class Context:
    """A call, up to its end."""

    def __init__(self) -> None:
        self.statuses: list[grpc.StatusCode] = []
        self.trailers: dict[str, str] = {}
        self.callbacks: list[Callable[[], None]] = []
        self.cancelled = threading.Event()

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:10.0.0.7:1"

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.callbacks.append(callback)
        return True

    def abort(self, code: grpc.StatusCode, details: str) -> None:
        assert details
        self.statuses.append(code)
        raise Aborted

    def set_trailing_metadata(self, trailers: tuple[tuple[str, str], ...]) -> None:
        self.trailers = dict(trailers)

    def cancel(self) -> None:
        self.cancelled.set()

    def end(self) -> None:
        for callback in self.callbacks:
            callback()


@pytest.fixture
def times() -> Iterator[CallTimes]:
    found = CallTimes()
    yield found
    found.close()


@pytest.fixture
def reception(times: CallTimes) -> AuthenticatedCalls:
    return AuthenticatedCalls(
        Credentials(token=""), Counters(), AuditLog(), times, message_bytes=1 << 20, max_calls=100
    )


def called(
    reception: AuthenticatedCalls, answer: Any, context: Context, requests: Iterable[bytes] = (b"",)
) -> bytes:
    reception.add("s", {"Load": answer}, METHODS)
    details = SimpleNamespace(method="/s/Load", invocation_metadata=())
    return bytes(reception.service(details).stream_unary(iter(requests), context))


def test_a_reply_has_its_checksum(reception: AuthenticatedCalls) -> None:
    context, reply = Context(), messages.ServerLoad(workers=3)
    sent = called(reception, lambda *_: reply, context)
    assert sent == reply.SerializeToString()
    assert context.trailers == {CHECKSUM_HEADER: checksum_text(sent)}


def test_a_call_is_one_of_those_under_way_until_its_end(reception: AuthenticatedCalls) -> None:
    """Replies that are not read hold no thread, and count."""
    contexts = [Context() for _ in range(32)]
    for each in contexts:
        called(reception, lambda *_: messages.ServerLoad(), each)
    assert reception.idle
    refused = Context()
    with pytest.raises(Aborted):
        called(reception, lambda *_: messages.ServerLoad(), refused)
    assert refused.statuses == [grpc.StatusCode.RESOURCE_EXHAUSTED]
    contexts[0].end()
    called(reception, lambda *_: messages.ServerLoad(), Context())


def test_a_call_that_has_not_ended_in_its_time_is_cancelled(
    reception: AuthenticatedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gigl_server.ports.auth._CALL_S", 0.0)
    context, ended = Context(), Context()
    called(reception, lambda *_: messages.ServerLoad(), ended)
    ended.end()
    called(reception, lambda *_: messages.ServerLoad(), context)
    assert context.cancelled.wait(20)


def test_a_caller_that_leaves_is_no_error(
    reception: AuthenticatedCalls, caplog: pytest.LogCaptureFixture
) -> None:
    class Gone:
        def __iter__(self) -> Iterator[bytes]:
            return self

        def __next__(self) -> bytes:
            raise grpc.RpcError

    context = Context()
    with pytest.raises(grpc.RpcError):
        called(reception, lambda *_: messages.ServerLoad(), context, Gone())
    assert (context.statuses, caplog.messages) == ([], [])


def test_a_refusal_is_a_status(reception: AuthenticatedCalls, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(request: Any, call: ControlCall) -> None:
        raise Refusal(RefusalKind.NOT_FOUND, "no such channel")

    context = Context()
    with pytest.raises(Aborted):
        called(reception, refuse, context)
    assert context.statuses == [grpc.StatusCode.NOT_FOUND]
    assert context.trailers[REFUSAL_HEADER] == refusal_mark(
        RefusalKind.NOT_FOUND, "no such channel", checked=False
    )
    assert "refused 10.0.0.7: Load: NOT_FOUND: no such channel" in caplog.messages


def test_a_mistake_of_ours_is_logged_and_told_without_its_innards(
    reception: AuthenticatedCalls, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: Any, call: ControlCall) -> None:
        raise ZeroDivisionError

    context = Context()
    with caplog.at_level(logging.WARNING), pytest.raises(Aborted):
        called(reception, fail, context)
    assert "a control call failed" in caplog.text
    assert context.statuses == [grpc.StatusCode.INTERNAL]
