"""Frames: round trip, one refusal for every rule, and mutations that must never do worse than be refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.channel.frame import Failure
from gigl_loader.errors import FormatError, SamplingError, StorageUnavailable
from gigl_loader.tensors import Layout
from tests.support.frames import Draft, frame_schema, read_everything

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt


def failing(message: str) -> Any:
    return pytest.raises(FormatError, match=message)


# --- what a frame tells


def test_a_frame_reads_back_what_was_written() -> None:
    draft = Draft()
    frame = draft.parse()
    assert (frame.epoch, frame.batch) == (3, 14)
    assert frame.num_sampled_nodes == {"user": [2, 1], "item": [0, 2]}
    assert frame.num_sampled_edges == {"item+buys%2Bback+user": [3]}
    assert set(frame.names) == set(draft.arrays)
    for name, array in draft.arrays.items():
        assert frame.array(name).dtype == array.dtype
        assert (frame.array(name) == array).all()
    frame.raise_failure()


def test_arrays_are_views_and_aligned() -> None:
    frame = Draft().parse()
    for name in frame.names:
        array = frame.array(name)
        assert np.shares_memory(array, frame.buffer)
        assert array.ctypes.data % array.dtype.itemsize == 0


def test_a_buffer_may_be_longer_than_its_frame() -> None:
    buffer = Draft().buffer()
    frame = frame_schema().parse(np.concatenate([buffer, np.full(100, 255, np.uint8)]))
    assert frame.nbytes == len(buffer)


def test_safetensors_reads_a_frame(tmp_path: Any) -> None:
    numpy_reader = pytest.importorskip("safetensors.numpy")
    draft = Draft()
    path = tmp_path / "frame.safetensors"
    path.write_bytes(draft.buffer().tobytes())
    for name, array in numpy_reader.load_file(path).items():
        assert (array == draft.arrays[name]).all()


def test_empty_batches_and_types_are_frames() -> None:
    draft = Draft()
    draft.metadata["num_sampled_nodes"] = {"user": [0, 0], "item": [0, 0]}
    draft.metadata["num_sampled_edges"] = {"item+buys%2Bback+user": [0]}
    for name, array in draft.arrays.items():
        draft.arrays[name] = array[:0]
    draft.arrays["edge/item+buys%2Bback+user/colptr"] = np.zeros(1, np.int64)
    read_everything(draft.parse())


def test_edges_may_point_either_way() -> None:
    """With edge_dir "out" the neighbours are destinations: three users instead of two items."""
    draft = Draft()
    draft.arrays["edge/item+buys%2Bback+user/rows"] = np.array([0, 2, 1], np.int32)
    draft.arrays["edge/item+buys%2Bback+user/colptr"] = np.array([0, 2, 3])
    read_everything(draft.parse(edge_dir="out"), edge_dir="out")
    with failing("rows of item.* leave the 2 sampled nodes"):
        draft.parse(edge_dir="in")


# --- one refusal per rule of the container (all of them: tests of Layout)


def test_a_cut_frame_is_refused() -> None:
    buffer = Draft().buffer()
    for length in (0, 7, 8, 100, len(buffer) - 1):
        with failing("frame"):
            frame_schema().parse(buffer[:length])


# --- one refusal per rule of the frame

EDGE = "edge/item+buys%2Bback+user"

WRONG_METADATA = [
    ("epoch", None, "metadata lacks epoch"),
    ("batch", None, "metadata lacks batch"),
    ("epoch", -1, "epoch is '-1', not a number from 0"),
    ("batch", 1.5, "batch is '1.5', not a number"),
    ("batch", True, "batch is 'true', not a number"),
    ("batch", 2**63, "not a number from 0"),
    ("num_sampled_nodes", None, "metadata lacks num_sampled_nodes"),
    ("num_sampled_edges", None, "metadata lacks num_sampled_edges"),
    ("num_sampled_nodes", [1], "num_sampled_nodes must map types to lists"),
    ("num_sampled_nodes", {"user": 3}, "num_sampled_nodes must map types to lists"),
    ("num_sampled_edges", {"item+buys%2Bback+user": [-3]}, "num_sampled_edges must map types to lists"),
    ("num_sampled_edges", {"item+buys%2Bback+user": ["3"]}, "num_sampled_edges must map types to lists"),
    ("num_sampled_nodes", {"user": [2, 1], "item": [2]}, "of item has 1 numbers, not 2"),
    ("num_sampled_edges", {"item+buys%2Bback+user": [3, 0]}, "has 2 numbers, not 1"),
    ("num_sampled_nodes", {}, r"num_sampled_nodes has types \[\], not \['item', 'user'\]"),
    ("seed_type", None, "metadata lacks seed_type"),
    ("seed_type", 5, "seed_type is '5', not 'user'"),
    ("seed_type", "tag", "seed_type is 'tag', not 'user'"),
    ("num_sampled_nodes", {"user": [4, 1], "item": [0, 2]}, "4 distinct seeds among 3"),
    ("num_sampled_nodes", {"user": [2, 2], "item": [0, 2]}, r"n_id' is I64 \[3\], not I64 \[4\]"),
    ("num_sampled_edges", {"item+buys%2Bback+user": [4]}, r"is .* \[3\], not .* \[4\]"),
    ("num_sampled_edges", {}, r"num_sampled_edges has types \[\]"),
    ("num_sampled_nodes", {"user": [2, 1]}, r"num_sampled_nodes has types \['user'\]"),
]


@pytest.mark.parametrize(("key", "value", "message"), WRONG_METADATA)
def test_wrong_metadata_is_refused(key: str, value: object, message: str) -> None:
    draft = Draft()
    if value is None:
        del draft.metadata[key]
    else:
        draft.metadata[key] = value
    with failing(message):
        draft.parse()


@pytest.mark.parametrize("text", ["", "{", "nan?", "[" * 100_000])
def test_metadata_that_is_not_json_is_refused(text: str) -> None:
    for key in ("epoch", "seed_type", "num_sampled_nodes"):
        draft = Draft()
        draft.texts[key] = text
        with failing(f"metadata {key} is not JSON"):
            draft.parse()


MISSING = ["seeds", "input_id", "node/user/n_id", f"{EDGE}/rows", f"{EDGE}/colptr"]


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_array_is_refused(name: str) -> None:
    draft = Draft()
    del draft.arrays[name]
    with failing(f"array '{name.replace('+', '.')}' is missing"):
        draft.parse()


@pytest.mark.parametrize("name", [*MISSING, f"{EDGE}/e_id"])
def test_an_array_of_the_format_has_one_dtype_and_one_dimension(name: str) -> None:
    wide, deep = Draft(), Draft()
    wide.arrays[name] = wide.arrays[name].astype(np.float64)
    deep.arrays[name] = deep.arrays[name][:, None]
    for draft in (wide, deep):
        with failing(r"is .*, not (1-D )?I(64|32)"):
            draft.parse()


@pytest.mark.parametrize(
    "name",
    [
        "extra",
        "node/tag/n_id",
        "node/user",
        "node/user/",
        "node/user/x/y",
        "edge/user/rows",
        "link/user/x",
        "//",
    ],
)
def test_an_array_that_belongs_nowhere_is_refused(name: str) -> None:
    draft = Draft()
    draft.arrays[name] = np.zeros(3, np.int64)
    with failing("belongs to no frame of this plan"):
        draft.parse()


@pytest.mark.parametrize(
    "name", ["node/user/n_id", "node/item/x", f"{EDGE}/rows", f"{EDGE}/e_id", f"{EDGE}/w"]
)
def test_arrays_of_a_type_have_a_row_each(name: str) -> None:
    draft = Draft()
    draft.arrays[name] = draft.arrays[name][:-1]
    with failing(r"is \w+ \[.*\], not \w+ \["):
        draft.parse()


def test_seeds_and_input_ids_pair_up() -> None:
    draft = Draft()
    draft.arrays["input_id"] = draft.arrays["input_id"][:-1]
    with failing(r"'input_id' is I64 \[2\], not I64 \[3\]"):
        draft.parse()


@pytest.mark.parametrize("edge_type", ["item+user", "item+a+b+user", "tag+a+user", "item+a+tag", "item"])
def test_edge_types_are_those_of_the_plan(edge_type: str) -> None:
    draft = Draft()
    for name in [name for name in draft.arrays if name.startswith("edge/")]:
        draft.arrays[f"edge/{edge_type}/{name.rpartition('/')[2]}"] = draft.arrays.pop(name)
    draft.metadata["num_sampled_edges"] = {edge_type: [3]}
    with failing("num_sampled_edges has types"):
        draft.parse()


@pytest.mark.parametrize(
    ("colptr", "message"),
    [
        ([], "colptr of .* has 0 entries for 3 nodes"),
        ([0, 1, 2, 3, 3], "colptr of .* has 5 entries for 3 nodes"),
        ([1, 2, 3], "does not rise from 0 to 3"),
        ([0, 2], "does not rise from 0 to 3"),
        ([0, 3, 2, 3], "does not rise from 0 to 3"),
        ([0, -1, 3], "does not rise from 0 to 3"),
        ([0, 2**62, 3], "does not rise from 0 to 3"),
    ],
)
def test_colptr_cuts_the_edges(colptr: list[int], message: str) -> None:
    draft = Draft()
    draft.arrays[f"{EDGE}/colptr"] = np.array(colptr, np.int64)
    with failing(message):
        draft.parse()


@pytest.mark.parametrize("row", [2, -1, 2**31 - 1, -(2**31)])
def test_rows_are_sampled_neighbors(row: int) -> None:
    draft = Draft()
    draft.arrays[f"{EDGE}/rows"] = np.array([0, row, 1], np.int32)
    with failing("rows of .* leave the 2 sampled nodes"):
        draft.parse()


# --- failures


def caught(action: Callable[[], object]) -> Exception:
    try:
        action()
    except Exception as error:
        return error
    raise AssertionError


def test_a_failure_travels_whole() -> None:
    error = caught(lambda: dict[str, int]()["not there"])
    failure = Failure.of(error, epoch=2, batch=5, worker=1)
    buffer = np.zeros(failure.layout.nbytes, np.uint8)
    failure.write(buffer)
    frame = frame_schema().parse(buffer)
    assert (frame.epoch, frame.batch, frame.names) == (2, 5, ())
    with pytest.raises(SamplingError, match="worker 1, epoch 2, batch 5: KeyError: 'not there'") as raised:
        frame.raise_failure()
    (note,) = raised.value.__notes__
    assert "in sampling process 1" in note
    assert "in caught" in note


def test_a_host_that_does_not_answer_is_told_from_other_failures() -> None:
    failure = Failure.of(StorageUnavailable("host 1 is silent"), epoch=2, batch=5, worker=None)
    assert str(failure.error()) == "epoch 2, batch 5: host 1 is silent"
    assert type(failure.error()) is StorageUnavailable
    assert type(Failure.of(SamplingError("x"), epoch=0, batch=0, worker=0).error()) is SamplingError


def test_long_failures_are_cut() -> None:
    failure = Failure.of(ValueError("é" * 10**6), epoch=0, batch=0, worker=0)
    assert failure.layout.nbytes < 300_000
    assert "characters left out" in failure.message


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("no", "failure is not JSON"),
        ("[]", "a failure record needs exactly"),
        ('{"type": "E"}', "a failure record needs exactly"),
        ('{"type": 1, "message": "", "traceback": "", "worker": 0}', "type of the failure record is a int"),
        ('{"type": "", "message": "", "traceback": "", "worker": "0"}', "worker of the failure record"),
    ],
)
def test_wrong_failure_records_are_refused(record: str, message: str) -> None:
    layout = Layout.plan({}, {"epoch": "0", "batch": "0", "failure": record})
    with failing(message):
        frame_schema().parse(np.frombuffer(layout.header, np.uint8))


def test_a_failed_batch_has_no_arrays() -> None:
    draft = Draft()
    draft.metadata["failure"] = {"type": "E", "message": "", "traceback": "", "worker": None}
    with failing("a failed batch has array"):
        draft.parse()


# --- mutations

FUZZ = settings(max_examples=200)


def survives(buffer: npt.NDArray[np.uint8]) -> None:
    """Parsing refuses with FormatError, or gives a frame of which everything can be used."""
    try:
        frame = frame_schema().parse(buffer)
    except FormatError:
        return
    if "failure" not in frame.layout.metadata:
        read_everything(frame)


@FUZZ
@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_crash(data: bytes) -> None:
    survives(np.frombuffer(data, np.uint8))


@FUZZ
@given(st.binary(max_size=300))
def test_arbitrary_headers_never_crash(text: bytes) -> None:
    survives(np.frombuffer(len(text).to_bytes(8, "little") + text, np.uint8))


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255)), min_size=1, max_size=8))
def test_flipped_bytes_never_crash(changes: list[tuple[int, int]]) -> None:
    buffer = Draft().buffer()
    for place, value in changes:
        buffer[place % len(buffer)] = value
    survives(buffer)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=6,
)


@FUZZ
@given(
    st.sampled_from(["epoch", "batch", "seed_type", "num_sampled_nodes", "num_sampled_edges", "failure"]),
    JSON,
)
def test_arbitrary_metadata_never_crashes(key: str, value: object) -> None:
    draft = Draft()
    draft.texts[key] = json.dumps(value)
    survives(draft.buffer())


@FUZZ
@given(st.data())
def test_arbitrary_arrays_never_crash(data: st.DataObject) -> None:
    draft = Draft()
    name = data.draw(st.sampled_from([*draft.arrays, "node/user/z", "edge/x/rows", "odd"]))
    dtype = data.draw(st.sampled_from([np.int64, np.int32, np.float32, np.bool_]))
    shape = data.draw(st.lists(st.integers(0, 5), max_size=3))
    draft.arrays[name] = np.array(data.draw(st.integers(-3, 9)), dtype=np.int64).astype(dtype) * np.ones(
        shape, dtype
    )
    survives(draft.buffer())
