"""Access of callers to a server: who they are, and the rights and quotas of the tokens that they show.

Quotas are kept by identity. Job keys and names of channels come from the caller, who can invent any number.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.tokens import EVERYTHING

if TYPE_CHECKING:
    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.tokens import Grant

_IPV6_PREFIX = 64  # A host usually has a whole /64 to choose addresses from.


class Identity(NamedTuple):
    """Identity of a caller. Equal for calls of one host with one token, or with one client certificate."""

    token: str = ""
    """Name of the token that the caller sent; empty where the service has none."""
    certificate: str = ""
    """SHA-256 of the client certificate, in hex; empty without a certificate."""
    address: str = ""
    """Network of the caller: an IPv4 address, or an IPv6 /64. Empty with a certificate."""

    @classmethod
    def of(cls, *, peer: str, token: str = "", certificate: str = "") -> Identity:
        """Return the identity of a caller. ``peer`` has gRPC's form: ``ipv4:10.0.0.7:4711``."""
        return cls(token=token, certificate=certificate, address="" if certificate else _network(peer))

    def __str__(self) -> str:
        """Return a short printable form, for logs and metrics."""
        who = f"certificate {self.certificate[:12]}" if self.certificate else self.address or "this process"
        return f"{who}, token {self.token}" if self.token else who


LOCAL = Identity()
"""Identity of the service itself, and of calls that did not come through a port."""


def _network(peer: str) -> str:
    """Return the network of an address, or a printable form of other text."""
    kind, _, rest = peer.partition(":")
    host = unquote(rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else rest).strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ascii(peer[:100]).strip("'")
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, _IPV6_PREFIX), strict=False))
    return str(address)


class Access:
    """Grants of the tokens of one server, which serves one graph. Thread-safe."""

    def __init__(self, credentials: Credentials, *, graph: str, digest: str) -> None:
        """``graph`` is the name of the graph's folder. ``ValueError`` as ``renew``."""
        self._graph, self._digest = graph, digest
        self.renew(credentials)

    def renew(self, credentials: Credentials, *, before: Credentials | None = None) -> None:
        """Use the grants of other tokens from now on, and of those of ``before``: ports change one by one.

        ``ValueError`` if the first token, which servers show each other, may not read the graph.
        """
        tokens = credentials.tokens
        if tokens and not tokens[0].grant.reads(name=self._graph, digest=self._digest):
            raise ValueError(
                f"token {tokens[0].name}, the first one, which servers show each other, may not read this "
                f"graph ({self._graph or 'without a name'}, digest {self._digest[:12]})"
            )
        known = (*(before.tokens if before else ()), *tokens)
        self._grants = {token.name: token.grant for token in known}

    def grant_of(self, caller: Identity) -> Grant:
        """Return the grant of the token that a caller showed."""
        return self._grants.get(caller.token, EVERYTHING)

    def check(self, token: str) -> None:
        """Raise ``Refusal`` where the token of this name may not read the graph, or is not accepted."""
        grants = self._grants
        grant = grants.get(token, None if grants else EVERYTHING)
        if grant is None or not grant.reads(name=self._graph, digest=self._digest):
            raise Refusal(RefusalKind.FORBIDDEN, f"token {token} has no right to read this graph")
