"""Plain text stays on this machine: what counts as this machine, and what is sent before that is known."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from gigl_client import RemoteDistDataset
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.endpoint import Address, Endpoint, is_local
from gigl_loader.rpc.replies import assembled
from gigl_loader.rpc.store_client import StoreClient

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKEN = "0123456789abcdef"
REFUSED = r"can be reached from other hosts, which needs TLS: name the authority to trust .*insecure"


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1", "localhost", "127.1", "2130706433"]
)
def test_this_machine(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize(
    "host",
    ["10.0.0.2", "::ffff:10.0.0.2", "::2", "0.0.0.0", "::", "no-such-name.invalid", "a" * 70, "x..y", "127"],
)
def test_other_machines(host: str) -> None:
    assert not is_local(host)


@pytest.mark.parametrize(
    ("found", "local"),
    [
        (["127.0.0.1", "::1"], True),
        (["127.0.1.1"], True),
        (["127.0.0.1", "10.0.0.2"], False),
        (["::ffff:10.0.0.2"], False),
        (["0.0.0.0"], False),
        ([], False),
    ],
)
def test_a_name_is_what_all_its_addresses_are(
    monkeypatch: pytest.MonkeyPatch, found: list[str], *, local: bool
) -> None:
    def resolved(host: str, *_: Any, **__: Any) -> list[Any]:
        assert host == "store0"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    assert is_local("store0") == local


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A port of this machine under an address that counts as another's: whatever connects has gone wrong."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        server.settimeout(0.3)
        yield server


def at(listener: socket.socket) -> Endpoint:
    return Endpoint.of_address(Address("0.0.0.0", listener.getsockname()[1]), what="storage server")


def test_no_byte_leaves_before_it_is_refused(listener: socket.socket) -> None:
    caller = Caller(token=TOKEN)
    with pytest.raises(ValueError, match=REFUSED):
        StoreClient(at(listener), caller)
    with (
        closing(Connection(at(listener), caller, timeout_s=2)) as data,
        pytest.raises(ValueError, match=REFUSED),
    ):
        data.call(b"request", assembled)
    with pytest.raises(TimeoutError):
        listener.accept()


def test_who_says_insecure_is_let() -> None:
    far = Endpoint.of_address(Address("10.0.0.2", 7070), what="storage server")
    assert Caller(token=TOKEN, insecure=True).ssl_parts(far) is None
    assert Caller.from_files(insecure=True).insecure
    assert Credentials.plaintext(token=TOKEN, insecure=True).caller().insecure
    with pytest.raises(ValueError, match=REFUSED):
        Credentials.plaintext(token=TOKEN).caller().ssl_parts(far)
    assert Caller(authority="pem").ssl_parts(far) is not None


def test_connect_says_so_in_one_line_at_once() -> None:
    with pytest.raises(ValueError, match=rf"^10\.0\.0\.2:7070 {REFUSED}") as refused:
        RemoteDistDataset.connect("10.0.0.2:7070", credentials=Caller(token=TOKEN), timeout=60)
    assert "\n" not in str(refused.value)
