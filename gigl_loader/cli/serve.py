"""``gigl-loader serve``: a storage server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from gigl_loader.cli.errors import importing

__all__ = ["serve"]


def serve(
    graph_dir: Annotated[
        Path | None, typer.Argument(help="A directory made by gigl-loader partition.", show_default=False)
    ] = None,
    *,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition", "-p", show_default="all that lie there", help="What to serve: 0, or 0,3."
        ),
    ] = None,
    listen: Annotated[
        str | None, typer.Option(show_default="127.0.0.1:7070", help="HOST:PORT of the control port.")
    ] = None,
    data_port: Annotated[int | None, typer.Option(show_default="the port after", help="For data.")] = None,
    advertise: Annotated[
        str | None,
        typer.Option(show_default="that of --listen", help="Name or address under which others come."),
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of another server; may be given several times.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(show_default="usable cores", help="Batches that are sampled at once.")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option(help="Holds the tokens of trainers: a TOKEN, or NAME TOKEN, per line.")
    ] = None,
    cluster_key_file: Annotated[
        str | None, typer.Option(help="Holds the key by which servers know each other; for no trainer.")
    ] = None,
    tls_cert: Annotated[str | None, typer.Option(help="PEM: certificate, with intermediates.")] = None,
    tls_key: Annotated[str | None, typer.Option(help="PEM: its key, not encrypted.")] = None,
    tls_ca: Annotated[
        str | None,
        typer.Option(show_default="trust --tls-cert", help="PEM: who signed the servers' certificates."),
    ] = None,
    tls_client_ca: Annotated[
        str | None, typer.Option(help="PEM: who signed the certificates that callers must show (mTLS).")
    ] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Allow plain text or no token beyond this machine.")
    ] = None,
    metrics: Annotated[str | None, typer.Option(help="HOST:PORT of /metrics and /healthz.")] = None,
    lease: Annotated[
        float | None, typer.Option(show_default="60", help="Seconds after which a silent trainer loses all.")
    ] = None,
    drain: Annotated[
        float | None, typer.Option(show_default="30", help="Seconds to finish what is under way at the end.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(show_default="3/4 of the machine's", help="Of all that sampling takes.")
    ] = None,
    frame_memory: Annotated[
        str | None, typer.Option(show_default="4GB", help="Of batches that wait to be fetched.")
    ] = None,
    verify: Annotated[
        str | None,
        typer.Option(show_default="lazy", help="full, lazy or none: what is read and checked before use."),
    ] = None,
    scrub_rate: Annotated[
        str | None, typer.Option(show_default="64MB", help="Read the files again, so many bytes a second.")
    ] = None,
    journal: Annotated[
        str | None, typer.Option(show_default="in /var/tmp", help="Notes batches that servers died of.")
    ] = None,
    log_file: Annotated[str | None, typer.Option(show_default="stderr", help="Append the log here.")] = None,
    join_timeout: Annotated[
        float | None, typer.Option(show_default="300", help="Seconds to wait for the other servers.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(envvar="GIGL_CONFIG", help="YAML file of the options above.")
    ] = None,
) -> None:
    """Serve partitions of a graph to trainers until SIGTERM or Ctrl-C.

    Every option may also be a variable (--data-port: GIGL_DATA_PORT) or a key of the file (data_port).

    A flag goes before a variable, a variable before the file.

    Exit codes: 0 ended in order, 1 a failure, 2 a mistake in the options, 3 a part of the server died.
    """
    flags: dict[str, Any] = {
        "graph_dir": graph_dir,
        "partition": tuple(partition or ()),
        "listen": listen,
        "data_port": data_port,
        "advertise": advertise,
        "peer": tuple(peer or ()),
        "workers": workers,
        "token_file": token_file,
        "cluster_key_file": cluster_key_file,
        "tls_cert": tls_cert,
        "tls_key": tls_key,
        "tls_ca": tls_ca,
        "tls_client_ca": tls_client_ca,
        "insecure": insecure,
        "metrics": metrics,
        "lease": lease,
        "drain": drain,
        "memory": memory,
        "frame_memory": frame_memory,
        "verify": verify,
        "scrub_rate": scrub_rate,
        "journal": journal,
        "log_file": log_file,
        "join_timeout": join_timeout,
    }
    with importing():
        from gigl_server.logs import quiet_grpc
        from gigl_server.preflight import check_serve_limits
        from gigl_server.settings import read_settings, read_yaml
    quiet_grpc()
    document = read_yaml(config) if config else {}
    options = read_settings(flags, os.environ, document, str(config))
    check_serve_limits(options)  # Before libraries are imported that crash or hang at a low limit.
    with importing():
        from gigl_server.main import run
    raise typer.Exit(run(options))
