"""Discovery of storage servers, until each partition has a holder."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.retry import Backoff, Deadline
from gigl_loader.rpc.endpoint import Address
from gigl_loader.rpc.peer import HoldsOthers
from gigl_loader.threads import ThreadPool
from gigl_server.cluster.membership import Membership
from gigl_server.cluster.peers import JoinRefused, PeerResponse, check_fit, listed

if TYPE_CHECKING:
    from gigl_loader.rpc.endpoint import Endpoint

_LOGGER = logging.getLogger(__name__)

_AT_ONCE = 8
_ATTEMPT_S = 5.0
_TOLD_ATTEMPT_S = 2.0
_TOLD_AT_ONCE = 16  # Any holder of the token may announce servers: silent ones must not delay the others.
_HEARD_S = 1.0  # Between two rounds of queries for a newer membership.
_MEET_S = 5.0
"""Servers that start at the same time are up within some seconds of each other."""
_MAX_ADDRESSES = 4096  # Limit on announced addresses: more than any cluster has.


class Discovery:
    """Queries known servers for further servers. ``tell``, ``expect`` and ``announce`` are thread-safe.

    ``run`` finds a holder for each partition, and meets the servers that are expected: ``peers``, and servers
    given to ``expect``. Two servers have met once each has the other in its membership. ``follow`` meets the
    servers that come after that.
    """

    def __init__(
        self,
        own: Endpoint,
        *,
        graph: str,
        num_partitions: int,
        peers: Sequence[str],
        query: Callable[[str, float], PeerResponse],
        check: Callable[[Endpoint, float], object],
        meet_s: float = _MEET_S,
    ) -> None:
        """``query(address, timeout_s)`` and ``check(endpoint, timeout_s)`` query and check a server.

        Both raise ``StorageUnavailable`` where a retry may succeed, else ``ValueError`` or ``SamplingError``.
        Expected servers are waited for ``meet_s`` at most, once every partition has a holder.
        """
        self._own = own
        self._graph = graph
        self._num_partitions = num_partitions
        self._query, self._check = query, check
        self._lock = threading.Lock()
        self._news = threading.Event()
        self.changed = threading.Event()
        """Set when the watch should look at the other servers at once, and at ``close``: ends ``follow``."""
        self._closed = False
        self._addresses = list(dict.fromkeys(_normal(peer) for peer in peers))
        self._trusted = set(self._addresses)
        self._meet_s = meet_s
        self._expected = set(self._addresses) - {own.control_address}
        """Addresses of expected servers that this one has not met yet."""
        self._complete_s: float | None = None
        """When every partition had a holder for the first time, by the monotonic clock."""
        self.membership = Membership(own)
        """Servers that responded and passed the checks, this one included."""
        self._told: set[str] = set()
        """Addresses that were announced, or announced again, since they were queried."""
        self._queried: set[str] = set()
        self._silent: Counter[str] = Counter()
        """Number of queries in a row without a response, by announced address."""
        self._errors: dict[str, str] = {}
        self._logged = ""
        self._heard = -_HEARD_S

    @property
    def members(self) -> tuple[Endpoint, ...]:
        """Servers that responded and passed the checks, by rank, this one included."""
        return self.membership.members

    @property
    def missing(self) -> list[int]:
        """Partitions that no known server has."""
        return self.membership.missing(self._num_partitions)

    @property
    def waiting_for(self) -> str:
        """Missing partitions, or expected servers that were not met, and the latest errors, as text.

        Empty when nothing is missing.
        """
        awaited = self._awaited()
        with self._lock:
            errors = "; ".join(list(self._errors.values())[:4])
        return f"waits for {awaited}" + (f" ({errors})" if errors else "") if awaited else ""

    def _awaited(self) -> str:
        """Missing partitions, or expected servers that were not met, as text."""
        if missing := self.missing:
            return f"partitions {listed(missing)}"
        with self._lock:
            expected = sorted(self._expected)
        more = f" and {len(expected) - 4} more" if len(expected) > 4 else ""
        return f"servers {', '.join(expected[:4])}{more}" if expected else ""

    @property
    def without_holder(self) -> str:
        """Partitions without a reachable holder, and their holders, as text. Empty: there is none."""
        lost = self.membership.unanswered(self._num_partitions)
        if not lost:
            return ""
        away = [
            str(member)
            for member in self.membership.others
            if member.control_address in self.membership.away and set(member.partitions) & set(lost)
        ]
        more = f" and {len(away) - 4} more" if len(away) > 4 else ""
        silent = f": {', '.join(away[:4])}{more} did not answer" if away else ""
        return f"no holder of partitions {listed(lost)} is left{silent}"

    def tell(self, address: str) -> None:
        """Add the address of a server, which is queried soon. An invalid address is ignored.

        A known server that announces itself again has news: it is queried again.
        """
        try:
            address = _normal(address)
        except ValueError:
            return
        with self._lock:
            if address == self._own.control_address:
                return
            known = address in self._addresses
            if not known and len(self._addresses) >= _MAX_ADDRESSES and not self._forget_silent():
                return
            if not known:
                self._addresses.append(address)
            self._told.add(address)
        self._news.set()

    def expect(self, address: str) -> None:
        """Add the address of a server that belongs to the cluster: ``run`` waits for it, as for ``peers``."""
        self.tell(address)
        with suppress(ValueError), self._lock:
            address = _normal(address)
            if address in self._addresses:
                self._expected.add(address)

    def announce(self, partitions: Iterable[int]) -> None:
        """Tell other servers and clients that this server holds ``partitions`` from now on."""
        if self.membership.announce(partitions):
            self._end_pause()

    def run(self, timeout_s: float) -> tuple[Endpoint, ...]:
        """Return the members once they serve all partitions together, and expected servers were met.

        A silent expected server is waited for a few seconds only: it may be gone for good.
        Raises ``JoinRefused`` where a trusted server does not fit: one of ``peers``, or one that such a
        server knows. Raises ``StorageUnavailable`` with what is missing after ``timeout_s``.
        """
        deadline = Deadline.after(timeout_s)
        backoff = Backoff()
        with ThreadPool(_AT_ONCE, thread_name_prefix="join") as pool:
            while self.missing or self._has_unqueried() or self._waits_to_meet(deadline):
                if not deadline.left_s() or self._closed:
                    raise self._given_up(timeout_s)
                self._news.clear()
                self._round(pool, deadline)
                if not self.waiting_for:
                    continue
                self._tell_log()
                if self._news.wait(deadline.left_s(backoff.next_s())):
                    backoff.reset()
        if self._expected:
            _LOGGER.warning("goes on alone, and joins them when they come: it %s", self.waiting_for)
        return self.members

    def heard(self, version: int) -> None:
        """Record the version of a membership from a reply. A newer membership is fetched soon."""
        now = time.monotonic()
        if version > self.membership.version and now - self._heard >= _HEARD_S:
            self._heard = now
            self._end_pause()

    def _end_pause(self) -> None:
        self.changed.set()
        self._news.set()

    def follow(self, seconds: float) -> None:
        """Meet servers that announce themselves, for so long or until ``changed`` is set.

        Expected servers that were not met yet are queried once. A server that does not fit is passed over.
        """
        deadline = time.monotonic() + seconds
        with self._lock:
            self._told |= self._expected
        while not (self._closed or self.changed.is_set()):
            with self._lock:
                told = list(self._told)[-_TOLD_AT_ONCE:]
                self._told.difference_update(told)
                if not self._told:
                    self._news.clear()
            if told:
                with ThreadPool(_AT_ONCE, thread_name_prefix="join") as pool:
                    self._query_all(pool, told, _TOLD_ATTEMPT_S, strict=False)
            left = deadline - time.monotonic()
            if left <= 0:
                return
            self._news.wait(left)

    def _has_unqueried(self) -> bool:
        """Return whether a trusted server was not queried yet: it may have another graph."""
        with self._lock:
            unqueried = self._trusted.intersection(self._addresses) - self._queried
            return bool(unqueried) and len(self.membership.members) > 1

    def _waits_to_meet(self, deadline: Deadline) -> bool:
        """Return whether to wait for expected servers, where every partition has a holder."""
        now = time.monotonic()
        if self._complete_s is None:
            self._complete_s = now
        return (
            bool(self._expected)
            and not self._closed
            and now < min(self._complete_s + self._meet_s, deadline.at)
        )

    def close(self) -> None:
        """End ``run`` after the attempts under way."""
        self._closed = True
        self._end_pause()

    def _round(self, pool: ThreadPool, deadline: Deadline) -> None:
        """Query trusted servers, then some announced ones: responding and new ones first."""
        with self._lock:
            named = [address for address in self._addresses if address in self._trusted]
            told = [address for address in reversed(self._addresses) if address not in self._trusted]
            told = sorted(told, key=self._silent.__getitem__)[:_TOLD_AT_ONCE]
            self._queried.update(named)
            self._told.difference_update([*named, *told])
        self._query_all(pool, named, max(deadline.left_s(_ATTEMPT_S), 0.1))
        self._query_all(pool, told, max(deadline.left_s(_TOLD_ATTEMPT_S), 0.1))

    def _query_all(
        self, pool: ThreadPool, addresses: Sequence[str], seconds: float, *, strict: bool = True
    ) -> None:
        """Query servers concurrently. ``strict``: a trusted server that does not fit raises."""
        # All queries start before the first refusal is raised, which so names the same server every time.
        futures = [pool.submit(self._meet, address, seconds) for address in addresses]
        for address, future in zip(addresses, futures, strict=True):
            error = future.exception()
            if isinstance(error, StorageUnavailable):
                with self._lock:
                    self._errors[address] = str(error)
                    self._silent[address] += 1
            elif isinstance(error, (GiglError, ValueError)):
                self._refuse(address, error, strict=strict)
            elif error is not None:
                raise error

    def _meet(self, address: str, seconds: float) -> None:
        deadline = Deadline.after(seconds)
        response = self._query(address, seconds)
        itself = response.itself
        if itself.control_address == self._own.control_address:
            self._forget_error(address)
            self._met(address)
            return
        wire = check_fit(address, response.view, graph=self._graph)
        known = self.membership.knows(itself.control_address)
        if not known:
            self._drop_gone(itself)
        for other in response.others:
            if other not in self._addresses:
                self.tell(other)
        with self._lock:
            if address in self._trusted:
                self._trusted.update(response.others)
        if not known:
            try:
                self._check(itself, deadline.left_s())
            except HoldsOthers as error:  # It gained or gave up a partition since its reply.
                raise StorageUnavailable(str(error)) from None
        if self.membership.put(replace(itself, wire_version=wire)):
            _LOGGER.info("found the server of partitions %s at %s", listed(itself.partitions), address)
        self.membership.merge(response.view.membership, response.view.servers)
        self._forget_error(address)
        if self._own.control_address in response.others:
            self._met(address)

    def _drop_gone(self, newcomer: Endpoint) -> None:
        """Forget members that hold a newcomer's partitions and do not respond any more.

        A server that was restarted elsewhere has another address. A member that responds stays: both hold
        the partitions.
        """
        held = set(newcomer.partitions)
        for member in self.membership.others:
            if set(member.partitions) <= held and self._is_gone(member):
                _LOGGER.info("%s is gone", member)
                self.membership.remove(member.control_address)

    def _is_gone(self, member: Endpoint) -> bool:
        """Return whether a member does not respond, or a server at its address lacks the cluster key."""
        try:
            self._query(member.control_address, _ATTEMPT_S)
        except (StorageUnavailable, JoinRefused):
            return True
        except (GiglError, ValueError):  # It responds with a refusal: it may be busy.
            return False
        return False

    def _refuse(self, address: str, error: Exception, *, strict: bool) -> None:
        """Give up a server. An announced server that does not fit is ignored: it stops itself."""
        if strict and address in self._trusted:
            raise error if isinstance(error, JoinRefused) else JoinRefused(str(error)) from None
        _LOGGER.warning("passing over %s, which asked to join: %s", address, str(error))
        with self._lock:
            self._forget(address)

    def _forget_silent(self) -> bool:
        """Forget a silent announced address, to make room. Return whether there was one. Under the lock."""
        told = [
            address for address in self._addresses if self._silent[address] and address not in self._trusted
        ]
        if told:
            self._forget(max(told, key=self._silent.__getitem__))
        return bool(told)

    def _met(self, address: str) -> None:
        with self._lock:
            self._expected.discard(address)

    def _forget(self, address: str) -> None:
        if address in self._addresses:
            self._addresses.remove(address)
        self._expected.discard(address)
        self._errors.pop(address, None)
        self._silent.pop(address, None)

    def _forget_error(self, address: str) -> None:
        with self._lock:
            self._errors.pop(address, None)
            self._silent.pop(address, None)

    def _tell_log(self) -> None:
        awaited = self._awaited()
        if awaited != self._logged:
            _LOGGER.info("waiting for %s", awaited)
            self._logged = awaited

    def _given_up(self, timeout_s: float) -> Exception:
        if self._closed:
            return StorageUnavailable("this server was closed while it waited for others")
        if not self.missing:
            return StorageUnavailable(
                f"after {timeout_s:g} s, there are servers that this one has not asked yet"
            )
        others = set(self._addresses) - {self._own.control_address}
        hint = "" if others else ": name another server by --peer, or serve all partitions here"
        return StorageUnavailable(f"after {timeout_s:g} s, this server still {self.waiting_for}{hint}")


def _normal(address: str) -> str:
    return str(Address.parse(address.strip()))
