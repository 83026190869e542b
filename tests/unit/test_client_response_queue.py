"""Queue of responses of a remote source."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from gigl_client.receiver import ResponseQueue

PLACES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)))


@given(PLACES)
def test_items_come_by_fence_and_batch_and_equal_ones_as_they_were_put(places: list[tuple[int, int]]) -> None:
    responses: ResponseQueue[int] = ResponseQueue()
    for number, (fence, batch) in enumerate(places):
        responses.put(number, fence=fence, batch=batch)
    found = [responses.get() for _ in places]
    assert found == sorted(range(len(places)), key=lambda number: places[number])


def test_every_thread_is_ended_once_and_items_before_the_end_are_handed_out() -> None:
    responses: ResponseQueue[int] = ResponseQueue()
    found: list[int] = []

    def work() -> None:
        while (item := responses.get()) is not None:
            found.append(item)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(100):
        responses.put(number, fence=1, batch=number % 7)
    for _ in threads:
        responses.end()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(found) == list(range(100))
