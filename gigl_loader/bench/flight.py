"""A bare Arrow Flight transfer between two processes: what messages of some sizes cost at the least.

As a program it is one side or the other.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from gigl_loader.rpc.replies import CHUNK_BYTES

KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(64 << 20), "MALLOC_MMAP_THRESHOLD_": str(8 << 20)}
"""Environment in which glibc keeps the memory that replies land in, as our own processes do."""

_SIZE = struct.Struct("<Q")
_SCHEMA = pa.schema([pa.field("bytes", pa.uint8(), nullable=False)])
_LIMIT_S = 60.0
_WHOLE_LIMIT_S = 600.0


def bare_transfer(
    *, calls: int, request_bytes: int, reply_bytes: int, environment: Mapping[str, str] | None = None
) -> float:
    """Return the CPU seconds, of both processes, of so many calls with bodies of these sizes.

    Replies come in chunks as large as ours, out of warm memory, and are dropped as they come.
    """
    sizes = [str(size) for size in (calls, request_bytes, reply_bytes)]
    done = subprocess.run(
        [*_PROGRAM, "receive", *sizes],
        env=os.environ | dict(environment or {}),
        stdout=subprocess.PIPE,
        timeout=_WHOLE_LIMIT_S,
        check=True,
    )
    return float(done.stdout)


_PROGRAM = [sys.executable, "-m", "gigl_loader.bench.flight"]


def _receive(calls: int, request_bytes: int, reply_bytes: int) -> float:
    ticket = flight.Ticket(_SIZE.pack(reply_bytes).ljust(request_bytes, b"\0"))
    with _sender() as sender, flight.connect(f"grpc://127.0.0.1:{int(_say(sender, 'port'))}") as client:
        _call(client, ticket)
        before = time.process_time() + float(_say(sender, "cpu"))
        for _ in range(calls):
            _call(client, ticket)
        return time.process_time() + float(_say(sender, "cpu")) - before


def _call(client: Any, ticket: Any) -> None:
    for chunk in client.do_get(ticket, flight.FlightCallOptions(timeout=_LIMIT_S)):
        assert chunk.data.num_rows


@contextmanager
def _sender() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([*_PROGRAM, "send"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _say(sender: subprocess.Popen[str], question: str) -> str:
    """Ask the sender for its port or its CPU seconds."""
    assert sender.stdin is not None
    assert sender.stdout is not None
    print(question, file=sender.stdin, flush=True)
    return sender.stdout.readline()


class _Sender(flight.FlightServerBase):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._memory = np.ones(CHUNK_BYTES, np.uint8)

    def do_get(self, context: Any, ticket: Any) -> Any:
        (left,) = _SIZE.unpack_from(ticket.ticket)
        return flight.GeneratorStream(_SCHEMA, self._chunks(left))

    def _chunks(self, left: int) -> Iterator[Any]:
        while left > 0:
            size = min(left, CHUNK_BYTES)
            column = pa.Array.from_buffers(pa.uint8(), size, [None, pa.py_buffer(self._memory)], null_count=0)
            yield pa.RecordBatch.from_arrays([column], schema=_SCHEMA)
            left -= size


def _send() -> None:
    """Serve, and answer questions, until standard input ends."""
    sender = _Sender()
    for question in sys.stdin:
        print(sender.port if question.strip() == "port" else time.process_time(), flush=True)


def main(side: str, *sizes: str) -> None:
    """Be the side that sends, or the one that receives and tells the cost of both."""
    if side == "send":
        _send()
    else:
        print(_receive(*map(int, sizes)))


if __name__ == "__main__":
    main(*sys.argv[1:])
