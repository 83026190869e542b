"""Triton kernels, interpreted on the CPU: the rows and values of PyTorch, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.loaders.dequantize import Dequantizer
from tests.support.quantised import packed_columns, values_of
from tests.support.triton_kernels import forget_kernels, interpreted

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gigl_loader.arrays import Bytes
    from gigl_loader.graph import Column

WORDS = (torch.int64, torch.int32, torch.int16, torch.uint8)


@pytest.fixture(scope="module")
def kernels() -> Iterator[Any]:
    with interpreted():
        from gigl_loader.device import row_kernels

        yield row_kernels


@st.composite
def split_rows(draw: st.DrawFn, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw rows of a table: which of them are on the device, which are wanted, and their places."""
    if not count:
        nothing = torch.empty(0, dtype=torch.int64)
        return nothing, nothing, nothing.to(torch.int32)
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    chosen = np.flatnonzero(random.random(count) < draw(st.sampled_from([0.0, 0.4, 1.0])))
    wanted = random.integers(0, count, draw(st.integers(0, 70)))
    number = np.searchsorted(chosen, wanted)
    is_here = np.isin(wanted, chosen)
    places = np.where(is_here, number, -1 - wanted).astype(np.int32)
    return torch.from_numpy(chosen), torch.from_numpy(wanted), torch.from_numpy(places)


@settings(max_examples=60)
@given(data=st.data(), word=st.sampled_from(WORDS), width=st.sampled_from([1, 2, 3, 7, 32, 600]))
def test_rows_of_both_memories_come_in_their_order(
    kernels: Any, data: st.DataObject, word: torch.dtype, width: int
) -> None:
    count = data.draw(st.integers(0, 40))
    random = torch.Generator().manual_seed(count)
    limits = torch.iinfo(word)
    rows = torch.randint(limits.min, limits.max, (count, width), generator=random, dtype=word)
    chosen, wanted, places = data.draw(split_rows(count))
    found = kernels.gather_rows(places, rows[chosen], rows)
    assert torch.equal(found, rows[wanted])


@settings(max_examples=50)
@given(data=st.data(), drawn=packed_columns())
def test_values_are_those_of_plain_python(
    kernels: Any, data: st.DataObject, drawn: tuple[Column, Bytes]
) -> None:
    column, packed = drawn
    codes, rows = Dequantizer(column), torch.from_numpy(packed)
    chosen, wanted, places = data.draw(split_rows(len(packed)))
    scales, zero_points = codes.scales_on(torch.device("cpu"))
    found = kernels.dequantize_rows(
        places,
        rows[chosen],
        rows,
        elements=codes.elements,
        bits=codes.bits,
        header_bytes=codes.header_bytes,
        scales=scales,
        zero_points=zero_points,
    )
    expected = values_of(packed, column).reshape(len(packed), codes.elements)[wanted.numpy()]
    assert found.dtype == torch.float32
    assert np.array_equal(found.numpy().view(np.uint32), expected.view(np.uint32))


def signature_of(kernel: Any, dtypes: dict[str, str], sizes: dict[str, int]) -> dict[str, Any]:
    """Return what ``ASTSource`` is told of the arguments of a kernel. PyTorch aligns memory to 16 bytes."""
    types = {name: "constexpr" if name in sizes else dtypes[name] for name in kernel.arg_names}
    aligned = [number for number, kind in enumerate(types.values()) if kind.startswith("*")]
    attrs = {(number,): [["tt.divisibility", 16]] for number in aligned}
    return {"signature": types, "constexprs": sizes, "attrs": attrs}


@pytest.mark.parametrize("capability", [70, 90])
def test_kernels_compile_for_devices(
    capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a V100 and an H100, without one: rows of float32 and of int8, which are read as whole words."""
    pytest.importorskip("triton", minversion="3.4", reason="earlier versions describe kernels otherwise")
    import triton
    from triton.backends.compiler import GPUTarget

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    forget_kernels()
    from gigl_loader.device import row_kernels

    assert not row_kernels.IS_INTERPRETED
    rows = {"places": "*i32", "resident": "*i32", "host": "*i32", "num_rows": "i32"}
    values = rows | {"scales": "*fp64", "zero_points": "*fp64", "out": "*fp32"}
    codes = {
        "WIDTH": 34,
        "WORD_BITS": 32,
        "ELEMENTS": 128,
        "BITS": 8,
        "HEADER_BYTES": 8,
        "ROWS": 8,
        "COLUMNS": 32,
    }
    for kernel, dtypes, sizes in (
        (row_kernels._gather, rows | {"out": "*i32"}, {"WIDTH": 128, "ROWS": 8, "COLUMNS": 128}),
        (row_kernels._dequantize, values, codes),
    ):
        source = triton.compiler.ASTSource(fn=kernel, **signature_of(kernel, dtypes, sizes))
        target = GPUTarget("cuda", capability, 32)
        compiled = triton.compile(source, target=target, options={"enable_fp_fusion": False})
        assert compiled.asm["cubin"]
        assert "ld.global.b8" not in compiled.asm["ptx"]
