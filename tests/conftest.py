"""Fixtures that any test may ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.leftovers import Leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    """Fail the test if a process, file descriptor or shared memory outlives it."""
    before = Leftovers.now()
    yield
    before.check()
