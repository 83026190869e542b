"""Threads where the system gives none: ports and pools work with those that they have, or fail at birth."""

from __future__ import annotations

import queue
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gigl_loader.rpc.calls import AttemptThreads
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.endpoint import Address
from gigl_loader.threads import ThreadPool, start_thread
from gigl_server.counters import Counters
from gigl_server.logs import AuditLog
from gigl_server.partitions.adoption import Adopter
from gigl_server.ports.data import DataPort
from gigl_server.ports.queries import Queries
from gigl_server.sampling.worker_pool import WorkerPool
from tests.support.leftovers import wait_until
from tests.support.sources import small_graph
from tests.support.store_control import client_of, controlled, opened

SOON_S = 60.0


class Scarcity:
    """Lets no thread of some names be started while ``on``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.on = False
        self.names: tuple[str, ...] = ("",)
        """Beginnings of the names."""
        start = threading.Thread.start

        def scarce(thread: threading.Thread) -> None:
            if self.on and thread.name.startswith(self.names):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", scarce)


@pytest.fixture
def scarcity(monkeypatch: pytest.MonkeyPatch) -> Scarcity:
    return Scarcity(monkeypatch)


def named(name: str) -> int:
    return sum(each.name == name for each in threading.enumerate())


# --- pools


def test_a_thread_at_birth_names_the_limits(scarcity: Scarcity) -> None:
    scarcity.on = True
    told = r"night watch: no further process or thread can be started, .* raise it \(ulimit -u, .* group\)$"
    with pytest.raises(OSError, match=told):
        start_thread(threading.Thread(name="night watch"))
    with ThreadPool(2, "pool") as pool, pytest.raises(OSError, match="pool: no further"):
        pool.start_first()


def test_jobs_of_a_pool_without_threads_run_at_once_and_once(scarcity: Scarcity) -> None:
    ran: list[int] = []
    with ThreadPool(2) as pool:
        scarcity.on = True
        assert [pool.submit(ran.append, number).result(SOON_S) for number in range(3)] == [None] * 3
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result(SOON_S)
        assert ran == [0, 1, 2]
        scarcity.on = False
        assert pool.submit(threading.current_thread).result(SOON_S) is not threading.current_thread()
        assert ran == [0, 1, 2]


def test_jobs_of_a_pool_that_gets_no_further_thread_wait_for_the_one_it_has(scarcity: Scarcity) -> None:
    gate, ran = threading.Event(), queue.SimpleQueue[int]()
    with ThreadPool(4) as pool:
        first = pool.submit(gate.wait, SOON_S)
        scarcity.on = True
        later = [pool.submit(ran.put, number) for number in range(3)]
        assert ran.empty()
        gate.set()
        assert first.result(SOON_S)
        for each in later:
            each.result(SOON_S)
        assert [ran.get_nowait() for _ in range(3)] == [0, 1, 2]
        assert ran.empty()


def test_threads_of_a_burst_end_while_others_work() -> None:
    """The thread that was busy last has the next job: a trickle of jobs keeps one thread."""
    threads, gate = AttemptThreads("burst of jobs", idle_s=0.2), threading.Event()

    def wait_for_gate() -> None:
        assert gate.wait(SOON_S)

    try:
        for _ in range(40):
            threads.run(wait_for_gate)
        assert named("burst of jobs") == 40
        gate.set()

        def is_small() -> bool:
            done = threading.Event()
            threads.run(done.set)
            assert done.wait(SOON_S)
            return named("burst of jobs") <= 2

        assert wait_until(is_small, seconds=SOON_S)
    finally:
        threads.close()
    assert wait_until(lambda: not named("burst of jobs"), seconds=SOON_S)
    with pytest.raises(RuntimeError, match="were closed"):
        threads.run(threading.Event().set)


def test_no_job_is_lost_to_a_thread_that_is_about_to_end() -> None:
    threads, ran = AttemptThreads("hurried jobs", idle_s=0.0005), threading.Semaphore(0)
    try:
        for number in range(300):
            threads.run(lambda: ran.release())  # noqa: PLW0108
            threading.Event().wait(0.0002 * (number % 7))
        for _ in range(300):
            assert ran.acquire(timeout=SOON_S)
    finally:
        threads.close()


# --- the data port


@pytest.mark.parametrize("name", ["data port", "data connections", "data callers"])
def test_a_data_port_without_a_thread_is_not_open(scarcity: Scarcity, name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = Address("127.0.0.1", free.getsockname()[1])
    queries = Queries(small_graph(), [0], Counters())
    scarcity.on, scarcity.names = True, (name,)
    with pytest.raises(OSError, match=f"{name}: no further"):
        DataPort(address, queries, Counters(), Credentials(token=""), audit=AuditLog())
    with pytest.raises(ConnectionRefusedError), socket.create_connection((address.host, address.port), 5):
        pass
    queries.close()


# --- other parts


def test_a_control_port_that_gets_no_further_thread_answers(scarcity: Scarcity) -> None:
    with controlled() as served, client_of(served.endpoint) as client:
        scarcity.on, scarcity.names = True, ("control", "public", "late")
        channel = opened(client)
        with ThreadPoolExecutor(8) as callers:
            found = list(callers.map(lambda _: client.heartbeat([channel], SOON_S), range(30)))
        assert found == [[channel]] * 30


def test_an_adoption_without_a_thread_can_be_begun_again(scarcity: Scarcity) -> None:
    holdings: Any = type("Holdings", (), {"graph": small_graph(), "withdrawn": frozenset()})()

    def find(_: int | None) -> Any:
        raise ValueError("nobody has it")

    adopter = Adopter(holdings, find, Counters())
    adopter._is_held = lambda partition: False  # type: ignore[method-assign]
    scarcity.on = True
    with pytest.raises(OSError, match="adopt 0: no further"):
        adopter.adopt(0)
    assert (adopter.state(0).step, adopter.state(0).error) == ("failed", "it was not begun")
    scarcity.on = False
    adopter.adopt(0)
    assert wait_until(lambda: adopter.state(0).error not in ("", "it was not begun"), seconds=SOON_S)
    adopter.close(SOON_S)


def test_a_pool_of_samplers_that_gets_too_few_threads_ends_those_it_has(scarcity: Scarcity) -> None:
    pool, gate = WorkerPool(lambda task, number: None), threading.Event()

    def wait_for_task() -> None:
        assert gate.wait(SOON_S)

    scarcity.on, scarcity.names = True, ("sampler 2",)
    with pytest.raises(OSError, match="sampler 2: no further"):
        pool.start(4, wait_for_task)
    assert len(pool) == 2
    gate.set()
    assert pool.join(SOON_S)
