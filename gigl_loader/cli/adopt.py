"""``gigl-loader adopt``: a running storage server takes over a partition."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gigl_loader.cli.console import build_progress, say
from gigl_loader.cli.errors import importing
from gigl_loader.cli.options import CallerOptions, client_of, grouped

if TYPE_CHECKING:
    from collections.abc import Callable

    from gigl_loader.rpc.store_client import StoreClient

_CALL_S = 10.0
_LOOK_EVERY_S = 0.5


@grouped
def adopt(
    address: Annotated[str, typer.Argument(help="HOST:PORT of the server that takes over the partition.")],
    partition: Annotated[int, typer.Argument(min=0, help="The partition.")],
    *,
    cluster_key_file: Annotated[
        str | None,
        typer.Option(
            "--cluster-key-file",
            envvar="GIGL_CLUSTER_KEY_FILE",
            help="Holds the key of the servers. Where they have none, run this on the server's own host.",
        ),
    ] = None,
    stalled: Annotated[
        float, typer.Option(min=1, help="Give up after so many seconds without a byte or an answer.")
    ] = 120.0,
    credentials: CallerOptions,
) -> None:
    """Have a running server take over a partition, which is pulled unless it lies there, and verified.

    It is fine to repeat this, or to interrupt it with Ctrl-C: the server goes on.
    """
    with importing():
        from gigl_loader.rpc.secret_files import cluster_key_in
        from gigl_server.logs import quiet_grpc
    quiet_grpc()

    caller = credentials.caller()
    key = cluster_key_in(cluster_key_file)
    with client_of(address, caller) as client, build_progress(quiet=False) as show:
        _follow(client, partition, key, stalled_s=stalled, show=show)
    say(f"{client.endpoint} holds partition {partition}")


def _follow(
    client: StoreClient,
    partition: int,
    key: str,
    *,
    stalled_s: float,
    show: Callable[[str, int, int], None] | None,
) -> None:
    """Have the server begin, and wait until it holds the partition. Raises why it does not."""
    from gigl_loader.errors import StorageUnavailable

    before: Any = None
    moved = time.monotonic()
    begin = True
    while True:
        try:
            state = client.adopt(partition, _CALL_S, begin=begin, cluster_key=key)
        except StorageUnavailable:
            if begin or time.monotonic() - moved > stalled_s:
                raise
        else:
            begin = False
            if state.step == "held":
                return
            if state.step == "failed":
                raise StorageUnavailable(f"{client.endpoint}: partition {partition}: {state.error}")
            if (state.step, state.done) != before:
                before, moved = (state.step, state.done), time.monotonic()
            if show is not None and state.total:
                show(state.step, state.done, state.total)
        if time.monotonic() - moved > stalled_s:
            raise StorageUnavailable(
                f"{client.endpoint}: partition {partition}: no progress for {stalled_s:g} s"
            )
        time.sleep(_LOOK_EVERY_S)
