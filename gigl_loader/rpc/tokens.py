"""Tokens: shared secrets that callers send, and what their holders may do."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
import secrets
from collections import Counter
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from gigl_loader.options import byte_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

JOB_HEADER = "gigl-job"
"""Header, on both ports, of every call that creates or uses what belongs to a job."""

_FORM = re.compile(r"[0-9a-f]{64}")


def new_job() -> str:
    """Return a fresh random secret (256 bits)."""
    return secrets.token_hex(32)


def job_key(values: Sequence[str | bytes], token: str) -> bytes | None:
    """Return the key of the job whose header has these values: SHA-256 of secret and token, 32 bytes.

    ``token`` is the name of the caller's token: a secret that is sent with another token names another job.
    ``None`` unless there is exactly one value of 64 hexadecimal digits. Services store keys, not secrets: the
    time of a lookup reveals nothing of a secret, and a key in a log gives no access.
    """
    if len(values) != 1:
        return None
    value = values[0].decode("ascii", "replace") if isinstance(values[0], bytes) else values[0]
    return hashlib.sha256((value + token).encode()).digest() if _FORM.fullmatch(value) else None


_DIGEST = re.compile(r"[0-9a-f]{12,64}")
_GRAPH = re.compile(r"[A-Za-z0-9._-]{1,255}")
_WORD = re.compile(r"([a-z]{1,12})=(.*)")
_MAX_SHARE = 1000.0
_LEAST_FRAMES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Rights and quotas of one token. By default: every graph, and the server's own limits alone."""

    graph: tuple[str, ...] = ()
    """Names of the folders of graphs that it may read."""
    digest: tuple[str, ...] = ()
    """Beginnings of the digests of graphs that it may read, of at least 12 hexadecimal digits.

    With neither ``graph`` nor ``digest``, it may read every graph; with both, graphs that either names."""
    jobs: int | None = None
    """Jobs at once on each server."""
    channels: int | None = None
    """Channels at once on each server: one for each loader of each rank."""
    frames: int | None = None
    """Bytes of frames on each server that wait to be fetched or are being sent."""
    seconds: float | None = None
    """Seconds of a sampling thread that one batch may take. ``None``: as many as the server grants."""
    share: float = 1.0
    """Weight of each of its owners when sampling threads are shared by time."""

    def __post_init__(self) -> None:
        if not all(_GRAPH.fullmatch(name) for name in self.graph):
            raise ValueError("graph is the name of a graph's folder: letters, digits, dots, - and _")
        if not all(_DIGEST.fullmatch(digest) for digest in self.digest):
            raise ValueError("digest is the beginning of a graph's digest: 12 to 64 hexadecimal digits")
        for name, least in (("jobs", 1), ("channels", 1), ("frames", _LEAST_FRAMES)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.seconds is not None and not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be positive and finite, got {self.seconds:g}")
        if not (math.isfinite(self.share) and 1 / _MAX_SHARE <= self.share <= _MAX_SHARE):
            raise ValueError(f"share must lie in [{1 / _MAX_SHARE:g}, {_MAX_SHARE:g}], got {self.share:g}")

    @property
    def reads_all(self) -> bool:
        """Whether it may read every graph."""
        return not self.graph and not self.digest

    def reads(self, *, name: str, digest: str) -> bool:
        """Return whether it may read the graph in a folder called ``name``."""
        return self.reads_all or name in self.graph or any(map(digest.startswith, self.digest))

    def to_json(self) -> dict[str, Any]:
        """Return what differs from ``EVERYTHING``."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(EVERYTHING, name)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Grant:
        """Undo ``to_json``."""
        lists = {name: tuple(value) for name, value in document.items() if isinstance(value, list)}
        return cls(**{**document, **lists})


EVERYTHING = Grant()
"""Grant of a token without words behind it."""

_NAMES = tuple(each.name for each in fields(Grant))


def is_grant(word: str) -> bool:
    """Return whether a word of a token's line has the form of a part of its grant."""
    found = _WORD.fullmatch(word)
    return found is not None and found[1] in _NAMES


def parse_grant(words: Sequence[str]) -> Grant:
    """Return the grant in words such as ``graph=ads``, ``jobs=4``, ``frames=2GB`` and ``share=2``.

    ``graph`` and ``digest`` may be there several times. ``ValueError`` names what is wrong.
    """
    given: dict[str, Any] = {}
    for word in words:
        found = _WORD.fullmatch(word)
        if found is None or found[1] not in _NAMES:
            what = f"no {found[1]!r} among" if found else "after a token come"
            raise ValueError(f"{what} {', '.join(f'{name}=' for name in _NAMES)}")
        name, text = found[1], found[2]
        if name in ("graph", "digest"):
            given[name] = (*given.get(name, ()), text)
        elif name in given:
            raise ValueError(f"{name} is there twice")
        else:
            given[name] = _number(name, text)
    return Grant(**given)


def _number(name: str, text: str) -> float:
    if name == "frames":
        return byte_count(name, text)
    try:
        return float(text) if name in ("share", "seconds") else int(text)
    except ValueError:
        kind = "a number" if name in ("share", "seconds") else "a whole number"
        raise ValueError(f"{name} must be {kind}, got {text[:20]!a}") from None


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
