"""Triton kernels that read rows, from the memory of the device or of the host, and dequantise them.

A *place* (int32) names a row: from 0 on, one of the rows that stay on the device; below, row ``-1 - place``
of the host's. A program reads some rows, neighbouring threads neighbouring elements, so that a row of the
host crosses the bus in few requests. Kernels are not specialised by the number of rows, which differs from
batch to batch: Triton would compile them again for a multiple of 16, in the middle of an epoch.

With ``TRITON_INTERPRET=1`` in the environment when this module is imported, the kernels run on a CPU. They
call nothing of Triton's own library in Python, which may have been imported without it.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK = 1024
"""Elements of a program: 8 for each of 128 threads."""
_MAX_WIDTH = 512
"""Elements of a row that a program reads at once, at most."""


@triton.jit  # type: ignore[untyped-decorator]
def _element(resident, host, place, is_host, offset, mask, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Return element ``offset`` of each row, [rows, offsets], wherever the row lies."""
    here = resident + place[:, None] * WIDTH + offset[None, :]
    there = host + (-1 - place)[:, None] * WIDTH + offset[None, :]
    from_device = tl.load(here, mask=mask & (is_host == 0)[:, None], other=0)
    from_host = tl.load(there, mask=mask & is_host[:, None], other=0)
    return tl.where(is_host[:, None], from_host, from_device)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _gather(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    places, resident, host, out, num_rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Write rows of ``WIDTH`` words: ``out[i]`` is the row of ``places[i]``."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    place = tl.load(places + row, mask=is_row, other=0).to(tl.int64)
    for begin in range(0, WIDTH, COLUMNS):
        word = begin + tl.arange(0, COLUMNS)
        mask = is_row[:, None] & (word < WIDTH)[None, :]
        found = _element(resident, host, place, place < 0, word, mask, WIDTH)
        tl.store(out + row[:, None] * WIDTH + word[None, :], found, mask=mask)


@triton.jit  # type: ignore[untyped-decorator]
def _header(resident, host, place, is_row, begin: tl.constexpr, WIDTH: tl.constexpr, WORD_BITS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """Return the float32 at byte ``begin`` of each row, [rows, 1]."""
    first, mask = begin * 8 // WORD_BITS + tl.arange(0, 1), is_row[:, None]
    bits = _element(resident, host, place, place < 0, first, mask, WIDTH).to(tl.int32)
    if WORD_BITS == 8:  # Such rows need not be aligned.
        bits |= _element(resident, host, place, place < 0, first + 1, mask, WIDTH).to(tl.int32) << 8
        bits |= _element(resident, host, place, place < 0, first + 2, mask, WIDTH).to(tl.int32) << 16
        bits |= _element(resident, host, place, place < 0, first + 3, mask, WIDTH).to(tl.int32) << 24
    return bits.to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["num_rows"])  # type: ignore[untyped-decorator]
def _dequantize(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    places,
    resident,
    host,
    scales,
    zero_points,
    out,
    num_rows,
    WIDTH: tl.constexpr,
    WORD_BITS: tl.constexpr,
    ELEMENTS: tl.constexpr,
    BITS: tl.constexpr,
    HEADER_BYTES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Write the values of rows of codes, float32 [num_rows, ELEMENTS]. Rows have ``WIDTH`` words of codes.

    With ``HEADER_BYTES``, a row begins with its scale and zero point; else both are those of the element. The
    product is exact in float64, so that it does not matter whether the sum is fused with it.
    """
    in_word: tl.constexpr = WORD_BITS // BITS
    header: tl.constexpr = HEADER_BYTES * 8 // WORD_BITS
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    is_row = row < num_rows
    place = tl.load(places + row, mask=is_row, other=0).to(tl.int64)
    number = tl.arange(0, in_word)
    if HEADER_BYTES:
        scale = _header(resident, host, place, is_row, 0, WIDTH, WORD_BITS).to(tl.float64)[:, :, None]
        zero_point = _header(resident, host, place, is_row, 4, WIDTH, WORD_BITS).to(tl.float64)[:, :, None]
    for begin in range(0, WIDTH - header, COLUMNS):
        word = begin + tl.arange(0, COLUMNS)
        is_word = is_row[:, None] & (word < WIDTH - header)[None, :]
        words = _element(resident, host, place, place < 0, header + word, is_word, WIDTH).to(tl.int32)
        codes = (words[:, :, None] >> (number * BITS)[None, None, :]) & ((1 << BITS) - 1)
        element = word[:, None] * in_word + number[None, :]
        is_element = element < ELEMENTS
        if HEADER_BYTES:
            value = codes.to(tl.float64) * scale + zero_point
        else:
            of_element = tl.load(scales + element, mask=is_element, other=0.0)[None, :, :]
            zero_of_element = tl.load(zero_points + element, mask=is_element, other=0.0)[None, :, :]
            value = codes.to(tl.float64) * of_element + zero_of_element
        at = out + row[:, None, None] * ELEMENTS + element[None, :, :]
        tl.store(at, value.to(tl.float32), mask=is_row[:, None, None] & is_element[None, :, :])


IS_INTERPRETED = not isinstance(_gather, triton.JITFunction)
"""Kernels run on the CPU, for tests."""


def gather_rows(places: Tensor, resident: Tensor, host: Tensor) -> Tensor:
    """Return the row of each place, [N, words].

    ``places``: int32 [N]. ``resident`` and ``host``: rows of one dtype of integers, [anything, words].
    """
    out = torch.empty((len(places), host.shape[1]), dtype=host.dtype, device=places.device)
    columns = min(_power_of_2(host.shape[1]), _MAX_WIDTH)
    sizes = {"WIDTH": host.shape[1], "ROWS": _BLOCK // columns, "COLUMNS": columns}
    _launch(_gather, out, places, resident, host, **sizes)
    return out


def dequantize_rows(
    places: Tensor,
    resident: Tensor,
    host: Tensor,
    *,
    elements: int,
    bits: int,
    header_bytes: int,
    scales: Tensor | None,
    zero_points: Tensor | None,
) -> Tensor:
    """Return the values of the row of each place, float32 [N, elements].

    ``places``: int32 [N]. ``resident`` and ``host``: rows of codes, uint8 [anything, row bytes]. ``scales``
    and ``zero_points``: float64 [elements], or ``None`` where each row begins with its own.
    """
    out = torch.empty((len(places), elements), dtype=torch.float32, device=places.device)
    if not out.numel():
        return out
    if scales is None or zero_points is None:
        scales = zero_points = out  # Not read.
    word_bits = 32 if host.shape[1] % 4 == 0 else 8
    if word_bits == 32:  # A thread reads four bytes at once.
        resident, host = resident.view(torch.int32), host.view(torch.int32)
    in_word = word_bits // bits
    columns = min(_power_of_2(-(-elements // in_word)), _MAX_WIDTH // in_word)
    sizes = {"WIDTH": host.shape[1], "WORD_BITS": word_bits, "ELEMENTS": elements, "BITS": bits}
    sizes |= {"HEADER_BYTES": header_bytes, "ROWS": _BLOCK // (columns * in_word), "COLUMNS": columns}
    _launch(_dequantize, out, places, resident, host, scales, zero_points, **sizes)
    return out


def _power_of_2(number: int) -> int:
    """Return the least power of two that is not less."""
    return 1 << max(number - 1, 0).bit_length()


def _launch(kernel: Any, out: Tensor, places: Tensor, *inputs: Tensor, **sizes: int) -> None:
    """Run a kernel over the rows of ``out`` [N, width], on the current stream of its device."""
    if not out.numel():
        return
    grid = (-(-len(out) // sizes["ROWS"]),)
    # Triton launches on the current device, whatever device its arguments are on.
    with torch.cuda.device(out.device) if out.is_cuda else nullcontext():
        kernel[grid](places, *inputs, out, len(out), enable_fp_fusion=False, **sizes)
