"""Requests to the data port: changed bodies and changed heads."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from gigl_loader.native import StreamError
from gigl_loader.rpc.graph_requests import (
    IdsRequest,
    ListRequest,
    LocateRequest,
    ManifestRequest,
    encode_graph_request,
)
from gigl_loader.rpc.graph_store_pb2 import SampleRequest
from gigl_loader.rpc.requests import Envelope, encode_ping
from gigl_loader.rpc.versions import WIRE_VERSION
from tests.fuzz.live.calls import changed
from tests.fuzz.live.target import CALL_S
from tests.support.raw_data import SAMPLE_FLAG, RawCaller, Refused, header_of, request_bytes

if TYPE_CHECKING:
    from tests.fuzz.live.target import Target


def throw_tickets(target: Target, draw: random.Random, count: int) -> Counter[str]:
    """Send ``count`` requests, one after the other, and some heads by hand."""
    sent: Counter[str] = Counter()
    valid = _valid(target, draw)
    with data_caller(target) as caller:
        for _ in range(count):
            token = draw.choice((target.token, target.token, target.token, ""))
            ticket = _extreme(draw) if draw.random() < 0.1 else changed(draw.choice(valid), draw)
            job = f"{draw.randrange(8):064x}"
            if draw.random() < 0.3:
                sent["request, changed in its head"] += 1
                header, flags = header_of(token, ("gigl-job", job)), draw.choice((0, SAMPLE_FLAG))
                _throw_head(target, request_bytes(ticket, header, flags=flags), draw)
                continue
            if draw.random() < 0.2:
                sent["request for a batch"] += 1
                ticket = changed(_sample(draw), draw)
                with suppress(Refused, StreamError):
                    caller.ask(ticket, header_of(token, ("gigl-job", job)), CALL_S, sample=True)
                continue
            sent[f"request with{'' if token else 'out'} the token"] += 1
            with suppress(Refused, StreamError):
                caller.ask(ticket, header_of(token, ("gigl-job", job)), CALL_S)
    return sent


def _sample(draw: random.Random) -> bytes:
    """Return a good request for a batch, of a channel that is not there."""
    seeds = np.arange(4, dtype="<i8").tobytes()
    request = SampleRequest(channel=draw.randbytes(16), epoch=1, batch=2, inputs=seeds, index=seeds)
    return bytes(request.SerializeToString())


def data_caller(target: Target) -> RawCaller:
    """Return a caller of the data port, with the token."""
    return RawCaller(target.data, token=target.token, trust=target.certificate)


def _throw_head(target: Target, request: bytes, draw: random.Random) -> None:
    """Send a request whose head is changed or cut, in pieces."""
    data = bytearray(request)
    for _ in range(draw.randrange(1, 4)):
        data[draw.randrange(40)] = draw.randrange(256)
    end = draw.choice((len(data), draw.randrange(1, 60)))
    with suppress(OSError), target.connect(target.data_port) as connection:
        for at in range(0, end, max(end // 5, 1)):
            connection.sendall(data[at : min(at + max(end // 5, 1), end)])


def _extreme(draw: random.Random) -> bytes:
    """Return a header that is well-formed JSON and asks for too much: dimensions, digits, depth, names."""
    shape: Any = draw.choice(([1] * 20_000, [2**62, 4], [int("9" * 300)], [-1], [2**31] * 8))
    metadata = {"wire": str(WIRE_VERSION), "ask": draw.choice(("rows", "neighbors", "ids")), "x\ud800": "y"}
    header: dict[str, Any] = {
        "__metadata__": metadata,
        "rows": {"dtype": "I32", "shape": shape, "data_offsets": [0, draw.choice((0, 4, 2**63))]},
    }
    text = json.dumps(header).encode()
    if draw.random() < 0.2:
        text = b'{"a":' * 5_000 + b"1" + b"}" * 5_000
    return struct.pack("<Q", len(text)) + text


def _valid(target: Target, draw: random.Random) -> list[bytes]:
    """Return good requests. Those for rows and neighbours are made from the ping: fields and all."""
    ping = encode_ping(Envelope(graph=target.graph, partition=0))
    rows = np.arange(20, dtype=np.int32)
    fields: list[dict[str, str]] = [
        {"ask": "rows", "kind": '"node"', "columns": '["x"]'},
        {
            "ask": "neighbors",
            "edge_type": '["node", "to", "node"]',
            "key": "7",
            "hop": "0",
            "fanout": "3",
            "flags": "[]",
        },
        {"ask": "split", "node_type": "node", "split": "train"},
    ]
    return [
        ping,
        encode_graph_request(ManifestRequest(), target.graph),
        encode_graph_request(IdsRequest(node_type="node", positions=rows.astype(np.int64)), target.graph),
        encode_graph_request(LocateRequest(node_type="node", ids=rows.astype(np.int64)), target.graph),
        encode_graph_request(ListRequest(node_type="node", first=0, count=50), target.graph),
        *(_document(target, entry, rows) for entry in fields),
    ]


def _document(target: Target, fields: dict[str, str], rows: Any) -> bytes:
    about = {"wire": str(WIRE_VERSION), "graph": target.graph, "partition": "0", **fields}
    header: dict[str, Any] = {"__metadata__": about}
    if fields["ask"] != "split":
        header["rows"] = {"dtype": "I32", "shape": [len(rows)], "data_offsets": [0, rows.nbytes]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + (rows.tobytes() if "rows" in header else b"")
