"""Tables of the loads of servers, for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.cli.cluster_loads import Loads, ServerLoad

__all__ = ["tables"]

_MAX_CHANNELS = 40
_WIDE = 120
_WIDE_NAMES = ("ready MB", "partitions", "jobs", "batches", "CPU s", "refused")


def tables(loads: Loads, before: Loads | None, *, width: int) -> Iterator[Table | str]:
    """Yield servers, what is wrong with them, channels and peers for a screen of ``width``.

    Rates are those since ``before``. Channels are told by their job only, unless servers show names.
    """
    earlier = {each.address: each for each in before.servers} if before else {}
    seconds = loads.at - before.at if before else 0.0
    yield _servers(loads, earlier, seconds, wide=width >= _WIDE)
    for rank, each in enumerate(loads.servers):
        if each.notice:
            yield f"[red]{rank} {each.address}: {_escaped(each.notice)}"
    yield from _holders(loads)
    if any(each.load.get("channels") for each in loads.servers):
        yield _channels(loads)
    if any(each.load.get("peers") for each in loads.servers):
        yield _peers(loads)


def _holders(loads: Loads) -> Iterator[str]:
    """Yield a line for partitions that no server holds that answers, and for those with the last copy."""
    known = Counter(part for each in loads.servers for part in each.partitions)
    here = Counter(part for each in loads.servers if not each.error for part in each.partitions)
    none = sorted(part for part in known if not here[part])
    last = sorted(part for part in known if here[part] == 1) if max(known.values(), default=0) > 1 else []
    for parts, color, count in ((none, "red", "no holder"), (last, "yellow", "one holder")):
        if parts:
            several = "partitions" if len(parts) > 1 else "partition"
            verb = "have" if len(parts) > 1 else "has"
            yield f"[{color}]{several} {', '.join(map(str, parts))} {verb} {count} that answers"


def _table(*names: str, title: str | None = None) -> Table:
    """Return a table without lines: more columns fit."""
    table = Table(title=title, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for name in names:
        folds = name in ("state", "channel")
        table.add_column(name, overflow="fold", no_wrap=not folds, min_width=7 if folds else None)
    return table


def _servers(loads: Loads, earlier: dict[str, ServerLoad], seconds: float, *, wide: bool) -> Table:
    names = ["server", "state", "busy", "chans", "queue", "b/s", "MB/s", "RSS MB"]
    table = _table(*names, *(_WIDE_NAMES if wide else ()), title=f"graph {loads.graph[:12]}")
    for rank, each in enumerate(loads.servers):
        name = f"{rank} {each.address}"
        if each.error:
            table.add_row(name, "[red]away" if each.away else "[red]error")
            continue
        load, before = each.load, earlier.get(each.address)
        narrow = (
            _state(each),
            f"{load['busy']}/{load['workers']}",
            str(len(load["channels"])),
            str(_sum(each, "queued")),
            _rate(each, before, "batches", seconds, 1),
            _rate(each, before, "bytes", seconds, 1e6),
            f"{load['rss_bytes'] / 1e6:,.0f}",
        )
        more = (
            f"{load['ready_bytes'] / 1e6:,.1f}",
            ",".join(map(str, each.partitions)),
            str(load["jobs"]),
            f"{load['batches']:,}",
            f"{load['totals']['cpu_s']:,.1f}",
            str(load["totals"]["refused"]),
        )
        table.add_row(name, *narrow, *(more if wide else ()))
    return table


def _state(server: ServerLoad) -> str:
    if server.notice:
        return "[red]version"
    if server.load["ready"]:
        return "ready"
    return f"[yellow]{_escaped(server.load['reason'] or 'not ready')}"


def _channels(loads: Loads) -> Table:
    names = ("server", "job", "channel", "by", "batches", "MB", "queue", "ready", "ms", "ms wait", "idle s")
    table = _table(*names)
    rows = [
        (rank, each) for rank, server in enumerate(loads.servers) for each in server.load.get("channels", [])
    ]
    rows.sort(key=lambda row: row[1]["idle_s"])
    for rank, channel in rows[:_MAX_CHANNELS]:
        batches = max(channel["batches"], 1)
        table.add_row(
            str(rank),
            channel["job"],
            _escaped(f"{channel['key']}/{channel['name']}" if channel["name"] else "-"),
            channel["transport"],
            f"{channel['batches']:,}",
            f"{channel['bytes'] / 1e6:,.1f}",
            str(channel["queued"]),
            str(channel["ready"]),
            f"{channel['sampling_s'] / batches * 1e3:,.1f}",
            f"{channel['waiting_s'] / batches * 1e3:,.1f}",
            f"{channel['idle_s']:,.0f}",
        )
    if len(rows) > _MAX_CHANNELS:
        table.add_row("", "", f"{len(rows) - _MAX_CHANNELS} more")
    return table


def _peers(loads: Loads) -> Table:
    table = _table("server", "asks", "calls", "MB in", "MB out", "asked again")
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
    return f"{max(now.load[field] - before.load[field], 0) / seconds / unit:,.1f}"


def _escaped(text: Any) -> str:
    from rich.markup import escape

    return escape(str(text))
