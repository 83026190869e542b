"""A connection without a peer: when it asks again, and who shares it."""

from __future__ import annotations

import time

import pytest

from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc import connection
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Endpoint

NOBODY = Endpoint(host_index=2, host="127.0.0.1", control_port=1, data_port=1, partitions=(0, 1))


def nothing(chunks: object) -> None: ...


def test_the_last_attempt_comes_near_the_end_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    began = time.monotonic()

    def fail(*_: object) -> None:
        asked.append(time.monotonic() - began)
        raise connection._AttemptFailed("gone")

    monkeypatch.setattr(Connection, "_attempt", fail)
    with pytest.raises(StorageUnavailable, match="gone"):
        Connection(NOBODY, Caller(), timeout_s=0.3).call(b"", nothing)
    assert 0.21 < asked[-1] < 0.3  # Pauses of 0.05, 0.1 and 0.2 s would leave at 0.15.
    assert len(asked) <= 6
