"""Trainers for tests: several processes as ranks on one host or many, and what became of them."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.support.fork_server import ForkServer
from tests.support.hosts import Host
from tests.support.leftovers import shared_memory, wait_until
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
_PATIENCE = 60.0
"""Seconds in which processes that ought to end by themselves have ended."""

_TRITON_LEAKS = re.compile(r"nanobind: leaked .*?refleaks\.html\n?", re.S)
"""What Triton, which PyG imports where it is installed, says at the end of a forked process."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one rank runs: its environment, and its host if that is not this machine."""

    environment: Mapping[str, str]
    host: Host | None


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of one rank."""

    rank: int
    status: int
    """Exit code, or minus the signal."""
    output: str
    errors: str
    failure: str
    """Type and message of the exception that ended it, if one did."""
    seconds: float
    """From the start of all ranks to its end."""

    @property
    def lines(self) -> list[Any]:
        """What it printed, as JSON lines."""
        return [json.loads(line) for line in self.output.splitlines()]


def places(*per_host: int, hosts: Sequence[Host] | None = None) -> list[Place]:
    """Return one place per rank, with torchrun's variables, in order of ranks.

    Without ``hosts`` all ranks are on this machine, and only boot ids tell the hosts apart.
    """
    master = hosts[0].address if hosts else "127.0.0.1"
    port = hosts[0].free_port() if hosts else free_port()
    found: list[Place] = []
    for index, count in enumerate(per_host):
        host = hosts[index] if hosts else None
        for local_rank in range(count):
            variables = {
                "RANK": len(found),
                "WORLD_SIZE": sum(per_host),
                "LOCAL_RANK": local_rank,
                "LOCAL_WORLD_SIZE": count,
                "GROUP_RANK": index,
                "GROUP_WORLD_SIZE": len(per_host),
                "MASTER_ADDR": master,
                "MASTER_PORT": port,
                "GIGL_BOOT_ID": f"boot-{index}",
            }
            here = host.environment if host else {}
            found.append(Place({name: str(value) for name, value in variables.items()} | here, host))
    return found


class Ranks:
    """Ranks that run one program, ``module:function``, each in its place. A context manager.

    At the end of the block they must have ended and have left nothing, or the test fails.
    """

    def __init__(
        self,
        fork_server: ForkServer,
        program: str,
        where: Sequence[Place],
        folder: Path,
        *,
        arguments: Mapping[str, Any] | None = None,
        special: Mapping[int, Mapping[str, Any]] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start them. ``special`` has further arguments by rank; output goes to ``folder``."""
        self._fork_server = fork_server
        self.folder = folder
        self._temporary = folder / "temporary"
        self._temporary.mkdir()
        self._hosts = {place.host.index: place.host for place in where if place.host}.values()
        self._listening = {host.index: host.listening() for host in self._hosts}
        self._shared = shared_memory()
        self._began = time.monotonic()
        self.pids = [
            fork_server.start(
                {
                    "program": program,
                    "arguments": {**(arguments or {}), **(special or {}).get(rank, {})},
                    "environment": {
                        **place.environment,
                        "TMPDIR": str(self._temporary),
                        **(environment or {}),
                    },
                    "network": place.host.network if place.host else "",
                    "directory": str(ROOT),
                    "output": str(self._path(rank, "output")),
                    "errors": str(self._path(rank, "errors")),
                    "failure": str(self._path(rank, "failure")),
                }
            )
            for rank, place in enumerate(where)
        ]
        self._seconds: dict[int, float] = {}

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._check()
        finally:
            for process in self._fork_server.everyone():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            wait_until(lambda: not self._fork_server.everyone(), seconds=_PATIENCE)

    def printed(self, rank: int) -> list[Any]:
        """Return the JSON lines that a rank has printed so far."""
        text = self._read(rank, "output")
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for(self, rank: int, word: str, *, seconds: float) -> list[Any]:
        """Wait until a rank has printed a JSON list that begins with ``word``, and return it."""

        def said() -> list[list[Any]]:
            return [line for line in self.printed(rank) if line[0] == word]

        wait_until(lambda: said() or self._has_ended(rank), seconds=seconds)
        lines = said()
        assert lines, f"rank {rank} did not say {word!r} within {seconds} s{self._report()}"
        return lines[0]

    def send(self, rank: int, number: int) -> None:
        """Send a signal to a rank."""
        os.kill(self.pids[rank], number)

    def children(self, rank: int, name: str = "") -> list[psutil.Process]:
        """Return the processes that a rank has started, those whose name contains ``name``."""
        found = []
        for process in psutil.Process(self.pids[rank]).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # It ended meanwhile.
                if name in process.name():
                    found.append(process)
        return found

    def finish(self, *, seconds: float, ranks: Sequence[int] | None = None) -> list[Ended]:
        """Wait until these ranks (all) have ended. The test fails if that takes longer."""
        wanted = range(len(self.pids)) if ranks is None else ranks
        if not wait_until(lambda: all(self._has_ended(rank) for rank in wanted), seconds=seconds):
            raise AssertionError(f"not all ranks ended within {seconds} s{self._report()}")
        return [self._ended(rank) for rank in wanted]

    def succeed(self, *, seconds: float) -> list[Ended]:
        """Wait until all ranks have ended well."""
        ended = self.finish(seconds=seconds)
        assert not any(rank.status for rank in ended), self._report()
        return ended

    def _check(self) -> None:
        """Fail if anybody runs, or if anything is left."""
        quiet = wait_until(lambda: not self._fork_server.everyone(), seconds=_PATIENCE)
        assert quiet, f"still there: {self._fork_server.everyone()}{self._report()}"
        assert list(self._temporary.iterdir()) == []
        assert wait_until(lambda: shared_memory() <= self._shared)
        for host in self._hosts:
            assert host.listening() <= self._listening[host.index]

    def _has_ended(self, rank: int) -> bool:
        if self._fork_server.status(self.pids[rank]) is None:
            return False
        self._seconds.setdefault(rank, time.monotonic() - self._began)
        return True

    def _all_ended(self) -> bool:
        ended = [self._has_ended(rank) for rank in range(len(self.pids))]
        return all(ended)

    def _ended(self, rank: int) -> Ended:
        status = self._fork_server.status(self.pids[rank])
        assert status is not None
        texts = {kind: self._read(rank, kind) for kind in ("output", "errors", "failure")}
        texts["errors"] = _TRITON_LEAKS.sub("", texts["errors"])
        return Ended(rank, status, **texts, seconds=self._seconds[rank])

    def _report(self) -> str:
        lines = [
            f"\n--- rank {rank} (status {self._fork_server.status(pid)})\n"
            f"{self._read(rank, 'output')}{self._read(rank, 'errors')}"
            for rank, pid in enumerate(self.pids)
        ]
        return "".join(lines)

    def _path(self, rank: int, kind: str) -> Path:
        return self.folder / f"rank-{rank}.{kind}"

    def _read(self, rank: int, kind: str) -> str:
        with suppress(FileNotFoundError):
            return self._path(rank, kind).read_text()
        return ""
