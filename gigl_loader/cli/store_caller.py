"""Credentials that a command shows to storage servers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.store_client import StoreClient

TokenFile = Annotated[
    str | None, typer.Option("--token-file", envvar="GIGL_TOKEN_FILE", help="Holds the token of the cluster.")
]
TlsCa = Annotated[
    str | None, typer.Option("--tls-ca", envvar="GIGL_TLS_CA", help="PEM: whom to trust; asks over TLS.")
]
TlsCert = Annotated[
    str | None,
    typer.Option("--tls-cert", envvar="GIGL_TLS_CERT", help="PEM: to show where servers ask (mTLS)."),
]
TlsKey = Annotated[str | None, typer.Option("--tls-key", envvar="GIGL_TLS_KEY", help="PEM: the key of it.")]

Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", envvar="GIGL_INSECURE", help="Allow plain text to other machines; shows them the token."
    ),
]


@contextmanager
def client_of(address: str, caller: Caller) -> Iterator[StoreClient]:
    """Lend a client of the storage server whose control port is at ``address``."""
    from contextlib import closing

    from gigl_loader.rpc.endpoint import Address, Endpoint
    from gigl_loader.rpc.store_client import StoreClient

    endpoint = Endpoint.of_address(Address.parse(address), what="storage server")
    with closing(StoreClient(endpoint, caller)) as client:
        yield client
