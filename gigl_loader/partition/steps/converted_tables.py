"""Converts text files and queries to Parquet, before the steps of a build read them several times."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gigl_loader.partition.job import Job
from gigl_loader.partition.table import GraphTables
from gigl_loader.partition.views import readers_of

_THREAD_BYTES = 96 << 20
"""Memory that a thread of DuckDB is worth."""
_POLL_SECONDS = 0.5
_END_POLL_SECONDS = 0.05


@contextmanager
def converted(job: Job, tables: GraphTables) -> Iterator[None]:
    """Convert the tables that DuckDB reads, several at once. They are read from their sources afterwards.

    Raises what the first of them that fails raised.
    """
    found = _convertible(tables)
    directory = job.shared_directory("tables") if found else None
    if directory is None:  # Each task reads the sources.
        yield
        return
    try:
        _convert(job, found, directory)
        yield
    finally:
        for table in found:
            table.forget()


def _convertible(tables: GraphTables) -> list[Any]:
    """Return the readers that can be converted, each once."""
    readers = {id(reader): reader for _, table in tables.all_tables() for reader in readers_of(table)}
    return [reader for reader in readers.values() if hasattr(reader, "convert")]


def _convert(job: Job, tables: list[Any], directory: Path) -> None:
    workers = max(job.runner.totals.num_workers, 1)
    memory = max(job.budget.total * 3 // 4, 1)
    threads = max(min(workers, memory // _THREAD_BYTES), 1)
    at_once = min(len(tables), threads)
    sizes = [max(table.num_bytes, 1) for table in tables]
    advance = job.track("reading text files", sum(sizes))
    told = 0
    with ThreadPoolExecutor(at_once) as pool:
        futures: list[Future[None]] = [
            pool.submit(
                table.convert,
                directory / f"{place}.parquet",
                memory_bytes=memory // at_once,
                threads=max(threads // at_once, 1),
            )
            for place, table in enumerate(tables)
        ]
        try:
            waiting = set(futures)
            while waiting:
                done, waiting = wait(waiting, _POLL_SECONDS, FIRST_EXCEPTION)
                read = sum(
                    int(size * (1.0 if future.done() else table.progress()))
                    for size, future, table in zip(sizes, futures, tables, strict=True)
                )
                advance(max(read - told, 0))
                told = max(read, told)
                if failed := [
                    at for at, future in enumerate(futures) if future in done and future.exception()
                ]:
                    waiting -= {*futures[failed[0] :]}  # Tables before it go on: one of them may fail, too.
        finally:
            for future in futures:
                future.cancel()
            while wait(futures, _END_POLL_SECONDS).not_done:  # One may just be about to begin.
                for table in tables:
                    table.interrupt()
    for future in futures:
        if not future.cancelled():
            future.result()
