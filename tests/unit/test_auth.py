"""Control calls whose caller is gone, as gRPC shows them."""

from __future__ import annotations

import logging
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

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_server.ports.control_call import ControlCall

METHODS = {"Load": (messages.LoadRequest, messages.ServerLoad)}


class Context:
    """A call, up to its end."""

    def __init__(self) -> None:
        self.statuses: list[grpc.StatusCode] = []
        self.trailers: dict[str, str] = {}
        self.callbacks: list[Callable[[], None]] = []
        self._rpc_event = self._state = None  # Not gRPC's: what is sent fails.

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return ()

    def peer(self) -> str:
        return "ipv4:10.0.0.7:1"

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.callbacks.append(callback)
        return True

    def set_code(self, code: grpc.StatusCode) -> None:
        self.statuses.append(code)

    def set_details(self, details: str) -> None:
        assert details

    def set_trailing_metadata(self, trailers: tuple[tuple[str, str], ...]) -> None:
        self.trailers = dict(trailers)

    def end(self) -> None:
        for callback in self.callbacks:
            callback()


@pytest.fixture
def reception() -> AuthenticatedCalls:
    return AuthenticatedCalls(
        Credentials(token=""), Counters(), AuditLog(), message_bytes=1 << 20, max_calls=100
    )


def called(
    reception: AuthenticatedCalls, answer: Any, context: Context, requests: tuple[bytes, ...] = (b"",)
) -> None:
    reception.add("s", {"Load": answer}, METHODS)
    details = SimpleNamespace(method="/s/Load", invocation_metadata=())
    reception.service(details).stream_stream(iter(requests), context, lambda _: None)


def test_a_call_is_answered_once(reception: AuthenticatedCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes | None] = []
    monkeypatch.setattr("grpc._server._status", lambda _event, _state, data: sent.append(data))
    context = Context()

    def reply_twice(request: Any, call: ControlCall) -> None:
        call.reply(messages.ServerLoad(workers=3))
        call.reply(messages.ServerLoad(workers=4))
        call.refuse(Refusal(RefusalKind.NOT_FOUND, "too late"))

    called(reception, reply_twice, context)
    context.end()
    assert sent == [messages.ServerLoad(workers=3).SerializeToString()]
    assert context.trailers == {CHECKSUM_HEADER: checksum_text(sent[0] or b"")}
    assert not context.statuses


def test_an_answer_that_cannot_be_sent_ends_no_thread(
    reception: AuthenticatedCalls, caplog: pytest.LogCaptureFixture
) -> None:
    called(reception, lambda *_: messages.ServerLoad(), Context())
    assert "could not be sent" in caplog.text


def test_without_grpc_s_own_ending_the_public_one_is_used(
    reception: AuthenticatedCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("grpc._server._status")
    sent: list[bytes | None] = []
    reception.add("s", {"Load": lambda *_: messages.ServerLoad(workers=3)}, METHODS)
    details = SimpleNamespace(method="/s/Load", invocation_metadata=())
    reception.service(details).stream_stream(iter([b""]), Context(), sent.append)
    assert sent == [messages.ServerLoad(workers=3).SerializeToString(), None]


def test_a_refusal_is_a_status(reception: AuthenticatedCalls, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(request: Any, call: ControlCall) -> None:
        raise Refusal(RefusalKind.NOT_FOUND, "no such channel")

    context = Context()
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
    with caplog.at_level(logging.WARNING):
        called(reception, fail, context)
    assert "a control call failed" in caplog.text
    assert context.statuses == [grpc.StatusCode.INTERNAL]
