"""Callers of the data port that ask and do not read."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import flight

from gigl_loader.rpc.credentials import authorization

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["StalledCaller"]


class StalledCaller:
    """Any number of calls, each over a connection of its own, of whose replies one chunk is read."""

    def __init__(self, address: str, token: str = "") -> None:
        self._address = address
        self._headers = [(b"authorization", authorization(token).encode())] if token else []
        self._stack = ExitStack()
        self._readers: list[Any] = []

    def ask(self, ticket: bytes) -> bool:
        """Ask, and read no more than one chunk. Return whether there was one."""
        client = flight.FlightClient(
            f"grpc+tcp://{self._address}", generic_options=[("grpc.use_local_subchannel_pool", 1)]
        )
        self._stack.callback(client.close)
        try:
            reader = client.do_get(flight.Ticket(ticket), flight.FlightCallOptions(headers=self._headers))
            reader.read_chunk()
        except pa.ArrowException:
            return False
        self._readers.append(reader)
        self._stack.callback(reader.cancel)
        return True

    def close(self) -> None:
        self._readers.clear()
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
