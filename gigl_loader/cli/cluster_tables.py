"""What servers do, as tables for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.cli.cluster_loads import Loads, ServerLoad

__all__ = ["tables"]

_MOST_CHANNELS = 40


def tables(loads: Loads, before: Loads | None) -> Iterator[Table]:
    """Yield servers, channels and peers. Rates are those since ``before``."""
    earlier = {each.address: each for each in before.servers} if before else {}
    seconds = loads.at - before.at if before else 0.0
    yield _servers(loads, earlier, seconds)
    if any(each.load.get("channels") for each in loads.servers):
        yield _channels(loads)
    if any(each.load.get("peers") for each in loads.servers):
        yield _peers(loads)


def _servers(loads: Loads, earlier: dict[str, ServerLoad], seconds: float) -> Table:
    table = Table(
        "server",
        "partitions",
        "state",
        "busy",
        "jobs",
        "channels",
        "queued",
        "batches",
        "batches/s",
        "MB/s",
        "ready MB",
        "RSS MB",
        "CPU s",
        "refused",
        title=f"graph {loads.graph[:12]}",
    )
    for rank, each in enumerate(loads.servers):
        name = f"{rank} {each.address}"
        parts = ",".join(map(str, each.partitions))
        if each.error:
            table.add_row(name, parts, f"[red]{_escaped(each.error)}")
            continue
        load = each.load
        before = earlier.get(each.address)
        table.add_row(
            name,
            parts,
            "ready" if load["ready"] else f"[yellow]{_escaped(load['reason'] or 'not ready')}",
            f"{load['busy']}/{load['workers']}",
            str(load["jobs"]),
            str(len(load["channels"])),
            str(_sum(each, "queued")),
            f"{_sum(each, 'batches'):,}",
            _rate(each, before, "batches", seconds, 1),
            _rate(each, before, "bytes", seconds, 1e6),
            f"{load['ready_bytes'] / 1e6:,.1f}",
            f"{load['rss_bytes'] / 1e6:,.0f}",
            f"{load['totals']['cpu_s']:,.1f}",
            str(load["totals"]["refused"]),
        )
    return table


def _channels(loads: Loads) -> Table:
    names = (
        "server",
        "job",
        "channel",
        "by",
        "batches",
        "MB",
        "queued",
        "ready",
        "ms/batch",
        "ms waiting",
        "idle s",
    )
    table = Table(*names)
    rows = [
        (rank, each) for rank, server in enumerate(loads.servers) for each in server.load.get("channels", [])
    ]
    rows.sort(key=lambda row: row[1]["idle_s"])
    for rank, channel in rows[:_MOST_CHANNELS]:
        batches = max(channel["batches"], 1)
        table.add_row(
            str(rank),
            channel["job"],
            _escaped(f"{channel['key']}/{channel['name']}" if channel["name"] else "another job's"),
            channel["transport"],
            f"{channel['batches']:,}",
            f"{channel['bytes'] / 1e6:,.1f}",
            str(channel["queued"]),
            str(channel["ready"]),
            f"{channel['sampling_s'] / batches * 1e3:,.1f}",
            f"{channel['waiting_s'] / batches * 1e3:,.1f}",
            f"{channel['idle_s']:,.0f}",
        )
    if len(rows) > _MOST_CHANNELS:
        table.add_row("", "", f"{len(rows) - _MOST_CHANNELS} more")
    return table


def _peers(loads: Loads) -> Table:
    table = Table("server", "asks", "calls", "MB in", "MB out", "asked again")
    for rank, each in enumerate(loads.servers):
        for peer in each.load.get("peers", []):
            table.add_row(
                str(rank),
                str(peer["server"]),
                f"{peer['calls']:,}",
                f"{peer['bytes_in'] / 1e6:,.1f}",
                f"{peer['bytes_out'] / 1e6:,.1f}",
                str(peer["retries"]),
            )
    return table


def _sum(server: ServerLoad, field: str) -> int:
    return sum(channel[field] for channel in server.load.get("channels", []))


def _rate(now: ServerLoad, before: ServerLoad | None, field: str, seconds: float, unit: float) -> str:
    if before is None or not before.load or seconds <= 0:
        return "-"
    return f"{max(_sum(now, field) - _sum(before, field), 0) / seconds / unit:,.1f}"


def _escaped(text: Any) -> str:
    from rich.markup import escape

    return escape(str(text))
