"""Disk and memory give the same bytes, to this process and to others."""

from __future__ import annotations

import errno
import json
import mmap
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gigl_loader.errors import FormatError
from gigl_loader.graph import DiskFolder, Folder, MemoryFolder
from gigl_loader.graph import folder as folder_module
from gigl_loader.graph.folder import folder_from
from gigl_loader.native import use_huge_pages


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    return DiskFolder(tmp_path / "some" / "graph") if request.param == "disk" else MemoryFolder()


def _write(folder: Folder, name: str, data: bytes) -> None:
    sink = folder.create(name, len(data))
    sink.write(0, data)
    sink.close()
    sink.close()


def test_what_is_written_is_read(folder: Folder) -> None:
    sink = folder.create("a/b", 20)
    sink.write(8, np.arange(3, dtype=np.int32))
    sink.write(0, b"01234567")
    sink.close()
    assert bytes(folder.open("a/b")) == b"01234567" + np.arange(3, dtype=np.int32).tobytes()


def test_a_map_is_read_only(folder: Folder) -> None:
    _write(folder, "a", b"1234")
    with pytest.raises(ValueError, match="read-only"):
        folder.open("a")[0] = 1


def test_names_are_sorted_and_relative(folder: Folder) -> None:
    for name in ("b", "a/c", "a/b"):
        _write(folder, name, b"1")
    assert folder.names() == ["a/b", "a/c", "b"]


def test_a_file_is_created_once(folder: Folder) -> None:
    _write(folder, "a", b"1")
    with pytest.raises(FileExistsError):
        folder.create("a", 1)


def test_a_missing_file_is_said_to_be_missing(folder: Folder) -> None:
    with pytest.raises(FileNotFoundError):
        folder.open("nothing")


def test_an_empty_file_is_an_empty_array(folder: Folder) -> None:
    folder.create("a", 0).close()
    assert len(folder.open("a")) == 0


def test_a_reference_opens_the_same_files_here(folder: Folder) -> None:
    _write(folder, "a", b"1234")
    again = folder_from(json.loads(json.dumps(folder.reference)))
    assert bytes(again.open("a")) == b"1234"


def test_a_reference_opens_the_same_files_in_a_child(folder: Folder) -> None:
    _write(folder, "a", b"1234")
    code = (
        "import json, sys; from gigl_loader.graph.folder import folder_from;"
        "print(bytes(folder_from(json.loads(sys.argv[1])).open('a')).decode())"
    )
    command = [sys.executable, "-c", code, json.dumps(folder.reference)]
    done = subprocess.run(command, pass_fds=folder.pass_fds, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1234"


def test_files_lie_beside_each_other(folder: Folder) -> None:
    """Of any size, written in any order."""
    sizes = {"a": 1, "b": 0, "c": 3 * mmap.PAGESIZE, "d": mmap.PAGESIZE + 1, "e": 7}
    contents = {name: bytes([ord(name)]) * size for name, size in sizes.items()}
    sinks = {name: folder.create(name, size) for name, size in sizes.items()}
    for name in reversed(sizes):
        sinks[name].write(0, contents[name])
        sinks[name].close()
    again = folder_from(json.loads(json.dumps(folder.reference)))
    for each in (folder, again):
        assert {name: bytes(each.open(name)) for name in each.names()} == contents
        assert bytes(each.read("d", 2, 3)) == b"ddd"
        with pytest.raises(FormatError, match="a: it ends before byte 2"):
            each.read("a", 1, 1)


def test_a_folder_in_memory_has_one_descriptor_and_no_map_has_any(folder: Folder) -> None:
    for number in range(20):
        _write(folder, f"{number:02}", str(number).encode())
    before = len(os.listdir("/proc/self/fd"))
    maps = [folder.open(name) for name in folder.names()]
    assert [int(bytes(each)) for each in maps] == [*range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(folder.pass_fds) == isinstance(folder, MemoryFolder)


def test_large_files_in_memory_lie_in_huge_pages_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []

    def move(fd: int, begin: int, nbytes: int) -> bool:
        moved.append((begin, nbytes))
        return use_huge_pages(fd, begin, nbytes)

    monkeypatch.setattr(folder_module, "use_huge_pages", move)
    monkeypatch.setattr(folder_module, "_HUGE_BYTES", 3 << 20)
    folder = MemoryFolder()
    contents = {name: np.random.default_rng(n).bytes(n << 20) for name, n in (("a", 1), ("b", 5), ("c", 2))}
    for name, content in contents.items():
        _write(folder, name, content)
    assert {name: bytes(folder.open(name)) for name in folder.names()} == contents
    assert {*moved} == {(2 << 20, 5 << 20)}


@pytest.mark.usefixtures("no_leftovers")
def test_memory_goes_with_its_folder() -> None:
    folder = MemoryFolder()
    _write(folder, "a", b"1234")
    copy = MemoryFolder.from_reference(folder.reference)
    (fd,) = folder.pass_fds
    kept = folder.open("a")
    del folder, copy
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    assert bytes(kept) == b"1234"
    del kept


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Pretend that huge pages have 64 bytes, and return begin and size of each write."""
    written: list[tuple[int, int]] = []

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        written.append((offset, len(data)))
        return real(fd, data, offset)

    real = os.pwrite
    monkeypatch.setattr(folder_module, "_HUGE_PAGE", 64)
    monkeypatch.setattr(os, "pwrite", pwrite)
    return written


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("seed", range(20))
def test_pieces_of_any_size_and_order_are_written_as_they_are(tmp_path: Path, seed: int) -> None:
    random = np.random.default_rng(seed)
    arrays = [random.integers(0, 256, random.integers(0, 2000), np.uint8) for _ in range(3)]
    begins = np.cumsum([0, *map(len, arrays)]).tolist()
    sink = DiskFolder(tmp_path).create("a", begins[-1])
    done = [0, 0, 0]
    while any(done[n] < len(array) for n, array in enumerate(arrays)):
        n = int(random.integers(3))
        piece = arrays[n][done[n] :][: int(random.choice([1, 30, 63, 64, 65, 200]))]
        sink.write(begins[n] + done[n], piece)
        done[n] += len(piece)
        if len(piece) > 1 and random.random() < 0.3:  # Again, as no file of a graph is.
            sink.write(begins[n] + done[n] - 2, piece[-2:])
    sink.close()
    assert (tmp_path / "a").read_bytes() == b"".join(array.tobytes() for array in arrays)


def test_large_pieces_are_written_in_whole_huge_pages(
    tmp_path: Path, small_pages: list[tuple[int, int]]
) -> None:
    sink = DiskFolder(tmp_path).create("a", 1000)
    sink.write(0, bytes(10))
    for begin in range(10, 1000, 99):
        sink.write(begin, bytes(99))
    sink.close()
    assert small_pages == [(0, 10), (10, 54), *((begin, 64) for begin in range(64, 960, 64)), (960, 40)]


def test_a_full_disk_is_an_error_of_the_last_piece_and_closes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sink = DiskFolder(tmp_path).create("a", 4 << 20)
    sink.write(5, bytes(3 << 20))
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        sink.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1
    sink.close()


def test_a_large_array_is_written_whole(tmp_path: Path) -> None:
    data = np.arange(1 << 20)
    sink = DiskFolder(tmp_path).create("a", data.nbytes)
    sink.write(0, data)
    sink.close()
    np.testing.assert_array_equal(np.fromfile(tmp_path / "a", dtype=np.int64), data)
