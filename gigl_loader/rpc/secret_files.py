"""Tokens, certificates and keys as files, read with errors that name the file."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

__all__ = ["check_token", "naming", "pem_in", "token_in"]

_MIN_TOKEN = 16


def check_token(token: str) -> None:
    """Raise ``ValueError`` for a token that no header carries or that anyone guesses."""
    if len(token) < _MIN_TOKEN or not all("!" <= each <= "~" for each in token):
        raise ValueError(f"a token has at least {_MIN_TOKEN} visible ASCII characters and no space")


def token_in(path: str | os.PathLike[str] | None) -> str:
    """Return the token in a file, or nothing without one. White space around it is an editor's."""
    if path is None:
        return ""
    token = pem_in(path).decode().strip()
    with naming(path):
        check_token(token)
    return token


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
