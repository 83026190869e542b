"""Site of a build: its output until that is complete, its scratch, and what is kept to resume it."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gigl_loader import __version__
from gigl_loader.errors import FormatError
from gigl_loader.graph.folder import DiskFolder, Folder, is_uri, shown
from gigl_loader.graph.manifest import MANIFEST_NAME
from gigl_loader.partition.executors import Executor, WorkPlan
from gigl_loader.partition.output import (
    DiskScratch,
    OutputFolder,
    Scratch,
    SharedFolder,
    open_scratch,
    read_file,
    refuse_existing,
    refuse_other_than_graph,
    refuse_other_than_graph_at,
    resumable_directory,
    staged_directory,
    write_file,
)
from gigl_loader.partition.runner import Runner
from gigl_loader.partition.tasks import TaskSetting
from gigl_loader.strict_json import read_json

if TYPE_CHECKING:
    from gigl_loader.partition.remote_files import RemoteFolder


_RECORD = "build.json"
_MAX_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSite:
    """Folders of a build, the plan of its work, and what an earlier build left."""

    folder: Folder
    plan: WorkPlan
    cuts: WorkPlan | None = None
    """The plan of the build that is resumed."""
    executor: Executor | None = None
    temporary: Path | None = None
    """Directory for files of one process. ``None``: the system's."""
    scratch: Scratch | None = None
    keeps_results: bool = False
    """Whether finished tasks are kept in the scratch."""
    kept: frozenset[str] = frozenset()
    """Results in the scratch."""

    def runner(self, num_partitions: int, edge_dir: Literal["in", "out"]) -> Runner:
        """Return the runner of the build's tasks."""
        if self.scratch is None or not isinstance(self.folder, OutputFolder):
            return Runner(self.plan)
        setting = TaskSetting(
            output=self.folder.location,
            scratch=self.scratch.location,
            temporary=None if self.temporary is None else str(self.temporary),
            memory_bytes=self.plan.task_bytes,
            num_partitions=num_partitions,
            edge_dir=edge_dir,
            keeps_results=self.keeps_results,
            version=__version__,
        )
        return Runner(self.plan, cuts=self.cuts, executor=self.executor, setting=setting, kept=self.kept)


@contextmanager
def build_site(
    out: str | os.PathLike[str] | Folder,
    *,
    executor: Executor | None,
    scratch: str | os.PathLike[str] | None,
    resume: bool,
    overwrite: bool,
    memory_limit: int | None,
    describe: Callable[[], Mapping[str, Any]],
) -> Iterator[BuildSite]:
    """Prepare the place of a build, and put the graph where it belongs when the block succeeds.

    ``describe`` returns the arguments of the build, for the record in a scratch. After an exception nothing
    is left, except a ``scratch`` that was given, with what is needed to resume.
    """
    if resume and scratch is None:
        raise ValueError("only a build with a scratch directory can be resumed (--scratch)")
    if not isinstance(out, (str, os.PathLike)):
        if executor is not None or scratch is not None:
            raise ValueError("a graph in memory is built by this process, without executor and scratch")
        if out.names():
            raise ValueError("the folder to build into is not empty")
        yield BuildSite(folder=out, plan=WorkPlan.alone(memory_limit))
        return
    target = _absolute(out)
    place = None if scratch is None else _absolute(scratch)
    _check_places(target, place, executor, overwrite=overwrite)
    with ExitStack() as stack:
        plan = WorkPlan.alone(memory_limit)
        if executor is not None:
            stack.callback(executor.close)
            plan = executor.plan(memory_limit)
        if plan.num_workers == 0:
            executor = None
        if place is not None:
            store = open_scratch(place)
            cuts, kept = stack.enter_context(_kept(store, plan, describe, out=target, resume=resume))
            folder = stack.enter_context(_output(target, overwrite=overwrite, anew=not kept))
            below = _temporary(stack) if is_uri(target) else Path(folder.location) / "scratch"
            below.mkdir(exist_ok=True)
            yield BuildSite(
                folder=folder,
                plan=plan,
                cuts=cuts,
                executor=executor,
                temporary=below,
                scratch=store,
                keeps_results=True,
                kept=kept,
            )
        elif is_uri(target):
            folder = stack.enter_context(_remote_output(target, overwrite=overwrite, anew=True, keep=False))
            yield _site_at(folder, _temporary(stack), plan, executor)
        else:
            path = stack.enter_context(staged_directory(Path(target), overwrite=overwrite))
            if executor is None:
                yield BuildSite(folder=DiskFolder(path), plan=plan, temporary=path / "scratch")
            else:
                (path / "scratch").mkdir()
                yield _site_at(SharedFolder(path), path / "scratch", plan, executor)


def _check_places(out: str, scratch: str | None, executor: Executor | None, *, overwrite: bool) -> None:
    """Raise ``ValueError`` for an output or scratch that cannot be, before anything begins."""
    if not is_uri(out):
        (refuse_other_than_graph_at if overwrite else refuse_existing)(Path(out))
    if scratch is None:
        if is_uri(out) and executor is not None and not executor.is_local:
            raise ValueError(f"{shown(out)}: give a --scratch, too, that all machines of the cluster share")
        return
    first, second = (f"{location.rstrip('/')}/" for location in (out, scratch))
    if first.startswith(second) or second.startswith(first):
        raise ValueError(f"the scratch {shown(scratch)} and the graph {shown(out)} must be apart")


def _temporary(stack: ExitStack) -> Path:
    """Return a directory of this machine that goes with the build."""
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gigl-build-")))


def _site_at(folder: Folder, below: Path, plan: WorkPlan, executor: Executor | None) -> BuildSite:
    """Return a site with its scratch in a directory that goes with the build."""
    return BuildSite(
        folder=folder, plan=plan, executor=executor, temporary=below, scratch=DiskScratch(below / "tasks")
    )


@contextmanager
def _output(out: str, *, overwrite: bool, anew: bool) -> Iterator[SharedFolder | RemoteFolder]:
    """Yield a folder that is kept after an exception, so that the build can be resumed."""
    if is_uri(out):
        with _remote_output(out, overwrite=overwrite, anew=anew, keep=True) as folder:
            yield folder
    else:
        with resumable_directory(Path(out), overwrite=overwrite, anew=anew) as path:
            yield SharedFolder(path)


@contextmanager
def _remote_output(
    out: str, *, overwrite: bool, anew: bool, keep: bool
) -> Iterator[SharedFolder | RemoteFolder]:
    """Yield a folder at a URI. Files appear one by one; the last is ``graph.json``, which makes it a graph.

    With ``anew``, there must be none, or all of them go. Without ``keep``, they go after an exception.
    """
    from gigl_loader.partition.remote_files import RemoteFolder

    folder = RemoteFolder(out)
    names = folder.names()
    if names and not overwrite and (anew or MANIFEST_NAME in names):
        raise ValueError(f"{folder.place} exists: give another name, or ask to overwrite it")
    refuse_other_than_graph(str(folder.place), names)
    if MANIFEST_NAME in names:
        folder.place.remove(MANIFEST_NAME)
    if anew:
        folder.keep_only(())
    try:
        yield folder
    except BaseException:
        if not keep:
            folder.keep_only(())
        raise


@contextmanager
def _kept(
    scratch: Scratch, plan: WorkPlan, describe: Callable[[], Mapping[str, Any]], *, out: str, resume: bool
) -> Iterator[tuple[WorkPlan, frozenset[str]]]:
    """Yield plan and results of the unfinished build in a scratch, or begin a build. Empties it at the end.

    ``ValueError`` for a scratch that holds something else.
    """
    with scratch.locked():
        names = frozenset(scratch.names(""))
        record = {"version": __version__, "out": shown(out), **describe()}
        if _RECORD in names:
            if not resume:
                raise ValueError(
                    f"{scratch} holds a build that was cut off: resume it (--resume), or empty it"
                )
            found = read_json(
                read_file(scratch, _RECORD, most=_MAX_RECORD_BYTES), what=_RECORD, max_bytes=_MAX_RECORD_BYTES
            )
            plan = _plan_of(found, record, str(scratch))
        elif names:
            raise ValueError(f"{scratch} is not empty, and holds no build that was cut off")
        else:
            write_file(scratch, _RECORD, json.dumps({"build": record, "plan": asdict(plan)}).encode())
        yield plan, frozenset(name for name in names if name.startswith("done/"))
        for name in ("rows", "done", _RECORD):
            scratch.remove(name)


def _plan_of(found: Any, record: Mapping[str, Any], location: str) -> WorkPlan:
    """Return how the build that was cut off divided its work. ``ValueError`` for another build."""
    try:
        before, plan = found["build"], WorkPlan(**found["plan"])
        differing = [name for name in record if before.get(name) != record[name]]
    except (KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{location}/{_RECORD}: not the record of a build: {error}") from None
    if differing:
        changed = " (a table that was changed since is another)" if "tables" in differing else ""
        raise ValueError(
            f"{location} holds a build with other {', '.join(differing)}{changed}: empty it, or give another"
        )
    return plan


def _absolute(location: str | os.PathLike[str]) -> str:
    """Return a location that means the same in every process: an absolute path, or the URI as it is.

    ``file:///path`` is a path, too.
    """
    text = os.fspath(location).removeprefix("file://")
    return text if is_uri(text) else os.path.abspath(Path(text))
