"""Callers of the data port: what the header of a request shows, and who sent it."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from gigl_loader.rpc.job import JOB_HEADER, job_key
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_server.identity import Identity

if TYPE_CHECKING:
    from gigl_loader.native import DataCall
    from gigl_loader.rpc.credentials import Credentials

__all__ = ["WRONG_TOKEN", "DataCallers", "Known"]

_CACHED = 4096
_VERSION = 3
WRONG_TOKEN = Refusal(RefusalKind.UNAUTHENTICATED, "wrong token: all hosts must use the same one")


class Known(NamedTuple):
    """Sender of a request that may be answered."""

    identity: Identity
    job: bytes | None
    """Key of the job whose secret the request names."""


class DataCallers:
    """Checks the token of each call. Thread-safe.

    The native server has checked the first one of a connection; tokens change while connections stay.
    """

    def __init__(self, credentials: Credentials) -> None:
        self.credentials = credentials
        """Tokens that are accepted: those of the last assignment."""
        self._identity = lru_cache(_CACHED)(_identity)
        self._fingerprint = lru_cache(_CACHED)(_fingerprint)

    def identify(self, call: DataCall) -> Known:
        """Return who sent a call. ``Refusal`` for another version of the protocol or without a good token."""
        if call.version != _VERSION:
            raise Refusal(
                RefusalKind.MALFORMED,
                f"the request has version {call.version} of the data port, this service reads {_VERSION}: "
                "install the same version of gigl-loader on all hosts",
            )
        headers = _headers(call.header)
        token = self.credentials.identify(headers.get(b"authorization", ()))
        if token is None:
            raise Refusal(WRONG_TOKEN.kind, WRONG_TOKEN.message)
        jobs = headers.get(JOB_HEADER.encode(), ())
        certificate = self._fingerprint(call.certificate) if self.credentials.client_authority else ""
        return Known(self._identity(call.address, token, certificate), job_key(jobs) if jobs else None)

    def stranger(self, call: DataCall) -> Identity:
        """Return the identity of a caller whose token is not known."""
        return self._identity(call.address, "", "")


def _headers(text: bytes) -> dict[bytes, list[bytes]]:
    """Return the values of each header, from lines of a name, a colon, a space and a value."""
    headers: dict[bytes, list[bytes]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(b": ")
        headers.setdefault(name, []).append(value)
    return headers


def _identity(address: str, token: str, certificate: str) -> Identity:
    family = "ipv6" if ":" in address else "ipv4"
    return Identity.of(peer=f"{family}:[{address}]:0", token=token, certificate=certificate)


def _fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate, as the control port names it; empty without one."""
    return sha256(certificate).hexdigest() if certificate else ""
