"""Tokens: shared secrets that callers send, each with a name for logs and quotas."""

from __future__ import annotations

import hmac
import re
import secrets
from collections import Counter
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from gigl_loader.rpc.grants import EVERYTHING, Grant, is_grant, parse_grant

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "Token",
    "authorization",
    "check_distinct",
    "check_no_placeholder",
    "check_token",
    "matching_token",
    "new_token",
    "parse_tokens",
    "shown_form",
]

_MIN_LENGTH = 16
_PLACEHOLDER = "replace-this"
"""Prefix of the placeholders in the examples of ``deploy/``."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MAX_TOKENS = 256
"""Every call is compared with all tokens: 256 comparisons take 0.2 ms."""


def new_token() -> str:
    """Return a fresh random token (256 bits)."""
    return secrets.token_urlsafe(32)


def authorization(token: str) -> str:
    """Return the value of the header ``authorization`` for a token."""
    return f"Bearer {token}"


def check_token(token: str) -> None:
    """Raise ``ValueError`` for a token that a header cannot carry or that is easy to guess."""
    if len(token) < _MIN_LENGTH or not all("!" <= each <= "~" for each in token):
        raise ValueError(f"a token has at least {_MIN_LENGTH} visible ASCII characters and no space")
    check_no_placeholder(token)


def check_no_placeholder(secret: str) -> None:
    """Raise ``ValueError`` for the placeholder of an example, which is public."""
    if secret.lower().startswith(_PLACEHOLDER):
        raise ValueError("this is the placeholder of an example, which everyone knows: openssl rand -hex 32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One token, the name of its holder in logs and quotas, and what the holder may do."""

    name: str
    """1 to 64 ASCII letters, digits, dots, dashes and underscores."""
    secret: str = field(repr=False)
    """At least 16 visible ASCII characters."""
    grant: Grant = EVERYTHING

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                "the name of a token has 1 to 64 ASCII letters, digits, dots, dashes and underscores"
            )
        check_token(self.secret)


def parse_tokens(text: str) -> tuple[Token, ...]:
    """Return the tokens of a file: one per line, ``NAME TOKEN`` or a bare ``TOKEN``, and then its grant.

    A bare token is named by its number among the tokens of the file. Blank lines and lines that begin with
    ``#`` are skipped. ``ValueError`` for no token, too many, or the same name or token twice; the message
    names the line and never its content.
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1)]
    lines = [(number, words) for number, words in lines if words and not words[0].startswith("#")]
    several = len(lines) > 1
    tokens = [
        _token(words, place, f"line {number}: " if several or any(map(is_grant, words)) else "")
        for place, (number, words) in enumerate(lines, 1)
    ]
    if not 1 <= len(tokens) <= _MAX_TOKENS:
        raise ValueError(f"it holds {len(tokens)} tokens, not 1 to {_MAX_TOKENS}")
    check_distinct(tokens)
    return tuple(tokens)


def _token(words: Sequence[str], place: int, where: str) -> Token:
    known = [is_grant(word) for word in words[1:]]
    count = 1 + (known.index(True) if True in known else min(len(known), 1))
    if count > 2 or (len(words) > 2 and True not in known):
        raise ValueError(f"{where}write NAME TOKEN, or a token alone: neither holds a space")
    try:
        name = words[0] if count == 2 else str(place)
        return Token(name=name, secret=words[count - 1], grant=parse_grant(words[count:]))
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None


def check_distinct(tokens: Iterable[Token]) -> None:
    """Raise ``ValueError`` if two tokens have the same name or the same secret."""
    listed = list(tokens)
    twice = [name for name, count in Counter(token.name for token in listed).items() if count > 1]
    if twice:
        raise ValueError(f"two tokens are named {twice[0]!r}: give each a name of its own")
    if len({token.secret for token in listed}) < len(listed):
        raise ValueError("one token appears twice: give each team a token of its own")


def shown_form(token: Token) -> tuple[str, bytes]:
    """Return the name of a token, and the SHA-256 of its ``authorization`` header."""
    return token.name, sha256(authorization(token.secret).encode()).digest()


def matching_token(shown: Sequence[tuple[str, bytes]], values: Sequence[str | bytes]) -> str | None:
    """Return the name of the token in ``values`` of the header ``authorization``, or ``None``.

    ``shown`` has the ``shown_form`` of each accepted token. Exactly one value is accepted. Its digest is
    compared with all digests in constant time: the time reveals neither how much of a token is right nor
    which token matches.
    """
    if len(values) != 1:
        return None
    value = values[0]
    sent = sha256(value.encode("utf-8", "replace") if isinstance(value, str) else value).digest()
    found: str | None = None
    for name, expected in shown:
        found = name if hmac.compare_digest(sent, expected) else found
    return found
