"""Verification of a graph's files: every byte, before use or in the background."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np

from gigl_loader.arrays import Array, first_true
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import DirectFile, DiskFolder, Folder, Status
from gigl_loader.graph.ids import Directory
from gigl_loader.graph.manifest import Document, feature_files, ids_path, splits_path, topology_path
from gigl_loader.graph.schema import GraphSchema, NodeType
from gigl_loader.native import install_bus_error_handler
from gigl_loader.resources import memory_bytes

_ROWS = 1 << 20
_SMALL_SHARE = 1 / 16
"""Of the memory: so much of features stays in it beside larger ones."""
_LARGE_SHARE = 0.5
"""Of the memory: adjacency lists that take more do not stay in it."""
_LISTS = ("topology", "labels", "weights", "times")
"""Folders of a partition that have adjacency lists."""


def beyond_memory(documents: Mapping[str, Document]) -> list[str]:
    """Return the files that do not stay in the memory of this host, or of its control group.

    There are none where all files fit. Else these are the features of all but small types, and adjacency
    lists where these take most of the memory: batches leave them less.
    """
    limit = memory_bytes()
    if sum(document.layout.nbytes for document in documents.values()) <= limit:
        return []
    sizes: Counter[str] = Counter()
    for name in feature_files(documents):
        sizes[_type_of(name)] += documents[name].layout.nbytes
    small: set[str] = set()
    for each in sorted(sizes, key=sizes.__getitem__):
        if sum(sizes[known] for known in small) + sizes[each] <= _SMALL_SHARE * limit:
            small.add(each)
    found = [name for name in feature_files(documents) if _type_of(name) not in small]
    lists = [name for name in documents if name.split("/")[1] in _LISTS]
    if sum(documents[name].layout.nbytes for name in lists) > _LARGE_SHARE * limit:
        found += lists
    return found


def _type_of(name: str) -> str:
    return name.split("/", 1)[1]


@contextmanager
def _read_directly(folder: Folder, document: Document, *, rest: float) -> Iterator[DirectFile | None]:
    """Open a file for reads without its map. ``None`` where only the map has it: it was replaced since."""
    file, before = None, document.status
    if isinstance(folder, DiskFolder) and before is not None:
        try:
            file = folder.direct(document.name, rest=rest)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise FormatError(f"{document.name}: cannot be read: {error.strerror}") from None
    with file or nullcontext():
        yield None if file is None or before is None or file.status.inode != before.inode else file


def verify_graph(
    schema: GraphSchema,
    folder: Folder,
    documents: Mapping[str, Document],
    directories: Mapping[NodeType, Directory],
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Read every byte of the opened files of ``folder``. Raises ``FormatError`` at the first fault."""
    total = sum(document.layout.nbytes for document in documents.values())
    done = 0

    def report(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress(done, total)

    direct = set(beyond_memory(documents))
    for name, document in documents.items():
        with _read_directly(folder, document, rest=0.0) if name in direct else nullcontext() as data:
            document.verify(report, data)
    for node_type, directory in directories.items():
        _verify_ids(directory, ids_path(node_type))
    for part in range(schema.num_partitions):
        _verify_part(schema, documents, part)


def _verify_part(schema: GraphSchema, documents: Mapping[str, Document], part: int) -> None:
    for edge_type in schema.lists:
        document = documents.get(topology_path(part, edge_type))
        if document is not None:
            count = schema.nodes[schema.neighbor_type(edge_type)].count
            _verify_adjacency(document, count)
    for node_type, nodes in schema.nodes.items():
        document = documents.get(splits_path(part, node_type))
        for name in () if document is None else document.specs:
            assert document is not None
            check_split(document, name, nodes.bounds[part], nodes.bounds[part + 1])


def check_split(document: Document, name: str, low: int, high: int) -> None:
    """Raise ``FormatError`` unless the positions of a split ascend and lie in ``[low, high)``."""
    what = f"{document.name}: {name!r}"
    _verify_range(document.array(name), low, high, what)
    _verify_ascending(document.array(name), what, strictly=True)


def _verify_adjacency(document: Document, neighbors: int) -> None:
    _verify_ascending(document.array("indptr"), f"{document.name}: 'indptr'", strictly=False)
    _verify_range(document.array("indices"), 0, neighbors, f"{document.name}: 'indices'")


def _verify_ascending(array: Array, what: str, *, strictly: bool) -> None:
    for start in range(0, len(array), _ROWS):
        rows = array[start : start + _ROWS + 1]
        # Compared, not subtracted: the difference of ids may exceed int64.
        wrong = first_true(rows[1:] <= rows[:-1] if strictly else rows[1:] < rows[:-1])
        if wrong is not None:
            raise FormatError(f"{what} falls at row {start + wrong + 1}")


def _verify_range(array: Array, low: int, high: int, what: str) -> None:
    for start in range(0, len(array), _ROWS):
        rows = array[start : start + _ROWS]
        if (wrong := first_true((rows < low) | (rows >= high))) is not None:
            value = rows[wrong]
            raise FormatError(f"{what} is {value} at row {start + wrong}, outside [{low}, {high})")


def _verify_ids(directory: Directory, what: str) -> None:
    if directory.ids is None:
        return
    if directory.places is not None:
        _verify_range(directory.places, 0, directory.count, f"{what}: 'positions'")
    keys = directory.ids if directory.places is None else directory.keys
    if keys is not None:
        _verify_ascending(keys, f"{what}: ids in ascending order", strictly=True)
    for start in range(0, directory.count, _ROWS):
        rows = np.arange(start, min(start + _ROWS, directory.count))
        if (wrong := first_true(directory.find(directory.ids[rows]) != rows)) is not None:
            raise FormatError(f"{what}: the id at row {start + wrong} is not found again")


_LOGGER = logging.getLogger(__name__)
SCRUB_EVERY_S = 86_400.0
"""Default time between the beginnings of two passes of a scrubber."""

_SMALL_BYTES = 256 << 20
"""Verifying this many bytes of features takes 50 ms, which needs no thread."""
_LOOK_EVERY_S = 1.0
_MAX_LOOKS = 256
"""Files whose status is checked at a time. One check takes 1 to 2 us."""
_NICE = 10
_REST = 3.0
"""Without maps, the thread reads a quarter of the time: 150 to 270 MB/s. 16 other threads that read 16 KiB at
random lose 5 % of their rate. They would lose 10 to 25 % if it read half of the time, 60 % without pause."""
_END_S = 5.0


class Verifier(Protocol):
    """Verifier of the files of an opened graph. Thread-safe."""

    @property
    def damage(self) -> Mapping[str, str]:
        """Messages of the damage found so far, by file. It grows at any time: copy it to look through it."""

    def over(self, documents: Mapping[str, Document], features: Iterable[str]) -> Verifier:
        """Return a verifier of other files, which knows what this one found in those of them that it had."""

    def require(self, name: str) -> None:
        """Wait until a file is verified. ``FormatError`` if it is damaged."""

    def check(self) -> None:
        """Wait until everything that a batch is drawn from is verified. Called for each batch.

        ``FormatError`` for damage found so far, and for a file that was truncated or overwritten since it was
        mapped.
        """

    def finish(self) -> None:
        """Wait until every byte is verified. Raises as ``check``."""

    def scrub(self, bytes_per_second: float, *, every_s: float = SCRUB_EVERY_S) -> None:
        """Read all files in a thread, now and each ``every_s``. ``check`` raises the damage that it finds."""

    def without_maps(self, names: Iterable[str]) -> None:
        """Read these files without their maps from now on: they must not displace pages that batches need.

        For files of columns that a batch does not read through maps.
        """

    def close(self) -> None:
        """End the threads. What was found stays known. Closing twice is fine."""


class NoVerifier:
    """No verification: another process verifies the files, or it was turned off."""

    @property
    def damage(self) -> Mapping[str, str]:
        return {}

    def over(self, documents: Mapping[str, Document], features: Iterable[str]) -> Verifier:
        return self

    def require(self, name: str) -> None:
        pass

    def check(self) -> None:
        pass

    def finish(self) -> None:
        pass

    def scrub(self, bytes_per_second: float, *, every_s: float = SCRUB_EVERY_S) -> None:
        pass

    def without_maps(self, names: Iterable[str]) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass(slots=True)
class _State:
    """State shared with the thread, which must not keep the verifier alive."""

    folder: DiskFolder
    unmapped: set[str]
    """Files that are read without their maps."""
    good: set[str] = field(default_factory=set)
    damage: dict[str, str] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Passes:
    """Pace of a thread that reads files. The default reads them once, as fast as possible."""

    bytes_per_second: float | None = None
    every_s: float | None = None
    """Time from the beginning of one pass to the next: a small graph must not be read without a pause."""
    look: weakref.WeakMethod[Callable[[], None]] | None = None
    """Checks the status of files, between two passes."""


class _Stopped(Exception):
    """The verifier was collected."""


class LazyVerifier:
    """Verifies each file before its first use, and features in the background."""

    def __init__(
        self, folder: DiskFolder, documents: Mapping[str, Document], features: Iterable[str]
    ) -> None:
        """``features`` names the files that a thread verifies while batches are already sampled.

        Of these, it reads without their maps what does not fit the memory.
        """
        self._folder = folder
        self._documents = documents
        self._features = list(features)
        self._state = _State(folder, set(beyond_memory(documents)))
        self.damage: Mapping[str, str] = MappingProxyType(self._state.damage)
        self._lock = threading.RLock()
        self._begun = False
        self._seen: dict[str, Status] = {name: document.status for name, document in documents.items()}
        self._watched = [name for name, status in self._seen.items() if status is not None]
        self._next_look = 0.0
        self._next_watched = 0
        # Also at interpreter shutdown: a thread that returns from a kernel later would abort it.
        weakref.finalize(self, _end, self._state)

    def over(self, documents: Mapping[str, Document], features: Iterable[str]) -> LazyVerifier:
        other = LazyVerifier(self._folder, documents, features)
        same = {name for name, document in documents.items() if self._documents.get(name) is document}
        with self._lock:
            other._state.good |= self._state.good & same
            other._state.unmapped |= self._state.unmapped & documents.keys()
            other._state.damage |= {name: text for name, text in [*self.damage.items()] if name in same}
            other._seen |= {name: status for name, status in self._seen.items() if name in same}
        return other

    def require(self, name: str) -> None:
        if name not in self._state.good:
            with self._lock:
                self._verify([name])
        self._raise_damage()

    def check(self) -> None:
        if not self._begun:
            with self._lock:
                self._begin()
        if time.monotonic() >= self._next_look:
            with self._lock:
                self._look()
        self._raise_damage()

    def finish(self) -> None:
        with self._lock:
            self._begun = True
            self._verify(self._documents)
        self._raise_damage()

    def scrub(self, bytes_per_second: float, *, every_s: float = SCRUB_EVERY_S) -> None:
        self._start(
            list(self._documents), _Passes(bytes_per_second, every_s, weakref.WeakMethod(self._look_now))
        )

    def without_maps(self, names: Iterable[str]) -> None:
        self._state.unmapped.update(self._documents.keys() & set(names))

    def close(self) -> None:
        _end(self._state)

    def _begin(self) -> None:
        if self._begun:
            return
        install_bus_error_handler()  # Installed again: faulthandler may have been enabled since.
        features = [name for name in self._features if name not in self._state.good]
        self._verify(self._documents.keys() - set(features))
        if sum(self._documents[name].layout.nbytes for name in features) <= _SMALL_BYTES:
            self._verify(features)
        else:
            self._start(features, _Passes())
        self._begun = True

    def _verify(self, names: Iterable[str]) -> None:
        """Verify the files that were not verified yet. Damage is kept, and raised at every check."""
        for name in sorted(set(names) - self._state.good - self._state.damage.keys()):
            _verify_into(self._state, self._documents[name], _ignore, rest=0.0)

    def _start(self, names: Sequence[str], passes: _Passes) -> None:
        documents = [self._documents[name] for name in names]
        arguments = (self._state, documents, passes)
        thread = threading.Thread(target=_read_through, args=arguments, name="verification", daemon=True)
        self._state.threads.append(thread)
        thread.start()

    def _look_now(self) -> None:
        with self._lock:
            self._look()

    def _look(self) -> None:
        """Check the status of mapped files, and verify changed files again."""
        self._next_look = time.monotonic() + _LOOK_EVERY_S
        for _ in range(min(_MAX_LOOKS, len(self._watched))):
            name = self._watched[self._next_watched % len(self._watched)]
            self._next_watched += 1
            before, now = self._seen[name], self._folder.status(name)
            if now == before or before is None:
                continue
            if now is None or now.inode != before.inode:  # Replaced: the map still shows the old file.
                self._watched.remove(name)
                if not self._watched:
                    return
                continue
            self._seen[name] = now
            self._verify_again(name, now)

    def _verify_again(self, name: str, status: Status) -> None:
        assert status is not None
        nbytes = self._documents[name].layout.nbytes
        if status.nbytes < nbytes:  # Reading beyond its end would raise SIGBUS.
            self._state.damage[name] = (
                f"{name}: cut from {nbytes} to {status.nbytes} bytes while it was mapped"
            )
            return
        _LOGGER.warning("%s was written to while it was mapped: it is verified again", name)
        self._state.good.discard(name)
        if name in self._state.unmapped and nbytes > _SMALL_BYTES:
            self._start([name], _Passes())
        else:
            self._verify([name])

    def _raise_damage(self) -> None:
        for text in [*self.damage.values()]:
            raise FormatError(text)


def _ignore(nbytes: int) -> None:
    """Ignore progress."""


def _end(state: _State) -> None:
    """Tell the threads to end, which they do after at most 8 MiB."""
    state.over.set()
    for thread in state.threads:
        if thread is not threading.current_thread():
            thread.join(_END_S)


def _verify_into(state: _State, document: Document, report: Callable[[int], None], *, rest: float) -> None:
    direct = document.name in state.unmapped
    try:
        with _read_directly(state.folder, document, rest=rest) if direct else nullcontext() as data:
            document.verify(report, data)
    except FormatError as error:
        state.good.discard(document.name)
        state.damage[document.name] = str(error)
    else:
        state.good.add(document.name)


def _read_through(state: _State, documents: Sequence[Document], passes: _Passes) -> None:
    """Verify files once or repeatedly. Runs at low CPU priority."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)

    def report(nbytes: int) -> None:
        if state.over.wait(nbytes / passes.bytes_per_second if passes.bytes_per_second else 0):
            raise _Stopped

    with suppress(_Stopped):
        while True:
            began = time.monotonic()
            for document in documents:
                _verify_into(state, document, report, rest=_REST)
                report(0)
                if document.name in state.damage:
                    _LOGGER.error("damage found: %s", state.damage[document.name])
                    return
            if passes.every_s is None or not documents:
                return
            _rest(state, passes, began + passes.every_s)


def _rest(state: _State, passes: _Passes, until: float) -> None:
    """Wait for the next pass. A server has no other thread that notices a file that was overwritten."""
    while (left_s := until - time.monotonic()) > 0:
        if state.over.wait(min(left_s, _LOOK_EVERY_S)):
            raise _Stopped
        look = passes.look and passes.look()
        if look is not None:
            look()
        del look  # It keeps the verifier alive, whose end stops this thread.
