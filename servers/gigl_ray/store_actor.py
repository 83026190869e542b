"""Actors of storage servers: found by name, each runs a server where Ray chose, and starts it again."""

from __future__ import annotations

import logging
import threading
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from gigl_loader.retry import FOREVER, Deadline, attempts
from gigl_loader.rpc.endpoint import Address
from gigl_server.child import start_storage_server
from gigl_server.config import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.server_process import ServerProcess
    from gigl_server.config import ServeOptions

_LOGGER = logging.getLogger(__name__)

_BIND_S = 60.0
_END_S = 10.0
_LOOK_S = 1.0
_PATIENCE_S = 60.0
"""Time for which servers that start together wait for each other."""
_LONGEST_PAUSE_S = 10.0
_STEADY_S = 60.0
"""A server that ran this long is started again at once."""
NAMESPACE = "gigl"
"""Namespace of the actors, in which other Ray jobs find them, too."""
_ANSWER_S = 5.0
"""Timeout of asking actors for addresses. One that Ray is placing elsewhere responds later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlan:
    """Plan of the server that one actor runs."""

    cluster: str
    index: int
    servers: int
    partitions: tuple[int, ...]
    options: Mapping[str, Any]
    """Options of ``gigl-loader serve``, by name."""
    token: str = field(repr=False)
    cluster_key: str = field(repr=False)
    log_level: str

    @property
    def others(self) -> list[str]:
        """Names of the other actors."""
        return [actor_name(self.cluster, each) for each in range(self.servers) if each != self.index]


class StoreActor:
    """One storage server, in a process of its own. Ray starts the actor again where its machine is lost."""

    def __init__(self, plan: ServerPlan) -> None:
        """Start the server. Returns at once."""
        self._plan = plan
        self._settings: tuple[ServeOptions, Credentials] | None = None
        self._process: ServerProcess | None = None
        self._failure: Exception | None = None
        self._met = _is_made_anew()
        """Whether the servers of this cluster have met before."""
        self._ready = threading.Event()
        self._ending = threading.Event()
        self._watch = threading.Thread(target=self._keep_running, name="gigl-watch", daemon=True)
        self._watch.start()

    def address(self) -> str:
        """Return the control address, empty before it is known. It stays unless its port gets taken."""
        return "" if self._process is None or self._settings is None else self._settings[0].listen

    def pid(self) -> int:
        """Return the process id of the server that runs now, 0 where there is none."""
        return 0 if self._process is None else self._process.pid

    def wait_ready(self, timeout_s: float) -> bool:
        """Return whether the server is ready within ``timeout_s``. Raises why its last start failed."""
        deadline = time.monotonic() + timeout_s
        while not self._ready.wait(_LOOK_S):
            if self._failure is not None:
                raise self._failure
            if time.monotonic() > deadline:
                return False
        return True

    def stop(self) -> None:
        """Drain the server, and end it for good."""
        self._ending.set()
        self._watch.join(_BIND_S + _END_S)
        if self._process is not None and self._settings is not None:
            self._process.terminate(self._settings[0].drain_s + _END_S)
            self._process.end()

    def _keep_running(self) -> None:
        """Start the server, and start it again when it ends, until ``stop``."""
        while not self._ending.is_set():
            for _ in attempts(FOREVER, first_s=0.2, longest_s=_LONGEST_PAUSE_S, wait=self._ending.wait):
                if self._ran_steadily():
                    break  # The next pauses are short again.

    def _ran_steadily(self) -> bool:
        """Start the server, and return after its end whether it ran for long."""
        name = f"storage server {self._plan.index}"
        began = time.monotonic()
        try:
            self._process = process = self._start()
            self._failure = None
            self._run(process)
            if self._ending.is_set():
                return True
            _LOGGER.warning("%s %s: starting it again", name, process.describe())
        except Exception as error:  # Any error: a server that is not started again is worse.
            self._failure, self._settings = error, None  # Another port, and files as they are then.
            _LOGGER.error("%s: %s; starting it again", name, error)
        self._ready.clear()
        if self._process is not None:
            self._process.end()
        return time.monotonic() - began > _STEADY_S

    def _start(self) -> ServerProcess:
        """Start the server, wait until it listens, and keep its ports for the next start."""
        options, credentials = self._settings or _settings_of(self._plan)
        process = start_storage_server(
            options, credentials, name=f"storage server {self._plan.index}", log_level=self._plan.log_level
        )
        try:
            endpoint = process.bound(time.monotonic() + _BIND_S)
        except BaseException:
            process.end()
            raise
        options = replace(options, listen=endpoint.control_address, data_port=endpoint.data_port)
        self._settings = options, credentials
        return process

    def _run(self, process: ServerProcess) -> None:
        """Send addresses of the other servers until the server is ready. Returns at its end or ``stop``."""
        told = self._first_others()
        process.meet(sorted(told))
        while not self._ending.is_set() and process.status(0) is None:
            if self._ready.is_set():
                self._ending.wait(_LOOK_S)
                continue
            with suppress(TimeoutError):
                process.ready(time.monotonic() + _LOOK_S)
                self._ready.set()
            news = set(addresses_of(self._plan.others)) - told
            if news:
                process.meet(sorted(news))
                told |= news

    def _first_others(self) -> set[str]:
        """Return the addresses of the other servers.

        Servers that hold all partitions would be ready before they met, as a cluster each: when all are new,
        they are waited for.
        """
        patience = 0.0 if self._met else _PATIENCE_S
        found: set[str] = set()
        for _ in attempts(Deadline.after(patience), wait=self._ending.wait):
            found = set(addresses_of(self._plan.others))
            if len(found) == len(self._plan.others):
                break
        self._met = True
        return found


def _is_made_anew() -> bool:
    """Return whether Ray has started this actor before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Ray names no other way.
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)


def _settings_of(plan: ServerPlan) -> tuple[ServeOptions, Credentials]:
    """Return the options and credentials of a server on this machine, whose files it reads."""
    node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    host = str(Address(node, 0))
    options = replace(read_settings({"listen": host, **plan.options}, {}, {}), partitions=plan.partitions)
    credentials = options.load_credentials()
    return options, replace(
        credentials,
        token=plan.token or credentials.token,
        cluster_key=plan.cluster_key or credentials.cluster_key,
    )


def find_servers(name: str = "gigl-store", *, timeout_s: float = 60.0) -> list[str]:
    """Return the control addresses of the servers of a ``StoreCluster`` that run now.

    For ``RemoteDistDataset.connect``, in any process of the Ray cluster. One address is enough: servers tell
    trainers of each other, and of servers that come later. ``TimeoutError`` where none answers within
    ``timeout_s``.
    """
    deadline = Deadline.after(timeout_s)
    for _ in attempts(deadline):
        found = addresses_of(_names(name), deadline.left_s(_ANSWER_S))
        if found:
            return found
    raise TimeoutError(
        f"no server of {name!r} answered within {timeout_s:g} s: is there such a StoreCluster?"
    )


def actor_name(cluster: str, index: int) -> str:
    """Return the name of an actor."""
    return f"{cluster}-{index}"


def addresses_of(names: Iterable[str], timeout_s: float = _ANSWER_S) -> list[str]:
    """Return the addresses of the named actors whose server listens, in order, within ``timeout_s``."""
    asked = []
    for name in names:
        try:
            actor: Any = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:  # Not placed yet, or gone.
            continue
        asked.append(actor.address.remote())
    if not asked:
        return []
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=timeout_s)
    found = []
    for each in answered:
        with suppress(RayError):  # Ray is starting it again.
            found.append(str(ray.get(each)))
    return [address for address in found if address]


def _names(cluster: str) -> list[str]:
    there = [
        each["name"] for each in list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE
    ]
    return [name for name in there if name.rpartition("-")[0] == cluster]
