"""Frames over the data port: fetched once, by their job, into memory of the caller's."""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc.connection import Connection
from gigl_loader.rpc.credentials import Caller, Credentials
from gigl_loader.rpc.endpoint import Address, Endpoint
from gigl_loader.rpc.graph_requests import encode_frame_request
from gigl_loader.rpc.refusals import Damaged, Gone
from gigl_loader.rpc.reply_stream import fetch_frame
from gigl_loader.rpc.tokens import job_key, new_job
from gigl_server.counters import Counters
from gigl_server.frames.store import FrameStore
from gigl_server.logs import AuditLog
from gigl_server.ports.data import DataPort
from gigl_server.ports.queries import Queries
from tests.support.leftovers import wait_until
from tests.support.proxy import Proxy
from tests.support.raw_data import RawCaller, header_of
from tests.support.sources import small_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.arrays import Bytes


NBYTES = (5 << 20) + 77
JOB, THIEF = new_job(), new_job()


class Shelf(FrameStore):
    """Notes who comes."""

    def __init__(self, nbytes: int = 1 << 30) -> None:
        super().__init__(nbytes)
        self.taken: list[bytes] = []
        self.lent: list[weakref.ref[Bytes]] = []

    def lay(self, frame: Bytes, job: str = JOB) -> bytes:
        key = job_key([job], "")
        assert key is not None
        self.lent.append(weakref.ref(frame))
        return self.put(frame, job=key, channel=bytes(16), fence=0)

    def take(self, handle: bytes, job: bytes) -> Bytes | None:
        self.taken.append(handle)
        return super().take(handle, job)


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    return Shelf()


@contextmanager
def serving(shelf: Shelf | None) -> Iterator[DataPort]:
    counters = Counters()
    answers = Queries(small_graph(), [0], counters)
    service = DataPort(
        Address("127.0.0.1", 0), answers, counters, Credentials(token=""), audit=AuditLog(), frames=shelf
    )
    yield service
    service.close()


@pytest.fixture(scope="module")
def service(shelf: Shelf) -> Iterator[DataPort]:
    with serving(shelf) as found:
        yield found


@contextmanager
def connected(port: int, *, job: str = JOB, timeout_s: float = 10) -> Iterator[Connection]:
    endpoint = Endpoint(host_index=0, host="127.0.0.1", control_port=1, data_port=port, partitions=())
    connection = Connection(endpoint, Caller(), timeout_s=timeout_s, job=job)
    try:
        yield connection
    finally:
        connection.close()


def frame(seed: int, nbytes: int = NBYTES) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def refusal(port: int, ticket: bytes, *jobs: str) -> str:
    """Ask without any of our client's code. Return the kind of the refusal."""
    with RawCaller(f"127.0.0.1:{port}") as caller:
        return caller.kind(ticket, header_of("", *(("gigl-job", job) for job in jobs)))


@pytest.mark.parametrize("nbytes", [1, 2 << 20, (2 << 20) + 1, NBYTES])
def test_a_frame_arrives_as_it_is(service: DataPort, shelf: Shelf, nbytes: int) -> None:
    sent, out = frame(nbytes, nbytes), np.zeros(NBYTES + 1, np.uint8)
    with connected(service.port) as connection:
        fetch_frame(connection, shelf.lay(sent), nbytes, out)
        counts = connection.counts()
    assert (out[:nbytes] == sent).all()
    assert not out[nbytes:].any()
    assert (counts.calls, counts.bytes_in, counts.retries) == (1, nbytes, 0)


def test_a_frame_is_fetched_once_and_by_its_job(service: DataPort, shelf: Shelf) -> None:
    handle, out = shelf.lay(frame(1)), np.zeros(NBYTES, np.uint8)
    with connected(service.port) as own, connected(service.port, job=THIEF) as thief:
        for _ in range(2):
            with pytest.raises(Gone, match="no such frame: it was fetched before, dropped, or is another"):
                fetch_frame(thief, handle, NBYTES, out)
        fetch_frame(own, handle, NBYTES, out)
        for connection in (own, thief):
            with pytest.raises(Gone):
                fetch_frame(connection, handle, NBYTES, out)
    assert (out == frame(1)).all()


def test_the_secret_of_a_job_is_asked_for(service: DataPort, shelf: Shelf) -> None:
    handle, taken = shelf.lay(frame(2)), len(shelf.taken)
    ask = encode_frame_request(handle)
    for jobs in ([], [""], [JOB[:-1]], [JOB.upper()], [JOB, JOB], [JOB, THIEF]):
        assert refusal(service.port, ask, *jobs) == "invalid"
    assert len(shelf.taken) == taken
    out = np.zeros(NBYTES, np.uint8)
    with connected(service.port) as connection:
        fetch_frame(connection, handle, NBYTES, out)


def test_asks_that_break_a_rule_are_refused(service: DataPort, shelf: Shelf) -> None:
    taken = len(shelf.taken)
    ask = encode_frame_request(bytes(16))
    broken = [ask[:-1], ask + b"\0", ask[:9], encode_frame_request(b""), encode_frame_request(bytes(15))]
    broken += [ask.replace(b'"wire":"4"', b'"wire":"2"'), ask.replace(b'"handle"', b'"hondle"')]
    broken += [ask.replace(b'"0000', b'"000x'), ask.replace(b'"frame"', b'"fr\xc3me"')]
    broken += [encode_frame_request(bytes(500)), np.random.default_rng(0).bytes(200)]
    assert [refusal(service.port, ticket, JOB) for ticket in broken] == ["malformed"] * len(broken)
    assert len(shelf.taken) == taken


def test_a_service_without_frames_has_none() -> None:
    with serving(None) as service:
        assert refusal(service.port, encode_frame_request(bytes(16)), JOB) == "gone"


def test_a_frame_of_another_size_is_not_believed(service: DataPort, shelf: Shelf) -> None:
    out = np.zeros(NBYTES, np.uint8)
    with connected(service.port) as connection:
        for said in (NBYTES - 1, 1):
            with pytest.raises(Damaged, match=f"of a frame that was said to have {said}$"):
                fetch_frame(connection, shelf.lay(frame(3)), said, out)
        with pytest.raises(Damaged, match=f"100 bytes .* said to have {NBYTES}$"):
            fetch_frame(connection, shelf.lay(frame(3, 100)), NBYTES, out)
        with pytest.raises(ValueError, match="does not fit in 10"):
            fetch_frame(connection, bytes(16), 11, out[:10])


def test_memory_comes_back_when_a_frame_was_sent_or_cannot_be(service: DataPort, shelf: Shelf) -> None:
    handles = [shelf.lay(frame(4)) for _ in range(3)]
    out = np.zeros(NBYTES, np.uint8)
    with connected(service.port) as connection:
        fetch_frame(connection, handles[0], NBYTES, out)
    for handle in handles[1:]:
        with RawCaller(f"127.0.0.1:{service.port}") as caller:
            assert caller.begin(encode_frame_request(handle), header_of("", ("gigl-job", JOB))) == NBYTES
    assert wait_until(lambda: not any(memory() is not None for memory in shelf.lent[-3:]))
    assert wait_until(lambda: shelf.sent == 0)


def test_any_number_of_threads_share_a_connection(service: DataPort, shelf: Shelf) -> None:
    handles = [shelf.lay(frame(seed, 3 << 20)) for seed in range(12)]

    def fetched(seed: int) -> bool:
        out = np.zeros(3 << 20, np.uint8)
        fetch_frame(connection, handles[seed], len(out), out)
        return bool((out == frame(seed, 3 << 20)).all())

    with connected(service.port) as connection, ThreadPoolExecutor(6) as threads:
        assert all(threads.map(fetched, range(12)))


def test_who_asks_and_does_not_read_is_bounded(service: DataPort, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf(512 << 20)  # One job's part while they are sent: 128 MiB.
    monkeypatch.setattr(service, "_frames", shelf)
    large = np.zeros(64 << 20, np.uint8)  # More than the connection takes before it is read.
    readers = [RawCaller(f"127.0.0.1:{service.port}") for _ in range(2)]
    for reader in readers:
        reader.begin(encode_frame_request(shelf.lay(large)), header_of("", ("gigl-job", JOB)))
    last = shelf.lay(frame(5))
    assert refusal(service.port, encode_frame_request(last), JOB) == "busy"
    others = shelf.lay(frame(6), THIEF)
    out, landed = np.zeros(NBYTES, np.uint8), np.zeros(NBYTES, np.uint8)
    with connected(service.port, job=THIEF) as thief, connected(service.port) as own:
        fetch_frame(thief, others, NBYTES, out)  # Another job is served meanwhile.
        waiting = threading.Thread(target=fetch_frame, args=(own, last, NBYTES, landed))
        waiting.start()
        assert wait_until(lambda: own.counts().retries > 0)
        for reader in readers:
            reader.close()
        waiting.join(10)
    assert (landed == frame(5)).all()


def test_a_server_that_is_not_there(service: DataPort, shelf: Shelf) -> None:
    out = np.zeros(NBYTES, np.uint8)
    with (
        connected(1) as connection,
        pytest.raises(
            StorageUnavailable, match=r"^host 0 at 127\.0\.0\.1:1 did not answer within \d+\.\d s: "
        ),
    ):
        fetch_frame(connection, bytes(16), NBYTES, out, timeout_s=0.2)
    assert connection.counts().calls == 1  # A handle is good once: its batch is asked for again.


def test_a_frame_whose_connection_broke_is_not_waited_for(service: DataPort, shelf: Shelf) -> None:
    handle, out = shelf.lay(frame(7)), np.zeros(NBYTES, np.uint8)
    with (
        Proxy(("127.0.0.1", service.port)) as proxy,
        connected(proxy.address[1]) as connection,
        ThreadPoolExecutor(1) as threads,
    ):
        proxy.bytes_per_second = 20_000_000
        fetch = threads.submit(fetch_frame, connection, handle, NBYTES, out)
        assert wait_until(lambda: proxy.bytes_down > NBYTES // 2)
        proxy.cut()
        proxy.resume()
        with pytest.raises(StorageUnavailable):
            fetch.result(10)
    assert connection.counts().calls == 1


def test_keys_of_jobs() -> None:
    keys = {job_key([job], token) for job in (JOB, THIEF) for token in ("", "team")}
    assert len(keys) == 4
    assert {len(key or b"") for key in keys} == {32}
    assert job_key([JOB.encode()], "team") == job_key([JOB], "team")
    for wrong in ([], [JOB, JOB], [JOB[1:]], [JOB + "0"], [JOB.upper()], [b"\xff" * 64], [JOB[:-1] + "\n"]):
        assert job_key(wrong, "") is None
