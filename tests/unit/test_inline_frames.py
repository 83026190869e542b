"""Small frames that come in the reply of a request: bounds, quotas, damage, failures."""

from __future__ import annotations

import gc
import struct
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from gigl_client.receiver import Receiver, Scratch
from gigl_loader.errors import FormatError, SamplingError
from gigl_loader.native import DataClient
from gigl_loader.rpc.graph_store_pb2 import SampleReply
from gigl_loader.rpc.reply_stream import MAX_INLINE_BYTES, ReplyBuffer, ReplyStream
from gigl_server.sampling.frame_maker import FrameMaker
from gigl_server.sampling.scheduler import Scheduler
from tests.support.leftovers import wait_until
from tests.support.raw_data import Liar, reply_bytes
from tests.support.remote_sources import SmallCluster, served
from tests.support.sources import NUM_BATCHES, SourceKind, drain
from tests.support.store_service import JOB, Trainer, service_of


@pytest.fixture(scope="module")
def one() -> Iterator[SmallCluster]:
    with pytest.MonkeyPatch.context() as patches, served(1, patches) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def wanted() -> list[bytes]:
    source = SourceKind(0).open()
    source.start_epoch(0)
    return drain(source)


# --- the server


def test_a_frame_comes_in_the_reply_if_it_is_as_small_as_was_asked_for(wanted: list[bytes]) -> None:
    with service_of() as service:
        trainer = Trainer(service)
        for batch, room in enumerate((len(wanted[0]), len(wanted[1]) - 1, 0)):
            trainer.ask(batch, inline_bytes=room)
            result = trainer.answers.next()[1]
            if room == len(wanted[0]):
                assert result.frame is not None
                assert (result.frame.tobytes(), result.handle) == (wanted[batch], b"")
            else:
                assert result.frame is None
                assert trainer.fetch(result) == wanted[batch]
        assert service.load().batches == 3


def test_a_server_sends_no_large_frame_in_a_reply_whatever_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, wanted: list[bytes]
) -> None:
    monkeypatch.setattr("gigl_server.sampling.service.MAX_INLINE_BYTES", 10)
    with service_of() as service:
        trainer = Trainer(service)
        trainer.ask(0, inline_bytes=2**63)
        assert trainer.fetch(trainer.answers.next()[1]) == wanted[0]


def test_frames_in_replies_that_nobody_reads_take_a_part_of_the_memory_only(wanted: list[bytes]) -> None:
    size = max(map(len, wanted))
    with service_of(frame_bytes=4 * 2 * size) as service:  # Two frames of one job may be on their way.
        trainer = Trainer(service)
        held = []
        for batch in range(4):
            trainer.ask(batch, inline_bytes=1 << 20)
            held.append(trainer.answers.next()[1])
        assert [each.frame is not None for each in held] == [True, True, False, False]
        assert service.frames.sent == 2
        del held[:2]
        gc.collect()
        assert service.frames.sent == 0
        assert [trainer.fetch(each) for each in held] == wanted[2:4]
        assert service.frames.held_bytes()[JOB] == 0


# --- both sides


@pytest.mark.parametrize("rows", ["through", "direct"])
def test_small_frames_are_not_fetched(
    one: SmallCluster, wanted: list[bytes], monkeypatch: pytest.MonkeyPatch, rows: str
) -> None:
    def fetch(*_: Any, **__: Any) -> None:
        raise AssertionError("a small frame was fetched")

    monkeypatch.setattr("gigl_client.receiver.fetch_frame", fetch)
    with closing(one.open(transport="flight", rows=rows)) as source:
        source.start_epoch(0)
        assert drain(source) == wanted
        assert source.stats()["wire_bytes_in"] > 0
    frames = one.service(0).frames
    assert len(frames) == 0
    assert wait_until(lambda: frames.sent == 0)  # When the calls have ended.


def test_a_frame_that_comes_damaged_in_a_reply_is_asked_for_again(
    one: SmallCluster, wanted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    finish, replies = DataClient.finish, []

    def once(client: DataClient) -> bool:
        replies.append(client)
        return finish(client) and len(replies) != 2

    monkeypatch.setattr(DataClient, "finish", once)
    with closing(one.open(transport="flight")) as source:
        source.start_epoch(0)
        assert drain(source) == wanted
        assert source.stats()["damaged"] == 1


def test_a_frame_of_another_size_than_was_said_is_asked_for_again_and_then_fails(
    one: SmallCluster, wanted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = Scheduler._result

    def shortened(scheduler: Scheduler, task: Any, made: Any) -> Any:
        result = finish(scheduler, task, made)
        if task.request.batch == 1 and result.frame is not None:
            object.__setattr__(result, "frame", result.frame[:-8])
        return result

    monkeypatch.setattr(Scheduler, "_result", shortened)
    with closing(one.open(transport="flight")) as source:
        source.start_epoch(0)
        assert drain(source, 1) == wanted[:1]
        with pytest.raises(FormatError, match=r"bytes in a reply, said to be a frame of \d+"):
            source.receive(20)
        assert drain(source, NUM_BATCHES - 2) == wanted[2:]
        assert source.stats()["damaged"] == 3


def test_a_failed_batch_comes_as_its_record(
    one: SmallCluster, wanted: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = FrameMaker._made

    def fail(maker: FrameMaker, task: Any) -> Any:
        if task.request.batch == 2:
            raise ValueError("as planned")
        return made(maker, task)

    monkeypatch.setattr(FrameMaker, "_made", fail)
    with closing(one.open(transport="flight")) as source:
        source.start_epoch(0)
        assert drain(source, 2) == wanted[:2]
        with pytest.raises(SamplingError, match="as planned"):
            source.receive(20)
        assert drain(source, NUM_BATCHES - 3) == wanted[3:]


# --- the trainer


@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", 0), (b"12345678", 9), (bytes(MAX_INLINE_BYTES + 1), MAX_INLINE_BYTES + 1)],
    ids=["empty", "of another size", "too large"],
)
def test_a_trainer_reads_no_other_bytes(data: bytes, said: int) -> None:
    channel = SimpleNamespace(ring=None, deferred_features=False)
    sent: Any = SimpleNamespace(
        channel="server 0",
        opened=channel,
        slot=None,
        give_slot=lambda: None,
        request=SimpleNamespace(batch=0),
    )
    nothing: Any = None
    receiver = Receiver(nothing, nothing, None, None, timeout_s=1)
    message = SampleReply(frame=True, nbytes=said).SerializeToString()
    payload = struct.pack("<I", len(message)) + message + data
    with Liar(reply_bytes(payload)) as liar:
        client = DataClient("127.0.0.1", liar.port)
        client.connect(20)
        _, nbytes, _ = client.call(b"", b"", 20)
        arrival = receiver.read(sent, ReplyStream(client, nbytes, ReplyBuffer()))
    with pytest.raises(FormatError, match=f"{len(data)} bytes in a reply, said to be a frame of {said}"):
        receiver.frame(sent, arrival, Scratch())
