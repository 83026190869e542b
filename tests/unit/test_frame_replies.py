"""Frames that come in the reply of a request: bounds, damage, failures."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from gigl_client.receiver import Receiver
from gigl_loader.errors import FormatError, SamplingError
from gigl_loader.native import DataClient
from gigl_loader.rpc.graph_store_pb2 import SampleReply
from gigl_loader.rpc.reply_stream import ReplyBuffer, ReplyStream
from gigl_server.sampling.frame_maker import FrameMaker
from gigl_server.sampling.scheduler import Scheduler
from tests.support.leftovers import wait_until
from tests.support.raw_data import Liar, reply_bytes
from tests.support.remote_sources import SmallCluster, served
from tests.support.sources import NUM_BATCHES, SourceKind, drain


@pytest.fixture(scope="module")
def one() -> Iterator[SmallCluster]:
    with pytest.MonkeyPatch.context() as patches, served(1, patches) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def wanted() -> list[bytes]:
    source = SourceKind(0).open()
    source.start_epoch(0)
    return drain(source)


# --- both sides


@pytest.mark.parametrize("rows", ["through", "direct"])
def test_frames_come_with_the_reply(one: SmallCluster, wanted: list[bytes], rows: str) -> None:
    with closing(one.open(transport="flight", rows=rows)) as source:
        source.start_epoch(0)
        assert drain(source) == wanted
        assert source.stats()["wire_bytes_in"] > 0
    frames = one.service(0).frames
    assert wait_until(lambda: len(frames) == 0)  # When the calls have ended.


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
    [(b"", 0), (b"12345678", 9), (bytes(65), 65)],
    ids=["empty", "of another size", "too large"],
)
def test_a_trainer_reads_no_other_bytes(data: bytes, said: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gigl_client.receiver.MAX_REPLY_BYTES", 64)
    channel = SimpleNamespace(ring=None, deferred_features=False)
    sent: Any = SimpleNamespace(
        channel="server 0",
        opened=channel,
        slot=None,
        give_slot=lambda: None,
        request=SimpleNamespace(batch=0),
    )
    nothing: Any = None
    receiver = Receiver(nothing, nothing, None, None)
    message = SampleReply(frame=True, nbytes=said).SerializeToString()
    payload = struct.pack("<I", len(message)) + message + data
    with Liar(reply_bytes(payload)) as liar:
        client = DataClient("127.0.0.1", liar.port)
        client.connect(20)
        _, nbytes, _ = client.call(b"", b"", 20)
        arrival = receiver.read(sent, ReplyStream(client, nbytes, ReplyBuffer()))
    with pytest.raises(FormatError, match=f"{len(data)} bytes in a reply, said to be a frame of {said}"):
        receiver.frame(sent, arrival)
