"""Replies to requests of the data port: requests are parsed and bounded, replies computed and chunked."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gigl_loader.errors import FormatError
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.replies import (
    CHUNK_BYTES,
    MAX_ROW_BYTES,
    neighbors_document,
    row_chunks,
    row_layout,
)
from gigl_loader.sampling.store import FeatureRequest, InducedRequest, NeighborRequest
from gigl_server.frames.buffer_pool import BufferPool
from gigl_server.ports.byte_semaphore import ByteSemaphore
from gigl_server.ports.held_partitions import HeldPartitions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from gigl_loader.arrays import Bytes
    from gigl_loader.graph.graph import Graph
    from gigl_loader.rpc.checksums import Checksum
    from gigl_loader.rpc.graph_requests import Inquiry
    from gigl_loader.rpc.requests import Request
    from gigl_server.counters import Counters
    from gigl_server.identity import Identity
    from gigl_server.ports.byte_semaphore import Loan

__all__ = ["Queries", "Reply"]

_KEPT_BYTES = 64 << 20
_KEPT_ROW_BYTES = 256 << 20
_SENT_BYTES = 2 << 30  # Replies in transit, with their requests, which Flight keeps as long.
_LEAST_BYTES = 64 << 10  # Least memory of a reply: its buffers, and what Flight keeps of a call.
_SMALL_BYTES = 32 << 20  # Not counted: the lists of a hop take a few MiB, and calls are limited in number.
_READ_BYTES = 512 << 20
_COPIES = 3  # Of a request while it is read: as received, positions as int64, and their check.
_TICKET_COPIES = 2  # Of a request while its reply is sent.


class Reply(NamedTuple):
    """A complete reply, and the memory that it holds until it was sent."""

    chunks: list[Bytes]
    """Chunks, uint8 [N] each, to send in order. They own their memory."""
    loan: Loan
    """Loan of the memory. The sender of the reply releases it."""
    size_is_told: bool
    """Send the total size with the first chunk, because callers do not know it."""


class Queries:
    """Responds to requests about some partitions of a graph. Thread-safe."""

    def __init__(self, graph: Graph, partitions: Sequence[int], counters: Counters) -> None:
        self._counters = counters
        self._memory = BufferPool(_KEPT_BYTES)
        self._row_memory = BufferPool(_KEPT_ROW_BYTES)
        # Two semaphores: a slow reader holds a reply's memory until its connection is cut, and must not keep
        # other requests from being parsed meanwhile.
        self._reading = ByteSemaphore(_READ_BYTES, free=_SMALL_BYTES, what="large requests")
        self.sending = ByteSemaphore(_SENT_BYTES, wait_s=0.0, what="replies")
        """Memory of replies that are being made or sent."""
        self._held = HeldPartitions(graph, partitions, ())

    def hold(self, graph: Graph, withdrawn: Collection[int] = ()) -> None:
        """Respond about other partitions of the same graph from the next request on: those of ``graph``.

        ``withdrawn`` are partitions that are not served for the moment: requests are refused as
        unavailable, but for bytes of their files.
        """
        self._held = HeldPartitions(graph, graph.parts, withdrawn)

    def parse(self, ticket: bytes) -> tuple[int, Request] | tuple[None, Inquiry]:
        """Return the partition (``None`` for an ``Inquiry``) and the request. Raises ``Refusal``."""
        return self._held.parse(ticket)

    def respond(self, ticket: bytes, caller: Identity, checksum: Checksum) -> Reply:
        """Return the reply to a request. Raises ``Refusal``, also where ``caller`` holds too much memory.

        The whole reply is added to ``checksum``, a new one: rows while they are gathered.

        A reply is complete before it is sent, so that sending holds no turn. For rows that is also cheaper:
        it saves 0.009 s of the 0.101 s of CPU that two servers take for 1,000 seeds.
        """
        held = self._held
        try:
            return self._respond(held, ticket, caller, checksum)
        except FormatError:
            held.check_sound()
            raise

    def _respond(self, held: HeldPartitions, ticket: bytes, caller: Identity, checksum: Checksum) -> Reply:
        with self._reading.lend(_COPIES * len(ticket), caller):
            partition, request = held.parse(ticket)
        kept = _TICKET_COPIES * len(ticket)
        if partition is not None and isinstance(request, FeatureRequest):
            return self._rows(held, partition, request, kept=kept, caller=caller, checksum=checksum)
        return self._document(held, partition, request, kept=kept, caller=caller, checksum=checksum)

    def _rows(
        self,
        held: HeldPartitions,
        partition: int,
        request: FeatureRequest,
        *,
        kept: int,
        caller: Identity,
        checksum: Checksum,
    ) -> Reply:
        layout = row_layout(held.widths(request), len(request.rows))
        if layout.nbytes > MAX_ROW_BYTES and len(request.rows) > 1:
            raise Refusal(
                RefusalKind.TOO_LARGE,
                f"rows of {layout.nbytes} bytes; at most {MAX_ROW_BYTES} are sent at once",
            )
        with self._lent(kept + layout.nbytes, caller) as loan:
            memory = self._row_memory.take(layout.nbytes)
            memory[: len(layout.header)] = np.frombuffer(layout.header, np.uint8)
            out = [
                memory[layout.offsets[name] :][: spec.nbytes].reshape(spec.shape)
                for name, spec in layout.specs.items()
            ]
            ordered = replace(request, columns=tuple(layout.specs))
            with self._counters.timed("gathering_s"):
                checksum.add(memory[: len(layout.header)])
                held.stores[partition].gather(ordered, None, out, copy=checksum.copy_rows)
            held.check_sound(request)
        chunks = [memory[each.start : each.stop] for each in row_chunks(layout)]
        return Reply(chunks, loan, size_is_told=False)

    def _document(
        self,
        held: HeldPartitions,
        partition: int | None,
        request: Request | Inquiry,
        *,
        kept: int,
        caller: Identity,
        checksum: Checksum,
    ) -> Reply:
        """Return the reply to a request not for rows. Memory for edges is reserved before the draw."""
        with self._lent(kept + held.most_bytes(partition, request), caller) as loan:
            chunks = self._cut(self._pieces(held, partition, request))
            held.check_sound(request)
            for chunk in chunks:
                checksum.add(chunk)
        loan.shrink(kept + sum(map(len, chunks)))
        return Reply(chunks, loan, size_is_told=True)

    @contextmanager
    def _lent(self, nbytes: int, caller: Identity) -> Iterator[Loan]:
        """Reserve memory for a reply, and release it if the reply cannot be made."""
        loan = self.sending.take(max(nbytes, _LEAST_BYTES), caller)
        try:
            yield loan
        except BaseException:
            loan.release()
            raise

    def close(self) -> None:
        for store in self._held.stores.values():
            store.close()

    def _pieces(self, held: HeldPartitions, partition: int | None, request: Any) -> list[Bytes]:
        if isinstance(request, (NeighborRequest, InducedRequest)):
            assert partition is not None
            with self._counters.timed("sampling_s"):
                return neighbors_document(held.neighbors(partition, request))
        return held.pieces(partition, request)

    def _cut(self, pieces: list[Bytes]) -> list[Bytes]:
        """Return a document as chunks: one joined chunk where it fits, else views of the pieces.

        A message costs more than a copy: joining reduced 5.2 ms of CPU for the lists of a batch to 4.5.
        """
        total = sum(map(len, pieces))
        if total <= CHUNK_BYTES:
            memory = self._memory.take(total)
            np.concatenate(pieces, out=memory)
            return [memory]
        return [piece[at : at + CHUNK_BYTES] for piece in pieces for at in range(0, len(piece), CHUNK_BYTES)]
