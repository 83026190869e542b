"""CRC-32C: known values, and a slow oracle."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.native import (
    copy_crc32c,
    crc32c,
    crc32c_blocks,
    crc32c_combine,
    crc32c_portable,
    crc32c_strands,
)

KERNELS = pytest.mark.parametrize(
    "kernel", [crc32c, crc32c_strands, crc32c_portable], ids=["fastest", "instructions", "tables"]
)

Kernel = Callable[..., int]

READ_10 = bytes.fromhex(
    "01c00000000000000000000000000000140000000000040000000014000000182800000000000000020000000000000000"[:96]
)


def of(data: bytes) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)


def oracle(data: bytes, crc: int = 0) -> int:
    """Divide bit by bit."""
    state = ~crc & 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return ~state & 0xFFFFFFFF


@KERNELS
@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        # RFC 3720, appendix B.4.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (READ_10, 0xD9963A56),
    ],
)
def test_known_values(kernel: Kernel, data: bytes, value: int) -> None:
    assert kernel(of(data)) == value
    assert oracle(data) == value


@KERNELS
@settings(max_examples=200)
@given(data=st.data(), seed=st.integers(0, 2**32), size=st.integers(0, 2000), start=st.integers(0, 17))
def test_against_the_oracle(kernel: Kernel, data: st.DataObject, seed: int, size: int, start: int) -> None:
    whole = np.random.default_rng(seed).integers(0, 256, start + size, np.uint8)[start:]
    cut = data.draw(st.integers(0, size))
    expected = oracle(whole.tobytes())
    assert kernel(whole) == expected
    assert kernel(whole[cut:], kernel(whole[:cut])) == expected
    assert crc32c_combine(kernel(whole[:cut]), kernel(whole[cut:]), size - cut) == expected


@pytest.mark.parametrize("size", [767, 768, 7935, 7936, 7937, 12_287, 12_288, 12_289, 40_001, 3_000_017])
@pytest.mark.parametrize("start", [0, 1, 7])
def test_long_strings_by_instructions_and_by_tables(size: int, start: int) -> None:
    whole = np.random.default_rng(size).integers(0, 256, start + size, np.uint8)[start:]
    expected = crc32c_portable(whole)
    assert crc32c(whole) == crc32c_strands(whole) == expected
    half = size // 2
    assert crc32c_combine(crc32c(whole[:half]), crc32c(whole[half:]), size - half) == crc32c(whole)


@settings(max_examples=100)
@given(
    size=st.integers(0, 70_000), start=st.integers(0, 65), cut=st.integers(0, 70_000), seed=st.integers(0, 9)
)
def test_copies_carry_the_checksum_on(size: int, start: int, cut: int, seed: int) -> None:
    whole = np.random.default_rng(seed).integers(0, 256, start + size, np.uint8)[start:]
    out = np.full(size + start + 2, 7, np.uint8)
    cut = min(cut, size)
    crc = copy_crc32c(whole[:cut], out[1 : 1 + cut])
    assert copy_crc32c(whole[cut:], out[1 + cut : 1 + size], crc) == crc32c_portable(whole)
    assert np.array_equal(out[1 : 1 + size], whole)
    assert (out[0], out[1 + size]) == (7, 7)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 1000])
def test_blocks(size: int) -> None:
    whole = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    sums = np.zeros(-(-size // 100), np.uint32)
    crc32c_blocks(whole, 100, sums)
    assert sums.tolist() == [crc32c(whole[at : at + 100]) for at in range(0, size, 100)]


def test_wrong_arguments() -> None:
    data = np.zeros(10, np.uint8)
    with pytest.raises(ValueError, match="block_bytes must be positive"):
        crc32c_blocks(data, 0, np.zeros(1, np.uint32))
    with pytest.raises(ValueError, match="one entry per block"):
        crc32c_blocks(data, 5, np.zeros(3, np.uint32))
    with pytest.raises(ValueError, match="differ in length"):
        copy_crc32c(data, np.zeros(9, np.uint8))
    with pytest.raises(TypeError):
        crc32c(np.zeros(3, np.int32))
