"""Loads of all servers of a cluster at one moment."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gigl_loader.cli.store_caller import client_of
from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.rpc.store_client import StoreClient
from gigl_loader.rpc.versions import BuildVersions

if TYPE_CHECKING:
    from gigl_loader.rpc.control import ClusterView
    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["Loads", "Looker", "ServerLoad"]

_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLoad:
    """One server: its ``gigl.v1.ServerLoad`` with numbers as numbers, or why it did not answer."""

    address: str
    partitions: tuple[int, ...]
    load: dict[str, Any]
    error: str
    away: bool = False
    """It does not answer, and may do so later."""

    @property
    def notice(self) -> str:
        """What someone should look at, in words; empty where there is nothing."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """All servers, by rank."""

    at: float
    """Seconds on the monotonic clock."""
    graph: str
    servers: tuple[ServerLoad, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
        servers = [
            {"rank": rank, "address": each.address, "partitions": list(each.partitions)}
            | ({"error": each.notice} if each.notice else {})
            | each.load
            for rank, each in enumerate(self.servers)
        ]
        return {"graph": self.graph, "servers": servers}


class Looker:
    """Looks at a cluster through one of its servers."""

    def __init__(self, address: str, caller: Caller, timeout_s: float) -> None:
        self._caller, self._timeout_s = caller, timeout_s
        self._addresses = [address]
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="top")

    def look(self) -> Loads:
        """Ask every server. One that does not answer has an ``error``.

        Any server known so far may tell of the others; where none does, the error is that of the first.
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
    """Return a message as a mapping with every field. (JSON of protobuf writes 64-bit numbers as text.)"""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is None:
            found[field.name] = list(value) if _repeated(field) else value
        else:
            found[field.name] = [_plain(each) for each in value] if _repeated(field) else _plain(value)
    return found


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)
