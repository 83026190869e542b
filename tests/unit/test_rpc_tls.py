"""Both ports over TLS: who is let in, and what they are told who are not."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc.certificates import tls_fault
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.remote_store import fetch_manifest
from gigl_loader.rpc.replicas import connection_to
from tests.support.certificates import Authority
from tests.support.peers import TOKEN, served
from tests.support.sources import small_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.endpoint import Endpoint

TRUSTED, STRANGER = Authority(), Authority()


def credentials(authority: Authority = TRUSTED, host: str = "127.0.0.1", **options: Any) -> Credentials:
    certificate, key = authority.sign(host, days=options.pop("days", (-1.0, 1.0)))
    return Credentials(token=TOKEN, certificate=certificate, key=key, authority=TRUSTED.pem, **options)


def caller(authority: Authority = TRUSTED, **days: Any) -> Caller:
    certificate, key = authority.sign(**days)
    return Caller(token=TOKEN, certificate=certificate, key=key)


PLAIN = Caller(token=TOKEN)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_graph()


@pytest.fixture(scope="module")
def mutual(graph: Graph) -> Iterator[Endpoint]:
    """A service that asks callers for certificates."""
    with served(graph, credentials(client_authority=TRUSTED.pem)) as endpoint:
        yield endpoint


def faults(endpoint: Endpoint, who: Caller) -> list[str | None]:
    return [tls_fault(endpoint, who, port, 10) for port in (endpoint.control_port, endpoint.data_port)]


def works(endpoint: Endpoint, who: Caller, graph: Graph, *, timeout_s: float = 20) -> bool:
    connection = connection_to(endpoint, who, timeout_s=timeout_s)
    try:
        return fetch_manifest(connection) == graph.manifest.to_bytes()
    finally:
        connection.close()


def test_a_certificate_of_ours_opens_both_ports(graph: Graph, mutual: Endpoint) -> None:
    assert works(mutual, caller(), graph)
    assert faults(mutual, caller()) == [None, None]
    assert works(mutual, credentials(client_authority=TRUSTED.pem).caller(), graph)


@pytest.mark.parametrize(
    ("who", "told"),
    [
        (PLAIN, "it asks callers for a certificate: give one that its authority signed, with its key"),
        (caller(STRANGER), "it does not accept our certificate"),
        (caller(days=(-3.0, -2.0)), "our certificate expired at 2.* UTC, and here it is 2.* UTC: renew it"),
    ],
    ids=["none", "of a stranger", "expired"],
)
def test_whose_certificate_is_not_accepted(graph: Graph, mutual: Endpoint, who: Caller, told: str) -> None:
    for fault in faults(mutual, who):
        assert re.search(told, str(fault))
    with pytest.raises(StorageUnavailable):
        works(mutual, who, graph, timeout_s=0.2)
    assert works(mutual, caller(), graph)


@pytest.mark.parametrize(
    ("shown", "told"),
    [
        (credentials(days=(-3.0, -2.0)), r"its certificate expired at 2"),
        (credentials(days=(2.0, 3.0)), r"its certificate is not valid before 2"),
        (credentials(host="10.9.8.7"), r"its certificate is not good for '127\.0\.0\.1'"),
        (credentials(STRANGER), r"its certificate is not trusted here \(.*\): name the authority"),
    ],
    ids=["expired", "not yet", "another name", "of a stranger"],
)
def test_a_service_whose_certificate_is_not_good(graph: Graph, shown: Credentials, told: str) -> None:
    with served(graph, shown) as endpoint:
        for fault in faults(endpoint, PLAIN):
            assert re.search(told, str(fault))
        with pytest.raises(StorageUnavailable):
            works(endpoint, PLAIN, graph, timeout_s=0.2)


def test_one_side_uses_tls(graph: Graph) -> None:
    with served(graph) as endpoint:
        says_tls = Caller(token=TOKEN, authority=TRUSTED.pem.decode())
        assert faults(endpoint, says_tls) == ["it does not use TLS, and is said to"] * 2
        assert faults(endpoint, PLAIN) == [None, None]
    with served(graph, credentials()) as endpoint:
        plain = replace(endpoint, certificate="")
        assert all("uses TLS, and is asked without" in str(fault) for fault in faults(plain, PLAIN))
        assert faults(plain, says_tls) == [None, None]
        assert works(plain, says_tls, graph)


def test_what_is_no_certificate_or_not_reached(mutual: Endpoint) -> None:
    broken = Caller(authority="nonsense")
    assert "cannot be used" in str(tls_fault(mutual, broken, mutual.data_port, 5))
    assert tls_fault(mutual, caller(), 1, 0.5) is None
