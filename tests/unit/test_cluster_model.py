"""The model of a large cluster's calls: its formulas, and that its constants are those of the code."""

from __future__ import annotations

import importlib
import itertools
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gigl_client import channels, discovery
from gigl_client import cluster as cluster_module
from gigl_server import server, supervision
from gigl_server.cluster import peers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SIZES = st.integers(1, 300)


@pytest.fixture(scope="module", autouse=True)
def benchmarks() -> Iterator[None]:
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


def model() -> ModuleType:
    return importlib.import_module("cluster_model")


def cluster(servers: int = 120, ranks: int = 480, **more: Any) -> Any:
    return model().Cluster(**{"servers": servers, "ranks": ranks, "partitions": servers, **more})


def batch() -> Any:
    return model().Batch(
        seeds=10, nodes_per_hop=[10, 50, 200], edges_per_hop=[60, 300], row_bytes=100, edge_id_bytes=4
    )


def calls(lines: Any) -> dict[str, float]:
    return {line.key[1]: line.calls for line in lines}


def test_constants_are_those_of_the_code() -> None:
    found = model()
    assert found.WATCHED == peers._WATCHED
    assert found.PARTNERS == discovery.PARTNERS
    assert found.WATCH_S == server._LOOK_EVERY_S == supervision._EVERY_S
    assert found.BEATS_PER_LEASE == cluster_module._BEATS_PER_LEASE
    assert found.MAX_IN_FLIGHT == channels.MAX_IN_FLIGHT


def test_calls_of_a_large_cluster() -> None:
    of, none = cluster(loaders=2), model().Constants()
    assert calls(model().calls_at_connect(of, none)) == {
        "Cluster": 480 * 17,
        "ping": 480 * 16,
        "manifest": 480,
    }
    opened = calls(model().calls_at_open(of, none))
    assert opened == {"split": 960 * 120, "ids": 960, "CreateProducer": 240, "OpenChannel": 960 * 16}
    assert calls(model().calls_at_close(of, none)) == {"CloseChannel": 960 * 16}
    timed = calls(model().calls_by_time(of, 20.0, none))
    assert timed == {"Heartbeat": 480 * 16, "Cluster by servers": 120 * 8 * 4, "ping": 120 * 4}
    assert model().in_flight_per_rank(of) == 64
    assert sum(model().connections_per_server(of).values()) == 64 + 480 + 960 + 119


@given(nodes=st.integers(1, 5), of=st.integers(1, 4), data=st.data())
def test_expected_owners_are_the_mean_over_all_ways_to_deal_nodes_out(
    nodes: int, of: int, data: st.DataObject
) -> None:
    owners = data.draw(st.integers(0, of))
    ways = list(itertools.product(range(of), repeat=nodes))
    mean = sum(len({part for part in way if part < owners}) for way in ways) / len(ways)
    assert model().expected_owners(nodes, owners, of) == pytest.approx(mean)


@given(servers=SIZES, ranks=SIZES, loaders=st.integers(1, 4))
def test_nothing_but_joining_grows_with_the_square_of_servers(servers: int, ranks: int, loaders: int) -> None:
    none = model().Constants()

    def total(count: int) -> float:
        of = cluster(count, ranks, loaders=loaders)
        phases = (model().calls_at_connect, model().calls_at_open, model().calls_at_close)
        found = sum(line.calls for phase in phases for line in phase(of, none))
        return float(found + sum(line.calls for line in model().calls_by_time(of, of.beat_s, none)))

    assert total(2 * servers) <= 2 * total(servers) + model().WATCHED * 2 * servers * 4
    joined = [
        sum(calls(model().calls_at_join(cluster(each), none)).values()) for each in (servers, 2 * servers)
    ]
    assert joined[1] >= 4 * joined[0]


def test_every_list_and_row_comes_from_its_owner_once() -> None:
    """Of two servers, half of the lists are the other's; the rank holds no row."""
    of, none = cluster(2, 3, batches=7), model().Constants()
    lines = {line.key[1]: line for line in model().calls_of_batches(of, batch(), none)}
    assert {name: round(line.calls, 2) for name, line in lines.items()} == {
        "sample": 7,
        "neighbors": 13.99,  # Of 10 seeds, all may be of one server.
        "rows": 14,
    }
    assert lines["neighbors"].varying_in == 7 * (10 + 50) / 2 * 4
    assert lines["neighbors"].varying_out == 7 * ((10 + 50) / 2 * 4 + (60 + 300) / 2 * 8)
    assert lines["rows"].varying_out == 7 * 260 * 100
    alone = model().calls_of_batches(cluster(1, 3, batches=7), batch(), none)
    assert calls(alone) == {"sample": 7}
    assert alone[0].varying_out - lines["sample"].varying_out == pytest.approx(7 * 260 * (100 - 8))


def test_bytes_are_a_fixed_part_of_each_message_and_what_varies() -> None:
    constants = model().Constants(fixed={("data", "rows"): (5.0, 7.0)})
    amount = model().Line(("data", "rows"), 3, varying_in=100, varying_out=1000).amount(constants)
    assert tuple(amount) == (3, 115, 1021)
    assert amount.nbytes == 1136
    assert tuple(amount - amount) == (0, 0, 0)
    assert tuple(amount + amount) == (6, 230, 2042)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"servers": 0, "ranks": 1, "partitions": 1}, "must be positive, got 0, 1, 1"),
        ({"servers": 4, "ranks": 1, "partitions": 6}, "6 partitions cannot be dealt out evenly to 4 servers"),
        ({"servers": 4, "ranks": 1, "partitions": 0}, "0 partitions cannot be dealt out"),
    ],
)
def test_impossible_clusters_are_refused(sizes: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        model().Cluster(**sizes)


@pytest.mark.parametrize(
    ("calls_", "nbytes", "slack", "holds"),
    [
        ((100, 109), (1000, 1090), 0.0, True),
        ((100, 112), (1000, 1120), 0.0, False),
        ((100, 100), (1000, 1180), 0.0, False),  # Larger messages.
        ((100, 100), (1000, 1000), 0.0, True),
        ((10, 14), (100, 140), 4.0, True),  # A timer: as many bytes for each call.
        ((10, 14), (100, 180), 4.0, False),
        ((2, 0), (20, 0), 4.0, True),
        ((10, 0), (100, 0), 4.0, False),
        ((0, 10), (0, 100), 0.0, False),
        ((10, 40), (100, 900), None, True),  # A lower bound.
        ((10, 9), (100, 90), None, False),
    ],
)
def test_a_prediction_holds_within_its_bounds(
    calls_: tuple[float, float], nbytes: tuple[float, float], slack: float | None, holds: bool
) -> None:
    script = importlib.import_module("cluster_simulation")
    assert script.Check("4x2", "open", "sample", calls_, nbytes, slack).holds is holds


def test_the_table_of_a_large_cluster_says_what_grows_how(capsys: pytest.CaptureFixture[str]) -> None:
    table = importlib.import_module("cluster_table")
    rates = dict.fromkeys(("connect", "open", "epoch", "close"), 1.0)
    figures = table.table(
        cluster(split_nodes=1000),
        batch(),
        model().Constants(),
        table.Rates(server_ms=rates, trainer_ms=rates, wire_bytes=rates),
    )
    growth = {name: round(times, 1) for name, times in figures["growth"].items()}
    assert growth["servers join"] == 4.0
    assert growth["ranks connect"] == growth["loaders close"] == growth["a heartbeat interval"] == 2.0
    assert figures["busiest"]["named"] - figures["busiest"]["mean"] == 480
    table.print_table(figures)
    printed = capsys.readouterr().out
    assert "calls at the end: 7,680; a peer system with 120 servers: 57,000" in printed
    assert "lasting connections to a server: 1,143" in printed
