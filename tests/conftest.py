"""Fixtures that any test may ask for."""

from __future__ import annotations

import signal
import zlib
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


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slice",
        metavar="K/N",
        help="one of N slices of the tests, K from 0 to N - 1: each test function is in one of them",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is in other slices than that of ``--slice``."""
    if given := config.getoption("--slice"):
        wanted, slices = map(int, given.split("/"))
        others = [each for each in items if zlib.crc32(_function(each)) % slices != wanted]
        config.hook.pytest_deselected(items=others)
        items[:] = [each for each in items if zlib.crc32(_function(each)) % slices == wanted]


def _function(item: pytest.Item) -> bytes:
    return item.nodeid.partition("[")[0].encode()


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    """Fail the test if a process, file descriptor or shared memory outlives it."""
    before = Leftovers.now()
    yield
    before.check()
