"""Tensors in files of PyTorch and of pickle are mapped; damage and attacks are refused in one line."""

from __future__ import annotations

import contextlib
import gc
import pickle
import signal
import subprocess
import sys
import tracemalloc
import types
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
from gigl_loader.partition.glt.tensors import ByteSource, Rows, saved_tensor, tensor_stream


def private_bytes() -> int:
    """Return the memory of this process that no file backs."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if "RssAnon" in line]
    return int(line.split()[1]) << 10


@pytest.mark.parametrize("read", [saved_tensor, tensor_stream])
def test_one_large_tensor_is_read_in_pieces(tmp_path: Path, read: Callable[[Path], Rows]) -> None:
    """GLT's distributed partitioner pickles all features of a partition as one tensor."""
    path = tmp_path / "rows"
    rows = torch.arange(1 << 24, dtype=torch.float32).reshape(-1, 16)
    if read is saved_tensor:
        torch.save(rows, path)
    else:
        path.write_bytes(pickle.dumps(rows))
    last = rows[-2:].numpy().copy()
    total = float(rows[:, 0].double().sum())
    del rows
    gc.collect()
    before = private_bytes()
    tracemalloc.start()
    try:
        found = read(path)
        some = found.part(len(found) - 2, 2).read(0, 2)
        every = sum(
            float(found.read(start, 4096)[:, 0].sum(dtype=np.float64)) for start in range(0, len(found), 4096)
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(some, last)
    assert every == total
    assert peak < 2 << 20  # Of 64 MiB.
    assert private_bytes() - before < 16 << 20


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"],
)
def test_tensors_of_every_dtype(tmp_path: Path, dtype: str) -> None:
    """Views as well, whose storage is larger."""
    tensor = torch.arange(60).reshape(20, 3).to(getattr(torch, dtype))[4:13]
    torch.save(tensor, tmp_path / "saved.pt")
    (tmp_path / "stream.pkl").write_bytes(pickle.dumps(tensor[:5]) + pickle.dumps(tensor[5:]))
    numbers = (tensor.view(torch.int16) if dtype == "bfloat16" else tensor).numpy()
    some = np.array([8, 0, 1, 2, 2])
    for rows in (saved_tensor(tmp_path / "saved.pt"), tensor_stream(tmp_path / "stream.pkl")):
        np.testing.assert_array_equal(rows.read(0, 9).view(numbers.dtype), numbers)
        np.testing.assert_array_equal(rows.take(some).view(numbers.dtype), numbers[some])
        part = rows.part(3, 4)
        np.testing.assert_array_equal(part.read(1, 3).view(numbers.dtype), numbers[4:7])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_pickle_or_an_error(data: bytes) -> None:
    with contextlib.suppress(pickle.UnpicklingError):
        ByteSource(memoryview(data)).load()


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(max_size=5), inner, max_size=4)
        ),
        max_leaves=20,
    ),
    st.integers(2, 5),
)
def test_pickles_of_plain_values_are_read_as_python_reads_them(value: Any, protocol: int) -> None:
    source = ByteSource(memoryview(pickle.dumps(value, protocol)))
    assert source.load() == value
    assert source.at_end


@settings(max_examples=30)
@given(st.data(), st.sampled_from([3, 5_000]))
def test_chosen_rows_are_those_rows(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, width: int
) -> None:
    """Wide rows lie in several blocks."""
    path = tmp_path_factory.getbasetemp() / f"rows-{width}"
    rows = torch.arange(300 * width).reshape(300, width)
    if not path.exists():
        path.write_bytes(b"".join(pickle.dumps(chunk.clone()) for chunk in torch.split(rows, 70)))
    chosen = np.array(data.draw(st.lists(st.integers(0, 299), max_size=40)), np.int64)
    found = tensor_stream(path)
    np.testing.assert_array_equal(found.take(chosen), rows.numpy()[chosen])


def changed(path: Path, *, files: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """Write the archive of ``torch.save`` anew, with some files in it changed or added."""
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in {**found, **files}.items():
            archive.writestr(name, data)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"files": {}}, None),
        ({"files": {"rows/byteorder": b"big"}}, "saved on a machine of another byte order"),
        ({"files": {}, "compression": zipfile.ZIP_DEFLATED}, "its archive is compressed"),
        ({"files": {"rows/data/0": b"short"}}, "not a file of torch.save, or cut off"),
        (
            {"files": {"rows/data/0": b"short", "rows/data/1": bytes(4000)}},
            "elements are not there, or fewer",
        ),
        ({"files": {f"rows/{number}": b"" for number in range(25_000)}}, "too many files in its archive"),
        ({"files": {"rows/data.pkl": b"(" * 2000}}, "exhausted before seeing STOP"),
        ({"files": {"rows/data.pkl": b"N" * (1 << 17)}}, "'rows/data.pkl' in its archive is too large"),
        ({"files": {"rows/data.pkl": b"\x80\x02}."}}, "holds no tensor"),
    ],
)
def test_archives_that_torch_did_not_write(tmp_path: Path, change: Any, message: str | None) -> None:
    path = tmp_path / "rows.pt"
    torch.save(torch.arange(100), path)
    changed(path, **change)
    if message is None:
        assert len(saved_tensor(path)) == 100
        return
    with pytest.raises(FormatError, match=rf"rows\.pt: .*{message}"):
        saved_tensor(path)


def nested(depth: int) -> bytes:
    """Return instructions for tuples of tuples that share their parts: 2 ** depth to hash."""
    return b")" + b"q\0h\0\x86" * depth


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"\x80\x02cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.", "it names builtins.bytearray"),
        (b"\x80\x02ctorch\nLongTensor\nJ\xff\xff\xff\x7f\x85R.", "it names torch.LongTensor"),
        (b"\x80\x02}" + nested(60) + b"Ns.", "its pickle refers to values 60 times"),
        (b"\x80\x02cgraphlearn_torch.x\nBook\n.", "holds no tensor"),
        (b"\x80\x02cgraphlearn_torch.x\nBook\nctorch._utils\nBook\n.", "it names torch._utils.Book"),
    ],
)
def test_programs_that_torch_would_run(tmp_path: Path, program: bytes, message: str) -> None:
    """They would take memory, or time, without end."""
    path = tmp_path / "rows.pt"
    torch.save(torch.arange(100), path)
    changed(path, files={"rows/data.pkl": program})
    with pytest.raises(FormatError, match=rf"rows\.pt: .*{message}"):
        saved_tensor(path)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"\x80\x04}" + nested(60) + b"Ns.", "a dict whose keys are not texts"),
        (b"\x80\x04(((" + b"(" * 100_000, "a pickle of more than 16384 bytes without its tensors"),
        (b"\x80\x04\x8e" + b"\xff" * 8 + b".", "ends early: 18446744073709551615 bytes"),
        (b"\x80\x04X\xff\xff\xff\xff.", "a pickle of more than 16384 bytes"),
        (b"\x80\x04r\xff\xff\xff\xff.", "damaged: no pickle ends near byte"),
        (b"\x80\x04Nr\xff\xff\xff\xff.", "holds no tensor"),
        (b"\x80\x04\x8f.", "damaged: no pickle ends near byte"),
        (b"\x80\x04cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.", "damaged: no pickle ends near byte"),
    ],
)
def test_streams_that_pickle_did_not_write(tmp_path: Path, program: bytes, message: str) -> None:
    path = tmp_path / "feats.pkl"
    path.write_bytes(program)
    before = private_bytes()
    with pytest.raises(FormatError, match=rf"feats\.pkl: {message}"):
        tensor_stream(path)
    assert private_bytes() - before < 16 << 20


def test_a_book_of_glt_is_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GLT need not be installed to read its subclass of tensors."""
    name = "graphlearn_torch.partition.partition_book"
    book = type("GLTPartitionBook", (torch.Tensor,), {"__module__": name})
    with monkeypatch.context() as installed:
        for each in ("graphlearn_torch", "graphlearn_torch.partition", name):
            installed.setitem(sys.modules, each, types.ModuleType(each))
        installed.setattr(sys.modules[name], "GLTPartitionBook", book, raising=False)
        torch.save(torch.arange(9).as_subclass(book), tmp_path / "node_pb.pt")
        (tmp_path / "ids.pkl").write_bytes(pickle.dumps(torch.arange(9).as_subclass(book)))
    for rows in (saved_tensor(tmp_path / "node_pb.pt"), tensor_stream(tmp_path / "ids.pkl")):
        np.testing.assert_array_equal(rows.read(0, 9), np.arange(9))


CUT_OFF = """
import os, sys
from pathlib import Path
from gigl_loader.partition.glt.tensors import saved_tensor, tensor_stream

for read, name in ((saved_tensor, "rows.pt"), (tensor_stream, "feats.pkl")):
    path = Path(sys.argv[1]) / name
    if os.fork() == 0:
        rows = read(path)
        os.truncate(path, 0)
        rows.read(0, len(rows))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.slow
def test_a_file_that_is_cut_off_later_is_named(tmp_path: Path) -> None:
    """A map of it ends the process, as that of a graph's file does."""
    rows = torch.arange(1 << 16)
    torch.save(rows, tmp_path / "rows.pt")
    (tmp_path / "feats.pkl").write_bytes(pickle.dumps(rows))
    found = subprocess.run(
        [sys.executable, "-c", CUT_OFF, str(tmp_path)], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.split() == [str(-signal.SIGBUS)] * 2
    for name in ("rows.pt", "feats.pkl"):
        assert f"{tmp_path / name}" in found.stderr
