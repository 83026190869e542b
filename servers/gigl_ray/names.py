"""Storage servers by name: where Ray runs them now."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from gigl_loader.retry import Backoff

if TYPE_CHECKING:
    from collections.abc import Iterable

NAMESPACE = "gigl"
"""Of the actors, so that other Ray jobs find them, too."""

_ANSWER_S = 5.0
"""An actor that Ray is about to place elsewhere answers when it runs: nobody waits for it."""


def find_servers(name: str = "gigl-store", *, timeout_s: float = 60.0) -> list[str]:
    """Return the control addresses of the servers of a ``StoreCluster`` that run now.

    For ``RemoteDistDataset.connect``, in any process of the Ray cluster. One address is enough: servers tell
    trainers of each other, and of servers that come later. ``TimeoutError`` where none answers within
    ``timeout_s``.
    """
    deadline, backoff = time.monotonic() + timeout_s, Backoff()
    while True:
        found = addresses_of(_names(name))
        if found:
            return found
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"no server of {name!r} answered within {timeout_s:g} s: is there such a StoreCluster?"
            )
        time.sleep(min(backoff.next_s(), left))


def actor_name(cluster: str, index: int) -> str:
    """Return the name of an actor."""
    return f"{cluster}-{index}"


def addresses_of(names: Iterable[str]) -> list[str]:
    """Return the addresses of those actors of these names whose server listens, in order."""
    asked = []
    for name in names:
        try:
            actor: Any = ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:  # Not there yet, or not any more.
            continue
        asked.append(actor.address.remote())
    if not asked:
        return []
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_S)
    found = []
    for each in answered:
        with suppress(RayError):  # It is being made anew.
            found.append(str(ray.get(each)))
    return [address for address in found if address]


def _names(cluster: str) -> list[str]:
    there = [
        each["name"] for each in list_named_actors(all_namespaces=True) if each["namespace"] == NAMESPACE
    ]
    return [name for name in there if name.rpartition("-")[0] == cluster]
