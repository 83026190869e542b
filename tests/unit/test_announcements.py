"""Announcements on a real control port: taken with the proof of the cluster key, once, and else logged."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader.rpc.server_proof import announcement_proof
from gigl_loader.rpc.store_client import StoreClient
from gigl_server.cluster.membership import View
from gigl_server.logs import AuditLog
from gigl_server.ports.admin import Announcements
from tests.support.store_control import client_of, controlled

if TYPE_CHECKING:
    from collections.abc import Iterator

KEY, OTHER = "k" * 32, "o" * 32
HERE, ELSEWHERE = "10.0.0.7:7020", "10.0.0.8:7020"


@contextmanager
def asked(key: str, heard: list[str]) -> Iterator[StoreClient]:
    """Lend a client of a server that has ``key`` and puts announced addresses into ``heard``."""
    options = {
        "view": lambda: View(members=(), ready=False, reason="waiting"),
        "announced": Announcements(key, heard.append, AuditLog()).exchange,
    }
    with controlled(ready=False, options=options) as served, client_of(served.endpoint) as client:
        yield client


def test_a_server_with_the_key_proves_it_and_is_heard() -> None:
    heard: list[str] = []
    with asked(KEY, heard) as client:
        view = client.cluster(10, cluster_key=KEY)
        assert view.proven
        assert heard == []
        client.cluster(10, announce=HERE, cluster_key=KEY, challenge=view.challenge)
        assert heard == [HERE]
        assert not client.cluster(10, cluster_key=OTHER).proven
        assert not client.cluster(10).proven


def test_an_announcement_without_proof_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    heard: list[str] = []
    with asked(KEY, heard) as client:
        for _ in range(5):
            client.cluster(10, announce=HERE + " said 'root'")
            client.cluster(10, announce=HERE, cluster_key=OTHER, challenge=client.cluster(10).challenge)
            client.cluster(10, announce=HERE, cluster_key=KEY, challenge="made up")
    assert heard == []
    lines = [record.message for record in caplog.records if record.name.endswith("logs")]
    assert len(lines) == 5
    what = f"a storage server announced at {HERE} said 'root', without proof of the cluster key"
    assert lines[0] == f"refused 127.0.0.1, token 1: {what}"


def test_an_announcement_that_was_overheard_is_good_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    with asked(KEY, heard) as client:
        challenge = client.cluster(10).challenge
        client.cluster(10, announce=HERE, cluster_key=KEY, challenge=challenge)
        assert heard == [HERE]
        overheard = announcement_proof(KEY, challenge, HERE)

        def replayed(*_: Any) -> str:
            return overheard

        monkeypatch.setattr("gigl_loader.rpc.store_client.announcement_proof", replayed)
        for address in (HERE, ELSEWHERE):
            for number in (challenge, client.cluster(10).challenge):
                client.cluster(10, announce=address, cluster_key=OTHER, challenge=number)
    assert heard == [HERE]


def test_without_a_key_all_are_heard() -> None:
    heard: list[str] = []
    with asked("", heard) as client:
        view = client.cluster(10, announce=HERE, cluster_key=KEY, challenge="any")
    assert (view.proven, view.challenge, heard) == (False, "", [HERE])
