"""Fixtures that any test may ask for."""

from __future__ import annotations

import gc
import os
import signal
import sys
import zlib
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.support.cuda import CudaDevices
from tests.support.leftovers import Leftovers
from tests.support.pairs import SEED_VARIABLE, commit, mark_all_but_pairs, mark_all_but_some

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_configure() -> None:
    """Let tests interrupt what they start, also where a shell in the background started pytest.

    Such a shell ignores SIGINT, and what is ignored stays ignored in every child.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Tests pass on a busy machine: neither an example nor the making of examples has a time limit.
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")
    # Processes that run tests inherit the environment, and so choose the same cases.
    os.environ.setdefault(SEED_VARIABLE, commit())


def pytest_report_header() -> str:
    return f"pairs: {SEED_VARIABLE}={os.environ[SEED_VARIABLE]} repeats the choice of cases from matrices"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slice",
        metavar="K/N",
        help="one of N slices of the tests, K from 0 to N - 1: each test function is in one of them",
    )


@pytest.hookimpl(tryfirst=True)  # Before ``-m`` reads the markers.
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark as slow what ``pairs`` and ``some`` leave out. Leave out slices that ``--slice`` does not name."""
    if providers := sys.modules.get("hypothesis.internal.conjecture.providers"):
        # Hypothesis would search all modules of this project for constants: 5 s of CPU in each test process.
        providers.is_local_module_file = lambda _: False  # type: ignore[attr-defined]
    mark_all_but_pairs(items, os.environ[SEED_VARIABLE])
    mark_all_but_some(items, os.environ[SEED_VARIABLE])
    if given := config.getoption("--slice"):
        wanted, slices = map(int, given.split("/"))
        others = [each for each in items if zlib.crc32(_function(each)) % slices != wanted]
        config.hook.pytest_deselected(items=others)
        items[:] = [each for each in items if zlib.crc32(_function(each)) % slices == wanted]


_MANY_MODULES = 50
_FROZEN_MODULES = pytest.StashKey[int]()
"""How many there were when they were last frozen."""
_CUDA = pytest.StashKey[CudaDevices]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Keep imports out of garbage collections: 0.5 s of CPU each, and a test of leftovers has two.

    Tests that measure CPU time rely on it as well.
    """
    session.config.stash[_CUDA] = CudaDevices(session.items)
    _freeze_imports(session.config)


@pytest.hookimpl(tryfirst=True)  # Before fixtures of the test make anything.
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Hide CUDA devices from tests that need none. Freeze imports after a test that imported much."""
    item.config.stash[_CUDA].prepare(item)
    if len(sys.modules) > item.config.stash[_FROZEN_MODULES] + _MANY_MODULES:
        _freeze_imports(item.config)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Let the interpreter free all at its end: else nanobind reports leaks."""
    if cuda := config.stash.get(_CUDA, None):
        cuda.restore()
    gc.unfreeze()


def _freeze_imports(config: pytest.Config) -> None:
    gc.collect()
    gc.freeze()
    config.stash[_FROZEN_MODULES] = len(sys.modules)


def _function(item: pytest.Item) -> bytes:
    return item.nodeid.partition("[")[0].encode()


@pytest.fixture
def no_leftovers() -> Iterator[None]:
    """Fail the test if a process, file descriptor or shared memory outlives it."""
    if sources := sys.modules.get("tests.support.sources"):
        sources.small_graph()  # Once, for all tests, whichever of them is the first.
    before = Leftovers.now()
    yield
    before.check()
