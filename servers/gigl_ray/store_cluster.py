"""Cluster of storage servers on a Ray cluster."""

from __future__ import annotations

import logging
import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc.tokens import new_token
from gigl_ray.store_actor import NAMESPACE, ServerPlan, StoreActor, actor_name, addresses_of
from gigl_server.config import read_settings
from gigl_server.local_cluster import count_partitions, deal

if TYPE_CHECKING:
    from collections.abc import Mapping

_logger = logging.getLogger(__name__)

_CALLS_AT_ONCE = 8
"""Concurrent calls of an actor: other actors ask for its address during ``wait_ready``."""
_STOP_S = 15.0
_ANSWER_S = 10.0


class StoreCluster:
    """Storage servers of one graph, spread over the machines of a Ray cluster.

    Each is an actor, which runs ``gigl-loader serve`` in a process of its own and starts it again when it
    ends; Ray makes the actor anew on another machine when its own is lost. Trainers talk to the servers
    directly: no batch passes through Ray. The servers end with ``close``, or with the Ray job.
    """

    def __init__(
        self,
        graph_dir: str | os.PathLike[str],
        *,
        servers: int = 2,
        replicas: int = 1,
        name: str = "gigl-store",
        num_cpus: float = 1,
        memory: int = 0,
        resources: Mapping[str, float] | None = None,
        workers: int | None = None,
        token: str | None = None,
        options: Mapping[str, Any] | None = None,
        timeout_s: float = 300.0,
        log_level: str = "INFO",
    ) -> None:
        """Place ``servers`` actors, and wait until all servers are ready.

        Call ``ray.init`` before. ``graph_dir`` is a path that exists on all machines that may get a server.
        Partitions are assigned to the servers in order, each to ``replicas`` of them. ``num_cpus``,
        ``memory`` (bytes) and ``resources`` are what Ray reserves for each server; it samples ``workers``
        batches at once, by default ``num_cpus``. ``options`` are further options of ``gigl-loader serve``;
        files that they name are those of the server's machine. With a token, the servers also get a new
        cluster key. Beyond one machine, give ``tls_cert``, ``tls_key`` and ``token_file``, or
        ``{"insecure": True}`` on a network that you trust, as on the command line.

        Raises ``ValueError`` for bad options, more servers than partitions or a name that is taken,
        ``TimeoutError`` where Ray finds no machines for them or servers do not become ready in ``timeout_s``,
        or a server's own error.
        """
        given = {
            "graph_dir": str(Path(graph_dir).absolute()),
            "workers": workers or max(int(num_cpus), 1),
            **(options or {}),
        }
        # Invalid options are refused before any actor is placed.
        settings = read_settings({"listen": "127.0.0.1:0", **given}, {}, {})
        if not ray.is_initialized():
            raise RuntimeError("there is no Ray cluster here: call ray.init() first")
        if Path(graph_dir).is_dir():
            deal(count_partitions(graph_dir), servers, replicas)
        _refuse_taken(name)
        self.name = name
        self._num_cpus = num_cpus
        self._drain_s = settings.drain_s
        self.token = token or ""
        """What trainers show; empty where none was given."""
        deadline = time.monotonic() + timeout_s
        bundle = {"CPU": num_cpus, **({"memory": memory} if memory else {}), **(resources or {})}
        _tell_of_room(bundle, servers, timeout_s)
        with ExitStack() as undo:
            self._group = placement_group([bundle] * servers, strategy="SPREAD", name=f"{name} servers")
            self._actors: list[Any] = []
            undo.callback(self.close)
            if not self._group.wait(max(deadline - time.monotonic(), 0)):
                raise TimeoutError(
                    f"Ray found no machines for {servers} servers of {bundle} within {timeout_s:g} s"
                )
            dealt = deal(self._count_partitions(graph_dir, deadline), servers, replicas)
            cluster_key = new_token() if token else ""
            for index, partitions in enumerate(dealt):
                plan = ServerPlan(
                    cluster=name,
                    index=index,
                    servers=servers,
                    partitions=partitions,
                    options=given,
                    token=self.token,
                    cluster_key=cluster_key,
                    log_level=log_level,
                )
                self._actors.append(self._place(plan))
            self._wait_ready(deadline)
            undo.pop_all()

    @property
    def addresses(self) -> list[str]:
        """Control addresses of the servers that respond now. ``StorageUnavailable`` where none does."""
        found = addresses_of(actor_name(self.name, index) for index in range(len(self._actors)))
        if not found:
            raise StorageUnavailable(f"no server of {self.name!r} answers")
        return found

    def close(self) -> None:
        """Drain and end all servers. Closing twice is fine."""
        actors, self._actors = self._actors, []
        ending = [actor.stop.remote() for actor in actors]
        if ending:
            ray.wait(ending, num_returns=len(ending), timeout=self._drain_s + _STOP_S)
        for actor in actors:
            with suppress(RayError, ValueError):
                ray.kill(actor)
        group, self._group = self._group, None
        if group is not None:
            remove_placement_group(group)

    def _count_partitions(self, graph_dir: str | os.PathLike[str], deadline: float) -> int:
        """Return the number of partitions, as a machine that gets a server sees the graph."""
        count: Any = ray.remote(count_partitions).options(
            num_cpus=self._num_cpus, scheduling_strategy=self._where(0), max_retries=3
        )
        return int(_outcome(count.remote(str(Path(graph_dir).absolute())), deadline))

    def _place(self, plan: ServerPlan) -> Any:
        """Start the actor of a server. Ray restarts it, elsewhere if need be, while this object lives."""
        actor: Any = ray.remote(StoreActor).options(
            name=actor_name(self.name, plan.index),
            namespace=NAMESPACE,
            num_cpus=self._num_cpus,
            max_restarts=-1,
            max_task_retries=-1,
            max_concurrency=_CALLS_AT_ONCE,
            scheduling_strategy=self._where(plan.index),
        )
        return actor.remote(plan)

    def _wait_ready(self, deadline: float) -> None:
        waiting = [actor.wait_ready.remote(deadline - time.monotonic()) for actor in self._actors]
        late = [index for index, each in enumerate(waiting) if not _outcome(each, deadline + _ANSWER_S)]
        if late:
            raise TimeoutError(
                f"storage servers {late} are not ready in time; their logs say what they wait for"
            )

    def _where(self, index: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)

    def __enter__(self) -> StoreCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_taken(name: str) -> None:
    try:
        ray.get_actor(actor_name(name, 0), NAMESPACE)
    except ValueError:
        return
    raise ValueError(f"this Ray cluster has a StoreCluster {name!r} already: give another name")


def _tell_of_room(bundle: Mapping[str, float], servers: int, timeout_s: float) -> None:
    """Warn where the current machines have no room for all servers: Ray may add machines."""
    known: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    machines = [machine["Resources"] for machine in known if machine["Alive"]]
    places = sum(
        min(int(machine.get(kind, 0) / amount) for kind, amount in bundle.items() if amount)
        for machine in machines
    )
    if places < servers:
        _logger.warning(
            "the %d machines of Ray have room for %d of %d servers of %s: waiting for others, %g s",
            *(len(machines), places, servers, bundle, timeout_s),
        )


def _outcome(ref: Any, deadline: float) -> Any:
    """Return the result of a call. Raises the error of the call itself, not Ray's."""
    try:
        return ray.get(ref, timeout=max(deadline - time.monotonic(), 0.1))
    except GetTimeoutError:
        raise TimeoutError(
            "the storage servers were not placed in time; ray status says what they wait for"
        ) from None
    except RayTaskError as error:
        raise error.cause if error.cause is not None else error from None
