"""Network address: a host and a port."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from gigl_loader.rpc.reach import is_loopback

__all__ = ["Address"]


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a listener."""

    host: str
    """A name, or an IPv4 or IPv6 address without brackets."""
    port: int

    def __post_init__(self) -> None:
        if not self.host or any(each.isspace() or each in "/@[]" for each in self.host):
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
