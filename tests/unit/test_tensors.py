"""The layout of documents: what it promises, and one refusal for every rule of the format."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.errors import FormatError
from gigl_loader.tensors import MAX_HEADER_BYTES, STORAGE_DTYPES, ArraySpec, Layout, spec_of

_names = st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__")
_specs = st.builds(
    ArraySpec,
    st.sampled_from(sorted(STORAGE_DTYPES)),
    st.lists(st.integers(0, 40), max_size=3).map(tuple),
)


def _document(arrays: dict[str, np.ndarray[Any, Any]], metadata: dict[str, str] | None = None) -> bytearray:
    layout = Layout.plan({name: spec_of(array) for name, array in arrays.items()}, metadata)
    data = bytearray(layout.nbytes)
    buffer = np.frombuffer(data, dtype=np.uint8)
    buffer[: len(layout.header)] = np.frombuffer(layout.header, dtype=np.uint8)
    for name, array in arrays.items():
        layout.view(buffer, name)[...] = array
    return data


def _raw(header: bytes | dict[str, Any], data: bytes = b"", length: int | None = None) -> Any:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(text) if length is None else length
    return np.frombuffer(struct.pack("<Q", size) + text + data, dtype=np.uint8)


@given(st.dictionaries(_names, _specs, max_size=8), st.dictionaries(_names, st.text(max_size=9), max_size=3))
def test_parsing_a_planned_layout_gives_it_back(
    specs: dict[str, ArraySpec], metadata: dict[str, str]
) -> None:
    planned = Layout.plan(specs, metadata)
    buffer = np.zeros(planned.nbytes, dtype=np.uint8)
    buffer[: len(planned.header)] = np.frombuffer(planned.header, dtype=np.uint8)
    parsed = Layout.parse(buffer)
    assert (parsed.specs, parsed.metadata, parsed.nbytes) == (planned.specs, metadata, planned.nbytes)
    assert parsed.header == planned.header
    for name in specs:
        assert parsed.offsets[name] == planned.offsets[name]


@given(st.dictionaries(_names, _specs, max_size=8), st.dictionaries(_names, st.text(max_size=9), max_size=3))
def test_what_this_program_laid_out_is_read_as_by_the_parser(
    specs: dict[str, ArraySpec], metadata: dict[str, str]
) -> None:
    planned = Layout.plan(specs, metadata)
    buffer = np.zeros(planned.nbytes, np.uint8)
    buffer[: len(planned.header)] = np.frombuffer(planned.header, np.uint8)
    assert Layout.read(buffer) == Layout.parse(buffer)
    if planned.nbytes > len(planned.header):
        with pytest.raises(FormatError, match=f"end at byte {planned.nbytes} of a buffer"):
            Layout.read(buffer[:-1])


@given(st.dictionaries(_names, _specs, max_size=8))
def test_every_array_is_aligned_to_the_largest_power_of_two_in_its_size(specs: dict[str, ArraySpec]) -> None:
    layout = Layout.plan(specs)
    assert len(layout.header) % 64 == 0
    for name, spec in specs.items():
        alignment = min(spec.nbytes & -spec.nbytes, 64) or 64
        assert layout.offsets[name] % alignment == 0
        assert layout.offsets[name] % STORAGE_DTYPES[spec.dtype].itemsize == 0


@given(st.dictionaries(_names, _specs, max_size=6), st.randoms())
def test_a_layout_does_not_depend_on_the_order_of_its_arrays(
    specs: dict[str, ArraySpec], random: Any
) -> None:
    shuffled = list(specs.items())
    random.shuffle(shuffled)
    assert Layout.plan(dict(shuffled)) == Layout.plan(specs)


@given(st.dictionaries(_names, _specs, min_size=1, max_size=6))
def test_arrays_do_not_overlap_and_leave_no_gap(specs: dict[str, ArraySpec]) -> None:
    layout = Layout.plan(specs)
    end = len(layout.header)
    for name in sorted(specs, key=lambda name: (layout.offsets[name], specs[name].nbytes)):
        assert layout.offsets[name] == end
        end += specs[name].nbytes
    assert end == layout.nbytes


@given(st.dictionaries(_names, _specs.filter(lambda spec: spec.dtype != "BF16"), min_size=1, max_size=5))
def test_the_safetensors_package_reads_what_we_write(specs: dict[str, ArraySpec]) -> None:
    random = np.random.default_rng(0)
    arrays = {
        name: random.integers(0, 2, spec.shape).astype(STORAGE_DTYPES[spec.dtype])
        for name, spec in specs.items()
    }
    loaded = safetensors.numpy.load(bytes(_document(arrays, {"a": "b"})))
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert loaded[name].dtype == array.dtype


def test_we_read_what_the_safetensors_package_writes() -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "a": np.arange(6, dtype=np.int32).reshape(2, 3),
        "b": np.ones(3, dtype=np.float16),
    }
    data = np.frombuffer(safetensors.numpy.save(arrays, {"key": "value"}), dtype=np.uint8)
    layout = Layout.parse(data)
    assert layout.metadata == {"key": "value"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(layout.view(data, name), array)


def test_a_buffer_may_be_longer_than_its_document() -> None:
    data = _document({"a": np.arange(4)})
    assert Layout.parse(np.frombuffer(bytes(data) + b"rest", dtype=np.uint8)).nbytes == len(data)


def test_bfloat16_is_seen_as_its_bits() -> None:
    layout = Layout.plan({"a": ArraySpec("BF16", (2,))})
    assert layout.view(np.zeros(layout.nbytes, dtype=np.uint8), "a").dtype == np.uint16


@pytest.mark.parametrize("dtype", ["complex64", "U3", "datetime64[s]", "object"])
def test_a_dtype_that_the_format_lacks_is_refused(dtype: str) -> None:
    with pytest.raises(FormatError, match="cannot be stored"):
        spec_of(np.zeros(2, dtype=dtype))


def test_a_spec_of_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(FormatError, match="unknown dtype 'X9'"):
        ArraySpec("X9", (1,))


def test_a_spec_of_negative_size_is_refused() -> None:
    with pytest.raises(FormatError, match="negative size"):
        ArraySpec("F32", (2, -1))


def _entry(**changes: Any) -> dict[str, Any]:
    return {"a": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8], **changes}}


REFUSALS = {
    "shorter than the header length": (np.zeros(7, dtype=np.uint8), "cannot hold the 8-byte header length"),
    "header beyond the buffer": (_raw({}, length=100), "a header of 100 bytes in a document of 10"),
    "enormous header": (_raw({}, length=2**63), "a header of"),
    "header above the limit": (
        np.concatenate([_raw(b"", length=MAX_HEADER_BYTES + 1), np.zeros(MAX_HEADER_BYTES + 1, np.uint8)]),
        "a header of",
    ),
    "not JSON": (_raw(b"{nonsense"), "not JSON"),
    "not UTF-8": (_raw(b'{"\xff": 1}'), "not JSON"),
    "nested too deeply": (_raw(b"[" * 100_000), "not JSON"),
    "not an object": (_raw(b"[]"), "a list, not an object"),
    "the same name twice": (_raw(b'{"a": 1, "a": 2}'), "occurs twice"),
    "metadata that is no object": (_raw({"__metadata__": [1]}), "must map strings to strings"),
    "metadata with numbers": (_raw({"__metadata__": {"a": 1}}), "must map strings to strings"),
    "an entry that is no object": (_raw({"a": 1}), "needs exactly dtype, shape and data_offsets"),
    "an entry with a part missing": (_raw({"a": {"dtype": "I32", "shape": []}}), "needs exactly"),
    "an entry with a part too many": (_raw(_entry(more=1), bytes(8)), "needs exactly"),
    "an unknown dtype": (_raw(_entry(dtype="I33"), bytes(8)), "unknown dtype 'I33'"),
    "a dtype that is no text": (_raw(_entry(dtype=[]), bytes(8)), "unknown dtype"),
    "a shape that is no list": (_raw(_entry(shape=2), bytes(8)), "not a list of sizes"),
    "a negative size": (_raw(_entry(shape=[-2]), bytes(8)), "not a list of sizes"),
    "a size that is a fraction": (_raw(_entry(shape=[2.0]), bytes(8)), "not a list of sizes"),
    "a size that is a boolean": (_raw(_entry(shape=[True]), bytes(8)), "not a list of sizes"),
    "a size beyond 64 bits": (_raw(_entry(shape=[2**63]), bytes(8)), "not a list of sizes"),
    "one offset": (_raw(_entry(data_offsets=[0]), bytes(8)), r"not \[begin, end\]"),
    "offsets that fall": (_raw(_entry(data_offsets=[8, 0]), bytes(8)), r"not \[begin, end\]"),
    "offsets of the wrong length": (_raw(_entry(data_offsets=[0, 7]), bytes(8)), "needs 8 bytes"),
    "a product of sizes that overflows": (_raw(_entry(shape=[2**62, 4, 2**62]), bytes(8)), "needs"),
    "an empty array of enormous sizes": (
        _raw(_entry(shape=[2**62, 4, 0], data_offsets=[0, 0])),
        "no array can have",
    ),
    "more dimensions than arrays have": (
        _raw(_entry(shape=[1] * 33, data_offsets=[0, 4]), bytes(4)),
        "no array can have",
    ),
    "a gap": (_raw(_entry(data_offsets=[1, 9]), bytes(9)), "starts at 1"),
    "an overlap": (
        _raw({**_entry(), "b": {"dtype": "I32", "shape": [2], "data_offsets": [4, 12]}}, bytes(12)),
        "starts at 4",
    ),
    "data beyond the buffer": (_raw(_entry(), bytes(7)), "arrays end at byte"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_document_that_breaks_a_rule_is_refused(case: str) -> None:
    buffer, message = REFUSALS[case]
    with pytest.raises(FormatError, match=f"^some file: .*{message}"):
        Layout.parse(buffer, what="some file")


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_parser(data: bytes) -> None:
    try:
        layout = Layout.parse(np.frombuffer(data, dtype=np.uint8))
    except FormatError:
        return
    assert layout.nbytes <= len(data)


@settings(max_examples=300)
@given(st.data())
def test_no_changed_byte_crashes_the_parser(data: st.DataObject) -> None:
    document = _document({"a": np.arange(3), "b": np.zeros((2, 2), dtype=np.float32)}, {"k": "v"})
    place = data.draw(st.integers(0, len(document) - 1))
    document[place] = data.draw(st.integers(0, 255))
    buffer = np.frombuffer(document, dtype=np.uint8)
    try:
        layout = Layout.parse(buffer)
    except FormatError:
        return
    for name in layout.specs:
        assert layout.view(buffer, name).nbytes == layout.specs[name].nbytes
