"""What a search for servers says of several things that are wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gigl_client import discovery
from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.endpoint import Endpoint


def test_what_waiting_cannot_help_is_told_though_another_server_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failures = {0: StorageUnavailable("server 0 is away"), 1: ValueError("server 1 has another graph")}

    def check(_: Any, server: Endpoint, graph: str) -> None:
        raise failures[server.host_index]

    servers = tuple(
        Endpoint(host_index=rank, host="host", control_port=10 + rank, data_port=20, partitions=(rank,))
        for rank in (0, 1)
    )
    view = SimpleNamespace(servers=servers, graph="graph", away=frozenset(), membership=1)
    monkeypatch.setattr(discovery._Search, "_first_view", lambda _: view)
    monkeypatch.setattr(discovery._Search, "_check_addresses", lambda *_: None)
    monkeypatch.setattr(discovery._Search, "_check", check)
    addresses = discovery.read_addresses("127.0.0.1:1")
    with pytest.raises(ValueError, match="server 1 has another graph"):
        discovery.find_servers(addresses, Caller(), timeout_s=60)
