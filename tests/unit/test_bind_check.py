"""Ports that are taken: for a moment, they are waited for; for good, the error names them."""

from __future__ import annotations

import re
import socket
import threading
import time

import pytest

from gigl_loader.rpc.endpoint import Address
from gigl_server.preflight import wait_free

ADDRESSES = "127.0.0.1", "::1"


def taken(host: str = "127.0.0.1") -> tuple[socket.socket, Address]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, 0), family=family)
    return listener, Address(host, listener.getsockname()[1])


@pytest.mark.parametrize("host", ADDRESSES)
def test_a_port_that_is_taken_for_a_moment_is_waited_for(host: str, caplog: pytest.LogCaptureFixture) -> None:
    listener, address = taken(host)
    release = threading.Timer(0.3, listener.close)
    release.start()
    with caplog.at_level("INFO"):
        wait_free([address], 60)
    release.join()
    assert caplog.messages == [f"port {address} is taken: trying again for 60 s", f"port {address} is free"]
    assert caplog.records[0].levelname == "WARNING"


def test_a_port_that_is_taken_for_good_is_named_after_the_wait(caplog: pytest.LogCaptureFixture) -> None:
    listener, address = taken()
    began = time.monotonic()
    with (
        listener,
        pytest.raises(OSError, match=f"^cannot listen on {address}: Address already in use; choose"),
    ):
        wait_free([address], 0.25)
    assert time.monotonic() - began >= 0.25
    (message,) = caplog.messages
    # What is left of the time when the port is found taken: a little less on a busy machine.
    assert re.fullmatch(rf"port {address} is taken: trying again for 0(\.[0-2]\d?)? s", message)


def test_all_ports_share_one_wait() -> None:
    (first, one), (second, other) = taken(), taken()
    release = threading.Timer(0.2, first.close)
    release.start()
    with second, pytest.raises(OSError, match=f"^cannot listen on {other}: "):
        wait_free([one, other], 0.4)
    release.join()


def test_another_reason_is_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(OSError, match="give an address of this host"):
        wait_free([Address("203.0.113.7", 0)], 600)
    assert caplog.messages == []
