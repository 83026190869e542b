"""Groups of options that are written once: a frozen dataclass each, whose fields are options of a command."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from gigl_loader.rpc.credentials import Caller
    from gigl_loader.rpc.store_client import StoreClient


class StartMethod(str, Enum):
    """How sampling processes start."""

    spawn = "spawn"
    forkserver = "forkserver"
    fork = "fork"


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with an option for each field of its parameters that are dataclasses.

    Typer reads the signature of what is returned. The command itself receives the dataclasses.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name in groups:
            parameters += _options_of(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: group(**{each.name: given.pop(each.name) for each in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run


def _options_of(group: type[Any]) -> Iterator[Parameter]:
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        yield Parameter(
            each.name, Parameter.KEYWORD_ONLY, default=_default(each), annotation=hints[each.name]
        )


def _default(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerOptions:
    """Credentials that a command shows to storage servers."""

    token_file: Annotated[
        str | None,
        typer.Option("--token-file", envvar="GIGL_TOKEN_FILE", help="Holds the token of the cluster."),
    ] = None
    tls_ca: Annotated[
        str | None, typer.Option("--tls-ca", envvar="GIGL_TLS_CA", help="PEM: whom to trust; asks over TLS.")
    ] = None
    tls_cert: Annotated[
        str | None,
        typer.Option("--tls-cert", envvar="GIGL_TLS_CERT", help="PEM: to show where servers ask (mTLS)."),
    ] = None
    tls_key: Annotated[
        str | None, typer.Option("--tls-key", envvar="GIGL_TLS_KEY", help="PEM: the key of it.")
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            envvar="GIGL_INSECURE",
            help="Allow plain text to other machines; shows them the token.",
        ),
    ] = False

    def caller(self) -> Caller:
        """Read the files."""
        from gigl_loader.rpc.credentials import Caller

        return Caller.from_files(
            token=self.token_file,
            ca=self.tls_ca,
            certificate=self.tls_cert,
            key=self.tls_key,
            insecure=self.insecure,
        )


@contextmanager
def client_of(address: str, caller: Caller) -> Iterator[StoreClient]:
    """Lend a client of the storage server whose control port is at ``address``."""
    from contextlib import closing

    from gigl_loader.rpc.endpoint import Address, Endpoint
    from gigl_loader.rpc.store_client import StoreClient

    endpoint = Endpoint.of_address(Address.parse(address), what="storage server")
    with closing(StoreClient(endpoint, caller)) as client:
        yield client
