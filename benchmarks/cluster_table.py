"""Table of what a large cluster costs, by the model of ``cluster_model.py`` and measured rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cluster_model as model
from cluster_lab import Measured
from cluster_model import Amount, Batch, Cluster, Constants, Line

from gigl_server.admission import Limits

PEER = "a peer system with 120 servers: 57,000 calls at the end (https://github.com/Snapchat/GiGL/pull/616)"
_FETCHERS = 2
_MAX_DATA_CALLS = 512
_MAX_CONNECTIONS = 8192
_CHANNEL_BYTES = 4_000_000_000
_WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """CPU time and bytes on the wire that a call costs beside its message, by phase."""

    server_ms: Mapping[str, float]
    trainer_ms: Mapping[str, float]
    wire_bytes: Mapping[str, float]
    """Headers, framing, TCP and handshakes, as the servers' network devices received them."""

    @classmethod
    def of(cls, phases: Mapping[str, Measured], join: Measured) -> Rates:
        every = {**phases, "join": join}
        calls = {name: sum(amount.calls for amount in each.total.values()) for name, each in every.items()}
        return cls(
            server_ms={name: 1e3 * each.server_cpu_s / calls[name] for name, each in phases.items()},
            trainer_ms={name: 1e3 * each.trainer_cpu_s / calls[name] for name, each in phases.items()},
            wire_bytes={name: _beside(each) / calls[name] for name, each in every.items()},
        )


def _beside(measured: Measured) -> float:
    """Return the bytes that servers received besides messages. Lists of other servers are messages."""
    total = measured.total
    lists = total.get(("data", "neighbors"), Amount()).bytes_out
    return measured.device_bytes - lists - sum(amount.bytes_in for amount in total.values())


def table(c: Cluster, batch: Batch, k: Constants, rates: Rates) -> dict[str, Any]:
    """Return all figures as plain values."""
    one = replace(c, batches=1)
    phases = _phases(one, batch, k)
    twice = replace(one, servers=2 * c.servers, ranks=2 * c.ranks, partitions=2 * c.partitions)
    grown = _phases(twice, batch, k)
    return {
        "cluster": (
            f"{c.servers} servers, {c.partitions} partitions, {c.ranks} ranks, loaders of each: {c.loaders}"
        ),
        "lines": {name: [_line(c, line, k) for line in lines] for name, lines in phases.items()},
        "growth": {name: _calls(grown[name]) / max(_calls(phases[name]), 1) for name in phases},
        "busiest": _busiest(c, k),
        "connections": dict(model.connections_per_server(c)),
        "limits": _limits(c, batch),
        "seconds": _seconds(c, k, rates),
        "batch": _of_a_batch(one, batch, k, rates),
        "wire_bytes_per_call": dict(rates.wire_bytes),
    }


def _phases(c: Cluster, batch: Batch, k: Constants) -> dict[str, list[Line]]:
    """Return the calls of each phase. The batches are of ``c``."""
    return {
        "servers join": model.calls_at_join(c, k),
        "ranks connect": model.calls_at_connect(c, k),
        "loaders open": model.calls_at_open(c, k),
        "a batch": model.calls_of_batches(c, batch, k),
        "a heartbeat interval": model.calls_by_time(c, c.beat_s, k),
        "loaders close": model.calls_at_close(c, k),
    }


def _calls(lines: Sequence[Line]) -> float:
    return sum(line.calls for line in lines)


def _line(c: Cluster, line: Line, k: Constants) -> dict[str, Any]:
    amount = line.amount(k)
    return {
        "port": line.key[0],
        "method": line.key[1],
        "grows": line.order,
        "calls": amount.calls,
        "calls_per_server": amount.calls / c.servers,
        "bytes_in": amount.bytes_in,
        "bytes_out": amount.bytes_out,
    }


def _busiest(c: Cluster, k: Constants) -> dict[str, float]:
    """Return the calls at start of a mean server, and of the one whose address the job was given."""
    calls = sum(line.calls for line in (*model.calls_at_connect(c, k), *model.calls_at_open(c, k)))
    return {"mean": (calls - c.ranks) / c.servers, "named": (calls - c.ranks) / c.servers + c.ranks}


def _limits(c: Cluster, batch: Batch) -> list[dict[str, Any]]:
    """Return what the cluster takes of each limit, the largest share first."""
    limits = Limits()
    held = model.in_flight_per_rank(c)
    per_server = c.ranks * c.loaders * held / c.servers
    frame = batch.deferred_frame_bytes if c.defers_rows else batch.frame_bytes
    fetches = c.ranks * c.loaders * _FETCHERS
    away = (c.partitions - c.own_partitions) * _WORKERS * 4
    rows = [
        (
            "frames in flight at a server, bytes",
            per_server * frame,
            limits.frame_bytes,
            "it samples no more until some are fetched",
        ),
        (
            "frames of a loader at its rank, bytes",
            held * batch.frame_bytes,
            _CHANNEL_BYTES,
            "fresh memory is taken (channel_size)",
        ),
        (
            "calls at once to a data port, worst case",
            fetches + away,
            _MAX_DATA_CALLS,
            "callers are told to ask again",
        ),
        (
            "channels of a job on a server",
            c.ranks * c.loaders * c.servers_per_rank / c.servers,
            limits.channels_per_job,
            "loaders cannot be opened",
        ),
        ("requests for batches open at a server", per_server, limits.calls, "callers are told to ask again"),
        (
            "connections to a control port",
            c.ranks * c.servers_per_rank / c.servers + model.WATCHED,
            _MAX_CONNECTIONS,
            "connections are refused",
        ),
        (
            "connections to a server",
            sum(model.connections_per_server(c).values()),
            1 << 16,
            "no file is left",
        ),
    ]
    found = [
        {"what": what, "takes": takes, "limit": limit, "share": takes / limit, "then": then}
        for what, takes, limit, then in rows
    ]
    return sorted(found, key=lambda each: -each["share"])


def _seconds(c: Cluster, k: Constants, rates: Rates) -> dict[str, dict[str, float]]:
    """Return rough seconds: CPU time of the busiest server, and of a rank, on one core each."""
    phases = {
        "connect": model.calls_at_connect(c, k),
        "open": model.calls_at_open(c, k),
        "close": model.calls_at_close(c, k),
    }
    found = {}
    for name, lines in phases.items():
        calls = sum(line.calls for line in lines)
        extra = c.ranks if name == "connect" else 0
        found[name] = {
            "server_s": ((calls - extra) / c.servers + extra) * rates.server_ms[name] / 1e3,
            "rank_s": calls / c.ranks * rates.trainer_ms[name] / 1e3,
        }
    return found


def _of_a_batch(c: Cluster, batch: Batch, k: Constants, rates: Rates) -> dict[str, float]:
    lines = {line.key[1]: line for line in model.calls_of_batches(c, batch, k)}
    calls = sum(line.calls for line in lines.values())
    return {
        "calls": calls,
        "calls_of_the_server_that_samples": lines["neighbors"].calls if "neighbors" in lines else 0.0,
        "calls_of_the_rank": calls - (lines["neighbors"].calls if "neighbors" in lines else 0.0),
        "bytes": sum(line.amount(k).nbytes for line in lines.values()),
        "server_cpu_s": calls * rates.server_ms["epoch"] / 1e3,
        "remote_share_of_neighbours": 1 - c.own_partitions / c.partitions,
    }


def print_table(figures: Mapping[str, Any]) -> None:
    """Print the figures for people."""
    print(f"\n{figures['cluster']}")
    print(
        f"{'':22} {'method':20} {'calls':>12} {'per server':>11} {'bytes in':>10} {'bytes out':>10}  grows by"
    )
    for phase, lines in figures["lines"].items():
        for number, line in enumerate(lines):
            print(
                f"{'' if number else phase:22} {line['method']:20} {line['calls']:12,.0f} "
                f"{line['calls_per_server']:11,.1f} {_short(line['bytes_in']):>10} "
                f"{_short(line['bytes_out']):>10}  {line['grows']}"
            )
    grown = ", ".join(f"{name} x{times:.1f}" for name, times in figures["growth"].items())
    print(f"calls with twice the servers and ranks: {grown}")
    end = sum(line["calls"] for line in figures["lines"]["loaders close"])
    print(f"calls at the end: {end:,.0f}; {PEER}")
    busiest = figures["busiest"]
    print(
        f"calls at start: {busiest['mean']:,.0f} to a server, {busiest['named']:,.0f} to the one that ranks "
        "were told of"
    )
    _print_connections(figures["connections"])
    print("limits, by what is taken of them:")
    for each in figures["limits"]:
        print(
            f"  {each['share']:7.1%}  {each['what']}: {_short(each['takes'])} of {_short(each['limit'])}; "
            f"beyond it, {each['then']}"
        )
    print("seconds of CPU on one core, at the rates measured here (busiest server, each rank):")
    for name, each in figures["seconds"].items():
        print(f"  {name:8} {each['server_s']:8.1f} {each['rank_s']:8.2f}")
    beside = ", ".join(f"{name} {count:,.0f}" for name, count in figures["wire_bytes_per_call"].items())
    print(f"bytes that a server receives for a call beside messages (headers, handshakes, TCP): {beside}")
    of = figures["batch"]
    print(
        f"a batch: {of['calls']:,.0f} calls ({of['calls_of_the_server_that_samples']:,.0f} between servers, "
        f"{of['calls_of_the_rank']:,.0f} of the rank), {_short(of['bytes'])} bytes; "
        f"{of['remote_share_of_neighbours']:.1%} of neighbours lie on other servers; at most "
        f"{of['server_cpu_s']:.2f} s of the servers' CPU for these calls"
    )


def _print_connections(kinds: Mapping[str, float]) -> None:
    listed = ", ".join(f"{count:,.0f} {kind}" for kind, count in kinds.items() if count)
    print(f"lasting connections to a server: {sum(kinds.values()):,.0f} ({listed})")


def _short(value: float) -> str:
    """Return a number with a unit: 1.5 M."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= 10 * size or (unit == "G" and abs(value) >= size):
            return f"{value / size:,.1f} {unit}"
    return f"{value:,.0f}"
