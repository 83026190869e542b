"""Repair of damaged files of a running server: sound blocks are pulled from another holder."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gigl_loader.errors import FormatError, GiglError, StorageUnavailable
from gigl_loader.graph.folder import DiskFolder
from gigl_loader.graph.manifest import files_of, part_of
from gigl_loader.retry import Deadline, attempts
from gigl_loader.threads import start_thread
from gigl_server.partitions.assembly import PullStopped
from gigl_server.partitions.pull import PullProgress, pull_from, size_text, unsound_files

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from gigl_server.counters import Counters
    from gigl_server.partitions.file_sources import FileSource
    from gigl_server.partitions.holdings import Holdings

_LOGGER = logging.getLogger(__name__)
_LOOK_EVERY_S = 1.0
_AGAIN_S, _LONGEST_AGAIN_S = 1.0, 30.0
_GIVE_UP_S = 120.0
"""Time until repair is given up. Meanwhile, a server with a sound copy may be restarted."""


class Repairer:
    """Watches the graph in use for damage, on a thread of its own, and repairs it."""

    def __init__(
        self,
        holdings: Holdings,
        find: Callable[[int | None], list[FileSource]],
        counters: Counters,
        *,
        failed: Callable[[FormatError], None],
    ) -> None:
        """``find(partition)`` returns other servers that hold it, or any for ``None``, or raises
        ``StorageUnavailable``. ``failed`` is called once, with damage that cannot be repaired.
        """
        self._holdings = holdings
        self._find = find
        self._counters = counters
        self._failed = failed
        self._ended = threading.Event()
        self.thread = threading.Thread(target=self._run, name="repair", daemon=True)

    def start(self) -> None:
        start_thread(self.thread)

    def close(self, timeout_s: float) -> None:
        """End the watch, and a pull under way. Closing twice, or without ``start``, is fine."""
        self._ended.set()
        if self.thread.is_alive() and self.thread is not threading.current_thread():
            self.thread.join(timeout_s)

    def _run(self) -> None:
        try:
            while not self._ended.wait(_LOOK_EVERY_S):
                self._look()
        except PullStopped:
            pass
        except FormatError as damage:
            self._failed(damage)

    def _look(self) -> None:
        try:
            self._holdings.graph.verifier.check()
        except FormatError as damage:
            self._repair(damage)

    def _repair(self, damage: FormatError) -> None:
        """Repair until it succeeds. ``FormatError`` where no other server has a copy, or after too long."""
        graph = self._holdings.graph
        if not isinstance(graph.folder, DiskFolder) or not self._have_holders([*graph.verifier.damage]):
            raise damage
        _LOGGER.error("damage found, to be repaired from another server: %s", damage)
        began, told = time.monotonic(), ""
        names: set[str] = set()
        fetched = 0
        tries = attempts(
            Deadline.after(_GIVE_UP_S), first_s=_AGAIN_S, longest_s=_LONGEST_AGAIN_S, wait=self._ended.wait
        )
        for number in tries:
            try:
                if number:
                    names.update(self._unsound(graph.folder, names))
                parts = self._step_back(names)
                fetched += self._pull(graph.folder, sorted(names))
                own = self._held().intersection(parts)
                self._holdings.gain(own, lists_of=set(parts) - own, reopen=names)
                break
            except (GiglError, OSError) as error:
                if str(error) != told:
                    told = str(error)
                    _LOGGER.warning("not repaired yet: %s", told)
        else:
            if self._ended.is_set():
                raise PullStopped
            raise FormatError(f"{damage}; not repaired: {told}")
        self._counters.add(repairs=1, repaired_bytes=fetched)
        what, seconds = ", ".join(sorted(names)[:4]), time.monotonic() - began
        _LOGGER.info("repaired in %.1f s, %s pulled again: %s", seconds, size_text(fetched), what)

    def _step_back(self, names: set[str]) -> list[int]:
        """Add files that were found damaged to ``names``, and serve their partitions no more. Return these.

        Where partitions share a damaged file, nothing can be sampled: the graph stays, and all is refused.
        """
        graph = self._holdings.graph
        names.update(graph.verifier.damage)
        parts = sorted({part for name in names if (part := part_of(name)) is not None})
        serving = [part for part in parts if part in graph.topology_parts]
        if serving and None not in map(part_of, names):
            with suppress(StorageUnavailable):  # No other server to sample from is known: all is refused.
                self._holdings.withdraw(serving)
                _LOGGER.warning("partitions %s are not used here until they are repaired", serving)
        return parts

    def _unsound(self, folder: DiskFolder, names: Collection[str]) -> list[str]:
        """Return the files that are damaged now: after the first damage, further damage may be found."""
        manifest = self._holdings.graph.manifest
        parts = {part for name in names if (part := part_of(name)) is not None}
        every = {*names, *files_of(manifest.schema, parts, features_of=self._held())}
        return unsound_files(folder, manifest, sorted(every), PullProgress("repair"), self._ended)

    def _held(self) -> set[int]:
        """Return the partitions of which the features lie here, too."""
        return {*self._holdings.graph.parts, *self._holdings.withdrawn}

    def _have_holders(self, names: Collection[str]) -> bool:
        try:
            for part in set(map(part_of, names)):
                for holder in self._find(part):
                    holder.close()
        except StorageUnavailable as error:
            _LOGGER.error("damage found that cannot be repaired: %s", error)
            return False
        return True

    def _pull(self, folder: DiskFolder, names: Sequence[str]) -> int:
        """Pull the files, those of each partition from its holders. Return the bytes that were fetched."""
        fetched = 0
        for part in sorted(set(map(part_of, names)), key=str):
            fetched += pull_from(
                self._find(part),
                folder,
                self._holdings.graph.manifest,
                [name for name in names if part_of(name) == part],
                progress=PullProgress("repair"),
                stop=self._ended,
            )
        return fetched
