"""Membership: the servers of a cluster as one server knows them, and the readiness of that server."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gigl_loader.rpc.endpoint import Endpoint
    from gigl_loader.sampling.store import WireCounts
    from gigl_server.cluster.discovery import Discovery

_MAX_VERSION = 1 << 62
"""Versions beyond this are not merged: no later change could exceed a wrong one."""


class Membership:
    """Servers that hold the graph, and a version that every change raises. Thread-safe.

    Every server keeps the set that it has met itself. The version is a logical clock: a change takes a value
    above all that were seen, so a client that follows the highest version never goes back; servers with equal
    sets agree on the highest of their versions. It begins with the time in milliseconds, so that a cluster
    that was started anew is newer than the one before.
    """

    def __init__(self, own: Endpoint) -> None:
        self._lock = threading.Lock()
        self._own_address = own.control_address
        self._members: dict[str, Endpoint] = {own.control_address: own}
        self._away: frozenset[str] = frozenset()
        self._version = self._seen = int(time.time() * 1e3)
        self._listeners: list[Callable[[], None]] = []

    @property
    def version(self) -> int:
        return self._version

    @property
    def own(self) -> Endpoint:
        """This server, with the partitions that it announces."""
        return self._members[self._own_address]

    @property
    def members(self) -> tuple[Endpoint, ...]:
        """All servers, this one included, by rank: by ascending partitions, then by address."""
        with self._lock:
            return _ranked(self._members.values())

    @property
    def others(self) -> tuple[Endpoint, ...]:
        """All servers but this one, by rank."""
        return tuple(each for each in self.members if each.control_address != self._own_address)

    @property
    def away(self) -> frozenset[str]:
        """Control addresses of the servers that did not respond to the last queries."""
        return self._away

    def snapshot(self) -> tuple[int, tuple[Endpoint, ...]]:
        """Return the version and the members that belong to it."""
        with self._lock:
            return self._version, _ranked(self._members.values())

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every change of the set."""
        self._listeners.append(listener)

    def knows(self, address: str) -> bool:
        return address in self._members

    def put(self, member: Endpoint) -> bool:
        """Add a server, or replace the one at its address. Return whether that changed the set."""
        member = replace(member, host_index=0)
        with self._lock:
            before = self._members.get(member.control_address)
            if before is not None and _identity(before) == _identity(member):
                return False
            self._members[member.control_address] = member
            self._raise_version()
        self._tell()
        return True

    def remove(self, address: str) -> bool:
        """Remove a server. Return whether it was a member. This server stays."""
        with self._lock:
            if address == self._own_address or self._members.pop(address, None) is None:
                return False
            self._away -= {address}
            self._raise_version()
        self._tell()
        return True

    def announce(self, partitions: Iterable[int]) -> bool:
        """Hold these partitions from now on. Return whether that is a change."""
        return self.put(replace(self.own, partitions=tuple(sorted(partitions))))

    def merge(self, version: int, members: Iterable[Endpoint]) -> None:
        """Take over the version of another server's view, where both have the same set.

        The next change here makes this view newer than one of another set.
        """
        if not 0 < version < _MAX_VERSION:
            return
        with self._lock:
            self._seen = max(self._seen, version)
            if _identities(members) == _identities(self._members.values()):
                self._version = max(self._version, version)

    def set_away(self, addresses: Iterable[str]) -> None:
        """Mark the servers that do not respond. This does not change the set."""
        with self._lock:
            self._away = frozenset(addresses) & self._members.keys()

    def others_hold(self, member: Endpoint) -> bool:
        """Return whether other reachable servers hold all partitions of a member."""
        with self._lock:
            answering = [
                each
                for address, each in self._members.items()
                if address != member.control_address and address not in self._away
            ]
        return set(member.partitions) <= {part for each in answering for part in each.partitions}

    def missing(self, num_partitions: int) -> list[int]:
        """Return the partitions that no member holds."""
        with self._lock:
            held = {part for member in self._members.values() for part in member.partitions}
        return [part for part in range(num_partitions) if part not in held]

    def unanswered(self, num_partitions: int) -> list[int]:
        """Return the partitions without a reachable holder."""
        with self._lock:
            held = {
                part
                for address, member in self._members.items()
                if address not in self._away
                for part in member.partitions
            }
        return [part for part in range(num_partitions) if part not in held]

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()

    def _raise_version(self) -> None:
        self._version = self._seen = max(self._version, self._seen) + 1


def incarnation_of_now() -> int:
    """Return the incarnation of a server that starts now: nanoseconds since 1970."""
    return time.time_ns()


def _ranked(members: Iterable[Endpoint]) -> tuple[Endpoint, ...]:
    found: Sequence[Endpoint] = sorted(members, key=lambda each: (each.partitions, each.control_address))
    return tuple(replace(member, host_index=rank) for rank, member in enumerate(found))


def _identity(member: Endpoint) -> tuple[object, ...]:
    return member.control_address, member.data_port, member.partitions, member.incarnation


def _identities(members: Iterable[Endpoint]) -> set[tuple[object, ...]]:
    return set(map(_identity, members))


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """View of the cluster, as sent to callers."""

    members: tuple[Endpoint, ...]
    """Servers known so far, by rank, this one included."""
    own: str = ""
    """Control address of this server. Empty before a port is bound."""
    membership: int = 0
    """Version of ``members``."""
    away: frozenset[str] = frozenset()
    """Control addresses of members that did not respond to the last queries."""
    ready: bool
    reason: str
    """Why this server is not ready, as text. When it is ready: which expected servers it has not met yet."""
    peers: Mapping[int, WireCounts] = field(default_factory=dict)
    """Traffic with each other server since this one started, by ascending rank."""


class Readiness:
    """Known servers, and whether this one is ready. Thread-safe; usable before a port is bound."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._discovery: Discovery | None = None
        self._reason = "it is starting"
        self._ends = False
        self._traffic: Callable[[], Mapping[int, WireCounts]] = dict

    @property
    def ready(self) -> bool:
        with self._lock:
            return not self._reason

    def view(self) -> View:
        """Return the view to send to callers."""
        with self._lock:
            discovery, reason, ends, traffic = self._discovery, self._reason, self._ends, self._traffic
        if discovery is None:
            return View(members=(), ready=False, reason=reason)
        version, members = discovery.membership.snapshot()
        return View(
            members=members,
            own=discovery.membership.own.control_address,
            membership=version,
            away=discovery.membership.away,
            ready=not reason,
            reason=reason if ends else discovery.waiting_for or reason,
            peers=dict(sorted(traffic().items())),
        )

    def heard_of(self, address: str) -> None:
        """Add the address of a server that announced itself."""
        with self._lock:
            discovery = None if self._ends else self._discovery
        if discovery is not None:
            discovery.tell(address)

    def membership_version(self) -> int:
        """Return the version of the membership. 0 before a port is bound."""
        discovery = self._discovery
        return 0 if discovery is None else discovery.membership.version

    def joins(self, discovery: Discovery) -> None:
        """Use ``discovery`` as the source of members from now on."""
        with self._lock:
            self._discovery = discovery

    def is_ready(self, traffic: Callable[[], Mapping[int, WireCounts]]) -> None:
        """Become ready. ``traffic`` returns the traffic with other servers, by rank."""
        with self._lock:
            if not self._ends:
                self._reason, self._traffic = "", traffic

    def ends(self, reason: str) -> bool:
        """Stop serving for good, for ``reason``. Return whether the server was ready."""
        with self._lock:
            served = not self._reason
            self._reason, self._ends = reason, True
        return served
