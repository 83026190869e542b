"""Addresses, endpoints and credentials: values that refuse nonsense at birth."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace

import pytest

from gigl_loader.errors import FormatError
from gigl_loader.rpc.address import Address
from gigl_loader.rpc.certificates import check_dates
from gigl_loader.rpc.credentials import Credentials, authorization, new_token
from gigl_loader.rpc.endpoint import Endpoint

ENDPOINT = Endpoint(host_index=1, host="10.0.0.2", control_port=7000, data_port=7001, partitions=(2, 5))
TOKEN = "0123456789abcdef"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.2:7000", Address("10.0.0.2", 7000)),
        ("host-3.cluster:0", Address("host-3.cluster", 0)),
        ("[::1]:65535", Address("::1", 65535)),
    ],
)
def test_addresses_read_as_they_are_written(text: str, address: Address) -> None:
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        "host:x",
        "host:-1",
        "host:65536",
        ":7000",
        "::1:7000",
        "a b:1",
        "u@h:1",
        "h/p:1",
        "h:²",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address|is not a host|does not lie in"):
        Address.parse(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback(host: str) -> None:
    assert Address(host, 1).is_loopback
    assert not Address(host, 1).is_wildcard


@pytest.mark.parametrize(
    ("host", "wildcard"), [("0.0.0.0", True), ("::", True), ("10.0.0.2", False), ("a.b", False)]
)
def test_reachable_from_outside(host: str, *, wildcard: bool) -> None:
    assert not Address(host, 1).is_loopback
    assert Address(host, 1).is_wildcard == wildcard


def test_an_endpoint_survives_json() -> None:
    endpoint = replace(ENDPOINT, certificate="-----BEGIN\n")
    assert Endpoint.from_json(endpoint.to_json()) == endpoint
    assert str(endpoint) == "host 1 at 10.0.0.2:7000"
    assert endpoint.data_address == "10.0.0.2:7001"


@pytest.mark.parametrize(
    "change",
    [
        {"host": 7},
        {"host": "a b"},
        {"control_port": "7000"},
        {"control_port": 0},
        {"data_port": 70_000},
        {"data_port": True},
        {"partitions": 3},
        {"partitions": ["0"]},
        {"partitions": [-1]},
        {"host_index": -1},
        {"certificate": None},
        {"unknown": 1},
    ],
    ids=str,
)
def test_an_endpoint_that_breaks_a_rule_is_refused(change: dict[str, object]) -> None:
    document = json.loads(ENDPOINT.to_json()) | change
    with pytest.raises(FormatError, match="bad endpoint"):
        Endpoint.from_json(json.dumps(document))


@pytest.mark.parametrize("text", ["", "[]", "{}", "[" * 100_000, "7"])
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="bad endpoint"):
        Endpoint.from_json(text)


@pytest.mark.parametrize(
    "token", ["short", "has a space in it", "a" * 15, "ümlaut-and-more-than-16", "a" * 16 + "\n"]
)
def test_tokens_that_no_header_carries_or_anyone_guesses_are_refused(token: str) -> None:
    with pytest.raises(ValueError, match="a token has at least 16 visible ASCII characters"):
        Credentials(token=token)


def test_a_certificate_needs_its_key() -> None:
    with pytest.raises(ValueError, match="needs its key"):
        Credentials(token=TOKEN, certificate=b"x")
    with pytest.raises(ValueError, match="needs its key"):
        Credentials(token=TOKEN, key=b"x")
    with pytest.raises(ValueError, match="an authority without"):
        Credentials(token=TOKEN, authority=b"x")


def test_secrets_are_not_shown() -> None:
    credentials = Credentials.ephemeral(["10.0.0.2"])
    assert credentials.token not in repr(credentials)
    assert "PRIVATE" not in repr(credentials)
    assert new_token() != new_token()


def test_the_token_is_accepted_once_and_whole() -> None:
    credentials = Credentials(token=TOKEN)
    right = authorization(TOKEN)
    assert credentials.accepts([right])
    assert credentials.accepts([right.encode()])
    for wrong in ([], [right, right], [TOKEN], [right[:-1]], [right + "x"], ["Bearer é"], [b"\xff"]):
        assert not credentials.accepts(wrong)


def test_an_ephemeral_certificate_is_for_its_hosts_and_valid_on_clocks_that_are_apart() -> None:
    from cryptography import x509

    credentials = Credentials.ephemeral(["10.0.0.2", "::1", "host-3"], token=TOKEN)
    (certificate,) = x509.load_pem_x509_certificates(credentials.certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["10.0.0.2", "::1", "host-3"]
    now = datetime.datetime.now(datetime.timezone.utc)
    for hours in (0, -23, 24 * 300):
        check_dates(credentials.trusted, now + datetime.timedelta(hours=hours))
    with pytest.raises(ValueError, match=r"not valid before 2.* UTC, and here it is 2.* UTC: set the clocks"):
        check_dates(credentials.trusted, now - datetime.timedelta(days=2))
    with pytest.raises(ValueError, match=r"expired at 2.* UTC, and here it is 2.* UTC: renew it"):
        check_dates(credentials.trusted, now + datetime.timedelta(days=400))
    with pytest.raises(ValueError, match="at least one host"):
        Credentials.ephemeral([])


def test_callers_trust_the_authority_where_there_is_one() -> None:
    own = Credentials(token=TOKEN, certificate=b"own", key=b"key")
    assert own.trusted == "own"
    assert replace(own, authority=b"theirs").trusted == "theirs"
    assert Credentials.plaintext().trusted == ""
    assert Credentials.from_json(json.loads(json.dumps(own.to_json()))) == own
