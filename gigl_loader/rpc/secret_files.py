"""Tokens, certificates and keys as files: read with errors that name the file, and again when they change."""

from __future__ import annotations

import logging
import os
import stat
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gigl_loader.errors import FormatError
from gigl_loader.regular_files import read_whole
from gigl_loader.rpc.server_proof import check_cluster_key
from gigl_loader.rpc.tokens import parse_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from gigl_loader.rpc.tokens import Token

_LOGGER = logging.getLogger(__name__)

Value = TypeVar("Value")


class FileWatch:
    """Notices that one of some files changed, also behind a symbolic link, as Kubernetes swaps secrets."""

    def __init__(self, paths: Iterable[str | os.PathLike[str] | None]) -> None:
        """``None`` stands for a file that was not given."""
        self._paths = [os.fspath(path) for path in paths if path is not None]
        self._seen = self._look()

    def changed(self) -> bool:
        """Return whether a file changed since the last call: its inode, size, times or mode."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> list[tuple[int, ...]]:
        return [_state_of(path) for path in self._paths]


class Renewed(Generic[Value]):
    """A value that is read from files. Thread-safe."""

    def __init__(self, value: Value, read: Callable[[], Value], watch: FileWatch) -> None:
        """``value`` is what ``read`` returned, and ``watch`` was made before that."""
        self._value, self._read, self._watch = value, read, watch
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the lock, for processes that are spawned."""
        return type(self), (self._value, self._read, self._watch)

    def latest(self) -> Value:
        """Return what the files hold now: the same object where they did not change.

        Files that cannot be used are logged once, and the previous value stays.
        """
        with self._lock:  # A thread whose call was refused waits for the one that reads.
            if self._watch.changed():
                try:
                    self._value = self._read()
                except ValueError as error:
                    _LOGGER.error("certificates and tokens stay as they are: %s", error)
                else:
                    _LOGGER.info("certificates and tokens were read again")
            return self._value


def _state_of(path: str) -> tuple[int, ...]:
    """Return what changes with a file. Empty: it is not there."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ()
    return (
        found.st_dev,
        found.st_ino,
        found.st_size,
        found.st_mtime_ns,
        found.st_ctime_ns,
        found.st_mode,
    )


_SECRET_LENGTH = 16
_MOST_BYTES = 4 << 20
"""A list of all public authorities has 0.3 MB."""


def token_in(path: str | os.PathLike[str] | None) -> str:
    """Return the one token of a trainer's file; empty without a file."""
    tokens = tokens_in(path)
    if len(tokens) > 1:
        raise ValueError(f"{path}: holds {len(tokens)} tokens: a caller shows one, give it a file of its own")
    return tokens[0].secret if tokens else ""


def tokens_in(path: str | os.PathLike[str] | None) -> tuple[Token, ...]:
    """Return the tokens of a server's file; empty without a file. ``ValueError`` names the file."""
    if path is None:
        return ()
    text = secret_in(path).decode()
    with naming(path):
        return parse_tokens(text)


def cluster_key_in(path: str | os.PathLike[str] | None) -> str:
    """Return the cluster key in a file, without white space around it; empty without a file."""
    if path is None:
        return ""
    key = secret_in(path).decode().strip()
    with naming(path):
        check_cluster_key(key)
    return key


@contextmanager
def naming(*paths: str | os.PathLike[str]) -> Iterator[None]:
    """Prefix a ``ValueError`` about the contents of files with their paths."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{', '.join(map(str, paths))}: {error}") from None


def secret_in(path: str | os.PathLike[str] | None) -> bytes:
    """Return the text in a file, as ``pem_in``. Logs a warning if other users can read or write the file."""
    if path is not None and _may_be_secret(str(path)) and not os.path.exists(path):
        # Without the text: it may be a secret that was given in place of its file, and errors are logged.
        raise ValueError(
            f"a token or key is given by the path of its file, and a text of {len(str(path))} characters "
            "names none"
        )
    content = pem_in(path)
    if path is not None:
        _warn_of_readers(Path(path))
    return content


def _may_be_secret(text: str) -> bool:
    """Return whether a text may be a token rather than the path of one."""
    return len(text) >= _SECRET_LENGTH and os.sep not in text


def _warn_of_readers(path: Path) -> None:
    """Log one line if other users can read or write a secret. Pipes are private.

    As in PostgreSQL, the group may read a file of root: container platforms and systemd pass secrets that
    way.
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
    """Return the text in a file; empty without a file. ``ValueError`` if it cannot be read or be PEM.

    It may be a pipe, such as ``<(pass token)`` of a shell.
    """
    if path is None:
        return b""
    try:
        content = read_whole(path, most=_MOST_BYTES, pipes=True)
    except UnicodeEncodeError:
        raise ValueError(f"cannot read {str(path)!a}: no path has such a name") from None
    except OSError as error:
        raise ValueError(f"cannot read {path}: {error.strerror}") from None
    except FormatError as error:
        raise ValueError(f"cannot use {error}") from None
    if not content.strip():
        raise ValueError(f"{path} is empty")
    if not content.isascii():
        raise ValueError(f"{path} is not text in ASCII, as tokens and PEM are")
    return content
