"""A trainer in a process of its own that keeps a checkpoint after every batch, and goes on from it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gigl_loader import DistDataset, DistNeighborLoader
from tests.support.leftovers import wait_until
from tests.support.training import FANOUT, OPTIONS, digest

if TYPE_CHECKING:
    from tests.chaos.faults import Fault
    from tests.chaos.ground import Ground

PROGRAM = f"{__name__}:train"
_CHECKPOINT, _SEEN = "checkpoint.json", "seen"
_ENDS_S = 20.0
_MAX_ERRORS = 50


class Client:
    """A started trainer. ``folder`` holds its checkpoint, from which another may go on."""

    def __init__(
        self, ground: Ground, folder: Path, *, addresses: Sequence[str] = (), epochs: int = 1
    ) -> None:
        self._fork_server, self._folder = ground.fork_server, folder
        self.pid = ground.fork_server.start(
            {
                "program": PROGRAM,
                "arguments": {
                    "graph": str(ground.graph),
                    "folder": str(folder),
                    "addresses": list(addresses),
                    "epochs": epochs,
                },
                "environment": {"TMPDIR": str(folder)},
                "network": "",
                "directory": os.getcwd(),
                "output": str(folder / "output"),
                "errors": str(folder / "errors"),
                "failure": str(folder / "failure"),
            }
        )

    @property
    def seen(self) -> list[int]:
        """Digests of the batches up to the last checkpoint, of this trainer and those before it."""
        return read_checkpoint(self._folder)[1]

    @property
    def status(self) -> int | None:
        return self._fork_server.status(self.pid)

    def kill(self) -> None:
        """End it by SIGKILL, unless it has ended, and wait for that."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        assert wait_until(lambda: self.status is not None, seconds=_ENDS_S)


class OtherClient:
    """A client that trains beside the one that is watched, and is killed and stopped."""

    def __init__(self, ground: Ground, addresses: list[str], name: str) -> None:
        self._ground, self._addresses = ground, addresses
        self._folder = ground.fresh_folder(name)
        self._count = 0
        self._client = self._start()

    def harm(self, fault: Fault) -> None:
        if fault.kind.startswith("SIGSTOP"):
            os.kill(self._client.pid, signal.SIGSTOP)
            time.sleep(fault.seconds)
            os.kill(self._client.pid, signal.SIGCONT)
            return
        self._client.kill()
        self._client = self._start()

    @property
    def runs(self) -> list[list[int]]:
        """Digests of the batches of each run, from its first epoch on."""
        return [read_checkpoint(Path(self._folder, str(number + 1)))[1] for number in range(self._count)]

    def __enter__(self) -> OtherClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.kill()

    def _start(self) -> Client:
        self._count += 1
        folder = Path(self._folder, str(self._count))
        folder.mkdir()
        return Client(self._ground, folder, addresses=self._addresses, epochs=1_000_000)


def read_checkpoint(folder: Path) -> tuple[dict[str, Any] | None, list[int]]:
    """Return the state of a loader, ``None`` if there is none yet, and the digests until then."""
    try:
        saved = json.loads((folder / _CHECKPOINT).read_text())
    except FileNotFoundError:
        return None, []
    digests = [int(line) for line in (folder / _SEEN).read_text().split()]
    return saved["state"], digests[: saved["batches"]]


def train(*, graph: str, folder: str, addresses: Sequence[str], epochs: int) -> None:
    """Go through epochs and keep a checkpoint after every batch. Goes on from the one that is there."""
    place = Path(folder)
    state, done = read_checkpoint(place)
    options = OPTIONS | {"batch_size": 20, "timeout": 30.0, "num_workers": 0 if addresses else 1}
    _rewrite(place, done)
    with (
        _opened(graph, addresses) as dataset,
        DistNeighborLoader(dataset, FANOUT, "train", **options) as loader,
        (place / _SEEN).open("a") as seen,
    ):
        if state is not None:
            loader.load_state_dict(state)
        count = len(done)
        for _ in range(epochs):
            for batch in _persistent(loader):
                count += 1
                seen.write(f"{digest(batch)}\n")
                seen.flush()
                _save(place, {"state": loader.state_dict(), "batches": count})


def _rewrite(folder: Path, digests: Sequence[int]) -> None:
    """Drop digests that were written after the last checkpoint."""
    _replace(folder / _SEEN, "".join(f"{value}\n" for value in digests))


def _save(folder: Path, document: dict[str, Any]) -> None:
    _replace(folder / _CHECKPOINT, json.dumps(document))


def _replace(file: Path, text: str) -> None:
    """Replace a file at once: whenever this process is killed, there is always a whole one."""
    temporary = file.with_suffix(".new")
    temporary.write_text(text)
    temporary.replace(file)


def _persistent(loader: DistNeighborLoader) -> Iterator[Any]:
    """Yield the batches of an epoch, asking again after errors."""
    batches, errors = iter(loader), 0
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except Exception:
            errors += 1
            if errors > _MAX_ERRORS:
                raise
            time.sleep(0.05)
            continue
        yield batch


def _opened(graph: str, addresses: Sequence[str]) -> Any:
    if not addresses:
        return DistDataset.open(graph)
    from gigl_client import RemoteDistDataset  # gRPC and Arrow, which a fork server must not import.

    return RemoteDistDataset.connect(list(addresses), timeout=30.0)
