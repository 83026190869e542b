"""Loads of all servers of a cluster at one moment, and the tables that show them to people."""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table

from gigl_loader.cli.console import styled
from gigl_loader.cli.options import client_of
from gigl_loader.errors import FormatError, GiglError, StorageUnavailable
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.versions import BuildVersions
from gigl_loader.threads import ThreadPool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.text import Text

    from gigl_loader.rpc.control import ClusterView
    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """One server: its ``gigl.v1.ServerLoad`` as Python values, or the error of the call."""

    address: str
    partitions: tuple[int, ...]
    load: dict[str, Any]
    error: str
    away: bool = False
    """The call failed in a way that may pass."""

    @property
    def notice(self) -> str:
        """Warnings for the operator; empty where there are none."""
        if self.error or not self.load:
            return self.error
        own = self.load["self"]
        found = BuildVersions(
            library=own["version"],
            wire=own["wire_version"],
            oldest_wire=own["oldest_wire_version"] or own["wire_version"],
            draws=own["draw_specification"],
        )
        try:
            found.agree("it")
        except ValueError as error:
            return f"{error}: trainers with what is installed here cannot use it"
        return ""


class LoadWarning(NamedTuple):
    """Warning for the operator, in one line."""

    severity: Literal["error", "warning"]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """All servers, by rank."""

    at: float
    """Seconds on the monotonic clock."""
    graph: str
    servers: tuple[ServerLoad, ...]

    @property
    def warnings(self) -> list[LoadWarning]:
        """Faults of servers, and partitions that have no holder that answers, or one left."""
        faults = [
            LoadWarning("error", f"{rank} {each.address}: {each.notice}")
            for rank, each in enumerate(self.servers)
            if each.notice
        ]
        return [*faults, *_holders(self)]

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        servers = [
            {"rank": rank, "address": each.address, "partitions": list(each.partitions)}
            | ({"error": each.notice, "away": each.away} if each.notice else {})
            | each.load
            for rank, each in enumerate(self.servers)
        ]
        warnings = [each._asdict() for each in self.warnings]
        return {"graph": self.graph, "at_s": self.at, "warnings": warnings, "servers": servers}


class Looker:
    """Looks at a cluster through one of its servers."""

    def __init__(self, address: str, caller: Caller, timeout_s: float) -> None:
        self._caller, self._timeout_s = caller, timeout_s
        self._addresses = [each.strip() for each in address.split(",")]
        self._pool = ThreadPool(_AT_ONCE, thread_name_prefix="top")

    def look(self) -> Loads:
        """Call every server. One that does not answer has an ``error``.

        Any known server may list the servers of the cluster. Where none answers, the error is that of the
        first.
        """
        view = self._view()
        self._addresses = list(
            dict.fromkeys([*self._addresses, *(each.control_address for each in view.servers)])
        )
        servers = tuple(self._pool.map(self._load, view.servers))
        return Loads(at=time.monotonic(), graph=view.graph, servers=servers)

    def _view(self) -> ClusterView:
        first, *others = self._addresses
        try:
            return self._told_by(first)
        except StorageUnavailable:
            for address in others:
                with suppress(StorageUnavailable):
                    return self._told_by(address)
            raise

    def _told_by(self, address: str) -> ClusterView:
        with client_of(address, self._caller) as client:
            return client.cluster(self._timeout_s)

    def _load(self, server: Endpoint) -> ServerLoad:
        load, error, away = {}, "", False
        try:
            with closing(StoreClient(server, self._caller)) as client:
                load = _plain(client.load(self._timeout_s))
        except (GiglError, ValueError) as failure:
            error = " ".join(str(failure).split()).removeprefix(f"{server}: ")
            away = isinstance(failure, StorageUnavailable)
        return ServerLoad(
            address=server.control_address, partitions=server.partitions, load=load, error=error, away=away
        )

    def __enter__(self) -> Looker:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _plain(message: Any) -> dict[str, Any]:
    """Return a message as a mapping with every field. (JSON of protobuf writes 64-bit numbers as text.)

    ``FormatError`` for a number that is none: neither rates nor JSON can have it.
    """
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is None:
            values = list(value) if _repeated(field) else [value]
            for each in values:
                if isinstance(each, float) and not math.isfinite(each):
                    raise FormatError(f"its load has {each} as {field.name}")
            found[field.name] = values if _repeated(field) else values[0]
        else:
            found[field.name] = [_plain(each) for each in value] if _repeated(field) else _plain(value)
    return found


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


_MAX_CHANNELS = 40
_WIDE = 120
_COLORS = {"error": "red", "warning": "yellow"}
_WIDE_NAMES = ("ready MB", "partitions", "jobs", "batches", "CPU s", "refused")


def tables(loads: Loads, before: Loads | None, *, width: int) -> Iterator[Table | Text | str]:
    """Yield servers, what is wrong with them, channels and peers for a ``plain_console`` of ``width``.

    Rates count from ``before``. A channel is shown by its job alone, unless servers show names.
    """
    earlier = {each.address: each for each in before.servers} if before else {}
    seconds = loads.at - before.at if before else 0.0
    yield _servers(loads, earlier, seconds, wide=width >= _WIDE)
    for warning in loads.warnings:
        yield styled(warning.text, _COLORS[warning.severity])
    yield from _topology(loads)
    yield from _shared(loads)
    yield from _interactive(loads, earlier, seconds)
    yield from _rows(loads, earlier, seconds)
    if any(each.load.get("channels") for each in loads.servers):
        yield _channels(loads)
    if any(each.load.get("peers") for each in loads.servers):
        yield _peers(loads)


def _holders(loads: Loads) -> Iterator[LoadWarning]:
    """Yield a warning for partitions without an answering holder, and one for those with one left."""
    known = Counter(part for each in loads.servers for part in each.partitions)
    here = Counter(part for each in loads.servers if not each.error for part in each.partitions)
    none = sorted(part for part in known if not here[part])
    last = sorted(part for part in known if here[part] == 1) if max(known.values(), default=0) > 1 else []
    kinds: tuple[tuple[list[int], Literal["error", "warning"], str], ...]
    kinds = ((none, "error", "no holder"), (last, "warning", "one holder"))
    for parts, severity, count in kinds:
        if parts:
            several = "partitions" if len(parts) > 1 else "partition"
            verb = "have" if len(parts) > 1 else "has"
            yield LoadWarning(severity, f"{several} {', '.join(map(str, parts))} {verb} {count} that answers")


def _topology(loads: Loads) -> Iterator[str]:
    """Yield a line for servers that have the topology of more partitions than they serve."""
    counts = [each.load.get("topology_partitions", 0) for each in loads.servers]
    told = [
        f"server {rank} of {count}"
        for rank, (each, count) in enumerate(zip(loads.servers, counts, strict=True))
        if count > len(each.partitions)
    ]
    if told:
        yield f"topology of other partitions, too: {', '.join(told)}"


def _shared(loads: Loads) -> Iterator[str]:
    """Yield a line for servers that answered requests with frames that they had sampled for another job."""
    told = [
        f"server {rank} {each.load['shared']:,} of {each.load['batches']:,} batches, "
        f"{each.load['shared_bytes'] / 1e6:,.1f} MB kept"
        for rank, each in enumerate(loads.servers)
        if each.load.get("shared")
    ]
    if told:
        yield f"sampled for another job: {'; '.join(told)}"


def _interactive(loads: Loads, earlier: dict[str, ServerLoad], seconds: float) -> Iterator[str]:
    """Yield a line for the batches on request of servers: how many, how fast, and how long they waited.

    The mean wait is that of batches since ``earlier``; of all, where there were none.
    """
    told = []
    for rank, each in enumerate(loads.servers):
        count = each.load.get("interactive_batches", 0)
        queued = sum(channel["queued"] for channel in each.load.get("channels", []) if channel["interactive"])
        if not count and not queued:
            continue
        before = earlier.get(each.address)
        since = before.load if before is not None else {}
        new = count - since.get("interactive_batches", 0)
        if new <= 0:  # None came, or the server was started again.
            new, since = count, {}
        waited_s = each.load["interactive_waiting_s"] - since.get("interactive_waiting_s", 0.0)
        wait_ms = waited_s / max(new, 1) * 1e3
        rate = _rate(each, before, "interactive_batches", seconds, 1)
        told.append(f"server {rank} {count:,} ({rate}/s), {queued} queued, {wait_ms:,.1f} ms wait")
    if told:
        yield f"batches on request: {'; '.join(told)}"


def _rows(loads: Loads, earlier: dict[str, ServerLoad], seconds: float) -> Iterator[str]:
    """Yield a line for the rows of features that owners sent by themselves, to trainers and servers."""
    told = []
    for rank, each in enumerate(loads.servers):
        now, before = _row_calls(each), _row_calls(earlier.get(each.address))
        if now["calls"]:
            rate = "" if not before["calls"] or seconds <= 0 else f", {_per_s(now, before, seconds)}"
            told.append(f"server {rank} {now['bytes_out'] / 1e6:,.1f} MB in {now['calls']:,} calls{rate}")
    if told:
        yield f"rows from their owners: {'; '.join(told)}"


def _per_s(now: Mapping[str, int], before: Mapping[str, int], seconds: float) -> str:
    return f"{max(now['bytes_out'] - before['bytes_out'], 0) / seconds / 1e6:,.1f} MB/s"


def _row_calls(server: ServerLoad | None) -> Mapping[str, int]:
    calls = [] if server is None else server.load.get("calls", [])
    of_rows = (each for each in calls if (each["port"], each["method"]) == ("data", "rows"))
    return next(of_rows, {"calls": 0, "bytes_out": 0})


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
            table.add_row(name, styled("away" if each.away else "error", "red"))
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


def _state(server: ServerLoad) -> Text:
    if server.notice:
        return styled("version", "red")
    if server.load["ready"]:
        return styled("ready", "")
    return styled(server.load["reason"] or "not ready", "yellow")


def _channels(loads: Loads) -> Table:
    names = ("server", "job", "channel", "by", "batches", "MB", "queue", "ms", "ms wait", "idle s")
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
            f"{channel['key']}/{channel['name']}" if channel["name"] else "-",
            channel["transport"],
            f"{channel['batches']:,}",
            f"{channel['bytes'] / 1e6:,.1f}",
            str(channel["queued"]),
            f"{channel['sampling_s'] / batches * 1e3:,.1f}",
            f"{channel['waiting_s'] / batches * 1e3:,.1f}",
            f"{channel['idle_s']:,.0f}",
        )
    if len(rows) > _MAX_CHANNELS:
        table.add_row("", "", f"{len(rows) - _MAX_CHANNELS} more")
    return table


def _peers(loads: Loads) -> Table:
    table = _table("server", "calls to", "calls", "MB in", "MB out", "retries")
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
