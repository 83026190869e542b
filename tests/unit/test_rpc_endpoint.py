"""Addresses, endpoints and credentials: values that refuse nonsense at birth."""

from __future__ import annotations

import datetime
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from gigl_loader.errors import FormatError
from gigl_loader.rpc.certificates import check_dates, check_name, self_signed
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.tokens import authorization, new_token
from tests.support.certificates import Authority

if TYPE_CHECKING:
    from pathlib import Path

ENDPOINT = Endpoint(host_index=1, host="10.0.0.2", control_port=7000, data_port=7001, partitions=(2, 5))
TOKEN = "0123456789abcdef"


def test_an_address_that_somebody_gave_has_no_number() -> None:
    given = Endpoint.of_address(Address("store0", 7070), what="storage server")
    assert str(given) == "storage server at store0:7070"
    assert Endpoint.from_json(given.to_json()) == given


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


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "localhost"])
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
    assert credentials.identify([right]) == "1"
    assert credentials.identify([right.encode()]) == "1"
    for wrong in ([], [right, right], [TOKEN], [right[:-1]], [right + "x"], ["Bearer é"], [b"\xff"]):
        assert credentials.identify(wrong) is None


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


# --- callers, and services that ask for less or more


def test_a_service_without_a_token_accepts_anyone() -> None:
    credentials = Credentials(token="")
    assert credentials.is_open
    assert credentials.identify([]) == ""
    assert credentials.identify([b"anything", ""]) == ""
    assert Caller().headers == ()
    assert Caller(token=TOKEN).headers == (("authorization", authorization(TOKEN)),)


@pytest.mark.parametrize(
    ("credentials", "needs"),
    [
        (Credentials(token=TOKEN), "needs TLS"),
        (Credentials(token="", certificate=b"c", key=b"k"), "needs a token"),
        (Credentials(token="", certificate=b"c", key=b"k", client_authority=b"a"), None),
        (Credentials(token=TOKEN, certificate=b"c", key=b"k"), None),
        (Credentials(token="", insecure=True), None),
    ],
)
def test_what_it_takes_to_be_reached_from_other_hosts(credentials: Credentials, needs: str | None) -> None:
    credentials.check_reach(Address("127.0.0.1", 7000))
    if needs is None:
        credentials.check_reach(Address("10.0.0.2", 7000))
    else:
        with pytest.raises(
            ValueError, match=rf"^10\.0\.0\.2:7000 can be reached from other hosts, which {needs}"
        ):
            credentials.check_reach(Address("10.0.0.2", 7000))


def test_which_roots_a_caller_trusts(monkeypatch: pytest.MonkeyPatch) -> None:
    published = replace(ENDPOINT, certificate="published")
    assert Caller(insecure=True).ssl_parts(ENDPOINT) is None
    assert Caller().ssl_parts(published) == (b"published", None, None)
    assert Caller(authority="own").ssl_parts(ENDPOINT) == (b"own", None, None)
    assert Caller(authority="own").ssl_parts(published) == (b"own", None, None)
    shown = Caller(certificate=b"c", key=b"k", authority="own")
    assert shown.ssl_parts(ENDPOINT) == (b"own", b"k", b"c")
    monkeypatch.setattr("gigl_loader.rpc.credentials.system_roots", lambda: b"of this machine")
    assert Caller(tls=True).ssl_parts(ENDPOINT) == (b"of this machine", None, None)


def test_a_caller_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="a token has at least 16"):
        Caller(token="short")
    with pytest.raises(ValueError, match="needs its key"):
        Caller(certificate=b"x")
    with pytest.raises(ValueError, match="over TLS only"):
        Credentials(token=TOKEN, client_authority=b"x")
    shown = repr(Caller(token=TOKEN, certificate=b"c", key=b"secret"))
    assert TOKEN not in shown
    assert "secret" not in shown


def test_services_call_each_other_with_what_they_serve_with() -> None:
    plain = Credentials(token=TOKEN, certificate=b"own", key=b"k", authority=b"theirs")
    assert plain.caller() == Caller(token=TOKEN, authority="theirs")
    mutual = replace(plain, client_authority=b"callers")
    assert mutual.caller() == Caller(token=TOKEN, authority="theirs", certificate=b"own", key=b"k")
    assert Credentials.from_json(json.loads(json.dumps(mutual.to_json()))) == mutual


def test_credentials_come_from_files(tmp_path: Path) -> None:
    authority = Authority()
    certificate, key = authority.sign()
    contents = {"token": TOKEN.encode() + b"\n", "cert": certificate, "key": key, "ca": authority.pem}
    files = {name: tmp_path / name for name in contents}
    for name, content in contents.items():
        files[name].write_bytes(content)
    caller = Caller.from_files(
        token=files["token"], ca=files["ca"], certificate=files["cert"], key=str(files["key"])
    )
    assert caller == Caller(token=TOKEN, authority=authority.pem.decode(), certificate=certificate, key=key)
    served = Credentials.from_files(
        token=files["token"], certificate=files["cert"], key=files["key"], client_authority=files["ca"]
    )
    served.check_certificate()
    assert served.client_authority == authority.pem
    assert Credentials.from_files().is_open
    assert Caller.from_files() == Caller()


def test_files_that_cannot_be_right_are_named(tmp_path: Path) -> None:
    for name, content in {"short": b"short", "empty": b" \n", "binary": b"\xff" * 20}.items():
        (tmp_path / name).write_bytes(content)
    for name, told in {
        "short": "short: a token has at least 16",
        "empty": "empty is empty",
        "binary": "binary is not text in ASCII",
        "absent": "cannot read .*absent: No such file",
    }.items():
        for of in (Caller, Credentials):
            with pytest.raises(ValueError, match=told):
                of.from_files(token=tmp_path / name)


def test_certificates_that_cannot_be_right() -> None:
    (certificate, key), (_, other) = Authority().sign(), Authority().sign()

    def given(**changes: bytes) -> Credentials:
        return Credentials(**{"token": TOKEN, "certificate": certificate, "key": key, **changes})  # type: ignore[arg-type]

    given().check_certificate()
    for changes, told in (
        ({"key": other}, "the key is not that of the certificate"),
        ({"key": b"nonsense"}, "the key cannot be read"),
        ({"certificate": b"nonsense"}, "the certificate cannot be read as PEM"),
        ({"authority": b"nonsense"}, "the authority cannot be read as PEM"),
        ({"client_authority": b"nonsense"}, "the authority cannot be read as PEM"),
    ):
        with pytest.raises(ValueError, match=told):
            given(**changes).check_certificate()
    now = datetime.datetime.now(datetime.timezone.utc)
    with pytest.raises(ValueError, match="expired at"):
        given().check_certificate(now + datetime.timedelta(days=2))


def test_endpoints_say_what_they_are() -> None:
    server = replace(ENDPOINT, what="storage server")
    assert str(server) == "storage server 1 at 10.0.0.2:7000"
    assert Endpoint.from_json(server.to_json()) == server


@pytest.mark.parametrize(
    ("names", "host", "good"),
    [
        (["store0", "10.0.0.2"], "store0", True),
        (["store0", "10.0.0.2"], "10.0.0.2", True),
        (["::1"], "0:0:0:0:0:0:0:1", True),
        (["*.store.svc"], "Store-0.store.svc", True),
        (["*.store.svc"], "a.b.store.svc", False),
        (["store0"], "store1", False),
        (["10.0.0.2"], "10.0.0.3", False),
    ],
)
def test_a_certificate_is_for_the_names_in_it(names: list[str], host: str, good: bool) -> None:
    certificate, _ = self_signed(names)
    if good:
        check_name(certificate, host)
        return
    with pytest.raises(ValueError, match=f"not good for '{host}'.*: it is for"):
        check_name(certificate, host)


def test_files_that_hold_no_pem_are_named(tmp_path: Path) -> None:
    (tmp_path / "pem").write_text("none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ValueError, match=r"/empty is empty$"):
        Caller.from_files(ca=tmp_path / "empty")
    with pytest.raises(ValueError, match=r"/pem: the authority cannot be read as PEM$"):
        Caller.from_files(ca=tmp_path / "pem")
    with pytest.raises(ValueError, match=r"/pem, .*/pem: the certificate cannot be read as PEM$"):
        Caller.from_files(certificate=tmp_path / "pem", key=tmp_path / "pem")
