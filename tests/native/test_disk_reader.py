"""Rows read from files, by both engines."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gigl_loader.native import DiskReader
from tests.support.hanging_disk import hanging_disk

if TYPE_CHECKING:
    from collections.abc import Iterator

ENGINES = ["io_uring", "threads"]


def opened(engine: str, *, depth: int = 8, gap: int = 0) -> DiskReader:
    try:
        return DiskReader(depth, gap, engine)
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    opened(request.param).close()
    return str(request.param)


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A directory of the disk, and one of tmpfs."""
    if request.param == "disk":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def written(path: Path, nbytes: int, *, seed: int = 0) -> np.ndarray:
    data = np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)
    path.write_bytes(data.tobytes())
    return data


def job(file: int, offset: int, num_rows: int, rows: np.ndarray, row_bytes: int) -> tuple[Any, ...]:
    """Rows to the places of their numbers, from the end."""
    targets = np.arange(len(rows), dtype=np.int64)[::-1].copy()
    return (file, offset, num_rows, rows, targets, np.full((len(rows), row_bytes), 7, np.uint8))


def check(data: np.ndarray, done: tuple[Any, ...]) -> None:
    _, offset, _, rows, targets, out = done
    width = out.shape[1]
    for row, target in zip(rows.tolist(), targets.tolist(), strict=True):
        begin = offset + row * width
        assert np.array_equal(out[target], data[begin : begin + width]), (row, width)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_rows_are_those_of_the_file(data: st.DataObject, engine: str, folder: Path) -> None:
    """Any width, gap and depth; repeated rows; the first and last row; files whose end is no whole block."""
    path = folder / "rows"
    jobs = []
    offset = data.draw(st.integers(0, 5000))
    width = data.draw(st.sampled_from([0, 1, 3, 8, 100, 511, 512, 4096, 5001, 70_000, 300_001]))
    num_rows = data.draw(st.integers(1, max(1, min(3000, 2_000_000 // max(width, 1)))))
    contents = written(path, offset + width * num_rows)
    reader = opened(
        engine, depth=data.draw(st.integers(1, 9)), gap=data.draw(st.sampled_from([0, 600, 50_000]))
    )
    try:
        for _ in range(data.draw(st.integers(1, 3))):
            rows = data.draw(st.lists(st.integers(0, num_rows - 1), max_size=60))
            dense = data.draw(st.integers(0, 200)) + np.arange(data.draw(st.integers(0, 900)))
            chosen = np.sort(np.concatenate([rows, dense[dense < num_rows]]).astype(np.int64))
            jobs.append(job(reader.open(str(path)), offset, num_rows, chosen, width))
        reader.read(jobs)
        for each in jobs:
            check(contents, each)
        assert reader.counts["rows"] == sum(len(each[3]) for each in jobs)
        assert reader.engine == engine
    finally:
        reader.close()


def test_rows_with_a_small_gap_come_with_one_read(engine: str, tmp_path: Path) -> None:
    data = written(tmp_path / "rows", 1 << 20)
    rows = np.arange(0, 256, 8)  # of 4 KiB: 28 KiB lie between two
    counts = {}
    for gap in (28 << 10, (28 << 10) - 1):
        reader = opened(engine, gap=gap)
        done = job(reader.open(str(tmp_path / "rows")), 0, 256, rows, 4096)
        reader.read([done])
        check(data, done)
        counts[gap] = (reader.counts["reads"], reader.counts["bytes"])
        reader.close()
    assert list(counts.values()) == [(4, (249 << 12) - 3 * (28 << 10)), (32, 32 << 12)]


def test_a_row_on_several_blocks_is_read_once(engine: str, tmp_path: Path) -> None:
    data = written(tmp_path / "rows", 1_000_001)
    reader = opened(engine)
    done = job(reader.open(str(tmp_path / "rows")), 1, 10, np.repeat(np.arange(10), 3), 100_000)
    reader.read([done])
    check(data, done)
    assert reader.counts["bytes"] <= len(data) + 4096
    assert reader.counts["reads"] == 4
    reader.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({3: np.array([3, 10])}, "outside the file's"),
        ({3: np.array([-1, 3])}, "outside the file's"),
        ({3: np.array([3, 2])}, "must ascend"),
        ({4: np.array([0, 2])}, "target lies outside"),
        ({4: np.array([0, -1])}, "target lies outside"),
        ({4: np.array([0])}, "differ in length"),
        ({0: 1}, "no file has this number"),
        ({1: -1}, "must not be negative"),
        ({2: 2**62}, "overflow"),
    ],
)
def test_bounds_are_checked_before_anything_is_read(
    changes: dict[int, Any], message: str, tmp_path: Path
) -> None:
    written(tmp_path / "rows", 1000)
    reader = DiskReader()
    good = job(reader.open(str(tmp_path / "rows")), 0, 10, np.array([3, 4]), 100)
    bad = list(good)
    for place, value in changes.items():
        bad[place] = value
    with pytest.raises(ValueError, match=message):
        reader.read([good, tuple(bad)])
    assert (good[5] == 7).all()
    assert reader.counts["reads"] == 0
    reader.close()
    with pytest.raises(ValueError, match="depth must"):
        DiskReader(0)
    with pytest.raises(ValueError, match="gap must"):
        DiskReader(1, -1)
    with pytest.raises(ValueError, match="engine must"):
        DiskReader(1, 0, "mmap")


@pytest.mark.parametrize("left", [0, 100, 50_000, 50_001, 53_248])
def test_a_file_that_was_cut_ends_too_early(left: int, engine: str, folder: Path) -> None:
    path = folder / "rows"
    data = written(path, 100_000)
    reader = opened(engine)
    file = reader.open(str(path))
    os.truncate(path, left)
    with pytest.raises(EOFError, match=rf"{path}: it ends before byte \d+$"):
        reader.read([job(file, 0, 1000, np.arange(1000), 100)])
    there = left // 100
    done = job(file, 0, 1000, np.arange(there), 100)  # Failures of one read are over with the next.
    reader.read([done])
    check(data, done)
    reader.close()


def test_a_file_that_was_removed_is_still_read(engine: str, folder: Path) -> None:
    data = written(folder / "rows", 10_000)
    reader = opened(engine)
    file = reader.open(str(folder / "rows"))
    (folder / "rows").unlink()
    done = job(file, 0, 100, np.arange(100), 100)
    reader.read([done])
    check(data, done)
    reader.close()


def test_a_file_system_without_direct_reads(engine: str) -> None:
    """Read through the page cache: exactly the bytes of the rows, at any offset."""
    data = np.frombuffer(Path("/proc/version").read_bytes(), np.uint8)
    reader = opened(engine, gap=2)
    file = reader.open("/proc/version")
    assert not reader.is_direct(file)
    done = job(file, 3, 5, np.array([0, 1, 3]), 5)
    reader.read([done])
    check(data, done)
    assert (reader.counts["reads"], reader.counts["bytes"]) == (2, 15)
    reader.close()


def test_a_read_that_comes_in_pieces_is_continued(engine: str) -> None:
    """The kernel gives at most a page of its symbols at a time."""
    path = Path("/proc/kallsyms")
    data = np.frombuffer(path.read_bytes() if path.exists() else b"", np.uint8)
    if len(data) < 100_000:
        pytest.skip("the kernel does not list its symbols")
    reader = opened(engine)
    done = job(reader.open(str(path)), 5, 3, np.array([0, 2]), 30_001)
    reader.read([done])
    check(data, done)
    reader.close()


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    reader = DiskReader()
    os.mkfifo(tmp_path / "pipe")
    for name, number in (("none", errno.ENOENT), ("pipe", errno.EINVAL), ("", errno.EINVAL)):
        with pytest.raises(OSError, match=str(tmp_path)) as raised:
            reader.open(str(tmp_path / name))
        assert (raised.value.errno, raised.value.filename) == (number, str(tmp_path / name))
    reader.close()


def test_a_disk_that_fails_is_named_with_the_byte(engine: str, tmp_path: Path) -> None:
    """A descriptor that was exchanged under the reader for one that cannot be read."""
    written(tmp_path / "rows", 10_000)
    reader = opened(engine)
    file = reader.open(str(tmp_path / "rows"))
    (fd,) = (int(each) for each in os.listdir("/proc/self/fd") if _leads(each, tmp_path / "rows"))
    other = os.open(tmp_path / "written", os.O_WRONLY | os.O_CREAT)
    os.dup2(other, fd)
    os.close(other)
    with pytest.raises(OSError, match=rf"at byte 8192: '{tmp_path}/rows'") as raised:
        reader.read([job(file, 8192, 1, np.array([0]), 100)])
    assert (raised.value.errno, raised.value.filename) == (errno.EBADF, str(tmp_path / "rows"))
    reader.close()


def _leads(fd: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == str(path)
    except FileNotFoundError:
        return False


def test_closing_ends_a_read_in_progress(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with path.open("wb") as hole:
        hole.truncate(16 << 30)
    reader = opened(engine)
    rows = np.arange(0, 4 << 20, 2)  # 2 million reads: seconds.
    out = np.full((1, 4096), 7, np.uint8)
    job = (reader.open(str(path)), 0, 4 << 20, rows, np.zeros(len(rows), np.int64), out)
    raised = []

    def read() -> None:
        try:
            reader.read([job])
        except OSError as error:
            raised.append(error.errno)

    thread = threading.Thread(target=read)
    thread.start()
    while out[0, 0] == 7:
        time.sleep(0.001)
    reader.close()
    thread.join(10)
    assert raised == [errno.ECANCELED]
    assert 0 < reader.counts["reads"] < len(rows)
    reader.close()
    for call in (lambda: reader.read([]), lambda: reader.open(str(path))):
        with pytest.raises(OSError, match="the reader was closed"):
            call()


def test_closing_does_not_wait_for_a_disk_that_hangs(engine: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    written(tmp_path / "folder" / "rows", 1 << 20)
    with hanging_disk(tmp_path / "folder", tmp_path / "disk") as disk:
        path = disk.path / "rows"
        reader = opened(engine)
        file = reader.open(str(path))
        assert reader.is_direct(file)
        jobs = [job(file, 0, 256, np.arange(0, 256, 8), 4096) for _ in range(2)]
        raised = []

        def read(reader: DiskReader, done: tuple[Any, ...]) -> None:
            try:
                reader.read([done])
            except OSError as error:
                raised.append(error.errno)

        disk.hang()
        threads = [threading.Thread(target=read, args=(reader, each), daemon=True) for each in jobs]
        for thread in threads:
            thread.start()
        disk.wait_for_a_reader()
        began = time.monotonic()
        reader.close()
        assert time.monotonic() - began < 1
        with pytest.raises(OSError, match="the reader was closed"):
            reader.open(str(path))
        assert not raised
        assert any(_leads(each, path) for each in os.listdir("/proc/self/fd"))  # The read in flight has it.
        del reader
        disk.go_on()
        for thread in threads:
            thread.join(10)
        assert raised == [errno.ECANCELED] * 2
        assert not any(_leads(each, path) for each in os.listdir("/proc/self/fd"))


def test_threads_take_turns(engine: str, tmp_path: Path) -> None:
    data = written(tmp_path / "rows", 1 << 20)
    reader = opened(engine, depth=4)
    file = reader.open(str(tmp_path / "rows"))
    random = np.random.default_rng(0)
    jobs = [job(file, 64, 1 << 13, np.sort(random.integers(0, 1 << 13, 60)), 100) for _ in range(8)]
    threads = [threading.Thread(target=reader.read, args=([each],)) for each in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in jobs:
        check(data, each)
    reader.close()


def test_a_forked_child_neither_reads_nor_waits(engine: str, tmp_path: Path) -> None:
    data = written(tmp_path / "rows", 10_000)
    reader = opened(engine)
    done = job(reader.open(str(tmp_path / "rows")), 0, 100, np.arange(100), 100)
    reader.read([done])  # The threads run.
    child = os.fork()
    if child == 0:
        code = 1
        try:
            reader.read([done])
        except RuntimeError as error:
            reader.close()
            code = 0 if "another process" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    reader.read([done])
    check(data, done)
    reader.close()


@pytest.mark.usefixtures("no_leftovers")
def test_nothing_is_left_over(engine: str, tmp_path: Path) -> None:
    written(tmp_path / "rows", 10_000)
    reader = opened(engine)
    reader.read([job(reader.open(str(tmp_path / "rows")), 0, 100, np.arange(100), 100)])
    del reader  # without close
