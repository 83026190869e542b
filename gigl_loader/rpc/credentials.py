"""Credentials of services and of their callers: certificates and tokens."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gigl_loader.native import TlsContext
from gigl_loader.rpc.certificates import (
    check_authority,
    check_dates,
    check_pair,
    fingerprints,
    self_signed,
    system_roots,
)
from gigl_loader.rpc.endpoint import Address, check_reach
from gigl_loader.rpc.secret_files import (
    FileWatch,
    Renewed,
    cluster_key_in,
    naming,
    pem_in,
    secret_in,
    token_in,
    tokens_in,
)
from gigl_loader.rpc.server_proof import check_cluster_key
from gigl_loader.rpc.tokens import (
    EVERYTHING,
    Grant,
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


class SslParts(NamedTuple):
    """PEM for a connection over TLS, in gRPC's order."""

    roots: bytes
    key: bytes | None
    certificate: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Credentials of a caller, and the services that it trusts. ``repr`` leaves out token and key."""

    token: str = field(default="", repr=False)
    """Token of the services, at least 16 visible ASCII characters. Empty for services without a token."""
    certificate: bytes = b""
    """PEM, with intermediates, for services that require a certificate of callers."""
    key: bytes = field(default=b"", repr=False)
    """PEM, not encrypted."""
    authority: str = ""
    """PEM of trusted authorities. Empty: the authorities that an endpoint publishes, else this machine's."""
    tls: bool = False
    """Use TLS. Implied by an authority or a certificate."""
    insecure: bool = False
    """Allow plain text to other machines. Anyone on the network can then read the token."""
    other_tokens: tuple[str, ...] = field(default=(), repr=False)
    """Tokens to show where ``token`` is refused: a server has several while tokens are changed."""
    source: Renewed[Caller] | None = field(default=None, repr=False, compare=False)
    """Files that this was read from, and that may hold something else now."""

    def __post_init__(self) -> None:
        for token in filter(None, (self.token, *self.other_tokens)):
            check_token(token)
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
        """Read each part from its file, and check it. ``ValueError`` names the file.

        A file that changes is read again when a service refuses the token, and before each new connection.
        """
        read = partial(
            cls._read, token=token, ca=ca, certificate=certificate, key=key, tls=tls, insecure=insecure
        )
        watch = FileWatch((token, ca, certificate, key))
        caller = read()
        return replace(caller, source=Renewed(caller, read, watch))

    @classmethod
    def _read(
        cls,
        *,
        token: str | os.PathLike[str] | None,
        ca: str | os.PathLike[str] | None,
        certificate: str | os.PathLike[str] | None,
        key: str | os.PathLike[str] | None,
        tls: bool,
        insecure: bool,
    ) -> Caller:
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

        ``gigl-loader local-cluster`` sets the first for the command that it runs. Unset and empty variables
        are ignored. ``ValueError`` names the file.
        """
        given = os.environ if environment is None else environment
        return cls.from_files(
            token=given.get("GIGL_TOKEN_FILE") or None,
            ca=given.get("GIGL_TLS_CA") or None,
            insecure=given.get("GIGL_INSECURE", "").strip().lower() in ("1", "true", "yes", "on"),
        )

    def latest(self) -> Caller:
        """Return what the files hold now. This object where they did not change, or cannot be used."""
        found = self if self.source is None else self.source.latest()
        return self if found == self else replace(found, source=self.source)

    def after_refusal(self) -> Caller:
        """Return what to show after the token was refused. This object where there is nothing else."""
        latest = self.latest()
        if latest is not self or not self.other_tokens:
            return latest
        token, *others = self.other_tokens
        return replace(self, token=token, other_tokens=(*others, self.token))

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Headers of every call."""
        return (("authorization", authorization(self.token)),) if self.token else ()

    def uses_tls(self, endpoint: Endpoint) -> bool:
        return bool(endpoint.certificate or self.authority or self.certificate or self.tls)

    def ssl_parts(self, endpoint: Endpoint) -> SslParts | None:
        """Return the TLS parts of a connection to ``endpoint``. ``None``: plain text.

        ``ValueError`` for plain text to another machine. Every connection calls this before it connects, so
        that no token leaves this machine unencrypted.
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
    """Certificate, key and token of a service. ``repr`` leaves out token and key."""

    token: str = field(repr=False)
    """Token that the service accepts, and sends to other services. Empty: any caller is accepted.

    At least 16 visible ASCII characters, the same on all hosts.
    """
    token_name: str = "1"
    """Name of ``token``, for logs and quotas."""
    token_grant: Grant = EVERYTHING
    """Rights and quotas of ``token``."""
    other_tokens: tuple[Token, ...] = ()
    """Further accepted tokens: one per team, so that each team has its own quota."""
    certificate: bytes = b""
    """PEM, with intermediates. Empty: no TLS."""
    key: bytes = field(default=b"", repr=False)
    """PEM, not encrypted."""
    authority: bytes = b""
    """PEM of the certificate authority that callers must trust, instead of the certificate itself."""
    client_authority: bytes = b""
    """PEM of the authority that signs certificates of callers. Empty: callers need no certificate."""
    cluster_key: str = field(default="", repr=False)
    """Secret that servers prove to each other, and no trainer has. At least 32 visible ASCII characters."""
    insecure: bool = False
    """Allow plain text beyond this machine. Anyone on the network can then read traffic and send requests."""
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
        """Return credentials with a self-signed certificate for ``hosts``, valid for a year."""
        certificate, key = self_signed(hosts)
        return cls(token=token or new_token(), certificate=certificate, key=key)

    @classmethod
    def plaintext(cls, *, token: str | None = None, insecure: bool = False) -> Credentials:
        """Return credentials without TLS, for one machine, or with ``insecure`` for a trusted network."""
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
        """Read each part from its file. ``ValueError`` names the file, or parts that do not fit together.

        Each line of ``token`` is a token, or a name and a token.
        """
        tokens = tokens_in(token)
        return cls(
            token=tokens[0].secret if tokens else "",
            token_name=tokens[0].name if tokens else "1",
            token_grant=tokens[0].grant if tokens else EVERYTHING,
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
        """PEM that callers must trust. Empty: no TLS."""
        return (self.authority or self.certificate).decode("ascii")

    @property
    def tokens(self) -> tuple[Token, ...]:
        """All accepted tokens, ``token`` first."""
        if not self.token:
            return ()
        return (
            Token(name=self.token_name, secret=self.token, grant=self.token_grant),
            *self.other_tokens,
        )

    @property
    def authorizations(self) -> tuple[bytes, ...]:
        """Accepted values of the header ``authorization``. Empty: any caller is accepted."""
        return tuple(authorization(each.secret).encode() for each in self.tokens)

    @property
    def is_open(self) -> bool:
        """Whether the service accepts callers without a token."""
        return not self.token

    def showing(self, token: str) -> Credentials:
        """Return these credentials with ``token`` as the one to show, if it is accepted.

        A server goes on showing its token while there is another: servers read their files one after another.
        """
        known = {each.secret: each for each in self.tokens}
        if token not in known:
            return self
        first = known.pop(token)
        return replace(
            self,
            token=first.secret,
            token_name=first.name,
            token_grant=first.grant,
            other_tokens=tuple(known.values()),
        )

    def proves_servers(self) -> bool:
        """Return whether servers prove to each other that they are servers and not callers.

        The proof is a cluster key, or a certificate of an authority that does not also sign certificates of
        callers. Without an authority, the certificate itself is trusted, if it has no intermediates.
        """
        if self.cluster_key or not self.certificate:
            return bool(self.cluster_key)
        trusted = fingerprints(self.authority or self.certificate)
        if not self.authority and len(trusted) > 1:
            return False
        return not self.client_authority or not fingerprints(self.client_authority) <= trusted

    def caller(self) -> Caller:
        """Return the credentials of this service as a caller of other services."""
        pair = (self.certificate, self.key) if self.client_authority else (b"", b"")
        return Caller(
            token=self.token,
            other_tokens=tuple(each.secret for each in self.other_tokens if each.grant.reads_all),
            certificate=pair[0],
            key=pair[1],
            authority=self.trusted,
            insecure=self.insecure,
        )

    def check_reach(self, address: Address) -> None:
        """Raise ``ValueError`` if these credentials do not protect a service at ``address``."""
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

    def data_context(self) -> TlsContext | None:
        """Return the TLS context of a data port. ``None``: plain text."""
        if not self.certificate:
            return None
        return TlsContext.server(self.certificate, self.key, self.client_authority)

    def to_json(self) -> dict[str, Any]:
        """Return everything including secrets, for a child process over a private socket."""
        texts = {name: getattr(self, name).decode("ascii") for name in _PEMS}
        others = [[token.name, token.secret, token.grant.to_json()] for token in self.other_tokens]
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {**texts, **plain, "token_grant": self.token_grant.to_json(), "other_tokens": others}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Credentials:
        """Undo ``to_json``."""
        parts = {name: document[name].encode("ascii") for name in _PEMS}
        others = tuple(
            Token(name=name, secret=secret, grant=Grant.from_json(grant))
            for name, secret, grant in document["other_tokens"]
        )
        plain = {name: document[name] for name in _PLAIN}
        grant = Grant.from_json(document["token_grant"])
        return cls(**parts, **plain, token_grant=grant, other_tokens=others)

    def identify(self, authorization_values: Sequence[str | bytes]) -> str | None:
        """Return the name of the token that a caller sent; ``None`` refuses the caller.

        The caller must send exactly one value. Comparisons take the same time for every value. A service
        without a token accepts any value, and the name is empty.
        """
        return "" if self.is_open else matching_token(self._accepted, authorization_values)


_PLAIN = ("token", "token_name", "cluster_key", "insecure")
_PEMS = ("certificate", "key", "authority", "client_authority")


def _check_both(certificate: bytes, key: bytes) -> None:
    if bool(certificate) != bool(key):
        raise ValueError("a certificate needs its key, and a key its certificate")
