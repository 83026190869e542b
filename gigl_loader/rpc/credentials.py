"""Credentials of services and of their callers: certificates and tokens."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from gigl_loader.rpc.address import Address
from gigl_loader.rpc.certificates import (
    check_authority,
    check_dates,
    check_pair,
    fingerprints,
    self_signed,
    system_roots,
)
from gigl_loader.rpc.reach import check_reach
from gigl_loader.rpc.secret_files import cluster_key_in, naming, pem_in, secret_in, token_in, tokens_in
from gigl_loader.rpc.server_proof import check_cluster_key
from gigl_loader.rpc.tokens import (
    Token,
    authorization,
    check_distinct,
    check_token,
    matching_token,
    new_token,
    shown_form,
)

if TYPE_CHECKING:
    import datetime
    from collections.abc import Mapping, Sequence

    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["Caller", "Credentials", "SslParts", "authorization", "new_token"]


class SslParts(NamedTuple):
    """PEM for a connection over TLS, in gRPC's order."""

    roots: bytes
    key: bytes | None
    certificate: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """What a caller shows to services, and which services it believes. Token and key are never shown."""

    token: str = field(default="", repr=False)
    """At least 16 visible ASCII characters, that of the services. Empty: for services that ask for none."""
    certificate: bytes = b""
    """PEM, with intermediates, for services that ask callers for one."""
    key: bytes = field(default=b"", repr=False)
    """PEM, not encrypted."""
    authority: str = ""
    """PEM of what to trust. Empty: what an endpoint publishes, else what this machine trusts."""
    tls: bool = False
    """Use TLS. Not needed where an authority or a certificate says so."""
    insecure: bool = False
    """Allow plain text to other machines. Whoever can read the network then reads the token."""

    def __post_init__(self) -> None:
        if self.token:
            check_token(self.token)
        _check_both(self.certificate, self.key)

    @classmethod
    def from_files(
        cls,
        *,
        token: str | os.PathLike[str] | None = None,
        ca: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        tls: bool = False,
        insecure: bool = False,
    ) -> Caller:
        """Read each part from its file, and check what can be. ``ValueError`` naming the file."""
        caller = cls(
            token=token_in(token),
            certificate=pem_in(certificate),
            key=secret_in(key),
            authority=pem_in(ca).decode("ascii", "replace"),
            tls=tls,
            insecure=insecure,
        )
        if certificate is not None and key is not None:
            with naming(certificate, key):
                check_pair(caller.certificate, caller.key)
        if ca is not None:
            with naming(ca):
                check_authority(caller.authority.encode())
        return caller

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Caller:
        """Read what ``GIGL_TOKEN_FILE`` and ``GIGL_TLS_CA`` name. ``GIGL_INSECURE=true`` allows plain text.

        ``gigl-loader local-cluster`` sets the first for the command that it runs. Those that are not set, or
        empty, are left out. ``ValueError`` naming the file.
        """
        given = os.environ if environment is None else environment
        return cls.from_files(
            token=given.get("GIGL_TOKEN_FILE") or None,
            ca=given.get("GIGL_TLS_CA") or None,
            insecure=given.get("GIGL_INSECURE", "").strip().lower() in ("1", "true", "yes", "on"),
        )

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return (("authorization", authorization(self.token)),) if self.token else ()

    def uses_tls(self, endpoint: Endpoint) -> bool:
        return bool(endpoint.certificate or self.authority or self.certificate or self.tls)

    def ssl_parts(self, endpoint: Endpoint) -> SslParts | None:
        """Return what a connection to ``endpoint`` needs. ``None``: plain text.

        ``ValueError`` where that would be plain text to another machine. Every connection asks here before
        it is made, so that no token leaves this machine unencrypted.
        """
        if not self.uses_tls(endpoint):
            check_reach(
                Address(endpoint.host, endpoint.control_port),
                tls=False,
                guarded=True,
                insecure=self.insecure,
                give_tls="name the authority to trust (ca, --tls-ca), or say insecure (insecure=True, "
                "--insecure) on a network that you trust",
            )
            return None
        roots = (self.authority or endpoint.certificate).encode() or system_roots()
        return SslParts(roots, self.key or None, self.certificate or None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Certificate, key and token of a service. The token and the key are never shown."""

    token: str = field(repr=False)
    """What the service shows to others like it, and accepts. Empty: anyone may ask.

    At least 16 visible ASCII characters, the same on all hosts.
    """
    token_name: str = "1"
    """Name of ``token``, for logs and quotas."""
    other_tokens: tuple[Token, ...] = ()
    """Accepted beside ``token``: one per team, so that quotas tell teams apart."""
    certificate: bytes = b""
    """PEM, with intermediates. Empty: no TLS."""
    key: bytes = field(default=b"", repr=False)
    """PEM, not encrypted."""
    authority: bytes = b""
    """PEM of what callers shall trust instead of the certificate itself: that of a certificate authority."""
    client_authority: bytes = b""
    """PEM of who signs the certificates of callers. Empty: callers need none."""
    cluster_key: str = field(default="", repr=False)
    """What servers prove to each other and no trainer has. At least 32 visible ASCII characters."""
    insecure: bool = False
    """Allow plain text beyond this machine. Whoever can read the network can then read and ask."""
    _accepted: tuple[tuple[str, bytes], ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.other_tokens and not self.token:
            raise ValueError("further tokens without a first one, that the service itself shows")
        check_distinct(self.tokens)
        object.__setattr__(self, "_accepted", tuple(map(shown_form, self.tokens)))
        if self.cluster_key:
            check_cluster_key(self.cluster_key)
            if any(token.secret == self.cluster_key for token in self.tokens):
                raise ValueError("the cluster key is a token, too, which trainers have: make another one")
        _check_both(self.certificate, self.key)
        if self.authority and not self.certificate:
            raise ValueError("an authority without a certificate that it signed")
        if self.client_authority and not self.certificate:
            raise ValueError("callers can show certificates over TLS only: give the service one, too")

    @classmethod
    def ephemeral(cls, hosts: Sequence[str], *, token: str | None = None) -> Credentials:
        """Make a self-signed certificate for these names and addresses, valid for a year."""
        certificate, key = self_signed(hosts)
        return cls(token=token or new_token(), certificate=certificate, key=key)

    @classmethod
    def plaintext(cls, *, token: str | None = None, insecure: bool = False) -> Credentials:
        """Go without TLS: between processes of one machine, or with ``insecure`` on a trusted network."""
        return cls(token=token or new_token(), insecure=insecure)

    @classmethod
    def from_files(
        cls,
        *,
        token: str | os.PathLike[str] | None = None,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        authority: str | os.PathLike[str] | None = None,
        client_authority: str | os.PathLike[str] | None = None,
        cluster_key: str | os.PathLike[str] | None = None,
        insecure: bool = False,
    ) -> Credentials:
        """Read each part from its file. ``ValueError`` naming the file, or what does not fit together.

        Each line of ``token`` is a token, or a name and a token.
        """
        tokens = tokens_in(token)
        return cls(
            token=tokens[0].secret if tokens else "",
            token_name=tokens[0].name if tokens else "1",
            other_tokens=tokens[1:],
            certificate=pem_in(certificate),
            key=secret_in(key),
            authority=pem_in(authority),
            client_authority=pem_in(client_authority),
            cluster_key=cluster_key_in(cluster_key),
            insecure=insecure,
        )

    @property
    def trusted(self) -> str:
        """PEM of what callers must trust. Empty: no TLS."""
        return (self.authority or self.certificate).decode("ascii")

    @property
    def tokens(self) -> tuple[Token, ...]:
        """All tokens that are accepted, the service's own first."""
        return (Token(name=self.token_name, secret=self.token), *self.other_tokens) if self.token else ()

    @property
    def is_open(self) -> bool:
        """Anyone may ask."""
        return not self.token

    def proves_servers(self) -> bool:
        """Return whether servers show each other something that callers do not have.

        A cluster key, or a certificate of an authority that does not also sign the certificates of callers.
        Without an authority the certificate itself is trusted, where it brings no intermediates.
        """
        if self.cluster_key or not self.certificate:
            return bool(self.cluster_key)
        trusted = fingerprints(self.authority or self.certificate)
        if not self.authority and len(trusted) > 1:
            return False
        return not self.client_authority or not fingerprints(self.client_authority) <= trusted

    def caller(self) -> Caller:
        """Return what the service itself shows to others that have the same token and trust."""
        pair = (self.certificate, self.key) if self.client_authority else (b"", b"")
        return Caller(
            token=self.token,
            certificate=pair[0],
            key=pair[1],
            authority=self.trusted,
            insecure=self.insecure,
        )

    def check_reach(self, address: Address) -> None:
        """Raise ``ValueError`` if it takes more than this to serve at ``address``."""
        check_reach(
            address,
            tls=bool(self.certificate),
            guarded=not self.is_open or bool(self.client_authority),
            insecure=self.insecure,
            give_tls="give a certificate and its key, or say insecure=True on a network that you trust",
            give_token="give one, or say insecure=True on a network that you trust",
        )

    def check_certificate(self, now: datetime.datetime | None = None) -> None:
        """Raise ``ValueError`` for parts that are no PEM, a key of another certificate, or a wrong date."""
        if self.certificate:
            check_pair(self.certificate, self.key)
            check_dates(self.certificate.decode("ascii", "replace"), now)
        for authority in filter(None, (self.authority, self.client_authority)):
            check_authority(authority)

    def grpc_server_credentials(self) -> Any:
        """Return what a gRPC server needs to listen. ``None``: plain text."""
        import grpc

        if not self.certificate:
            return None
        authority = self.client_authority or None
        pair = (self.key, self.certificate)
        return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)

    def flight_options(self) -> dict[str, Any]:
        """Return what a Flight server needs to listen."""
        if not self.certificate:
            return {}
        pairs = {"tls_certificates": [(self.certificate, self.key)]}
        verification = {"verify_client": True, "root_certificates": self.client_authority}
        return {**pairs, **verification} if self.client_authority else pairs

    def to_json(self) -> dict[str, Any]:
        """Return everything, secrets too, for a child process over a socket of its own."""
        texts = {name: getattr(self, name).decode("ascii") for name in _PEMS}
        others = [[token.name, token.secret] for token in self.other_tokens]
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {**texts, **plain, "other_tokens": others}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Credentials:
        """Undo ``to_json``."""
        parts = {name: document[name].encode("ascii") for name in _PEMS}
        others = tuple(Token(name=name, secret=secret) for name, secret in document["other_tokens"])
        return cls(**parts, **{name: document[name] for name in _PLAIN}, other_tokens=others)

    def identify(self, authorization_values: Sequence[str | bytes]) -> str | None:
        """Return the name of the token that a caller shows; ``None`` refuses the caller.

        Exactly one value must be sent. Its comparison takes the same time whichever token it is or resembles.
        Without a token of its own, a service accepts whatever is sent, and the name is empty.
        """
        return "" if self.is_open else matching_token(self._accepted, authorization_values)


_PLAIN = ("token", "token_name", "cluster_key", "insecure")
_PEMS = ("certificate", "key", "authority", "client_authority")


def _check_both(certificate: bytes, key: bytes) -> None:
    if bool(certificate) != bool(key):
        raise ValueError("a certificate needs its key, and a key its certificate")
