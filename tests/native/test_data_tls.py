"""TLS of the data port, with the OpenSSL of this machine."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

import numpy as np
import psutil
import pytest

from gigl_loader.native import (
    DataClient,
    DataServer,
    StreamClosed,
    StreamError,
    TlsContext,
    TlsUnusable,
)
from gigl_loader.rpc.certificates import self_signed
from tests.support.certificates import Authority
from tests.support.key_updates import KeyUpdates
from tests.support.leftovers import wait_until
from tests.support.padded_records import PaddedRecords
from tests.support.raw_data import connected_socket, header_of, read_all, reply_bytes, request_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEADER = header_of("a-token-for-tests-of-the-kernels")
SOON_S = 60.0
FLOOD = 10_000_000
MAX_GROWTH_BYTES = 4 << 20
"""Of 1,000 sessions, of 8 KB each."""
REPLY = reply_bytes(b"body")
CERTIFICATE, KEY = self_signed(["127.0.0.1", "localhost"])


@contextmanager
def echoing(tls: TlsContext) -> Iterator[tuple[DataServer, list[bytes]]]:
    server, shown = DataServer("127.0.0.1", 0, tls), list[bytes]()
    ending = threading.Event()

    def serve() -> None:
        while not ending.is_set():
            call = server.next(0.5)
            if call is not None:
                shown.append(call.certificate)
                body = call.read_body(SOON_S, SOON_S)
                assert body is not None
                call.reply([np.frombuffer(body, np.uint8)], SOON_S, SOON_S)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield server, shown
    finally:
        ending.set()
        server.stop()
        thread.join(SOON_S)


def asked(server: DataServer, tls: TlsContext, body: bytes, host: str = "127.0.0.1", name: str = "") -> bytes:
    client = DataClient(host, server.port, tls, name)
    client.connect(SOON_S)
    for _ in range(2):
        _, nbytes, _ = client.call(HEADER, body, SOON_S)
        out = np.empty(nbytes, np.uint8)
        client.read(out)
        assert client.finish()
    return out.tobytes()


@pytest.mark.parametrize("nbytes", [0, 1, 16_384, 65_536, 5_000_001])
def test_bytes_arrive(nbytes: int) -> None:
    body = np.random.default_rng(nbytes).bytes(nbytes)
    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, shown):
        assert asked(server, TlsContext.client(CERTIFICATE), body) == body
        assert asked(server, TlsContext.client(CERTIFICATE), body, "localhost") == body
    assert not any(shown)


def test_a_certificate_must_be_trusted_and_name_its_host() -> None:
    other = self_signed(["127.0.0.1"])[0]
    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _):
        with pytest.raises(StreamError, match=r"TLS handshake: self.signed certificate"):
            asked(server, TlsContext.client(other), b"")
        with pytest.raises(StreamError, match=r"TLS handshake: hostname mismatch"):
            asked(server, TlsContext.client(CERTIFICATE), b"", name="elsewhere.example")
        with pytest.raises(StreamError, match=r"TLS handshake: IP address mismatch"):
            asked(server, TlsContext.client(CERTIFICATE), b"", name="10.9.8.7")
        assert asked(server, TlsContext.client(CERTIFICATE), b"x", name="localhost") == b"x"


def test_callers_show_certificates_where_they_are_asked_for() -> None:
    authority, stranger = Authority(), Authority()
    tls = TlsContext.server(*authority.sign(), authority.pem)
    certificate, key = authority.sign()
    with echoing(tls) as (server, shown):
        assert asked(server, TlsContext.client(authority.pem, certificate, key), b"x") == b"x"
        for other in (
            TlsContext.client(authority.pem),
            TlsContext.client(authority.pem, *stranger.sign()),
        ):
            with pytest.raises(StreamError, match=r"TLS.*: |closed"):
                asked(server, other, b"")
    assert set(shown) == {ssl.PEM_cert_to_DER_cert(certificate.decode())}


def test_a_certificate_is_renewed_while_the_port_is_open() -> None:
    renewed, key = self_signed(["127.0.0.1"])
    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _):
        old = DataClient("127.0.0.1", server.port, TlsContext.client(CERTIFICATE))
        old.connect(SOON_S)
        server.renew(TlsContext.server(renewed, key))
        assert asked(server, TlsContext.client(renewed), b"new") == b"new"
        assert old.call(HEADER, b"old", SOON_S)[:2] == (0, 3)
        with pytest.raises(StreamError):
            asked(server, TlsContext.client(CERTIFICATE), b"")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_versions_and_ciphers(version: ssl.TLSVersion) -> None:
    context = ssl.create_default_context(cadata=CERTIFICATE.decode())
    context.minimum_version = context.maximum_version = version
    with (
        echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _),
        socket.create_connection(("127.0.0.1", server.port), SOON_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        cipher = secure.cipher()
        assert cipher is not None
        assert "AES" in cipher[0]
        assert secure.compression() is None
        assert not secure.session_reused


def test_old_versions_plain_text_and_noise_are_refused() -> None:
    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _):
        place = ("127.0.0.1", server.port)
        for sent in (b"GIGL" * 100, b"GET / HTTP/1.1\r\n\r\n", bytes(range(256)) * 40):
            with connected_socket(place, sent) as stranger:
                assert read_all(stranger) is not None
        with pytest.raises(StreamError):
            DataClient("127.0.0.1", server.port).call(HEADER, b"", SOON_S)
        assert any("TLS handshake" in reason for _, _, reason, *_ in server.sweep())
        assert asked(server, TlsContext.client(CERTIFICATE), b"x") == b"x"


def test_a_greeting_has_so_many_bytes_at_most() -> None:
    hello = b"\x01" + (131_000).to_bytes(3, "big") + b"\x03\x03" + bytes(130_000)
    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _):
        with socket.create_connection(("127.0.0.1", server.port), SOON_S) as stranger:
            with suppress(ConnectionError):
                for at in range(0, len(hello), 16_000):
                    piece = hello[at : at + 16_000]
                    stranger.sendall(struct.pack(">BHH", 22, 0x0301, len(piece)) + piece)
            assert read_all(stranger) == b""
        assert "TLS handshake: Message too long" in {reason for _, _, reason, *_ in server.sweep()}
        assert asked(server, TlsContext.client(CERTIFICATE), b"x") == b"x"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_connection_may_end_without_a_word_of_tls(tmp_path: Path, version: ssl.TLSVersion) -> None:
    (tmp_path / "pair.pem").write_bytes(CERTIFICATE + KEY)
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_cert_chain(tmp_path / "pair.pem")
    calling = ssl.create_default_context(cadata=CERTIFICATE.decode())
    accepting.maximum_version = calling.maximum_version = version

    def serve(listening: socket.socket) -> None:
        with accepting.wrap_socket(listening.accept()[0], server_side=True) as connection:
            assert connection.recv(1)
            connection.shutdown(socket.SHUT_WR)  # Of the socket alone.

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        served = threads.submit(serve, listening)
        client = DataClient("127.0.0.1", listening.getsockname()[1], TlsContext.client(CERTIFICATE))
        client.connect(SOON_S)
        with pytest.raises(StreamClosed, match="closed by the other side"):
            client.call(HEADER, b"", SOON_S)
        served.result(SOON_S)

    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _):
        plain = socket.create_connection(("127.0.0.1", server.port), SOON_S)
        with calling.wrap_socket(plain, server_hostname="127.0.0.1") as stranger:
            stranger.shutdown(socket.SHUT_WR)
            assert read_all(stranger) is not None
        assert wait_until(lambda: server.num_connections == 0, seconds=SOON_S)
        assert server.sweep() == []


@contextmanager
def key_updates(server: DataServer) -> Iterator[tuple[KeyUpdates, socket.socket]]:
    """Connect a caller that can renew its keys, and close it."""
    with socket.create_connection(("127.0.0.1", server.port), SOON_S) as connection:
        connection.settimeout(None)
        caller = KeyUpdates(connection)
        try:
            yield caller, connection
        finally:
            caller.close()


def reasons_of(server: DataServer) -> set[str]:
    """Wait until the server has ended a connection, and return why."""
    reasons = set[str]()

    def told() -> bool:
        reasons.update(reason for _, _, reason, *_ in server.sweep())
        return bool(reasons)

    assert wait_until(told, seconds=SOON_S)
    return reasons


@pytest.mark.parametrize("requested", [False, True])
def test_records_without_data_end_the_connection(requested: bool) -> None:
    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _):
        for honest in (False, True):  # Before the caller has shown a token, and after.
            with key_updates(server) as (caller, _):
                if honest:
                    assert caller.write(request_bytes(b"body", HEADER))
                    assert caller.read(len(REPLY)) == REPLY
                assert caller.send(FLOOD, requested=requested) < FLOOD
            assert reasons_of(server) == {"TLS: more than 32 records without data"}
        assert asked(server, TlsContext.client(CERTIFICATE), b"x") == b"x"


@pytest.mark.parametrize("requested", [False, True])
def test_keys_may_be_renewed_between_calls(requested: bool) -> None:
    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _), key_updates(server) as (caller, _):
        for _ in range(5):
            assert caller.send(32, requested=requested) == 32
            assert caller.write(request_bytes(b"body", HEADER))
            assert caller.read(len(REPLY)) == REPLY


def test_answers_to_updates_of_keys_are_sent_at_once() -> None:
    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _), key_updates(server) as (caller, line):
        assert caller.send(3, requested=True) == 3
        assert wait([line], SOON_S)


def test_a_stranger_has_4_kib_for_records_without_data() -> None:
    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _):
        with key_updates(server) as (caller, _):
            for byte in request_bytes(b"", HEADER):
                if caller.send(30) < 30 or not caller.write(bytes([byte])):
                    break
            else:
                pytest.fail("all was taken")
        assert reasons_of(server) == {"more than 4096 bytes without data"}


@pytest.mark.parametrize("padding", [[5_000], [16_000], [2_000] * 3])
def test_a_stranger_has_4_kib_for_padding(tmp_path: Path, padding: list[int]) -> None:
    """Charged as it comes, not with the next byte of data."""
    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _):
        connection = socket.create_connection(("127.0.0.1", server.port), SOON_S)
        with PaddedRecords(connection, tmp_path) as caller:
            caller.send(4_000)
            assert not wait_until(server.sweep, seconds=0.2)
            with suppress(ConnectionError):  # The server may close before the last record.
                for nbytes in padding:
                    caller.send(nbytes)
            assert reasons_of(server) == {"more than 4096 bytes without data"}


@contextmanager
def renewing_server(folder: Path) -> Iterator[tuple[DataClient, KeyUpdates]]:
    """Lend a client with a connection, and its server, which can renew its keys."""
    served = folder / "pair.pem"
    served.write_bytes(CERTIFICATE + KEY)
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        client = DataClient("127.0.0.1", listening.getsockname()[1], TlsContext.client(CERTIFICATE))
        connecting = stack.enter_context(ThreadPoolExecutor(1)).submit(client.connect, SOON_S)
        connection = stack.enter_context(listening.accept()[0])
        server = KeyUpdates(connection, served=served)
        stack.callback(server.close)
        connecting.result(SOON_S)
        yield client, server


@pytest.mark.parametrize("requested", [False, True])
@pytest.mark.parametrize("updates", [32, 33, 1_000])
def test_a_client_takes_so_many_records_without_data(tmp_path: Path, updates: int, requested: bool) -> None:
    """They and the reply come together, and the client reads 128 KiB at a time. Met: 5,000 in one step."""
    with renewing_server(tmp_path) as (client, server):
        assert server.send(updates, requested=requested) == updates
        assert server.write(REPLY)
        if updates == 32:
            assert client.call(HEADER, b"", SOON_S)[:2] == (0, 4)
            client.read(np.empty(4, np.uint8))
            assert client.finish()
        else:
            with pytest.raises(StreamError, match="TLS: more than 32 records without data"):
                client.call(HEADER, b"", SOON_S)


def test_floods_of_records_without_data_hold_up_nobody() -> None:
    ending = threading.Event()

    def flood(server: DataServer) -> int:
        connections = 0
        while not ending.is_set():
            with suppress(OSError), key_updates(server) as (caller, _):
                connections += 1
                assert caller.send(FLOOD, requested=True) < FLOOD
        return connections

    with echoing(TlsContext.server(CERTIFICATE, KEY)) as (server, _), ThreadPoolExecutor(4) as threads:
        floods = [threads.submit(flood, server) for _ in range(4)]
        client = DataClient("127.0.0.1", server.port, TlsContext.client(CERTIFICATE))
        client.connect(SOON_S)
        try:
            for number in range(200):
                assert client.call(HEADER, b"%d" % number, SOON_S)[:2] == (0, len(b"%d" % number))
                client.read(np.empty(client.left, np.uint8))
                assert client.finish()
        finally:
            ending.set()
        assert all(each.result(SOON_S) for each in floods)


def test_nothing_is_left_of_sessions_that_cannot_be_made() -> None:
    server = DataServer("127.0.0.1", 0, TlsContext.server(CERTIFICATE, KEY), strangers=1)
    context = TlsContext.client(CERTIFICATE)

    def fail(times: int) -> None:
        for _ in range(times):
            with pytest.raises(RuntimeError, match="TLS: a"):
                DataClient("127.0.0.1", server.port, context, "a\0b").connect(SOON_S)

    fail(500)
    before = psutil.Process().memory_info().rss
    fail(1000)
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # It keeps freed memory.
        assert psutil.Process().memory_info().rss - before < MAX_GROWTH_BYTES
    server.stop()


def test_pem_that_cannot_be_used_is_told() -> None:
    other_key = self_signed(["127.0.0.1"])[1]
    with pytest.raises(TlsUnusable, match="the certificate is no PEM"):
        TlsContext.server(b"nonsense", KEY)
    with pytest.raises(TlsUnusable, match="the key is no PEM"):
        TlsContext.server(CERTIFICATE, b"nonsense")
    with pytest.raises(TlsUnusable, match="the key does not fit the certificate"):
        TlsContext.server(CERTIFICATE, other_key)
    with pytest.raises(TlsUnusable, match="the authority to trust is no PEM"):
        TlsContext.client(b"")
