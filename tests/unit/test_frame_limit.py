from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_loader.workers.frame_limit import FrameLimit

MB = 1 << 20


@given(
    nbytes=st.integers(1, 1 << 40),
    frame=st.integers(1, 1 << 33),
    workers=st.integers(1, 64),
    most=st.integers(3, 140),
)
def test_all_frames_fit_in_the_memory_unless_two_do_not(
    nbytes: int, frame: int, workers: int, most: int
) -> None:
    limit = FrameLimit(nbytes, workers=workers, most=most, is_given=False)
    limit.note(frame)
    each = [limit.of(worker) for worker in range(workers)]
    assert sum(each) * frame <= nbytes or sum(each) == 2
    assert all(of in (0, each[0]) for of in each)
    assert each[0] in range(2, most + 1)
    if nbytes >= workers * most * frame:
        assert each == [most] * workers


def test_the_largest_frame_counts() -> None:
    limit = FrameLimit(1000 * MB, workers=2, most=12, is_given=False)
    limit.note(10 * MB)
    assert [limit.of(0), limit.of(1)] == [12, 12]
    limit.note(100 * MB)
    limit.note(MB)
    assert [limit.of(0), limit.of(1)] == [5, 5]


def test_few_frames_are_sampled_before_their_size_is_known() -> None:
    limit = FrameLimit(1024 * MB, workers=8, most=6, is_given=False)
    assert [limit.of(worker) for worker in range(8)] == [2, 2, 0, 0, 0, 0, 0, 0]
    limit.note(MB)
    assert [limit.of(worker) for worker in range(8)] == [6] * 8


def test_memory_that_limits_a_loader_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    limit = FrameLimit(1000 * MB, workers=8, most=6, is_given=True)
    limit.note(31 * MB)  # Four of each worker.
    assert not caplog.records
    limit.note(120 * MB)
    limit.note(130 * MB)
    (record,) = caplog.records
    said = record.getMessage()
    assert (
        "1049 MB hold few batches of 126 MB (channel_size): 4 of 8 workers are used, with 2 batches" in said
    )
    assert "channel_size='4027MB' is enough for all" in said
    enough = FrameLimit(4027 * MB, workers=8, most=6, is_given=True)
    enough.note(120 * MB)
    assert len(caplog.records) == 1
