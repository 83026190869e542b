"""A server's holdings are replaced under load: what is under way ends as it began, or is made again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gigl_loader.errors import FormatError, StorageUnavailable
from gigl_loader.graph.graph import Graph
from gigl_loader.rpc.checksums import Crc32c
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.requests import Envelope, encode
from gigl_loader.sampling.store import DrawRule, NeighborRequest
from gigl_server.admission import LOCAL
from gigl_server.counters import Counters
from gigl_server.partitions.holdings import Holdings
from gigl_server.ports.queries import Queries
from gigl_server.sampling.sampler_pool import SamplerPool
from tests.support.pulled import flip
from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

EDGE = ("node", "to", "node")
FEATURES = "part-00001/nodes/node.safetensors"
TOPOLOGY = "part-00001/topology/node+to+node.safetensors"


class Used:
    """Records what the parts of a server are told."""

    def __init__(self) -> None:
        self.seen: list[tuple[tuple[int, ...], list[int]]] = []
        self.announced: list[tuple[list[int], list[int]]] = []

    def use(self, graph: Graph, withdrawn: Collection[int]) -> None:
        self.seen.append((graph.parts, sorted(withdrawn)))

    def announce(self, partitions: Sequence[int], *, repairing: Sequence[int] = ()) -> None:
        self.announced.append((list(partitions), list(repairing)))


class Plan:
    """A plan whose samplers name the graph that they draw from."""

    def open(self, graph: Graph, store: Any, **_: Any) -> Any:
        sampler = type("Sampler", (), {"scratch_bytes": 0})()
        sampler.graph, sampler.store = graph, store
        return sampler


class Store:
    closed = False

    def wire(self) -> None:
        """Count nothing."""

    def close(self) -> None:
        self.closed = True


CHANNEL: Any = type("Channel", (), {"deferred_features": False, "closed": False, "interactive": False})()
CHANNEL.producer = type("Producer", (), {"plan_text": "plan", "plan": Plan()})()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_graph(tmp_path / "graph")


def test_partitions_are_gained_and_withdrawn(path: Path) -> None:
    used = Used()
    holdings = Holdings(Graph.open(path, parts=[0]), used, scrub_rate=0)
    holdings.gain([1])
    holdings.withdraw([0])
    assert (holdings.graph.parts, holdings.withdrawn, holdings.fault) == ((1,), frozenset({0}), "")
    holdings.withdraw([1])
    assert holdings.fault == "partitions [0, 1] are being repaired"
    holdings.gain([0, 1])
    assert used.announced == [([0, 1], []), ([1], [0]), ([], [0, 1]), ([0, 1], [])]
    assert used.seen == [((0, 1), []), ((1,), [0]), ((), [0, 1]), ((0, 1), [])]


def test_topology_of_other_partitions_stays_and_is_withdrawn_with_them(path: Path) -> None:
    used = Used()
    holdings = Holdings(Graph.open(path, parts=[0], topology="all"), used, scrub_rate=0)

    def state() -> tuple[tuple[int, ...], tuple[int, ...], list[int]]:
        graph = holdings.graph
        return graph.parts, graph.topology_parts, sorted(holdings.withdrawn)

    holdings.withdraw([1])
    assert state() == ((0,), (0,), [])
    holdings.gain([], lists_of=[1], reopen=[TOPOLOGY])
    assert state() == ((0,), (0, 1), [])
    with pytest.raises(ValueError, match=f"{FEATURES} is not among the opened"):
        holdings.graph.node_column("node", "x", 1)
    holdings.withdraw([0])
    assert state() == ((), (1,), [0])
    holdings.gain([0])
    holdings.gain([1])
    assert state() == ((0, 1), (0, 1), [])
    assert used.announced == [([0], []), ([0], []), ([], [0]), ([0], []), ([0, 1], [])]


def test_damage_of_a_gained_partition_changes_nothing(path: Path) -> None:
    flip(path / FEATURES, -1)
    used = Used()
    holdings = Holdings(Graph.open(path, parts=[0]), used, scrub_rate=0)
    with pytest.raises(FormatError, match=f"{FEATURES}: bytes"):
        holdings.gain([1])
    assert (holdings.graph.parts, used.seen) == ((0,), [])


def test_files_that_stay_are_neither_mapped_nor_verified_again(path: Path) -> None:
    graph = Graph.open(path, parts=[0])
    graph.verifier.finish()
    flip(path / "part-00000/nodes/node.safetensors", -1)  # The scrubber finds it later.
    grown = graph.holding([0, 1])
    assert np.shares_memory(grown.node_column("node", "x", 0), graph.node_column("node", "x", 0))
    grown.verifier.require("part-00000/nodes/node.safetensors")
    fresh = graph.holding([0], reopen=["part-00000/nodes/node.safetensors"])
    with pytest.raises(FormatError, match=r"part-00000/nodes/node\.safetensors: bytes"):
        fresh.verifier.require("part-00000/nodes/node.safetensors")
    assert [*fresh.verifier.damage] == ["part-00000/nodes/node.safetensors"]


def test_a_replaced_file_is_mapped_anew_where_it_is_named(path: Path, tmp_path: Path) -> None:
    whole = Path(shutil.copytree(path, tmp_path / "whole"))
    flip(path / FEATURES, -1)
    damaged = Graph.open(path)
    with pytest.raises(FormatError):
        damaged.verifier.finish()
    assert [*damaged.verifier.damage] == [FEATURES]
    shutil.copy(whole / FEATURES, path / "new")
    (path / "new").replace(path / FEATURES)
    damaged.holding([0]).verifier.check()
    damaged.holding([0, 1], reopen=[FEATURES]).verifier.finish()
    with pytest.raises(FormatError):
        damaged.verifier.check()  # The map of the old file stays damaged.


def test_a_sampler_ends_on_the_graph_that_it_began_with(path: Path) -> None:
    before, after = Graph.open(path, parts=[0]), Graph.open(path)
    stores: Any = [Store(), Store()]
    pool = SamplerPool(before, keep_bytes=1 << 30)
    pool.sample_from(before, stores[0])
    with pool.lent(CHANNEL) as first:
        pool.sample_from(after, stores[1])
        with pool.lent(CHANNEL) as second:
            assert (first.graph, second.graph) == (before, after)  # type: ignore[attr-defined]
        assert not stores[0].closed
    assert stores[0].closed
    assert pool.idle == 1
    with pool.lent(CHANNEL) as third:
        assert third is second
    assert not stores[1].closed
    pool.sample_from(before, None)
    assert stores[1].closed


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_that_was_drawn_when_damage_was_found_is_drawn_again(path: Path, *, fails: bool) -> None:
    graph = Graph.open(path)
    pool = SamplerPool(graph, keep_bytes=1 << 30)

    def draw() -> None:
        with pool.lent(CHANNEL):
            flip(path / FEATURES, -1)
            with pytest.raises(FormatError):
                graph.verifier.finish()
            if fails:
                raise FormatError("a position beyond the graph")

    with pytest.raises(StorageUnavailable, match=f"found damage, and samples the batch again: {FEATURES}"):
        draw()
    with pytest.raises(StorageUnavailable), pool.lent(CHANNEL):
        raise AssertionError("nothing is drawn from it any more")
    assert pool.idle == 0


def request(graph: Graph, part: int) -> bytes:
    targets = np.arange(*graph.bounds("node")[part : part + 2])
    asked = NeighborRequest(
        edge_type=EDGE,
        targets=targets,
        key=1,
        hop=0,
        rule=DrawRule(fanout=2),
        with_edge_ids=False,
        with_slots=False,
    )
    return encode(Envelope(graph=graph.manifest.digest, partition=part), asked, graph.schema)


def test_another_server_asks_again_while_a_partition_is_withdrawn(path: Path) -> None:
    graph = Graph.open(path)
    queries = Queries(graph, graph.parts, Counters())
    expected = [bytes(chunk) for chunk in queries.respond(request(graph, 1), LOCAL, Crc32c()).chunks]
    queries.hold(graph.holding([0]), withdrawn=[1])
    with pytest.raises(Refusal) as caught:
        queries.respond(request(graph, 1), LOCAL, Crc32c())
    assert caught.value.kind is RefusalKind.UNAVAILABLE
    queries.respond(request(graph, 0), LOCAL, Crc32c())
    queries.hold(graph.holding([0]))
    with pytest.raises(Refusal) as caught:
        queries.respond(request(graph, 1), LOCAL, Crc32c())
    assert caught.value.kind is RefusalKind.OTHER_GRAPH
    queries.hold(graph)
    assert [bytes(c) for c in queries.respond(request(graph, 1), LOCAL, Crc32c()).chunks] == expected


@pytest.mark.parametrize("name", [FEATURES, TOPOLOGY])
def test_no_reply_is_made_of_a_graph_that_is_known_to_be_damaged(path: Path, name: str) -> None:
    graph = Graph.open(path)
    queries = Queries(graph, graph.parts, Counters())
    flip(path / name, -1)
    with pytest.raises(FormatError):
        graph.holding([0, 1], reopen=[name]).verifier.require(name)
    graph.verifier._state.good.clear()  # type: ignore[attr-defined]
    with pytest.raises(FormatError):
        graph.verifier.require(name)
    lent = queries.sending.lent
    with pytest.raises(Refusal) as caught:
        queries.respond(request(graph, 1), LOCAL, Crc32c())
    assert caught.value.kind is RefusalKind.UNAVAILABLE
    assert name in caught.value.message
    assert queries.sending.lent == lent
