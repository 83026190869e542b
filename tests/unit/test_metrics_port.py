"""The port of the metrics: who may read them, over TLS or not, and what strangers can take of it."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import time
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader.resources import memory_bytes
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.tokens import Token, authorization
from gigl_server.admission import METRICS_PORT
from gigl_server.cluster.membership import View
from gigl_server.config import ServeOptions
from gigl_server.counters import Counters, Durations
from gigl_server.ports import metrics as metrics_module
from gigl_server.ports.metrics import MetricsPort
from tests.support.certificates import Authority
from tests.support.leftovers import wait_until
from tests.support.store_service import Trainer, service_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gigl_server.sampling.service import SamplingService

AUTHORITY = Authority()
OLD, NEW = "old-0123456789abcdef", "new-0123456789abcdef"
TOKENS = (Token(name="old", secret=OLD), Token(name="new", secret=NEW))


def credentials() -> Credentials:
    certificate, key = AUTHORITY.sign()
    return Credentials(token=OLD, certificate=certificate, key=key)


@contextmanager
def port_of(service: SamplingService | None = None, **options: Any) -> Iterator[MetricsPort]:
    with nullcontext(service) if service is not None else service_of() as served:
        given: dict[str, Any] = {
            "counters": Counters(),
            "view": lambda: View(members=(), ready=True, reason=""),
        }
        port = MetricsPort("127.0.0.1:0", service=served, **given | options)
        try:
            yield port
        finally:
            port.close()


def place(port: MetricsPort) -> tuple[str, int]:
    host, _, number = port.address.rpartition(":")
    return host, int(number)


def get(port: MetricsPort, path: str, *shown: str, tls: bool = False) -> tuple[int, str]:
    """Return status and text of a reply. ``shown`` are tokens."""
    context = ssl.create_default_context(cadata=AUTHORITY.pem.decode()) if tls else None
    host, number = place(port)
    client: http.client.HTTPConnection
    if context is None:
        client = http.client.HTTPConnection(host, number, timeout=20)
    else:
        client = http.client.HTTPSConnection(host, number, timeout=20, context=context)
    client.putrequest("GET", path)
    for token in shown:
        client.putheader("authorization", authorization(token))
    client.endheaders()
    with client.getresponse() as reply:
        text = reply.read().decode()
        assert reply.getheader("WWW-Authenticate") == ("Bearer" if reply.status == 401 else None)
    client.close()
    return reply.status, text


@pytest.mark.parametrize("tls", [False, True])
def test_metrics_need_a_token_and_health_needs_none(*, tls: bool) -> None:
    with port_of(tokens=TOKENS, tls=credentials() if tls else None) as port:
        for token in (OLD, NEW):
            status, text = get(port, "/metrics", token, tls=tls)
            assert status == 200
            assert "gigl_workers 1.0" in text
            assert "gigl_topology_partitions 1.0" in text
        for wrong in ((), ("wrong-0123456789abcdef",), (OLD, NEW), (OLD[:-1],)):
            status, text = get(port, "/metrics", *wrong, tls=tls)
            assert status == 401
            assert "gigl" not in text
        assert get(port, "/healthz", tls=tls) == (200, "ready\n")
        assert get(port, "/else", tls=tls)[0] == 404


def test_a_refusal_is_logged_without_the_token(caplog: pytest.LogCaptureFixture) -> None:
    with port_of(tokens=TOKENS) as port:
        get(port, "/metrics", "wrong-0123456789abcdef")
        assert wait_until(lambda: bool(caplog.messages))
    assert caplog.messages == ["refused 127.0.0.1: metrics: wrong token or none"]


def test_tokens_and_certificate_are_renewed() -> None:
    with port_of(tokens=TOKENS[:1], tls=credentials()) as port:

        def shown() -> bytes | None:
            context = ssl.create_default_context(cadata=AUTHORITY.pem.decode())
            with (
                socket.create_connection(place(port), timeout=20) as line,
                context.wrap_socket(line, server_hostname="127.0.0.1") as secure,
            ):
                return secure.getpeercert(binary_form=True)

        before = shown()
        assert get(port, "/metrics", NEW, tls=True)[0] == 401
        port.renew(credentials(), TOKENS)
        assert shown() != before
        assert get(port, "/metrics", OLD, tls=True)[0] == get(port, "/metrics", NEW, tls=True)[0] == 200
        port.renew(credentials(), TOKENS[1:])
        assert get(port, "/metrics", OLD, tls=True)[0] == 401


def value(port: MetricsPort, series: str) -> float | None:
    """Return the value of a series, or ``None`` where there is none."""
    lines = get(port, "/metrics")[1].splitlines()
    found = [line.removeprefix(f"{series} ") for line in lines if line.startswith(f"{series} ")]
    return float(found[0]) if found else None


def test_holders_are_counted_for_partitions_of_this_server_and_for_lost_ones() -> None:
    """Partition 0 is here and on two others, of which one is away; 1 is on another; 2 is on the one away."""
    parts = {"own:1": (0,), "other:1": (0, 1), "away:1": (0, 2)}
    members = tuple(
        Endpoint(host_index=rank, host=name[:-2], control_port=1, data_port=2, partitions=held)
        for rank, (name, held) in enumerate(parts.items())
    )
    view = View(members=members, own="own:1", away=frozenset({"away:1"}), ready=True, reason="")
    with port_of(view=lambda: view) as port:
        found = [value(port, f'gigl_partition_holders{{partition="{part}"}}') for part in range(3)]
        assert found == [2, None, 0]
        assert value(port, "gigl_servers_away") == 1


def test_the_expiry_is_that_of_the_certificate_in_use() -> None:
    shown = [credentials().certificate, b""]
    name = "gigl_certificate_expiry_timestamp_seconds"
    with port_of(certificate=lambda: shown[0]) as port:
        found = value(port, name)
        assert found is not None
        assert 0.9 < (found - time.time()) / 86_400 < 1.1
        shown[0] = AUTHORITY.sign(days=(-1.0, 5.0))[0]
        assert (value(port, name) or 0) - found > 3.9 * 86_400
        shown[0] = b""
        assert value(port, name) is None


def test_batches_are_counted_by_their_duration_and_kind() -> None:
    with service_of() as service, port_of(service) as port:
        for kind, batches in (("batch", 3), ("interactive", 2)):
            trainer = Trainer(service, key=kind, interactive=kind == "interactive")
            for batch in range(batches):
                trainer.ask(batch)
                trainer.answers.next()
        for of in ("waiting", "sampling"):
            name = f"gigl_batch_{of}_seconds"
            for kind, batches in (("batch", 3), ("interactive", 2)):
                assert value(port, f'{name}_bucket{{kind="{kind}",le="+Inf"}}') == batches
                assert value(port, f'{name}_count{{kind="{kind}"}}') == batches
            sums = [value(port, f'{name}_sum{{kind="{kind}"}}') or 0 for kind in ("batch", "interactive")]
            assert sum(sums) == pytest.approx(value(port, f"gigl_{of}_seconds_total"))


def test_intervals_of_durations_end_with_their_bound() -> None:
    durations = Durations()
    for seconds in (0.0, 0.0005, 0.0006, 30.0, 31.0):
        durations.add(seconds)
    counts, sum_s = durations.read()
    assert counts == (2, 1, *[0] * 12, 1, 1)
    assert sum_s == pytest.approx(61.0011)


def test_limits_of_memory_are_those_of_the_service() -> None:
    with service_of(memory=4 << 30, frame_bytes=1 << 30) as service, port_of(service) as port:
        assert value(port, 'gigl_memory_limit_bytes{of="frames"}') == 1 << 30
        assert value(port, 'gigl_memory_limit_bytes{of="rings"}') == 2 << 30
        assert value(port, 'gigl_memory_limit_bytes{of="process"}') == memory_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("tls", [False, True])
def test_silent_connections_of_a_stranger_keep_nobody_out(
    monkeypatch: pytest.MonkeyPatch, *, tls: bool
) -> None:
    """They get the places of one address, each for a moment; every later one is closed at once."""
    monkeypatch.setattr(metrics_module, "METRICS_PORT", replace(METRICS_PORT, first_s=0.5))
    with port_of(tls=credentials() if tls else None) as port:
        lines = [socket.create_connection(place(port), timeout=20) for _ in range(40)]
        places = port._server._places
        assert wait_until(lambda: sum(map(_is_closed, lines)) >= 40 - 16)
        assert places.enter(metrics_module._identity_at(("10.0.0.1", 1)))  # Another address has room.
        places.leave(metrics_module._identity_at(("10.0.0.1", 1)))
        assert wait_until(lambda: all(map(_is_closed, lines)))
        for line in lines:
            line.close()
        assert wait_until(lambda: _answers(port, tls=tls))


def _is_closed(line: socket.socket) -> bool:
    with suppress(BlockingIOError):
        try:
            return line.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) == b""
        except ConnectionError:
            return True
    return False


def _answers(port: MetricsPort, *, tls: bool) -> bool:
    with suppress(OSError, http.client.HTTPException):
        return get(port, "/healthz", tls=tls)[0] == 200
    return False


@pytest.mark.parametrize("piece", [b"G", b"x-header: 1\r\n", b"\x00"], ids=["word", "headers", "zeros"])
def test_bytes_that_trickle_in_end_after_two_seconds(piece: bytes) -> None:
    with port_of() as port, socket.create_connection(place(port), timeout=20) as line:
        line.sendall(b"GET /healthz HTTP/1.1\r\n" if b"x" in piece else b"")

        def is_cut() -> bool:
            try:
                line.sendall(piece)
            except ConnectionError:
                return True
            return False

        assert wait_until(is_cut, seconds=60)


@pytest.mark.parametrize(
    ("request_of", "status"),
    [
        (lambda size: b"GET /healthz HTTP/1.1\r\n" + b"a: " + b"b" * size + b"\r\n\r\n", "431"),
        (lambda size: b"GET /healthz HTTP/1.1\r\n" + b"a: b\r\n" * (size // 6) + b"\r\n", "431"),
        (lambda size: b"GET /" + b"b" * size + b" HTTP/1.1\r\n\r\n", ""),
    ],
    ids=["one", "many", "path"],
)
def test_large_headers_are_not_read(request_of: Any, status: str) -> None:
    with port_of() as port:
        for size, expected in ((100, "(200|404)"), (90_000, status)):
            with socket.create_connection(place(port), timeout=20) as line:
                with suppress(ConnectionError):
                    line.sendall(request_of(size))
                told = b""
                with suppress(ConnectionError):
                    while part := line.recv(4096):
                        told += part
            assert re.match(rf"HTTP/1.0 {expected}" if expected else "$", told.decode()), told
        assert get(port, "/healthz") == (200, "ready\n")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"metrics_token_file": "token"}, "metrics_token_file without metrics"),
        ({"metrics_tls": True}, "metrics_tls without metrics"),
        ({"metrics": "127.0.0.1:0", "metrics_tls": True}, "metrics_tls without tls_cert"),
        (
            {"metrics": "10.0.0.5:9090", "metrics_token_file": "token"},
            r"metrics: 10\.0\.0\.5:9090 can be reached from other hosts, which needs TLS: give metrics_tls",
        ),
        (
            {"metrics": "0.0.0.0:9090"},
            r"metrics: 0\.0\.0\.0:9090 .*, which needs TLS: .* metrics_token_file, or say insecure",
        ),
        (
            {"metrics": "10.0.0.5:9090", "metrics_tls": True, "tls_cert": "cert", "tls_key": "key"},
            r"metrics: .*, which needs a token: give metrics_token_file, or say insecure on a network",
        ),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        ServeOptions(graph_dir=tmp_path, **changes)
