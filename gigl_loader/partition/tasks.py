"""Tasks of a build in other processes: the requests, the results, and the main function of such a process.

The process that builds pickles a stage. Processes that it started, or those of the user's cluster, open it.
Results are JSON, in a reply as in a scratch.
"""

from __future__ import annotations

import io
import json
import pickle
import signal
import socket
import tempfile
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal

from gigl_loader import __version__
from gigl_loader.errors import BuildError, FormatError, GiglError, add_note
from gigl_loader.graph.checksums import FileRecord, record_from_json
from gigl_loader.graph.ids import Directory, TextIds
from gigl_loader.graph.manifest import Document
from gigl_loader.partition.job import Budget, Job, Stage, peak_bytes
from gigl_loader.partition.missing_values import MissingValues
from gigl_loader.partition.output import (
    OutputFolder,
    Scratch,
    open_output,
    open_scratch,
    read_file,
    write_file,
)
from gigl_loader.partition.steps.ids import UnknownIds
from gigl_loader.processes import leave_with
from gigl_loader.resources import naming_process_limit
from gigl_loader.strict_json import read_json

_MAX_RESULT_BYTES = 256 << 20
_MISTAKES: Mapping[str, type[Exception]] = {
    error.__name__: error
    for error in (BuildError, FormatError, GiglError, MemoryError, TypeError, UnknownIds, ValueError)
}
"""Errors of tasks that keep their type on the way. Others, of the system aside, become ``BuildError``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSetting:
    """Properties of the build that tasks in other processes need."""

    output: str
    """Location of the graph."""
    scratch: str
    """Location of what tasks leave for each other."""
    temporary: str | None
    """Directory for files of one task. ``None``: the system's."""
    memory_bytes: int
    """Working memory of a task."""
    num_partitions: int
    edge_dir: Literal["in", "out"]
    keeps_results: bool
    """Whether results are written to the scratch, for a build that is resumed."""
    version: str
    """Of this package. Processes with another version do no tasks."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A task that is done."""

    value: Mapping[str, Any]
    files: Mapping[str, FileRecord]
    """Files of the graph that it wrote."""
    peak_bytes: int = 0
    """Largest resident memory of the process that did it, until then."""

    def to_json(self) -> bytes:
        files = {name: record.to_json() for name, record in self.files.items()}
        return json.dumps({"value": self.value, "files": files, "peak_bytes": self.peak_bytes}).encode()


def packed(stage: Stage, files: Mapping[str, FileRecord], shared: Mapping[int, str]) -> bytes:
    """Return a stage for other processes, with the records of the files that the graph has so far.

    Directories and texts of nodes that are files of the graph are left out, and opened there. ``shared``
    gives the file of each by its ``id()``.
    """
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.persistent_id = lambda value: _reference(value, shared)  # type: ignore[method-assign]
    pickler.dump(dict(files))
    pickler.dump(stage)
    return buffer.getvalue()


def _reference(value: object, shared: Mapping[int, str]) -> tuple[str, int, str] | None:
    if not isinstance(value, (Directory, TextIds)) or id(value) not in shared:
        return None
    name = shared[id(value)]
    return (name, value.count, "ids") if isinstance(value, Directory) else (name, len(value), "texts")


class OpenedStage:
    """A stage in a process that does tasks of it."""

    def __init__(self, setting: TaskSetting, data: bytes) -> None:
        if setting.version != __version__:
            raise BuildError(f"a process of gigl-loader {__version__} in a build of {setting.version}")
        self._setting = setting
        self._folder = open_output(setting.output, setting.temporary)
        self._scratch = open_scratch(setting.scratch)
        unpickler = pickle.Unpickler(io.BytesIO(data))
        unpickler.persistent_load = self._load  # type: ignore[method-assign]
        self._files: dict[str, FileRecord] = unpickler.load()
        self._stage: Stage = unpickler.load()

    def do(self, task: int) -> bytes:
        """Do a task. Return what ``read_result`` reads."""
        temporary = Path(tempfile.mkdtemp(prefix="gigl-task-", dir=self._setting.temporary))
        with Job(
            self._folder,
            temporary=temporary,
            budget=Budget(self._setting.memory_bytes),
            num_partitions=self._setting.num_partitions,
            edge_dir=self._setting.edge_dir,
            scratch=self._scratch,
        ) as job:
            job.files.update(self._files)
            result = replace(run_task(job, self._stage, task), peak_bytes=peak_bytes()).to_json()
        if self._setting.keeps_results:
            keep_result(self._scratch, self._stage.name, task, result)
        return result

    def _load(self, reference: tuple[str, int, str]) -> Directory | TextIds:
        name, count, kind = reference
        document = Document(self._folder, name, self._files[name])
        arrays = {key: document.array(key) for key in document.specs}
        if kind == "texts":
            return TextIds(name, arrays)
        return Directory(count, arrays.get("ids"), arrays.get("sorted_ids"), arrays.get("positions"))


def run_task(job: Job, stage: Stage, task: int) -> TaskResult:
    """Do a task with a job, which then knows the files that the task wrote."""
    before = set(job.files)
    value = stage.run(job, task)
    if isinstance(job.folder, OutputFolder):
        job.folder.trim()
    return TaskResult(value, {name: job.files[name] for name in job.files.keys() - before})


def keep_result(scratch: Scratch, stage: str, task: int, result: bytes) -> None:
    """Write down that a task is done."""
    write_file(scratch, f"done/{stage}/{task:06d}", result)


def kept_result(scratch: Scratch, stage: str, task: int) -> TaskResult:
    """Return the result of a task that was done before."""
    name = f"done/{stage}/{task:06d}"
    return read_result(read_file(scratch, name, most=_MAX_RESULT_BYTES), what=name)


def packed_error(error: Exception) -> bytes:
    """Return an exception of a task in place of its result."""
    record = {
        "type": type(error).__name__,
        "message": str(error),
        "trace": "".join(traceback.format_exception(error)),
        "places": error.places if isinstance(error, MissingValues) else None,
        "system": [error.errno, error.strerror, error.filename] if isinstance(error, OSError) else None,
    }
    return json.dumps({"error": record}, default=str).encode()


def read_result(data: bytes, *, what: str) -> TaskResult:
    """Read the result of a task. Raises the exception that it ended with."""
    document = read_json(data, what=what, max_bytes=_MAX_RESULT_BYTES)
    if "error" in document:
        error = _error_of(document["error"], what)
        add_note(error, f"in {what}:\n{document['error']['trace']}")
        raise error
    files = {name: record_from_json(entry, version=2) for name, entry in document["files"].items()}
    return TaskResult(document["value"], files, document["peak_bytes"])


def _error_of(record: Mapping[str, Any], what: str) -> Exception:
    if record["places"] is not None:
        return MissingValues(record["places"])
    if record["system"] is not None and record["system"][0] is not None:
        number, text, file = record["system"]
        return OSError(number, text, *([] if file is None else [file]))
    kind = _MISTAKES.get(record["type"])
    return kind(record["message"]) if kind else BuildError(f"{what}: {record['type']}: {record['message']}")


def do_tasks(link: socket.socket) -> None:
    """Main function of a process of ``LocalExecutor``: do tasks that arrive over ``link`` until its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; this process sees its EOF.
    opened: OpenedStage | None = None
    path = ""
    with (
        connection.Connection(link.detach()) as pipe,
        suppress(EOFError, BrokenPipeError, ConnectionResetError),
    ):
        while True:
            request = json.loads(pipe.recv_bytes())
            try:
                with naming_process_limit("num_workers"):
                    if not path:
                        leave_with(request["parent"])
                    if opened is None or path != request["stage"]:
                        with Path(request["stage"]).open("rb") as file:  # The parent keeps it private.
                            opened = OpenedStage(pickle.load(file), pickle.load(file))
                        path = request["stage"]
                    result = opened.do(request["task"])
            except Exception as error:
                result = packed_error(error)
            pipe.send_bytes(result)
