"""Tensors that PyTorch and pickle wrote are found without either, and damage is told."""

from __future__ import annotations

import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
from gigl_loader.partition.glt.pickles import Section, Span, read_pickle
from gigl_loader.partition.glt.tensors import saved_tensor, tensor_stream


def test_one_large_tensor_is_read_in_pieces(tmp_path: Path) -> None:
    """GLT's distributed partitioner pickles all features of a partition as one tensor."""
    path = tmp_path / "feats.pkl"
    rows = torch.arange(1 << 22, dtype=torch.float32).reshape(-1, 16)
    path.write_bytes(pickle.dumps(rows))
    tracemalloc.start()
    try:
        found = tensor_stream(path)
        with found.open() as file:
            last = found.read(file, len(found) - 2, 2)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(last, rows[-2:].numpy())
    assert peak < 1 << 20  # Of 16 MiB.


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
        with rows.open() as file:
            np.testing.assert_array_equal(rows.read(file, 0, 9).view(numbers.dtype), numbers)
            np.testing.assert_array_equal(rows.take(file, some).view(numbers.dtype), numbers[some])
            part = rows.part(3, 4)
            np.testing.assert_array_equal(part.read(file, 1, 3).view(numbers.dtype), numbers[4:7])


@given(st.binary(max_size=200))
def test_any_bytes_are_a_pickle_or_an_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "pickle"
    path.write_bytes(data)
    with path.open("rb") as file:
        try:
            read_pickle(Section(path, file, Span(0, len(data))), max_steps=100)
        except FormatError:
            return


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
def test_pickles_of_plain_values_are_read_as_python_reads_them(
    tmp_path_factory: pytest.TempPathFactory, value: Any, protocol: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "plain"
    data = pickle.dumps(value, protocol)
    path.write_bytes(data)
    with path.open("rb") as file:
        section = Section(path, file, Span(0, len(data)))
        assert read_pickle(section, max_steps=10_000) == value
        assert section.at_end


@settings(deadline=None, max_examples=30)
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
    with found.open() as file:
        np.testing.assert_array_equal(found.take(file, chosen), rows.numpy()[chosen])


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
        ({"files": {}, "compression": zipfile.ZIP_DEFLATED}, "its archive is compressed or damaged"),
        ({"files": {"rows/data/0": b"short"}}, "storage '0' of 100 elements is not there, or shorter"),
        ({"files": {f"rows/{number}": b"" for number in range(25_000)}}, "too many files in its archive"),
        ({"files": {"rows/data.pkl": b"(" * 2000}}, "a pickle of more than 1000 instructions"),
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
