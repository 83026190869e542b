"""Directory of embeddings: shards that appear whole, and for each rank a manifest of those that are there.

Another number of ranks goes on as the next *run*. The manifests of earlier runs say what is there already.

::

    embeddings/
    ├── _manifest-00000-of-00002.json       of rank 0: what it was made with, its shards, whether it is done
    ├── embeddings-00000-00000.parquet      rank 0, shard 0; or embeddings-*.npy with its ids-*.npy
    ├── embeddings-00000-00001.parquet
    ├── _manifest-00001-of-00002.json
    ├── embeddings-00001-00000.parquet
    ├── _manifest-100000-of-00003.json      of rank 0 of run 1, which has 3 ranks
    └── embeddings-100000-00000.parquet

Every file is written under a temporary name, flushed to disk and renamed, the manifest after its shards. So a
manifest lists only complete files, and a file that no manifest lists is written again.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

import numpy as np
from typing_extensions import Self

from gigl_loader.errors import FormatError
from gigl_loader.loaders.state import state_at
from gigl_loader.regular_files import read_whole
from gigl_loader.sampling.schedule import Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from gigl_loader.loaders.base import BaseDistLoader
    from gigl_loader.sampling.schedule import Schedule

    Ids = npt.NDArray[np.int64] | Sequence[str]
    Rows = npt.NDArray[np.floating[Any]]

_FORMAT = 1
"""Version of the manifest. Raised when the meaning of a field changes."""
_MAX_MANIFEST_BYTES = 256 << 20
_MANIFEST = re.compile(r"_manifest-(\d{5,})-of-(\d{5,})\.json")
_SHARD = re.compile(r"(embeddings|ids)-(\d{5,})-\d{5,}\.(parquet|npy)")
_RANKS = 100_000
"""In names, rank r of run k is k times as many, plus r."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankManifest:
    """What one rank of a run has written."""

    rank: int
    world_size: int
    options: dict[str, Any]
    """What the rows are made with."""
    state: dict[str, Any]
    """Of the loader, before the first row of the run."""
    shards: list[dict[str, Any]]
    """Rows, and sizes of files by name, of each shard that is complete."""
    complete: bool


@dataclass(slots=True, kw_only=True)
class EmbeddingRun:
    """What ranks write together, beside what other numbers of ranks have written before."""

    schedule: Schedule
    """Of this rank."""
    first: int
    """Step at which the run begins."""
    are_written: npt.NDArray[np.bool_] | None
    """By place in the input, whether an earlier run has written the row. ``None``: there was none."""
    fresh: dict[str, Any]
    """State of the loader, where no rank has one."""
    state: dict[str, Any] = field(default_factory=dict)
    """At which all ranks go on."""
    start: int = 0
    """Step at which all ranks go on."""

    @classmethod
    def beside(
        cls, earlier: Sequence[RankManifest], loader: BaseDistLoader, batches_per_shard: int
    ) -> EmbeddingRun:
        """Return the run of the ranks of now. It begins with the first batch that lacks a row."""
        fresh = state_at(loader.state_dict(), 0, loader._schedule)
        if earlier:
            fresh["epoch"] = earlier[0].state["epoch"]
        run = cls(schedule=loader._schedule, first=0, are_written=None, fresh=fresh)
        if not earlier:
            return run
        schedule, epoch = loader._schedule, fresh["epoch"]
        in_order = np.zeros(schedule.num_entries, bool)
        for each in earlier:
            begun = each.state["batches"] if each.state["format"] > 1 else 0
            first, origin = divmod(begun, each.world_size)
            dealt = run.uneven(each.rank, each.world_size, origin=origin)
            last = first + len(each.shards) * batches_per_shard
            for step in range(first, dealt.num_batches if each.complete else min(last, dealt.num_batches)):
                in_order[dealt.span(step).start : dealt.span(step).stop] = True
        places = schedule.places
        run.are_written = np.zeros(len(in_order) if places is None else int(places.max()) + 1, bool)
        run.are_written[schedule.places_of(epoch, in_order)] = True
        lacking = np.flatnonzero(~in_order)
        number = int(lacking[0]) // schedule.batch_size if len(lacking) else schedule.total
        run.first, origin = divmod(number, schedule.shard.world_size)
        run.schedule = schedule.from_origin(origin)
        return run

    def uneven(self, rank: int, world_size: int, *, origin: int | None = None) -> Schedule:
        """Return the schedule of a rank, without a batch that repeats a seed."""
        shard = Shard(rank=rank, world_size=world_size, even_batches=False)
        return self.schedule.sharded(shard, origin=self.schedule.origin if origin is None else origin)


class EmbeddingFolder:
    """One rank's part of a directory of embeddings. A context manager, which holds the lock of the rank."""

    def __init__(self, path: Path, *, rank: int, world_size: int, shard_format: ShardFormat) -> None:
        """Create the directory if it is not there. No complete file in it is changed.

        ``ValueError`` where it holds anything else, or where another process writes to it. ``OSError`` where
        it cannot be written.
        """
        path.mkdir(parents=True, exist_ok=True)
        self.path = path
        runs = self._runs()
        run = len(runs) - 1 if runs and runs[-1] == world_size else len(runs)
        self._lock_name = f".lock-{rank:05}"
        self._rank = f"{run * _RANKS + rank:05}"
        self._shard_format = shard_format
        self._manifest = path / f"_manifest-{self._rank}-of-{world_size:05}.json"
        self.earlier: list[RankManifest] = []
        """Of all ranks of earlier runs."""
        self.options: dict[str, Any] | None = None
        """What the rows are made with; ``None`` where nothing was begun."""
        self.state: dict[str, Any] | None = None
        """Of the loader, before the first row."""
        self.shards: list[dict[str, Any]] = []
        """Rows, and sizes of files by name, of each shard that is complete."""
        self.complete = False
        self._lock = _lock(path / self._lock_name)
        try:
            for number, ranks in enumerate(runs[:run]):
                self._read_earlier(number, ranks, rank=rank, beside=world_size)
            self._read()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of the lock."""
        if not self._lock.closed:
            (self.path / self._lock_name).unlink()
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

    def _runs(self) -> list[int]:
        """Return the number of ranks of each run so far. ``ValueError`` where anything else is there."""
        names = sorted(os.listdir(self.path))
        strange = [name for name in names if not _is_ours(name)]
        manifests = [found for found in map(_MANIFEST.fullmatch, names) if found]
        if strange or (not manifests and any(_SHARD.fullmatch(name) for name in names)):
            name = strange[0] if strange else names[-1]
            raise ValueError(f"{self.path} is in use for something else (it has {name}): pass another path")
        runs = {int(found[1]) // _RANKS: int(found[2]) for found in manifests}
        return [runs[run] for run in sorted(runs)]

    def _read_earlier(self, run: int, world_size: int, *, rank: int, beside: int) -> None:
        """Read the manifests of an earlier run, and remove files that they do not list: rows will come again.

        Each ``rank`` of the ``beside`` ranks of now removes those of the rank whose lock it has; the first
        also those of ranks that there are no more. ``ValueError`` where one of these still writes.
        """
        for other in range(world_size):
            number = f"{run * _RANKS + other:05}"
            lock = self.path / f".lock-{other:05}"
            has_left = rank == 0 and other >= beside
            with _lock(lock) if has_left else nullcontext():
                found = self._manifest_of(self.path / f"_manifest-{number}-of-{world_size:05}.json")
                shards = [] if found is None else found["shards"]
                if found is not None:
                    fields = {name: found[name] for name in ("options", "state", "shards", "complete")}
                    self.earlier.append(RankManifest(rank=other, world_size=world_size, **fields))
                if other == rank or has_left:
                    self._remove_unlisted(number, {name for each in shards for name in each["files"]})
                if has_left:
                    lock.unlink()

    def _remove_unlisted(self, number: str, listed: set[str]) -> None:
        for name in os.listdir(self.path):
            shard = _SHARD.fullmatch(name)
            is_orphan = shard is not None and shard[2] == number and name not in listed
            if is_orphan or name.startswith(f".tmp-{number}-"):
                (self.path / name).unlink()

    def _read(self) -> None:
        """Read the manifest, if there is one, and remove what a process that was killed left half written."""
        for left in self.path.glob(f".tmp-{self._rank}-*"):
            left.unlink()
        manifest = self._manifest_of(self._manifest)
        if manifest is not None:
            self.options, self.state = manifest["options"], manifest["state"]
            self.shards, self.complete = manifest["shards"], manifest["complete"]

    def _manifest_of(self, path: Path) -> dict[str, Any] | None:
        """Return a manifest whose files are there; ``None`` where there is none."""
        try:
            manifest = json.loads(read_whole(path, most=_MAX_MANIFEST_BYTES))
        except FileNotFoundError:
            return None
        except (ValueError, FormatError) as error:
            raise ValueError(f"{path} is damaged ({error}): pass another path") from error
        if not isinstance(manifest, dict) or not manifest.keys() >= _FIELDS or manifest["format"] != _FORMAT:
            raise ValueError(f"{path} is no manifest of format {_FORMAT}: pass another path")
        for shard in manifest["shards"]:
            for name, size in shard["files"].items():
                file = self.path / name
                if not file.exists() or file.stat().st_size != size:
                    raise ValueError(f"{file} is gone or was changed since it was written: pass another path")
        return manifest

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


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
