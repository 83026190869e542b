"""Endpoint of a service: its address, its ports, and what a caller must know to trust it."""

from __future__ import annotations

import ipaddress
import json
import socket
import time
from dataclasses import asdict, dataclass

from gigl_loader.errors import FormatError, StorageUnavailable
from gigl_loader.strict_json import read_json


def check_reach(
    address: Address, *, tls: bool, guarded: bool, insecure: bool, give_tls: str, give_token: str = ""
) -> None:
    """Raise ``ValueError`` where other hosts could read traffic, or use a service without a token.

    ``address`` is where a service listens, or where a caller connects. ``guarded``: callers need a token or a
    certificate. The message names ``give_tls`` and ``give_token`` as the remedy.
    """
    if insecure or (tls and guarded) or is_local(address.host):
        return
    lacking, remedy = ("a token", give_token) if tls else ("TLS", give_tls)
    raise ValueError(f"{address} can be reached from other hosts, which needs {lacking}: {remedy}")


def is_local(host: str) -> bool:
    """Return whether every address of ``host`` is a loopback address.

    A name is resolved, as connecting does. A name that does not resolve is not local: when a connection is
    made, it may resolve to any address.
    """
    try:
        return is_loopback(host)
    except ValueError:
        pass
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(map(is_loopback, found))


def is_loopback(text: str) -> bool:
    """Return whether an IPv4 or IPv6 address is a loopback address. ``ValueError`` for other text."""
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped  # Before 3.13, Python does not count ::ffff:127.0.0.1 as loopback.
    return address.is_loopback


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a listener."""

    host: str
    """A name, or an IPv4 or IPv6 address without brackets."""
    port: int

    def __post_init__(self) -> None:
        if not self.host or not self.host.isprintable() or any(each in " /@[]" for each in self.host):
            raise ValueError(f"{self.host!r} is not a host name or address")
        try:
            self.host.encode(
                "idna"
            )  # Checked as the resolver does: host names come from other processes, too.
        except UnicodeError:
            raise ValueError(f"{self.host[:100]!a} is not a host name or address") from None
        if not 0 <= self.port < 65536:
            raise ValueError(f"port {self.port} does not lie in [0, 65536)")

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read ``HOST:PORT``, or ``[HOST]:PORT`` for IPv6. ``ValueError`` for anything else."""
        host, colon, port = text.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        if not colon or not (port.isascii() and port.isdigit()) or (":" in host and not bracketed):
            raise ValueError(f"{text!r} is not an address: write HOST:PORT, or [HOST]:PORT for IPv6")
        return cls(host[1:-1] if bracketed else host, int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether the address is a loopback address on any machine. The only such name is ``localhost``."""
        return self.host == "localhost" or (self._parsed() is not None and is_loopback(self.host))

    @property
    def is_wildcard(self) -> bool:
        """Whether the address stands for every address of the machine: for listening only."""
        parsed = self._parsed()
        return parsed is not None and parsed.is_unspecified

    def _parsed(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None


_MAX_BYTES = 1 << 20  # A host with 100,000 partitions, or a certificate with many names.


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Service of one host."""

    host_index: int
    """Number of the host, for messages."""
    host: str
    """Name or address under which other hosts reach the service."""
    control_port: int
    data_port: int
    partitions: tuple[int, ...]
    """Partitions that the service holds, ascending."""
    certificate: str = ""
    """PEM of the certificate, or of the authority, that callers must trust. Empty: no TLS."""
    what: str = "host"
    """Kind of service, such as ``host``: messages begin with this and the number."""
    numbered: bool = True
    """Whether the number is known. It is not for a given address that has not responded yet."""
    wire_version: int = 0
    """Version of requests to the service, agreed upon in the handshake. 0: the newest of this build."""
    incarnation: int = 0
    """Tells a service that was started again from the one before. 0: not known."""

    def __post_init__(self) -> None:
        for port in (self.control_port, self.data_port):
            if Address(self.host, port).port == 0:
                raise ValueError("port 0 cannot be asked")
        if self.host_index < 0 or any(part < 0 for part in self.partitions):
            raise ValueError(f"negative host {self.host_index} or partition {self.partitions}")

    @classmethod
    def of_address(cls, address: Address, *, what: str, certificate: str = "") -> Endpoint:
        """Return the endpoint at a given control address. Partitions and data port are not known yet."""
        return cls(
            host_index=0,
            host=address.host,
            control_port=address.port,
            data_port=address.port,  # Not known yet, and not used.
            partitions=(),
            certificate=certificate,
            what=what,
            numbered=False,
        )

    @property
    def control_address(self) -> str:
        return str(Address(self.host, self.control_port))

    @property
    def data_address(self) -> str:
        return str(Address(self.host, self.data_port))

    def __str__(self) -> str:
        name = f"{self.what} {self.host_index}" if self.numbered else self.what
        return f"{name} at {self.control_address}"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Endpoint:
        """Return the endpoint that ``to_json`` wrote. ``FormatError`` for other text."""
        try:
            document = read_json(text, what="bad endpoint: the text", max_bytes=_MAX_BYTES)
            for name, kind in _KINDS.items():
                if type(document[name]) is not kind:
                    raise ValueError(f"{name} is {document[name]!r}")
            if not all(type(part) is int for part in document["partitions"]):
                raise ValueError(f"partitions are {document['partitions']!r}")
            return cls(**document | {"partitions": tuple(document["partitions"])})
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"bad endpoint: {type(error).__name__}: {error}") from None


_KINDS = {
    "host_index": int,
    "host": str,
    "control_port": int,
    "data_port": int,
    "partitions": list,
    "certificate": str,
    "what": str,
    "numbered": bool,
    "wire_version": int,
    "incarnation": int,
}


NOBODY = "nothing listens there: did its service end?"


def tcp_probe(endpoint: Endpoint, port: int, deadline: float) -> None:
    """Connect and disconnect, until ``deadline`` (monotonic).

    ``StorageUnavailable`` says why the connection failed.
    """
    place = f"{endpoint}" if port == endpoint.control_port else f"{endpoint} (port {port})"
    began = time.monotonic()
    try:
        _connect(endpoint.host, port, deadline)
    except socket.gaierror as error:
        raise StorageUnavailable(f"{place}: the name {endpoint.host!r} is not known here: {error}") from None
    except ConnectionRefusedError:
        raise StorageUnavailable(f"{place}: {NOBODY}") from None
    except TimeoutError:
        raise StorageUnavailable(
            f"{place}: no answer to a connection in {time.monotonic() - began:.1f} s: is there a firewall "
            "between the hosts, or is the host down?"
        ) from None
    except OSError as error:
        raise StorageUnavailable(f"{place}: {error.strerror or error}") from None


def _connect(host: str, port: int, deadline: float) -> None:
    """Connect to one of the addresses of ``host``. Each has an equal share of the remaining time."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for others, (family, kind, protocol, _, place) in zip(reversed(range(len(found))), found, strict=True):
        with socket.socket(family, kind, protocol) as knocker:
            knocker.settimeout(max(deadline - time.monotonic(), 0.001) / (others + 1))
            try:
                knocker.connect(place)
                break
            except OSError:
                if not others:
                    raise
