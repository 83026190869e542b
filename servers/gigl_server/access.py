"""Access of callers to a server: the rights and quotas of the tokens that they show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gigl_loader.rpc.grants import EVERYTHING
from gigl_loader.rpc.refusals import Refusal, RefusalKind

if TYPE_CHECKING:
    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.grants import Grant
    from gigl_server.identity import Identity

__all__ = ["Access"]


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
