"""Options of a storage server: the table, and its sources: command line, environment and YAML file.

The command line is built from the table, so that ``--help`` imports this module: what only a server needs is
imported inside functions.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gigl_server.option import (
    ADDRESS,
    ADDRESSES,
    FLAG,
    PARTITIONS,
    PATH,
    PORT,
    SAMPLERS,
    SHARE,
    TEXT,
    TOPOLOGY,
    VERIFY,
    declaration,
    option,
    options_of,
    seconds,
    size,
    whole,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gigl_loader.rpc.credentials import Credentials
    from gigl_loader.rpc.endpoint import Address
    from gigl_loader.rpc.tokens import Token
    from gigl_server.option import Option

_MAX_WORKERS = 1024  # For the largest machines: each worker has up to 4 threads, a process some 10,000.
_LEAST_FRAME_MEMORY = 64 << 20  # Below this, one or two ordinary frames would fill it.
_LEAST_MEMORY = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Options of one storage server. Each field declares one option with its argument, key and help.

    Raises ``ValueError`` or ``TypeError`` for invalid values.
    """

    graph_dir: str | os.PathLike[str] = field(
        metadata=declaration(
            PATH, "A directory made by gigl-loader partition, with at least the partitions to serve."
        )
    )
    partitions: tuple[int, ...] | None = option(
        None,
        PARTITIONS,
        "Partitions to serve: 0, or 0,3.",
        name="partition",
        short_flag="-p",
        shown="all that lie there",
    )
    adopt: tuple[int, ...] | None = option(
        None,
        PARTITIONS,
        "Partitions to serve that may be missing or damaged in GRAPH_DIR: their files are verified, and "
        "pulled from a server that --peer leads to. GRAPH_DIR may be empty.",
    )
    topology: str = option(
        "own",
        TOPOLOGY,
        "all: map the adjacency of every partition, so that a batch is sampled without other servers; "
        "features stay partitioned. GRAPH_DIR needs all files of the other partitions but their features; "
        "with --adopt, missing ones are pulled. own: only that of the partitions served here.",
    )
    listen: str = option("127.0.0.1:7070", ADDRESS, "HOST:PORT of the control port; port 0 takes a free one.")
    data_port: int | None = option(None, PORT, "Port for data.", shown="the port after that of --listen")
    advertise: str | None = option(
        None,
        TEXT,
        "Name or address, without a port, under which trainers and other servers reach this server.",
        shown="host of --listen",
    )
    peers: tuple[str, ...] = option(
        (),
        ADDRESSES,
        "HOST:PORT of another server; may be given several times. Servers that all name one and the same "
        "server find each other.",
        name="peer",
    )
    workers: int | None = option(
        None, whole(1, _MAX_WORKERS), "Batches that are sampled at once.", shown="usable cores"
    )
    token_file: str | None = option(
        None,
        TEXT,
        "Holds the tokens that trainers show: a TOKEN, or NAME TOKEN, per line, and what it may do "
        "(graph=NAME jobs=4 share=2 ...). Without it, any caller that reaches the ports is served.",
    )
    cluster_key_file: str | None = option(
        None,
        TEXT,
        "Holds the key that servers prove to each other and that no trainer has. Needed beyond this machine "
        "unless --tls-ca signs for servers alone.",
    )
    tls_cert: str | None = option(
        None, TEXT, "PEM: certificate of this server, with intermediates. Without it: plain text."
    )
    tls_key: str | None = option(None, TEXT, "PEM: key of the certificate, not encrypted.")
    tls_ca: str | None = option(
        None,
        TEXT,
        "PEM: the authority that signed the servers' certificates.",
        shown="trust --tls-cert",
    )
    tls_client_ca: str | None = option(
        None, TEXT, "PEM: the authority that signed the certificates that callers must show (mTLS)."
    )
    insecure: bool = option(False, FLAG, "Allow plain text, or no token, beyond this machine.")
    metrics: str | None = option(
        None,
        ADDRESS,
        "HOST:PORT of /metrics and /healthz. Beyond this machine it needs --metrics-tls and "
        "--metrics-token-file, or --insecure.",
    )
    metrics_token_file: str | None = option(
        None,
        TEXT,
        "Holds the tokens that callers of /metrics show, as in --token-file. /healthz needs none.",
    )
    metrics_tls: bool = option(
        False, FLAG, "Serve /metrics and /healthz over TLS, with the certificate of this server."
    )
    lease_s: float = option(
        60.0, seconds(1.0), "Seconds after which a silent trainer loses its channels.", name="lease"
    )
    drain_s: float = option(
        30.0,
        seconds(0.0),
        "Seconds to finish batches under way, and have them fetched, once the server is told to end.",
        name="drain",
    )
    memory: int | None = option(
        None,
        size(_LEAST_MEMORY),
        "Bytes that sampling may take in all: scratch, frames and rings.",
        shown="3/4 of the machine's, or of the container's",
    )
    frame_memory: int = option(
        4 << 30,
        size(_LEAST_FRAME_MEMORY),
        "Bytes of batches that wait to be fetched. A server that is full stops sampling.",
    )
    shared_frame_memory: int = option(
        1 << 30,
        size(0),
        "Of --frame-memory, bytes of batches that are kept for equal requests of other jobs, at most half: "
        "such batches are sampled once. 0: the batches of each job are sampled.",
    )
    max_batch_s: float = option(
        60.0,
        seconds(0.1),
        "Seconds of a sampling thread that a batch may take; beyond them it fails. seconds= of a token goes "
        "before.",
        name="max_batch_seconds",
    )
    interactive_share: float = option(
        0.5,
        SHARE,
        "Share of the sampling threads' time, 0 to 1, in which batches of samplers that callers wait for go "
        "before those of trainers. 0: they take turns.",
    )
    verify: str = option(
        "lazy",
        VERIFY,
        "full: every byte of the graph is read before a port is bound. lazy: topology, ids and splits before "
        "the server is ready, features in the background. none: headers only.",
    )
    scrub_rate: int = option(
        64 << 20,
        size(0),
        "Bytes per second at which a server that verifies reads its files again; 0: never again.",
    )
    scrub_every_s: float = option(
        86_400.0,
        seconds(60.0),
        "Seconds from the beginning of one reading of all files to the next.",
        name="scrub_every",
    )
    journal: str | None = option(
        None,
        TEXT,
        "File that notes the batches under way, to recognise one that kills servers.",
        shown="in /var/tmp, /tmp or /dev/shm, named after --listen",
    )
    allow_samplers: tuple[str, ...] = option(
        (),
        SAMPLERS,
        "package.module:Class of a sampler that trainers may have run here; may be given several times. Its "
        "code runs in this process.",
        name="allow_sampler",
    )
    show_names: bool = option(
        False,
        FLAG,
        "Tell the names of loaders to every caller with a token, for gigl-loader top. By default, a job sees "
        "only its own.",
    )
    allow_core: bool = option(
        False,
        FLAG,
        "Let the kernel write cores of this process, and its user trace it and read its /proc. A core holds "
        "tokens and keys.",
    )
    otel: bool = option(
        False,
        FLAG,
        "Export OpenTelemetry spans of requests over OTLP, as the OTEL_ variables say: "
        "OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_SAMPLER ... Needs gigl-loader[otel].",
    )
    log_file: str | None = option(None, TEXT, "File that the log is appended to.", shown="stderr")
    join_timeout_s: float = option(
        300.0, seconds(0.1), "Seconds to wait for the other servers.", name="join_timeout"
    )

    def __post_init__(self) -> None:
        for each in SERVE_OPTIONS.values():
            value = getattr(self, each.field)
            if value is not None:
                each.kind.check(each.name, value)
        self._check_ways_in()

    @property
    def served(self) -> tuple[int, ...] | None:
        """Partitions to serve, ascending. ``None``: all that lie in the folder."""
        if not self.adopt:
            return self.partitions
        return tuple(sorted({*(self.partitions or ()), *self.adopt}))

    @property
    def address(self) -> Address:
        """Listening address of the control port."""
        from gigl_loader.rpc.endpoint import Address

        return Address.parse(self.listen)

    @property
    def data_address(self) -> Address:
        """Listening address of the data port."""
        return data_address_of(self.address, self.data_port)

    @property
    def listening_addresses(self) -> tuple[Address, ...]:
        """Listening addresses of all ports."""
        from gigl_loader.rpc.endpoint import Address

        metrics = (Address.parse(self.metrics),) if self.metrics else ()
        return (self.address, self.data_address, *metrics)

    @property
    def reachable_host(self) -> str:
        """Name or address under which other hosts reach this server."""
        return reachable_host(self.address, self.advertise)

    @property
    def num_workers(self) -> int:
        if self.workers is not None:
            return self.workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @property
    def credential_files(self) -> tuple[str | None, ...]:
        """Files of ``load_credentials`` and ``load_metrics_tokens``."""
        return (
            self.token_file,
            self.tls_cert,
            self.tls_key,
            self.tls_ca,
            self.tls_client_ca,
            self.cluster_key_file,
            self.metrics_token_file,
        )

    def load_metrics_tokens(self) -> tuple[Token, ...]:
        """Read the tokens of callers of the metrics. ``ValueError`` with a one-line message."""
        from gigl_loader.rpc.secret_files import tokens_in

        return tokens_in(self.metrics_token_file)

    def load_credentials(self) -> Credentials:
        """Read and check the files of token, certificates and key. ``ValueError`` with a one-line message."""
        from gigl_loader.rpc.certificates import check_authority, check_name
        from gigl_loader.rpc.credentials import Credentials
        from gigl_loader.rpc.secret_files import naming

        credentials = Credentials.from_files(
            token=self.token_file,
            certificate=self.tls_cert,
            key=self.tls_key,
            authority=self.tls_ca,
            client_authority=self.tls_client_ca,
            cluster_key=self.cluster_key_file,
            insecure=self.insecure,
        )
        for path, authority in (
            (self.tls_ca, credentials.authority),
            (self.tls_client_ca, credentials.client_authority),
        ):
            if path:
                with naming(path):
                    check_authority(authority)
        if self.tls_cert and self.tls_key:
            with naming(self.tls_cert, self.tls_key):
                credentials.check_certificate()
            with naming(self.tls_cert):
                check_name(credentials.certificate, self.reachable_host)
        return credentials

    def _check_ways_in(self) -> None:
        from gigl_loader.rpc.endpoint import Address, check_reach
        from gigl_loader.rpc.secret_files import naming

        control, data = self.address, self.data_address
        with naming("listen" if self.advertise is None else "advertise"):
            reachable_host(control, self.advertise)
        if control.port and control.port == data.port:
            raise ValueError(f"control and data cannot share port {control.port}")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key go together: give both, or neither for plain text")
        for name in ("tls_ca", "tls_client_ca"):
            if getattr(self, name) and not self.tls_cert:
                raise ValueError(f"{name} without tls_cert: without TLS nothing would be checked")
        if self.otel and not has_exporter():
            raise ValueError("otel needs OpenTelemetry: pip install 'gigl-loader[otel]'")
        for name in ("metrics_token_file", "metrics_tls"):
            if getattr(self, name) and not self.metrics:
                raise ValueError(f"{name} without metrics: say where they are served")
        if self.metrics_tls and not self.tls_cert:
            raise ValueError("metrics_tls without tls_cert: there is no certificate to show")
        if self.metrics:
            with naming("metrics"):
                check_reach(
                    Address.parse(self.metrics),
                    tls=self.metrics_tls,
                    guarded=bool(self.metrics_token_file),
                    insecure=self.insecure,
                    give_tls="give metrics_tls and metrics_token_file, or say insecure on a network that you "
                    "trust",
                    give_token="give metrics_token_file, or say insecure on a network that you trust",
                )
        with naming("listen"):
            check_reach(
                control,
                tls=bool(self.tls_cert),
                guarded=bool(self.token_file or self.tls_client_ca),
                insecure=self.insecure,
                give_tls="give tls_cert and tls_key, or say insecure on a network that you trust",
                give_token="give token_file, or tls_client_ca, or say insecure on a network that you trust",
            )


def has_exporter() -> bool:
    """Return whether the packages of ``gigl-loader[otel]`` are installed."""
    from importlib.util import find_spec

    try:
        return find_spec("opentelemetry.exporter.otlp") is not None
    except ModuleNotFoundError:
        return False


def data_address_of(control: Address, data_port: int | None) -> Address:
    """Return the address of the data port: by default, the port after that of the control port."""
    following = control.port and control.port + 1
    return replace(control, port=following if data_port is None else data_port)


def reachable_host(listen: Address, advertise: str | None) -> str:
    """Return the name or address under which other hosts reach a server. ``ValueError``: there is none."""
    if advertise is not None:
        return replace(listen, host=advertise).host
    if listen.is_wildcard:
        raise ValueError(
            f"{listen} stands for every address of this host: say which one others shall use (advertise)"
        )
    return listen.host


SERVE_OPTIONS: Mapping[str, Option] = options_of(ServeOptions)
"""Options of ``gigl-loader serve`` by name, in the order of ``--help``."""


def read_settings(
    flags: Mapping[str, Any], environment: Mapping[str, str], document: Mapping[str, Any], origin: str = ""
) -> ServeOptions:
    """Return the options. ``flags`` that are ``None`` or ``()`` were not given.

    ``document`` is the content of a YAML file, which ``origin`` names. Raises ``ValueError`` or ``TypeError``
    with a one-line message that names the unknown option, or the source of the invalid value.
    """
    _check_names(flags, "unknown option")
    _check_names(document, f"{origin}: unknown key")
    chosen: dict[str, Any] = {}
    for name, each in SERVE_OPTIONS.items():
        read = each.kind.read
        if flags.get(name) not in (None, ()):
            chosen[each.field] = read(each.argument, flags[name])
        elif each.variable in environment:
            chosen[each.field] = read(each.variable, environment[each.variable])
        elif name in document:
            chosen[each.field] = read(f"{origin}: {name}", document[name])
    if "graph_dir" not in chosen:
        raise ValueError("which graph? give GRAPH_DIR, GIGL_GRAPH_DIR, or graph_dir in the file")
    return ServeOptions(**chosen)


def _check_names(given: Mapping[str, Any], what: str) -> None:
    for name in given:
        if name not in SERVE_OPTIONS:
            known = ", ".join(SERVE_OPTIONS)
            raise ValueError(f"{what} {str(name)[:100]!r}; known: {known}")


_MAX_YAML_BYTES = 16 << 20
"""Options take a few kB; a file that describes thousands of tables, 1 MB."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a mapping. ``ValueError`` for other content, ``OSError`` if the file cannot be read."""
    import yaml

    from gigl_loader.errors import FormatError
    from gigl_loader.regular_files import read_whole

    try:
        document = yaml.safe_load(read_whole(path, most=_MAX_YAML_BYTES, pipes=True))
    except FormatError as error:
        raise ValueError(str(error)) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())[:200]}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ValueError(f"{path} must hold one mapping of options, not a {type(document).__name__}")
    return document
