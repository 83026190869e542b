"""Bombs of every kind of plan against a server with several tokens.

An honest trainer beside eight hostile callers keeps its share, and no thread works for callers that are gone.
"""

from __future__ import annotations

import importlib
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest

from gigl_client import RemoteDistDataset
from gigl_loader import CustomSamplerOptions, DistNeighborLoader
from gigl_loader.errors import SamplingError
from gigl_loader.native.draws import DRAW_SPECIFICATION
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.tokens import JOB_HEADER, new_job
from gigl_server.config import ServeOptions
from gigl_server.server import build_storage_server
from tests.support.clusters import addresses_of, servers_of
from tests.support.leftovers import wait_until
from tests.support.plans import neighbor_plan
from tests.support.raw_data import RawSample, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from gigl_loader.sampling.plan import BatchPlan
    from gigl_server.server import StorageServer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
pytestmark = [
    pytest.mark.skipif(not BENCHMARKS.exists(), reason="the tests were copied without the benchmarks"),
    pytest.mark.slow,
]

KINDS = (
    "biased_walks",
    "plain_walks",
    "ppr",
    "induced",
    "labor",
    "weighted",
    "replaced",
    "strict_negatives",
    "ablp",
    "custom",
)
HOSTILE, NODES, EDGES = 8, 2_000, 200_000
SHARE = 0.7
SOON_S = 60.0
TOKENS = [f"token-{number}-for-tests-never-a-secret" for number in range(1 + HOSTILE)]
MODEST = neighbor_plan(
    seed_type="node",
    num_neighbors={("node", "to", "node"): (10, 10)},
    run_seed=1,
    node_columns={"node": ("x",)},
    edge_columns={},
)


class Caller:
    """One caller with a token of its own, which keeps some requests open."""

    def __init__(self, server: StorageServer, token: str) -> None:
        self._channel = grpc.insecure_channel(
            f"127.0.0.1:{server.endpoint.control_port}",
            [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)],
        )
        self._headers = [("authorization", f"Bearer {token}"), (JOB_HEADER, new_job())]
        self._data = f"127.0.0.1:{server.endpoint.data_port}"
        self._ended = threading.Event()
        self._calls: set[Any] = set()
        self.batches = 0
        self.errors: list[str] = []

    def open(self, plan: BatchPlan, graph: str, name: str) -> bytes:
        """Make a producer with a channel, and return the channel's id."""
        create = messages.CreateProducerRequest(
            key=name, plan=plan.to_json(), graph=graph, draw_specification=DRAW_SPECIFICATION
        )
        self._call("CreateProducer", create).result()
        wanted = messages.OpenChannelRequest(key=name, name=name, credit=64, share=1)
        return bytes(messages.Channel.FromString(self._call("OpenChannel", wanted).result()).id)

    def keep_asking(self, channel: bytes, index: bytes, inputs: bytes, *, requests: int) -> None:
        """Keep so many requests for the same batch open, until ``leave``. Frames do not stay."""
        message = messages.SampleRequest(channel=channel, epoch=0, batch=0, index=index, inputs=inputs)

        def keep() -> None:
            with suppress(ConnectionError, OSError, ValueError):  # The caller has left.
                while not self._ended.is_set():
                    call = self._sample(message)
                    if self._ended.is_set():  # ``leave`` may not have seen this call.
                        call.cancel()
                    try:
                        call.result(600.0)
                    except Refused as refused:
                        self.errors.append(str(refused))
                    else:
                        self.batches += 1
                    self._calls.discard(call)

        for _ in range(requests):
            threading.Thread(target=keep, daemon=True).start()

    def ask_once(self, channel: bytes, index: bytes, inputs: bytes) -> RawSample:
        """Ask for a batch, and return the call."""
        return self._sample(
            messages.SampleRequest(channel=channel, epoch=0, batch=0, index=index, inputs=inputs)
        )

    def _sample(self, message: messages.SampleRequest) -> RawSample:
        text = "".join(f"{name}: {value}\n" for name, value in self._headers)
        call = RawSample(self._data, message.SerializeToString(), text.encode())
        self._calls.add(call)
        return call

    def leave(self) -> None:
        """Cancel what is asked for."""
        self._ended.set()
        for call in list(self._calls):
            call.cancel()

    def close(self) -> None:
        self.leave()
        self._channel.close()

    def _call(self, method: str, message: Any, timeout_s: float = 600.0) -> Any:
        stub = self._channel.unary_unary(f"/gigl.v1.GraphStore/{method}")
        return stub.future(message.SerializeToString(), metadata=self._headers, timeout=timeout_s)


@pytest.fixture(scope="module")
def bombs() -> Iterator[ModuleType]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield importlib.import_module("hostile_bombs")
    finally:
        sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def bombed(bombs: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bombed") / "graph"
    bombs.build_bombed(folder, nodes=NODES, edges=EDGES)
    return folder


@contextmanager
def serving(graph: Path, folder: Path, bombs: ModuleType) -> Iterator[StorageServer]:
    """Serve with two threads, and a token for each caller."""
    path = folder / "tokens"
    path.write_text("".join(f"caller-{number} {token}\n" for number, token in enumerate(TOKENS)))
    path.chmod(0o600)
    options = ServeOptions(
        graph_dir=str(graph),
        listen="127.0.0.1:0",
        workers=2,
        token_file=str(path),
        memory=2 << 30,
        allow_samplers=(bombs.ENDLESS,),
    )
    with build_storage_server(options) as server:
        server.wait_ready(SOON_S)
        yield server


def seconds_by_channel(server: StorageServer) -> dict[str, float]:
    """Return the seconds of sampling threads by the names of channels."""
    return {each.name: each.sampling_s for each in server.parts.service.load().channels}


@pytest.mark.parametrize("kind", KINDS)
def test_eight_bombs_leave_an_honest_trainer_its_share_and_end_with_their_callers(
    bombs: ModuleType, bombed: Path, tmp_path: Path, kind: str
) -> None:
    bomb = bombs.BOMBS[kind]
    with serving(bombed, tmp_path, bombs) as server, ExitStack() as stack:
        honest, *hostile = [Caller(server, token) for token in TOKENS]
        for each in (honest, *hostile):
            stack.callback(each.close)
        for number, each in enumerate(hostile):
            channel = each.open(bomb.plan, server.parts.digest, f"hostile {number}")
            each.keep_asking(channel, *bomb.request(number, NODES), requests=4)
        service = server.parts.service
        assert wait_until(lambda: service.load().busy > 0, seconds=SOON_S)  # Large ones go one by one.
        channel = honest.open(MODEST, server.parts.digest, "honest")
        seeds = np.arange(256, dtype="<i8").tobytes()
        before = seconds_by_channel(server)
        honest.keep_asking(channel, seeds, seeds, requests=12)
        assert wait_until(lambda: honest.batches >= 300, seconds=SOON_S)

        def has_its_share() -> bool:
            """It may have less over a few batches of the others, and while its threads cannot ask."""
            spent = seconds_by_channel(server)
            theirs = [spent[f"hostile {number}"] - before[f"hostile {number}"] for number in range(HOSTILE)]
            return spent["honest"] >= SHARE * sum(theirs) / HOSTILE

        assert wait_until(has_its_share, seconds=SOON_S)
        assert not honest.errors
        for each in (honest, *hostile):
            each.leave()
        assert wait_until(lambda: not service.load().busy, seconds=SOON_S)
        assert wait_until(lambda: service.drain(1.0), seconds=SOON_S)  # None was set aside, either.


@pytest.mark.parametrize("way", ["cancelled", "disconnected"])
def test_a_batch_ends_with_its_call(bombs: ModuleType, bombed: Path, tmp_path: Path, way: str) -> None:
    """The channel stays open meanwhile, so that nothing else ends the batch."""
    bomb = bombs.BOMBS["custom"]
    with serving(bombed, tmp_path, bombs) as server, ExitStack() as stack:
        caller = Caller(server, TOKENS[1])
        stack.callback(caller.close)
        channel = caller.open(bomb.plan, server.parts.digest, "endless")
        service = server.parts.service
        index, inputs = bomb.request(0, NODES)
        call = caller.ask_once(channel, index, inputs)
        assert wait_until(lambda: service.load().busy == 1 or call.done(), seconds=SOON_S)
        if way == "cancelled":
            call.cancel()
        elif way == "disconnected":
            caller.close()
        assert wait_until(lambda: service.load().busy == 0, seconds=SOON_S)
        assert len(service.load().channels) == 1


def test_a_batch_that_takes_too_long_is_final_for_its_trainer(bombs: ModuleType, bombed: Path) -> None:
    """Another holder of the graph is not asked: it would take as long there."""
    given: dict[str, Any] = {"partitions": (0,), "allow_samplers": (bombs.ENDLESS,), "max_batch_s": 0.3}
    options = CustomSamplerOptions(bombs.ENDLESS)
    with servers_of(bombed, 2, **given) as servers:
        with (
            RemoteDistDataset.connect(addresses_of(servers), transport="network", timeout=SOON_S) as dataset,
            DistNeighborLoader(
                dataset,
                None,
                np.arange(40),
                sampler_options=options,
                batch_size=20,
                timeout=SOON_S,
                device="cpu",
            ) as loader,
        ):
            batches = iter(loader)
            for number in range(2):
                told = (
                    rf"batch {number}: TooLong: a batch of 20 seeds took 0\.[3-9]\d* s .*--max-batch-seconds"
                )
                with pytest.raises(SamplingError, match=told):
                    next(batches)
            with pytest.raises(StopIteration):
                next(batches)
        channels = [each for server in servers for each in server.parts.service.load().channels]
        assert sum(each.batches for each in channels) <= 2
        assert wait_until(lambda: not any(each.parts.service.load().busy for each in servers), seconds=SOON_S)


def test_the_kinds_are_all_there(bombs: ModuleType) -> None:
    assert set(bombs.BOMBS) == set(KINDS)
