"""Fixtures that any test may ask for."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.leftovers import Leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_configure() -> None:
    """Let tests interrupt what they start, also where a shell in the background started pytest.

    Such a shell ignores SIGINT, and what is ignored stays ignored in every child.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    """Fail the test if a process, file descriptor or shared memory outlives it."""
    before = Leftovers.now()
    yield
    before.check()
