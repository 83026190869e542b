"""``gigl-loader local-cluster``: storage servers of this machine, for a command or until Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gigl_loader.cli.console import say
from gigl_loader.cli.errors import importing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gigl_server.local_cluster import LocalCluster

VARIABLE = "GIGL_STORE"
"""Holds the control addresses of the servers, with commas, for the command that is run."""
TOKEN_VARIABLE = "GIGL_TOKEN_FILE"
"""Names the file of the cluster's token, for the command that is run."""
_OTHERS = ("GIGL_TLS_CA", "GIGL_INSECURE")
"""Variables that are about another cluster, and not handed on."""

_LOOK_EVERY_S = 0.5


def local_cluster(
    graph_dir: Annotated[Path, typer.Argument(help="A directory made by gigl-loader partition.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(help="After --: run this and end with its exit code.", show_default=False),
    ] = None,
    *,
    servers: Annotated[
        int | None,
        typer.Option(min=1, help="Server processes; at most one per partition. Default: 2, or 1 for one."),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="Servers that hold each partition.")] = 1,
    workers: Annotated[int, typer.Option(min=1, help="Batches that each samples at once.")] = 1,
    topology: Annotated[
        str, typer.Option(help="all: each server maps the adjacency of all partitions.")
    ] = "own",
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until all are ready.")] = 120.0,
) -> None:
    """Start storage servers on loopback; run a command beside them, or wait for Ctrl-C.

    The command finds their addresses in GIGL_STORE, and in GIGL_TOKEN_FILE a token made for this run, which
    RemoteDistDataset.connect shows by itself. The servers end with this process, however it ends; in a
    script, end it by SIGTERM.
    """
    with importing():
        from gigl_loader.rpc.tokens import new_token
        from gigl_server.local_cluster import LocalCluster

    token = new_token()
    with (
        _ended_by_sigterm(),
        _kept_in_file(token) as token_file,
        LocalCluster(
            graph_dir,
            servers=servers,
            replicas=replicas,
            workers=workers,
            token=token,
            timeout_s=timeout,
            options={"show_names": True, "topology": topology},  # All trainers are this user's.
        ) as cluster,
    ):
        if command:
            raise typer.Exit(_run(command, cluster.addresses, token_file))
        try:
            _introduce(cluster, token_file)
            _watch(cluster)
        except KeyboardInterrupt:
            print()


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM end the servers in order, as Ctrl-C does."""

    def end(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _kept_in_file(token: str) -> Iterator[Path]:
    """Lend a file of the token that only this user can read, in a directory that only this user can enter."""
    with tempfile.TemporaryDirectory(prefix="gigl-local-cluster-") as folder:
        path = Path(folder) / "token"
        path.touch(mode=0o600)
        path.write_text(token + "\n")
        yield path


def _run(command: Sequence[str], addresses: Sequence[str], token_file: Path) -> int:
    """Run the command beside the servers and return its exit code."""
    inherited = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    environment = {**inherited, VARIABLE: ",".join(addresses), TOKEN_VARIABLE: str(token_file)}
    try:
        process = subprocess.Popen(command, env=environment)
    except OSError as error:
        raise FileNotFoundError(f"cannot run {command[0]}: {error.strerror or error}") from None
    try:
        status = _waited(process)
    except BaseException:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    return status if status >= 0 else 128 - status


def _waited(process: subprocess.Popen[Any]) -> int:
    """Wait for the command. Ctrl-C is for it: the terminal sends it to both, and it decides when it ends."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return process.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _introduce(cluster: LocalCluster, token_file: Path) -> None:
    for address, pid in zip(cluster.addresses, cluster.pids, strict=True):
        say(f"storage server at {address}, pid {pid}")
    shown = f'credentials=Caller.from_files(token="{token_file}")'
    say(f'connect: RemoteDistDataset.connect("{cluster.addresses[0]}", {shown})')


def _watch(cluster: LocalCluster) -> None:
    """Wait until a server ends by itself."""
    while True:
        for index, address in enumerate(cluster.addresses):
            if not cluster.running(index):
                say(f"storage server at {address} {cluster.describe(index)}", file=sys.stderr)
                raise typer.Exit(1)
        time.sleep(_LOOK_EVERY_S)
