"""Options of a storage server, from flags, environment or file, checked before anything is bound."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gigl_loader.options import check_verify
from gigl_loader.rpc.address import Address
from gigl_loader.rpc.certificates import check_authority, check_name
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.reach import check_reach
from gigl_loader.rpc.secret_files import naming
from gigl_loader.sizes import whole_number

__all__ = ["ServeOptions"]

_MAX_WORKERS = 1024  # Of the largest machines; each is up to four threads, and a process has some 10,000.
_LEAST_FRAME_MEMORY = 64 << 20  # Below, a frame of an ordinary batch or two would fill it.
_LEAST_MEMORY = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How one storage server shall run. ``ValueError`` or ``TypeError`` for what cannot be right."""

    graph_dir: str | os.PathLike[str]
    """A directory made by ``gigl-loader partition``; of the parts, only those served need to be there."""
    partitions: tuple[int, ...] | None = None
    """What to serve. ``None``: all that lie in the directory."""
    listen: str = "127.0.0.1:7070"
    """Of the control port. Port 0 takes a free one."""
    data_port: int | None = None
    """``None``: the port after that of ``listen``."""
    advertise: str | None = None
    """Name or address, without a port, under which others reach this server. ``None``: that of ``listen``."""
    peers: tuple[str, ...] = ()
    """Control addresses of other servers. Those that all name one and the same server find each other."""
    workers: int | None = None
    """Batches that are sampled at once. ``None``: as many as there are usable cores."""
    token_file: str | None = None
    """Holds the tokens that trainers show, one per line. ``None``: whoever reaches the ports may ask."""
    cluster_key_file: str | None = None
    """Holds the key that servers prove to each other and that no trainer has. Needed without ``tls_ca``."""
    tls_cert: str | None = None
    """PEM: the certificate of this server, with intermediates. ``None``: plain text."""
    tls_key: str | None = None
    """PEM: its key, not encrypted."""
    tls_ca: str | None = None
    """PEM: the authority that signed the servers' certificates. ``None``: they trust this certificate."""
    tls_client_ca: str | None = None
    """PEM: the authority that signed the certificates of callers, who must show one (mTLS)."""
    insecure: bool = False
    """Allow plain text, or no token, beyond this machine."""
    metrics: str | None = None
    """Where ``/metrics`` and ``/healthz`` are served over HTTP. ``None``: nowhere."""
    lease_s: float = 60.0
    """A trainer that was not heard of for so long loses its channels."""
    drain_s: float = 30.0
    """Batches under way have so long to be finished and fetched once the server is told to end."""
    memory: int | None = None
    """Bytes that sampling may take in all: scratch, frames and rings. ``None``: three quarters of the
    machine's, or of the container's."""
    frame_memory: int = 4 << 30
    """Bytes of batches that may lie ready to be fetched. A server that is full stops sampling."""
    verify: str = "lazy"
    """``"full"``: every byte of the graph is read before a port is bound. ``"lazy"``: topology, ids and
    splits before the server is ready, features in the background. ``"none"``: headers only."""
    scrub_rate: int = 64 << 20
    """Bytes per second at which a server that verifies reads its files again and again. 0: once is enough."""
    journal: str | None = None
    """File that notes the batches under way, to recognise one that kills servers. ``None``: one in /var/tmp
    named after ``listen``, unless that has port 0."""
    log_file: str | None = None
    """``None``: stderr."""
    join_timeout_s: float = 300.0
    """The other servers have so long to come up."""

    def __post_init__(self) -> None:
        if self.partitions is not None:
            _check_partitions(self.partitions)
        self._check_addresses()
        self._check_ways_in()
        if self.workers is not None:
            whole_number("workers", self.workers, minimum=1)
            if self.workers > _MAX_WORKERS:
                raise ValueError(f"workers must be at most {_MAX_WORKERS}, got {self.workers}")
        check_verify(self.verify)
        whole_number("scrub_rate", self.scrub_rate, minimum=0)
        whole_number("frame_memory", self.frame_memory, minimum=_LEAST_FRAME_MEMORY)
        if self.memory is not None:
            whole_number("memory", self.memory, minimum=_LEAST_MEMORY)
        for name, seconds, least in (
            ("lease", self.lease_s, 1.0),
            ("drain", self.drain_s, 0.0),
            ("join_timeout", self.join_timeout_s, 0.1),
        ):
            if not least <= seconds <= 86_400:
                raise ValueError(f"{name} must lie between {least:g} and 86400 s, got {seconds:g}")

    @property
    def address(self) -> Address:
        """Where to listen for control calls."""
        return Address.parse(self.listen)

    @property
    def data_address(self) -> Address:
        """Where to listen for data."""
        control = self.address
        following = control.port and control.port + 1
        return Address(control.host, following if self.data_port is None else self.data_port)

    @property
    def reachable_host(self) -> str:
        """Where others shall come."""
        return self.address.host if self.advertise is None else self.advertise

    @property
    def num_workers(self) -> int:
        if self.workers is not None:
            return self.workers
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    def load_credentials(self) -> Credentials:
        """Read the files of token, certificates and key and check them. ``ValueError`` in one line."""
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

    def _check_addresses(self) -> None:
        given = [("listen", self.listen), *(("peer", peer) for peer in self.peers)]
        if self.metrics is not None:
            given.append(("metrics", self.metrics))
        for name, text in given:
            try:
                port = Address.parse(text).port
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            if name == "peer" and port == 0:
                raise ValueError(f"peer: {text}: port 0 cannot be asked")
        if self.data_port is not None and not 0 <= self.data_port < 65536:
            raise ValueError(f"data_port {self.data_port} does not lie in [0, 65536)")

    def _check_ways_in(self) -> None:
        control, data = self.address, self.data_address
        if self.advertise is not None:
            Address(self.advertise, 1)
        elif control.is_wildcard:
            raise ValueError(
                f"listen: {control} stands for every address of this host: say which one others shall use "
                "(advertise)"
            )
        if control.port and control.port == data.port:
            raise ValueError(f"control and data cannot share port {control.port}")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key go together: give both, or neither for plain text")
        for name in ("tls_ca", "tls_client_ca"):
            if getattr(self, name) and not self.tls_cert:
                raise ValueError(f"{name} without tls_cert: without TLS nothing would be checked")
        with naming("listen"):
            check_reach(
                control,
                tls=bool(self.tls_cert),
                guarded=bool(self.token_file or self.tls_client_ca),
                insecure=self.insecure,
                give_tls="give tls_cert and tls_key, or say insecure on a network that you trust",
                give_token="give token_file, or tls_client_ca, or say insecure on a network that you trust",
            )


def _check_partitions(partitions: tuple[int, ...]) -> None:
    if not partitions:
        raise ValueError("partition: name at least one, or leave it out to serve all that lie there")
    for part in partitions:
        whole_number("partition", part, minimum=0)
    if len(set(partitions)) != len(partitions):
        raise ValueError(f"partition: {list(partitions)} names one twice")
