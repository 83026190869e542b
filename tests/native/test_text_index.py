"""The index of texts: numbers in the order of first sight, found again, safe on damaged arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gigl_loader.native import TextIndex, find_texts, texts_at

TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=6), max_size=60)


def built(texts: list[str]) -> TextIndex:
    index = TextIndex()
    index.add(texts)
    return index


@given(TEXTS, TEXTS)
def test_texts_are_numbered_as_they_are_first_seen(first: list[str], second: list[str]) -> None:
    index = TextIndex()
    known: dict[str, int] = {}
    for texts in (first, second):
        assert index.add(texts).tolist() == [known.setdefault(text, len(known)) for text in texts]
    assert len(index) == len(known)
    arrays = index.arrays()
    asked = [*first, *second, "surely absent"]
    assert find_texts(*arrays, asked).tolist() == [known.get(text, -1) for text in asked]
    assert texts_at(*arrays[:2], np.arange(len(known))) == list(known)


@given(TEXTS)
def test_sorting_numbers_texts_by_their_bytes(texts: list[str]) -> None:
    index = TextIndex()
    before = index.add(texts)
    renumbered = index.sort()
    data, offsets, slots = index.arrays()
    ascending = sorted(set(texts), key=str.encode)
    assert texts_at(data, offsets, np.arange(len(ascending))) == ascending
    assert find_texts(data, offsets, slots, texts).tolist() == renumbered[before].tolist()


def test_many_texts_are_all_found() -> None:
    texts = [f"user-{number * 7919}" for number in range(50_000)]
    index = built(texts)
    assert np.array_equal(index.add(texts), np.arange(len(texts)))
    data, offsets, slots = index.arrays()
    assert np.array_equal(find_texts(data, offsets, slots, texts), np.arange(len(texts)))
    assert not (find_texts(data, offsets, slots, [text + "x" for text in texts[:1000]]) != -1).any()
    assert index.nbytes >= data.nbytes + offsets.nbytes + slots.nbytes


@settings(max_examples=300)
@given(st.data())
def test_damaged_arrays_give_an_error_or_no_text(data: st.DataObject) -> None:
    texts = ["alpha", "beta", "", "delta", "épsilon"]
    octets, offsets, slots = arrays = built(texts).arrays()
    damaged: np.ndarray[Any, Any] = arrays[data.draw(st.integers(0, 2))]
    limits = np.iinfo(damaged.dtype)
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] = data.draw(st.integers(int(limits.min), int(limits.max)))
    try:
        found = find_texts(octets, offsets, slots, [*texts, "zeta"])
        assert all(-1 <= number < len(texts) for number in found)
        texts_at(octets, offsets, np.arange(len(texts)))
    except (RuntimeError, UnicodeDecodeError):
        pass


def test_what_cannot_be_is_refused() -> None:
    data, offsets, slots = built(["a", "b"]).arrays()
    for numbers in ([2], [-1], [2**62]):
        with pytest.raises(RuntimeError, match="names no text"):
            texts_at(data, offsets, np.array(numbers))
    with pytest.raises(RuntimeError, match="need an entry"):
        texts_at(data, offsets[:0], np.array([0]))
    for size in (0, 3):
        with pytest.raises(RuntimeError, match="power of two"):
            find_texts(data, offsets, slots[:size], ["a"])
    full = np.zeros_like(slots)
    assert find_texts(data, offsets, full, ["b"]).tolist() == [-1]  # No empty slot: the search ends anyway.
    with pytest.raises(UnicodeEncodeError):
        built(["\ud800"])
    with pytest.raises(TypeError):
        built([7])  # type: ignore[list-item]
