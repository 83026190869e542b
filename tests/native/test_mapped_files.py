"""Maps of files: shared, without a descriptor, as long as an array of them."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gigl_loader.native import advise_random, map_file, use_huge_pages

PAGE = mmap.PAGESIZE
HUGE_PAGE = 2 << 20
BOTH = mmap.PROT_READ | mmap.PROT_WRITE


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(bytes(PAGE) + b"second page")
    return path


def _flags_at(memory: np.ndarray) -> str:
    """Return what the kernel says of the map that has this memory."""
    at, ours = memory.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            first, _, last = name.partition("-")
            ours = int(first, 16) <= at < int(last, 16)
        elif ours and name == "VmFlags:":
            return rest
    return "none"


def _opened(path: Path, flags: int = os.O_RDONLY) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


@pytest.mark.usefixtures("no_leftovers")
def test_a_map_outlives_its_descriptor_and_its_first_array(file: Path) -> None:
    fd = _opened(file)
    memory = map_file(fd, 11, PAGE)
    os.close(fd)
    rest = memory[7:].reshape(2, 2)
    del memory
    assert bytes(rest) == b"page"
    assert "rd" in _flags_at(rest)
    kept = rest.ctypes.data, _flags_at(rest)
    del rest
    assert kept[1] != "none"


def test_a_map_ends_with_its_last_array(file: Path) -> None:
    fd = _opened(file)
    memory = map_file(fd, PAGE + 11)
    view = memory[3:]
    os.close(fd)

    def is_mapped() -> bool:
        return str(file) in Path("/proc/self/maps").read_text()

    del memory
    assert is_mapped()
    del view
    assert not is_mapped()


def test_what_is_mapped_for_reading_cannot_be_written(file: Path) -> None:
    fd = _opened(file)
    memory = map_file(fd, 4)
    os.close(fd)
    assert not memory.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        memory.flags.writeable = True
    with pytest.raises(ValueError, match="read-only"):
        memory[:2][0] = 1
    assert memory.data.readonly


def test_writes_reach_the_file(file: Path) -> None:
    fd = _opened(file, os.O_RDWR)
    memory, again = map_file(fd, 6, PAGE, BOTH), map_file(fd, 6, PAGE)
    memory[:] = np.frombuffer(b"SECOND", np.uint8)
    assert bytes(again) == b"SECOND"
    assert os.pread(fd, 11, PAGE) == b"SECOND page"
    os.close(fd)


def test_maps_that_cannot_be(file: Path) -> None:
    fd = _opened(file)
    for nbytes, begin in ((0, 0), (-1, 0), (1, -PAGE)):
        with pytest.raises(ValueError, match="must"):
            map_file(fd, nbytes, begin)
    for number, arguments in (
        (errno.EINVAL, (fd, 1, 1)),
        (errno.EACCES, (fd, 1, 0, BOTH)),
        (errno.EBADF, (-1, 1)),
        (errno.ENOMEM, (fd, 2**62)),
    ):
        with pytest.raises(OSError, match=os.strerror(number)) as failed:
            map_file(*arguments)
        assert failed.value.errno == number
    os.close(fd)


def test_advice_is_for_the_pages_of_an_array(file: Path) -> None:
    fd = _opened(file)
    memory = map_file(fd, PAGE + 11)
    os.close(fd)
    advise_random(memory[PAGE + 3 :])
    assert "rr" in _flags_at(memory[PAGE:]).split()
    assert "rr" not in _flags_at(memory).split()


@pytest.fixture
def memory_file() -> Iterator[int]:
    fd = os.memfd_create("test", os.MFD_CLOEXEC)
    yield fd
    os.close(fd)


def _huge_bytes_at(memory: np.ndarray) -> int:
    """Return how much of the map that has this memory consists of huge pages."""
    at, ours = memory.ctypes.data, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, rest = line.partition(" ")
        if not name.endswith(":"):
            first, _, last = name.partition("-")
            ours = int(first, 16) <= at < int(last, 16)
        elif ours and name == "ShmemPmdMapped:":
            return int(rest.removesuffix("kB")) << 10
    return 0


@pytest.mark.parametrize("begin", [0, PAGE, HUGE_PAGE, HUGE_PAGE + 3 * PAGE])
def test_large_maps_lie_where_huge_pages_fit(memory_file: int, begin: int) -> None:
    os.ftruncate(memory_file, begin + 3 * HUGE_PAGE)
    maps = [map_file(memory_file, 3 * HUGE_PAGE - 5, begin) for _ in range(3)]
    assert {(each.ctypes.data - begin) % HUGE_PAGE for each in maps} == {0}


@pytest.mark.parametrize("begin", [0, 3 * PAGE])
def test_a_file_in_memory_keeps_its_bytes_in_huge_pages(memory_file: int, begin: int) -> None:
    content = np.random.default_rng(0).integers(0, 256, 5 * HUGE_PAGE + 7, np.uint8)
    os.pwrite(memory_file, content.data, begin)
    kept = map_file(memory_file, len(content), begin)
    done = use_huge_pages(memory_file, begin, len(content))
    again = map_file(memory_file, len(content), begin)
    for memory in (kept, again):
        assert np.array_equal(memory, content)
        assert not done or _huge_bytes_at(memory) == (5 if begin == 0 else 4) * HUGE_PAGE


def test_bytes_that_no_huge_page_fits_into_stay_as_they_are(memory_file: int) -> None:
    os.pwrite(memory_file, bytes(2 * HUGE_PAGE), 0)
    assert use_huge_pages(memory_file, PAGE, 2 * HUGE_PAGE - 2 * PAGE)
    assert use_huge_pages(memory_file, 0, 0)
    assert _huge_bytes_at(map_file(memory_file, 2 * HUGE_PAGE)) == 0
    with pytest.raises(ValueError, match="negative"):
        use_huge_pages(memory_file, -1, 5)


def test_a_large_map_that_cannot_be_leaves_no_addresses_behind() -> None:
    before = len(Path("/proc/self/maps").read_text().splitlines())
    for each in (map_file, lambda fd, nbytes: use_huge_pages(fd, 0, nbytes)):
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            each(-1, 64 << 20)
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= before
