from __future__ import annotations

import numpy as np
import torch

from gigl_loader.loaders.transfer import ReusedMemory


def test_memory_comes_again_when_the_last_tensor_made_from_it_dies() -> None:
    memory = ReusedMemory()
    tensor = torch.from_numpy(memory.lend(1 << 20).view(np.int64).reshape(2, -1))
    place, row = tensor.data_ptr(), tensor[1]
    del tensor
    other = memory.lend(1 << 20)
    assert other.ctypes.data != place
    del row
    assert memory.lend(1000).ctypes.data == place


def test_who_keeps_all_gets_more() -> None:
    memory = ReusedMemory()
    kept = [memory.lend(4096) for _ in range(20)]
    for number, array in enumerate(kept):
        array[:] = number
    assert all((array == number).all() for number, array in enumerate(kept))


def test_larger_memory_leaves_what_was_lent_alone() -> None:
    memory = ReusedMemory()
    small = memory.lend(100)
    small[:] = 7
    large = memory.lend(10 << 20)
    large[:] = 1
    assert (small == 7).all()
    assert len(large) == 10 << 20
    assert large.ctypes.data % 8 == 0


def test_nothing_may_be_asked_for() -> None:
    assert len(ReusedMemory().lend(0)) == 0
