"""Directory of embeddings: shards that appear whole, and for each rank a manifest of those that are there.

::

    embeddings/
    ├── _manifest-00000-of-00002.json       of rank 0: what it was made with, its shards, whether it is done
    ├── embeddings-00000-00000.parquet      rank 0, shard 0; or embeddings-*.npy with its ids-*.npy
    ├── embeddings-00000-00001.parquet
    ├── _manifest-00001-of-00002.json
    └── embeddings-00001-00000.parquet

Every file is written under a temporary name, flushed to disk and renamed, the manifest after its shards. So a
manifest lists only complete files, and a file that no manifest lists is written again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np
from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    Ids = npt.NDArray[np.int64] | Sequence[str]
    Rows = npt.NDArray[np.floating[Any]]

_FORMAT = 1
"""Version of the manifest. Raised when the meaning of a field changes."""
_MANIFEST = re.compile(r"_manifest-\d{5,}-of-(\d{5,})\.json")
_SHARD = re.compile(r"(embeddings|ids)-\d{5,}-\d{5,}\.(parquet|npy)")
_FIELDS = {"format", "options", "state", "shards", "complete"}


class ShardFormat(Protocol):
    """Files of one shard."""

    def files(self, number: str, ids: Ids, rows: Rows) -> dict[str, Callable[[IO[bytes]], None]]:
        """Return what writes each file of the shard, by file name."""


@dataclass(frozen=True, slots=True)
class ParquetShards:
    """One Parquet file: ``id`` int64 (or string) and ``embedding``, a fixed-size list."""

    def files(self, number: str, ids: Ids, rows: Rows) -> dict[str, Callable[[IO[bytes]], None]]:
        def write(file: IO[bytes]) -> None:
            import pyarrow as pa
            import pyarrow.parquet as pq

            embedding = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), rows.shape[1])
            table = pa.table({"id": pa.array(ids), "embedding": embedding})
            # Floats hardly repeat, and the space needed is known before the first shard.
            pq.write_table(table, file, compression="none", use_dictionary=False)

        return {f"embeddings-{number}.parquet": write}


@dataclass(frozen=True, slots=True)
class NpyShards:
    """Two files of NumPy: int64 [K] ids, and their rows [K, D]."""

    def files(self, number: str, ids: Ids, rows: Rows) -> dict[str, Callable[[IO[bytes]], None]]:
        return {
            f"embeddings-{number}.npy": lambda file: np.save(file, rows, allow_pickle=False),
            f"ids-{number}.npy": lambda file: np.save(file, np.asarray(ids), allow_pickle=False),
        }


SHARD_FORMATS: dict[str, ShardFormat] = {"parquet": ParquetShards(), "npy": NpyShards()}


class EmbeddingFolder:
    """One rank's part of a directory of embeddings. A context manager, which holds the lock of the rank."""

    def __init__(self, path: Path, *, rank: int, world_size: int, shard_format: ShardFormat) -> None:
        """Create the directory if it is not there. No complete file in it is changed.

        ``ValueError`` where it holds anything else, or the output of another number of ranks, or where
        another process writes to it. ``OSError`` where it cannot be written.
        """
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._rank = f"{rank:05}"
        self._shard_format = shard_format
        self._manifest = path / f"_manifest-{self._rank}-of-{world_size:05}.json"
        self._check_contents(world_size)
        self.options: dict[str, Any] | None = None
        """What the rows are made with; ``None`` where nothing was begun."""
        self.state: dict[str, Any] | None = None
        """Of the loader, before the first row."""
        self.shards: list[dict[str, Any]] = []
        """Rows, and sizes of files by name, of each shard that is complete."""
        self.complete = False
        self._lock = _lock(path / f".lock-{self._rank}")
        try:
            self._read()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the lock."""
        if not self._lock.closed:
            (self.path / f".lock-{self._rank}").unlink()
            self._lock.close()

    def begin(self, options: dict[str, Any], state: dict[str, Any]) -> None:
        """Write the first manifest: what the rows are made with, and the loader's state before them."""
        self.options, self.state = options, state
        self._save()

    def add(self, ids: Ids, rows: Rows) -> None:
        """Write the next shard. ``ids``: int64 or texts [K]; ``rows``: [K, D]. None of K = 0 rows has files.

        ``OSError`` where the disk is full. What is there stays, and the shard may be added again.
        """
        number = f"{self._rank}-{len(self.shards):05}"
        writers = self._shard_format.files(number, ids, rows) if len(ids) else {}
        sizes = {name: self._write(self.path / name, write) for name, write in writers.items()}
        self.shards.append({"rows": len(ids), "files": sizes})
        self._save()

    def finish(self) -> None:
        """Record that there are no more shards."""
        self.complete = True
        self._save()

    @property
    def num_rows(self) -> int:
        return sum(int(shard["rows"]) for shard in self.shards)

    def _check_contents(self, world_size: int) -> None:
        names = sorted(os.listdir(self.path))
        strange = [name for name in names if not _is_ours(name)]
        manifests = [found for found in map(_MANIFEST.fullmatch, names) if found]
        if strange or (not manifests and any(_SHARD.fullmatch(name) for name in names)):
            name = strange[0] if strange else names[-1]
            raise ValueError(f"{self.path} is in use for something else (it has {name}): pass another path")
        others = {int(found[1]) for found in manifests} - {world_size}
        if others:
            raise ValueError(
                f"{self.path} was begun by {_ranks(min(others))}, and here {_are(world_size)}: run it with "
                f"{_ranks(min(others))} again, or pass another path"
            )

    def _read(self) -> None:
        """Read the manifest, if there is one, and remove what a process that was killed left half written."""
        for left in self.path.glob(f".tmp-{self._rank}-*"):
            left.unlink()
        try:
            manifest = json.loads(self._manifest.read_bytes())
        except FileNotFoundError:
            return
        except ValueError as error:
            raise ValueError(f"{self._manifest} is damaged ({error}): pass another path") from error
        if not isinstance(manifest, dict) or not manifest.keys() >= _FIELDS or manifest["format"] != _FORMAT:
            raise ValueError(f"{self._manifest} is no manifest of format {_FORMAT}: pass another path")
        self.options, self.state = manifest["options"], manifest["state"]
        self.shards, self.complete = manifest["shards"], manifest["complete"]
        for shard in self.shards:
            for name, size in shard["files"].items():
                file = self.path / name
                if not file.exists() or file.stat().st_size != size:
                    raise ValueError(f"{file} is gone or was changed since it was written: pass another path")

    def _save(self) -> None:
        manifest = {
            "format": _FORMAT,
            "options": self.options,
            "state": self.state,
            "shards": self.shards,
            "complete": self.complete,
        }
        text = json.dumps(manifest, indent=1).encode()
        self._write(self._manifest, lambda file: file.write(text))

    def _write(self, path: Path, write: Callable[[IO[bytes]], object]) -> int:
        """Write a file that is there whole or not at all. Return its size in bytes."""
        temporary = path.with_name(f".tmp-{self._rank}-{path.name}")
        try:
            with open(temporary, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            temporary.rename(path)
            _sync_directory(path.parent)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            if error.errno != errno.ENOSPC:
                raise
            what = "no space left for the next shard; after making some, the same call goes on with it"
            raise OSError(errno.ENOSPC, what, str(path)) from error
        return size


def _lock(path: Path) -> IO[bytes]:
    """Return the locked file. The kernel lets go of it with the process."""
    file = open(path, "ab")  # noqa: SIM115 - held until the folder is closed
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    file.close()
    raise ValueError(
        f"another process writes to {path.parent}: pass another path, or, where ranks share the input, the "
        "loader without sharding='none'"
    )


def _is_ours(name: str) -> bool:
    return bool(name.startswith((".tmp-", ".lock-")) or _MANIFEST.fullmatch(name) or _SHARD.fullmatch(name))


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
