"""Cache of the rows of a host in parts: each rank writes one, and reads those of the other ranks.

A part is one memory file without a name. Ranks tell each other through the store of the process group where
theirs is, open the others' through ``/proc``, and map them read-only, marks aside. No rank ever waits for
another one: ``csrc/shared_slots.h`` says how rows are copied while their owner may replace them. The kernel
releases the lock on a part when its process ends, however it ends; the other ranks then let the part go.
"""

from __future__ import annotations

import fcntl
import json
import logging
import mmap
import os
import secrets
import stat
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.memfile import create_memory, map_memory
from gigl_loader.native import PeerSlots, slot_table_size
from gigl_loader.retry import FOREVER, attempts
from gigl_loader.tensors import ArraySpec, Layout

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from gigl_loader.arrays import Array, Bytes, Int64Array
    from gigl_loader.group import RankGroup
    from gigl_loader.options import EdgeType, NodeType

logger = logging.getLogger(__name__)

PUBLISHED_BYTES = 20
"""Of a slot whose row other ranks may copy, besides what each slot takes."""
_FORMAT = "2"
_FIRST_LOOK_S, _LOOK_S = 0.02, 1.0
"""Pause between two looks for the parts of other ranks: doubles from the first to the second."""
_RETURN_S = 10.0
"""Before the store is asked for a rank that has ended: mostly ranks end together, and the store with them."""
_MAX_HEADER = 1 << 20
_JOIN_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRanks:
    """The ranks of this host that may have a part of the cache."""

    group: RankGroup
    """Of these ranks alone, numbered within the host."""
    host_index: int
    loader: str
    """Name of the loader, equal on all ranks."""
    graph: str
    """Digest: rows of other graphs are not shared."""


class Slots(NamedTuple):
    """Sizes of one type of rows."""

    num_slots: int
    row_bytes: tuple[int, ...]
    """Of each column."""
    signature: str
    """Equal where rows of two ranks have the same bytes."""
    written: int = 0
    """Number that changes when files are written to: rows that were read before may have other bytes."""


class SharedSlots(NamedTuple):
    """Memory of this rank's rows of one type."""

    published: tuple[npt.NDArray[np.uint32], Int64Array, npt.NDArray[np.uint32], Int64Array]
    """Argument of ``CacheIndex``."""
    memory: list[Bytes]
    """uint8 [slots, row bytes] of each column."""


class HostCache:
    """This rank's part of the cache, and the parts of the other ranks that have one."""

    def __init__(self, ranks: HostRanks) -> None:
        self._ranks = ranks
        self._signatures: dict[str, NodeType | EdgeType] = {}
        self._peers: dict[NodeType | EdgeType, tuple[_OfPeer, ...]] = {}
        self._thread: threading.Thread | None = None
        self._open = threading.Lock()
        self._open.acquire()  # A thread that waits for it waits for the end. Releasing runs no Python code.
        self._closed = False
        self._next_ask = 0.0
        self.num_peers = 0
        """Ranks whose rows this one copies."""

    def allocate(self, types: Mapping[NodeType | EdgeType, Slots]) -> dict[NodeType | EdgeType, SharedSlots]:
        """Return memory for this rank's rows, and let the other ranks find it. Called once.

        Memory is committed when it is written. ``OSError`` where there is none to be had.
        """
        token = secrets.token_hex(16)
        self._signatures = {each.signature: kind for kind, each in types.items()}
        specs = {f"{n}/{name}": spec for n, each in enumerate(types.values()) for name, spec in _specs(each)}
        about = {"format": _FORMAT, "graph": self._ranks.graph, "token": token}
        about |= {f"type {number}": each.signature for number, each in enumerate(types.values())}
        layout = Layout.plan(specs, about)
        fd = create_memory("gigl-host-cache", layout.nbytes)
        try:
            os.fchmod(fd, 0o600)
            memory = map_memory(fd, layout.nbytes)
            memory[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
            lock = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except BaseException:
            os.close(fd)
            raise
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        told = json.dumps({"pid": os.getpid(), "fd": fd, "token": token})
        self._thread = threading.Thread(
            target=self._look, args=(told, fd, lock), name="caches of other ranks", daemon=True
        )
        self._thread.start()
        found = {}
        for number, (kind, each) in enumerate(types.items()):
            arrays = _arrays(memory, layout, number, len(each.row_bytes))
            arrays.written[0] = each.written
            found[kind] = SharedSlots(
                (arrays.table, arrays.heads, arrays.marks, arrays.clock), arrays.columns
            )
        return found

    def peers(self, kind: NodeType | EdgeType, written: int = 0) -> tuple[PeerSlots, ...]:
        """Return the rows of a type that other ranks have, of those that are known by now.

        And of those alone that have read them since files were ``written`` to last.
        """
        return tuple(each.slots for each in self._peers.get(kind, ()) if each.written == written)

    def close(self) -> None:
        """Let the other ranks' parts go, and they this one. Closing twice is fine. It takes no lock."""
        if not self._closed:
            self._closed = True
            self._open.release()

    def join(self) -> None:
        """Wait until descriptors are closed. A store that hangs is not waited for."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _look(self, told: str, fd: int, lock: int) -> None:
        """Find the parts of other ranks, and let those go whose ranks have ended, until the end."""
        parts: dict[int, _Part] = {}
        seen: dict[int, str] = {}
        key = f"host-cache/{self._ranks.host_index}/{self._ranks.loader}"
        try:
            self._ranks.group.publish(key, told)
            for number in attempts(FOREVER, first_s=_FIRST_LOOK_S, longest_s=_LOOK_S, wait=self._has_ended):
                if number:
                    self._look_once(key, parts, seen)
        except ConnectionError as error:
            logger.info("%s: no more ranks of this host are looked for: %s", self._ranks.loader, error)
            self._open.acquire()
        finally:
            self._peers = {}
            fcntl.flock(lock, fcntl.LOCK_UN)  # Not merely closed: a child forked meanwhile has the open file.
            for each in (fd, lock, *(part.fd for part in parts.values())):
                os.close(each)

    def _has_ended(self, seconds: float) -> bool:
        """Wait for the end, for so long. Return whether it has come."""
        return self._open.acquire(timeout=seconds)

    def _look_once(self, key: str, parts: dict[int, _Part], seen: dict[int, str]) -> None:
        """``seen`` has what ranks published, as far as it was looked at."""
        group = self._ranks.group
        ended = [rank for rank, part in parts.items() if part.has_ended()]
        for rank in ended:
            os.close(parts.pop(rank).fd)
        if changed := bool(ended):
            self._next_ask = time.monotonic() + _RETURN_S
        missing = [rank for rank in range(group.world_size) if rank != group.rank and rank not in parts]
        is_due = missing and time.monotonic() >= self._next_ask
        for rank, text in group.published(key, ranks=missing).items() if is_due else ():
            if seen.get(rank) != text and (part := self._opened(rank, text)) is not None:
                parts[rank] = part
                changed = True
            seen[rank] = text
        if changed:
            self._set_peers([*parts.values()])

    def _set_peers(self, parts: list[_Part]) -> None:
        peers: dict[NodeType | EdgeType, list[_OfPeer]] = {}
        for part in parts:
            for signature, slots in part.slots.items():
                if (kind := self._signatures.get(signature)) is not None:
                    peers.setdefault(kind, []).append(slots)
        self._peers = {kind: tuple(slots) for kind, slots in peers.items()}
        self.num_peers = sum(any(each in self._signatures for each in part.slots) for part in parts)
        logger.debug("%s: rows of %d other ranks of this host", self._ranks.loader, self.num_peers)

    def _opened(self, rank: int, text: str) -> _Part | None:
        """Map the part of a rank. ``None`` where it is gone, or has rows of another graph."""
        try:
            return _Part.open(json.loads(text), graph=self._ranks.graph, first=rank < self._ranks.group.rank)
        except (OSError, FormatError) as error:
            logger.info("%s: rows of local rank %d are not shared: %s", self._ranks.loader, rank, error)
            return None


class _OfPeer(NamedTuple):
    """Rows of one type that another rank has."""

    slots: PeerSlots
    written: int


class _Arrays(NamedTuple):
    table: npt.NDArray[np.uint32]
    heads: Int64Array
    marks: npt.NDArray[np.uint32]
    clock: Int64Array
    written: Int64Array
    columns: list[Bytes]


def _specs(slots: Slots) -> list[tuple[str, ArraySpec]]:
    count = slots.num_slots
    columns = [(f"column {n}", ArraySpec("U8", (count, size))) for n, size in enumerate(slots.row_bytes)]
    return [
        ("table", ArraySpec("U32", (slot_table_size(count),))),
        ("heads", ArraySpec("I64", (count, 2))),
        ("marks", ArraySpec("U32", (count,))),
        ("clock", ArraySpec("I64", (1,))),
        ("written", ArraySpec("I64", (1,))),
        *columns,
    ]


def _arrays(memory: Bytes, layout: Layout, number: int, num_columns: int) -> _Arrays:
    def view(name: str) -> Array:
        return layout.view(memory, f"{number}/{name}")

    columns = [view(f"column {n}") for n in range(num_columns)]
    return _Arrays(view("table"), view("heads"), view("marks"), view("clock"), view("written"), columns)


class _Part:
    """The part of another rank, mapped."""

    def __init__(self, fd: int, slots: dict[str, _OfPeer]) -> None:
        self.fd = fd
        self.slots = slots
        """By signature."""

    @classmethod
    def open(cls, told: dict[str, Any], *, graph: str, first: bool) -> _Part:
        """Open what a rank published. ``OSError`` where it is gone, ``FormatError`` for another file."""
        path = f"/proc/{int(told['pid'])}/fd/{int(told['fd'])}"
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise FormatError("no memory file of this user")
            return cls(fd, _slots_in(fd, status.st_size, token=told["token"], graph=graph, first=first))
        except BaseException:
            os.close(fd)
            raise

    def has_ended(self) -> bool:
        """Whether its rank holds its lock no more."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        return True


def _slots_in(fd: int, nbytes: int, *, token: str, graph: str, first: bool) -> dict[str, _OfPeer]:
    memory, writable = map_memory(fd, nbytes, prot=mmap.PROT_READ), map_memory(fd, nbytes)
    layout = Layout.parse(memory, what="rows of another rank", max_header=_MAX_HEADER)
    about = dict(layout.metadata)
    if (about.pop("format", None), about.pop("token", None)) != (_FORMAT, token):
        raise FormatError("the descriptor is that of another file by now, or of another version")
    if about.pop("graph", None) != graph:
        raise FormatError("it has rows of another graph")
    found = {}
    for name, signature in about.items():
        number = int(name.removeprefix("type "))
        num_columns = sum(each.startswith(f"{number}/column ") for each in layout.specs)
        arrays = _arrays(memory, layout, number, num_columns)
        marks = layout.view(writable, f"{number}/marks")
        slots = PeerSlots(arrays.table, arrays.heads, marks, arrays.clock, arrays.columns, first)
        found[signature] = _OfPeer(slots, int(arrays.written[0]))
    return found
