"""Tokens, certificates and keys as files, read with errors that name the file."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gigl_loader.rpc.server_proof import check_cluster_key
from gigl_loader.rpc.tokens import parse_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.rpc.tokens import Token

__all__ = ["cluster_key_in", "naming", "pem_in", "secret_in", "token_in", "tokens_in"]

_LOGGER = logging.getLogger(__name__)


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
    text = secret_in(path).decode()
    with naming(path):
        return parse_tokens(text)


def cluster_key_in(path: str | os.PathLike[str] | None) -> str:
    """Return the cluster key in a file, or nothing without one. White space around it is an editor's."""
    if path is None:
        return ""
    key = secret_in(path).decode().strip()
    with naming(path):
        check_cluster_key(key)
    return key


@contextmanager
def naming(*paths: str | os.PathLike[str]) -> Iterator[None]:
    """Put the files in front of what is wrong with their contents."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{', '.join(map(str, paths))}: {error}") from None


def secret_in(path: str | os.PathLike[str] | None) -> bytes:
    """Return what ``pem_in`` does. A file that other users can read or write is warned about."""
    content = pem_in(path)
    if path is not None:
        _warn_of_readers(Path(path))
    return content


def _warn_of_readers(path: Path) -> None:
    """Log one line for a secret that is none. A pipe is nobody else's.

    As in PostgreSQL, the group may read what belongs to root: container platforms and systemd hand secrets
    over in this way.
    """
    with suppress(OSError):
        status = path.stat()
        lent = status.st_uid == 0 and os.geteuid() != 0
        open_to_others = status.st_mode & (0o026 if lent else 0o066)
        if stat.S_ISREG(status.st_mode) and open_to_others:
            mode = stat.S_IMODE(status.st_mode)
            _LOGGER.warning(
                "%s holds a secret and is open to other users (mode %04o): chmod 600 it", path, mode
            )


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
