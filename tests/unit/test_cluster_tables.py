"""What ``gigl-loader top`` shows of servers that are away or of another version."""

from __future__ import annotations

import io
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from gigl_client import RemoteDistDataset
from gigl_loader.cli import cluster_loads
from gigl_loader.cli.cluster_loads import Loads, Looker, ServerLoad, tables
from gigl_loader.native.draws import DRAW_SPECIFICATION
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.rpc import graph_store_pb2 as messages
from gigl_loader.rpc.credentials import Caller
from gigl_loader.rpc.versions import WIRE_VERSION
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import homogeneous

if TYPE_CHECKING:
    from pathlib import Path


def loads(*servers: ServerLoad) -> Loads:
    return Loads(at=0.0, graph="0" * 64, servers=servers)


def server(load: dict[str, Any], error: str = "", *, away: bool = False) -> ServerLoad:
    return ServerLoad(address="10.0.0.7:7070", partitions=(0,), load=load, error=error, away=away)


def load_of(wire_version: int = WIRE_VERSION, **fields: Any) -> dict[str, Any]:
    own = messages.Description(
        version="9.9", wire_version=wire_version, draw_specification=DRAW_SPECIFICATION
    )
    load: Any = messages.ServerLoad(ready=True, workers=2, **fields)
    load.self.CopyFrom(own)
    store = SimpleNamespace(load=lambda _: load, close=lambda: None)
    view = SimpleNamespace(graph="", servers=[SimpleNamespace(control_address="", partitions=())])
    first = SimpleNamespace(cluster=lambda _: view)
    with pytest.MonkeyPatch.context() as patch, Looker("10.0.0.7:7070", Caller(), 1.0) as looker:
        patch.setattr(cluster_loads, "client_of", lambda *_: nullcontext(first))
        patch.setattr(cluster_loads, "StoreClient", lambda *_: store)
        return looker.look().servers[0].load


def shown(*servers: ServerLoad) -> list[str]:
    console = Console(width=160, file=io.StringIO(), record=True)
    for each in tables(loads(*servers), None, width=console.width):
        console.print(each)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_server_that_is_away_is_told_under_the_table() -> None:
    lines = shown(server(load_of()), server({}, "nothing listens there: did its service end?", away=True))
    assert "1 10.0.0.7:7070: nothing listens there: did its service end?" in lines
    assert any("1 10.0.0.7:7070" in line and line.endswith("away") for line in lines)


def test_a_server_of_another_version_is_told() -> None:
    other = server(load_of(wire_version=WIRE_VERSION + 1))
    [line] = [line for line in shown(other) if "wire version" in line]
    assert f"gigl-loader 9.9, whose wire version is {WIRE_VERSION + 1}; here it is {WIRE_VERSION}" in line
    assert not any("ready " in line and "10.0.0.7" in line for line in shown(other))
    [told] = loads(other).to_json()["servers"]
    assert "wire version" in told["error"]
    assert told["workers"] == 2


@pytest.mark.parametrize("error", ["", "wrong token"])
def test_what_is_well_has_no_notice(error: str) -> None:
    assert server({} if error else load_of(), error).notice == error


def test_batches_are_counted_when_their_channels_are_closed() -> None:
    before, now = (loads(server(load_of(batches=number, bytes=number * 10**6))) for number in (100, 300))
    table, *_ = tables(replace(now, at=2.0), before, width=160)
    cells = {column.header: next(iter(column.cells)) for column in table.columns}  # type: ignore[union-attr]
    assert (cells["batches"], cells["b/s"], cells["MB/s"]) == ("300", "100.0", "100.0")


def test_rows_from_their_owners_are_told() -> None:
    def call(nbytes: int, method: str = "rows") -> Any:
        return messages.CallLoad(port="data", method=method, calls=3, bytes_in=7, bytes_out=nbytes)

    before, now = (loads(server(load_of(calls=[call(9, "list"), call(each)]))) for each in (10**6, 5 * 10**6))
    [line] = [each for each in tables(replace(now, at=2.0), before, width=160) if isinstance(each, str)]
    assert line == "rows from their owners: server 0 5.0 MB in 3 calls, 2.0 MB/s"
    [line] = [each for each in tables(now, None, width=160) if isinstance(each, str)]
    assert line == "rows from their owners: server 0 5.0 MB in 3 calls"
    assert not any("owners" in each for each in shown(server(load_of(calls=[call(9, "list")]))))


def test_batches_that_were_sampled_for_another_job_are_told() -> None:
    some, none = server(load_of(batches=1200, shared=900, shared_bytes=61 << 20)), server(load_of(batches=7))
    assert "sampled for another job: server 1 900 of 1,200 batches, 64.0 MB kept" in shown(none, some)
    assert not any("another job" in line for line in shown(none, server({}, "nothing listens there")))


def test_batches_on_request_are_told_with_their_wait() -> None:
    def look(at: float, batches: int, waiting_s: float, *channels: Any) -> Loads:
        load = load_of(interactive_batches=batches, interactive_waiting_s=waiting_s, channels=channels)
        return Loads(at=at, graph="0" * 64, servers=(server(load),))

    def line(now: Loads, before: Loads | None = None) -> str:
        (found,) = [
            each for each in tables(now, before, width=160) if isinstance(each, str) and "request" in each
        ]
        return found

    first = look(0.0, 1000, 2.0)
    waits = messages.ChannelLoad(interactive=True, queued=3)
    trains = messages.ChannelLoad(queued=7)
    assert line(first) == "batches on request: server 0 1,000 (-/s), 0 queued, 2.0 ms wait"
    then = look(2.0, 1100, 2.5, waits, trains)
    assert line(then, first) == "batches on request: server 0 1,100 (50.0/s), 3 queued, 5.0 ms wait"
    assert line(look(4.0, 10, 0.01), then) == "batches on request: server 0 10 (0.0/s), 0 queued, 1.0 ms wait"
    assert not any("request" in each for each in shown(server(load_of(batches=7))))


def test_a_sampler_that_stays_open_is_shown(tmp_path: Path) -> None:
    build_graph(tables_from_pyg(homogeneous(200, 1000)), tmp_path / "graph")
    with (
        servers_of(tmp_path / "graph", 1) as servers,
        RemoteDistDataset.connect(addresses_of(servers)) as dataset,
        Looker(addresses_of(servers)[0], Caller(), 10.0) as looker,
        dataset.sampler([3, 2]) as sampler,
    ):
        for seed in range(3):
            sampler.sample([seed])
        look = looker.look()
        assert [each["interactive"] for each in look.servers[0].load["channels"]] == [True]
        assert any(
            "batches on request: server 0 3 (-/s)" in str(each) for each in tables(look, None, width=160)
        )


def test_topology_of_other_partitions_is_told() -> None:
    every, own, old = (server(load_of(topology_partitions=count)) for count in (4, 1, 0))
    assert "topology of other partitions, too: server 0 of 4, server 3 of 4" in shown(every, own, old, every)
    assert not any("topology" in line for line in shown(own, old, server({}, "nothing listens there")))


def test_partitions_without_a_second_copy_are_told_where_others_have_one() -> None:
    load = load_of()
    holders = [replace(server(load), partitions=parts) for parts in ((0, 1), (1, 2), (0, 2))]
    gone = replace(server({}, "nothing listens there", away=True), partitions=(1, 2))
    none_left = replace(gone, partitions=(0, 1))
    assert not any("holder" in line for line in shown(*holders))
    assert "partitions 1, 2 have one holder that answers" in shown(holders[0], gone, holders[2])
    lines = shown(none_left, gone, holders[2])
    assert "partition 1 has no holder that answers" in lines
    assert "partitions 0, 2 have one holder that answers" in lines
    assert not any("one holder" in line for line in shown(server(load))), "there are no replicas"
