"""What is particular to sampling inline. What all sources promise is in contract/."""

from __future__ import annotations

import os

import numpy as np
import pytest

from gigl_loader.errors import SamplingError
from tests.support.faults import FaultPlan, Mishap
from tests.support.sources import NUM_BATCHES, SourceKind, bytes_of, drain, small_graph

pytestmark = pytest.mark.usefixtures("graph", "no_leftovers")

INLINE = SourceKind(0)


@pytest.fixture(scope="module")
def graph() -> None:
    """Open the graph, which is kept, before any test begins."""
    small_graph()


def test_memory_is_used_again_once_it_is_free() -> None:
    source = INLINE.open()
    source.start_epoch(0)
    addresses = {source.receive(1).buffer.ctypes.data for _ in range(NUM_BATCHES)}
    assert len(addresses) == 1
    frame = source.receive
    source.start_epoch(1)
    before = frame(1)
    addresses = set()
    for _ in range(NUM_BATCHES - 1):
        now = frame(1)
        addresses.add(now.buffer.ctypes.data)
        before = now
    assert len(addresses) == 2
    assert before.batch == NUM_BATCHES - 1
    assert source.stats()["oversize"] == 0


def test_what_is_kept_beyond_the_slots_lies_in_fresh_memory() -> None:
    source = INLINE.open()
    source.start_epoch(0)
    frames = [source.receive(1) for _ in range(NUM_BATCHES)]
    assert len({frame.buffer.ctypes.data for frame in frames}) == NUM_BATCHES
    assert source.stats()["oversize"] == NUM_BATCHES - 8
    source.start_epoch(0)
    assert [bytes_of(frame) for frame in frames] == drain(source)


def test_the_sampler_s_own_exception_is_the_cause() -> None:
    source = INLINE.open(FaultPlan(what="raise", at_batch=0))
    source.start_epoch(0)
    with pytest.raises(SamplingError, match=r"^epoch 0, batch 0: Mishap: as planned$") as caught:
        source.receive(1)
    assert isinstance(caught.value.__cause__, Mishap)


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_child_goes_on_by_itself() -> None:
    source = INLINE.open()
    source.start_epoch(0)
    kept = source.receive(1).array("node/node/x")
    before = kept.copy()
    child = os.fork()
    if child == 0:
        kept[:] = 0
        os._exit(source.receive(1).batch)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert np.array_equal(kept, before)
    assert source.receive(1).batch == 1
