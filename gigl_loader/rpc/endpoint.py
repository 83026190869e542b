"""Endpoint of a peer service: its address, its ports, and what a caller must know to trust it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from gigl_loader.errors import FormatError
from gigl_loader.rpc.address import Address
from gigl_loader.strict_json import read_json

__all__ = ["Endpoint"]

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
