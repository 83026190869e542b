"""Discovery of storage servers, until one of them serves each partition of the graph."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

from gigl_loader.errors import GiglError, StorageUnavailable
from gigl_loader.retry import Backoff
from gigl_loader.rpc.address import Address
from gigl_server.cluster.peers import JoinRefused, PeerResponse, check_fit, check_partitions, listed

if TYPE_CHECKING:
    from gigl_loader.rpc.endpoint import Endpoint

__all__ = ["Discovery", "JoinRefused"]

_LOGGER = logging.getLogger(__name__)

_AT_ONCE = 8
_ATTEMPT_S = 5.0
_TOLD_ATTEMPT_S = 2.0
_TOLD_AT_ONCE = 16  # Any holder of the token may announce servers: silent ones must not delay others.
_MAX_ADDRESSES = 4096  # Limit on announced addresses: more than any cluster has.


class Discovery:
    """Queries known servers for further servers. ``tell`` may be called from any thread."""

    def __init__(
        self,
        own: Endpoint,
        *,
        graph: str,
        num_partitions: int,
        peers: Sequence[str],
        query: Callable[[str, float], PeerResponse],
        check: Callable[[Endpoint, float], object],
    ) -> None:
        """``query(address, timeout_s)`` and ``check(endpoint, timeout_s)`` query and check a server.

        Both raise ``StorageUnavailable`` where a retry may succeed, else ``ValueError`` or ``SamplingError``.
        """
        self._own = own
        self._graph = graph
        self._num_partitions = num_partitions
        self._query, self._check = query, check
        self._lock = threading.Lock()
        self._news = threading.Event()
        self._closed = False
        self._addresses = list(dict.fromkeys(_normal(peer) for peer in peers))
        self._trusted = set(self._addresses)
        self._members: dict[str, Endpoint] = {own.control_address: own}
        self._queried: set[str] = set()
        self._silent: Counter[str] = Counter()
        """Number of queries in a row without a response, by announced address."""
        self._errors: dict[str, str] = {}
        self._told = ""

    @property
    def members(self) -> tuple[Endpoint, ...]:
        """Servers that responded and passed the checks, by rank, this one included."""
        with self._lock:
            found = sorted(self._members.values(), key=lambda each: each.partitions)
        return tuple(replace(member, host_index=rank) for rank, member in enumerate(found))

    @property
    def missing(self) -> list[int]:
        """Partitions that no known server has."""
        with self._lock:
            held = {part for member in self._members.values() for part in member.partitions}
        return [part for part in range(self._num_partitions) if part not in held]

    @property
    def waiting_for(self) -> str:
        """Missing partitions and the latest errors, as text; empty when nothing is missing."""
        if not self.missing:
            return ""
        with self._lock:
            errors = "; ".join(list(self._errors.values())[:4])
        return f"waits for partitions {listed(self.missing)}" + (f" ({errors})" if errors else "")

    def tell(self, address: str) -> None:
        """Add the address of a server, which is queried soon. An invalid address is ignored."""
        try:
            address = _normal(address)
        except ValueError:
            return
        with self._lock:
            if address in self._addresses or address == self._own.control_address:
                return
            if len(self._addresses) >= _MAX_ADDRESSES and not self._forget_silent():
                return
            self._addresses.append(address)
        self._news.set()

    def hold(self, partitions: Sequence[int]) -> Endpoint:
        """Tell others that this server holds other partitions from now on. Return its endpoint.

        A partition that another live server holds is not told: a cluster has one server for each. Where the
        other server does not respond, it is told of no more.
        """
        with self._lock:
            own, others = self._own, [each for each in self._members.values() if each is not self._own]
        for other in others:
            shared = set(other.partitions) & set(partitions) - set(own.partitions)
            if shared and self._is_gone(other):
                left = tuple(part for part in other.partitions if part not in shared)
                with self._lock:
                    del self._members[other.control_address]
                    if left:
                        self._members[other.control_address] = replace(other, partitions=left)
            elif shared:
                partitions = [part for part in partitions if part not in shared]
        with self._lock:
            self._own = replace(own, partitions=tuple(sorted(partitions)))
            self._members[own.control_address] = self._own
            return self._own

    def run(self, timeout_s: float) -> tuple[Endpoint, ...]:
        """Return the members once they serve all partitions together.

        Raises ``JoinRefused`` where a trusted server does not fit: one of ``peers``, or one that such a
        server knows. Raises ``StorageUnavailable`` with what is missing after ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        backoff = Backoff()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="join") as pool:
            while self.missing or self._has_unqueried():
                left = deadline - time.monotonic()
                if left <= 0 or self._closed:
                    raise self._given_up(timeout_s)
                self._news.clear()
                self._round(pool, left)
                if not self.missing:
                    continue
                self._tell_log()
                if self._news.wait(min(backoff.next_s(), max(deadline - time.monotonic(), 0.0))):
                    backoff.reset()
        return self.members

    def _has_unqueried(self) -> bool:
        """Return whether a trusted server was not queried yet: it may have partitions of another member."""
        with self._lock:
            unqueried = self._trusted.intersection(self._addresses) - self._queried
            return bool(unqueried) and len(self._members) > 1

    def close(self) -> None:
        """End ``run`` after the attempts under way."""
        self._closed = True
        self._news.set()

    def _round(self, pool: ThreadPoolExecutor, left: float) -> None:
        """Query trusted servers, then some announced ones: first those that respond, and the newest."""
        with self._lock:
            named = [address for address in self._addresses if address in self._trusted]
            told = [address for address in reversed(self._addresses) if address not in self._trusted]
            told = sorted(told, key=self._silent.__getitem__)[:_TOLD_AT_ONCE]
            self._queried.update(named)
        self._query_all(pool, named, min(_ATTEMPT_S, max(left, 0.1)))
        self._query_all(pool, told, min(_TOLD_ATTEMPT_S, max(left, 0.1)))

    def _query_all(self, pool: ThreadPoolExecutor, addresses: Sequence[str], seconds: float) -> None:
        # All queries start before the first refusal is raised, which so names the same server every time.
        futures = [pool.submit(self._meet, address, seconds) for address in addresses]
        for address, future in zip(addresses, futures, strict=True):
            error = future.exception()
            if isinstance(error, StorageUnavailable):
                with self._lock:
                    self._errors[address] = str(error)
                    self._silent[address] += 1
            elif isinstance(error, (GiglError, ValueError)):
                self._refuse(address, error)
            elif error is not None:
                raise error

    def _meet(self, address: str, seconds: float) -> None:
        response = self._query(address, seconds)
        itself = response.itself
        if itself.control_address == self._own.control_address and itself.partitions == self._own.partitions:
            self._forget_error(address)
            return
        check_fit(address, response, graph=self._graph)
        self._drop_gone(itself)
        with self._lock:
            self._check_partitions(address, itself)
        for other in response.others:
            self.tell(other)
        with self._lock:
            if address in self._trusted:
                self._trusted.update(response.others)
            known = itself.control_address in self._members
        if not known:
            self._check(itself, seconds)
            with self._lock:  # A server with the same partitions may have been added meanwhile.
                self._check_partitions(address, itself)
                self._members[itself.control_address] = itself
            _LOGGER.info("found the server of partitions %s at %s", listed(itself.partitions), address)
        self._forget_error(address)

    def _drop_gone(self, newcomer: Endpoint) -> None:
        """Forget members that hold a newcomer's partitions and do not respond any more.

        A server that was restarted elsewhere has another address. A live member stays, and the newcomer is
        refused.
        """
        with self._lock:
            rivals = [each for each in self._members.values() if self._are_rivals(each, newcomer)]
        for rival in filter(self._is_gone, rivals):
            _LOGGER.info("%s is gone", rival)
            with self._lock:
                self._members.pop(rival.control_address, None)

    def _is_gone(self, member: Endpoint) -> bool:
        """Return whether a member does not respond, or a server at its address lacks the cluster key."""
        try:
            self._query(member.control_address, _ATTEMPT_S)
        except (StorageUnavailable, JoinRefused):
            return True
        except (GiglError, ValueError):  # It responds with a refusal: it may be busy.
            return False
        return False

    def _are_rivals(self, member: Endpoint, newcomer: Endpoint) -> bool:
        shared = not set(member.partitions).isdisjoint(newcomer.partitions)
        return shared and member is not self._own and member.control_address != newcomer.control_address

    def _check_partitions(self, address: str, itself: Endpoint) -> None:
        check_partitions(address, itself, own=self._own, members=self._members.values())

    def _refuse(self, address: str, error: Exception) -> None:
        """Give up a server. An announced server that does not fit is ignored: it stops itself."""
        if address in self._trusted:
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

    def _forget(self, address: str) -> None:
        self._addresses.remove(address)
        self._errors.pop(address, None)
        self._silent.pop(address, None)

    def _forget_error(self, address: str) -> None:
        with self._lock:
            self._errors.pop(address, None)
            self._silent.pop(address, None)

    def _tell_log(self) -> None:
        missing = f"waiting for partitions {listed(self.missing)}"
        if missing != self._told:
            _LOGGER.info("%s", missing)
            self._told = missing

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
