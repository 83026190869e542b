"""Tokens, certificates and keys as files, read with errors that name the file."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.rpc.tokens import parse_tokens

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from gigl_loader.rpc.tokens import Token

__all__ = ["naming", "pem_in", "token_in", "tokens_in"]


def token_in(path: str | os.PathLike[str] | None) -> str:
    """Return the one token of a trainer's file, or nothing without a file."""
    tokens = tokens_in(path)
    if len(tokens) > 1:
        raise ValueError(f"{path}: holds {len(tokens)} tokens: a caller shows one, give it a file of its own")
    return tokens[0].secret if tokens else ""


def tokens_in(path: str | os.PathLike[str] | None) -> tuple[Token, ...]:
    """Return the tokens of a server's file, or none without a file. ``ValueError`` naming the file."""
    if path is None:
        return ()
    text = pem_in(path).decode()
    with naming(path):
        return parse_tokens(text)


@contextmanager
def naming(*paths: str | os.PathLike[str]) -> Iterator[None]:
    """Put the files in front of what is wrong with their contents."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{', '.join(map(str, paths))}: {error}") from None


def pem_in(path: str | os.PathLike[str] | None) -> bytes:
    """Return the text in a file, or nothing without one. ``ValueError`` for what cannot be read or be PEM."""
    if path is None:
        return b""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    if not content.strip():
        raise ValueError(f"{path} is empty")
    if not content.isascii():
        raise ValueError(f"{path} is not text in ASCII, as tokens and PEM are")
    return content
