"""Requests to the data port: changed tickets under every verb of Flight."""

from __future__ import annotations

import json
import random
import struct
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import flight

from gigl_loader.rpc.graph_requests import (
    IdsRequest,
    ListRequest,
    LocateRequest,
    ManifestRequest,
    encode_frame_request,
    encode_graph_request,
)
from gigl_loader.rpc.request_reader import WIRE_VERSION
from gigl_loader.rpc.requests import Envelope, encode_ping
from tests.fuzz.live.calls import changed
from tests.fuzz.live.target import CALL_S

if TYPE_CHECKING:
    from tests.fuzz.live.target import Target

__all__ = ["data_client", "throw_tickets"]

_VERBS = ("do_get", "do_get", "do_get", "do_get", "get_flight_info", "do_action", "list_flights", "do_put")


def throw_tickets(target: Target, draw: random.Random, count: int) -> Counter[str]:
    """Send ``count`` requests, one after the other."""
    sent: Counter[str] = Counter()
    valid = _valid(target, draw)
    client = data_client(target)
    try:
        for _ in range(count):
            token = draw.choice((target.token, target.token, target.token, ""))
            verb = draw.choice(_VERBS)
            ticket = _extreme(draw) if draw.random() < 0.1 else changed(draw.choice(valid), draw)
            sent[f"Flight {verb} with{'' if token else 'out'} the token"] += 1
            with suppress(pa.ArrowException, NotImplementedError, OSError):
                _ask(client, verb, ticket, _options(token, draw))
    finally:
        client.close()
    return sent


def data_client(target: Target) -> Any:
    """Return a Flight client of the data port."""
    if target.certificate:
        return flight.FlightClient(f"grpc+tls://{target.data}", tls_root_certs=target.certificate.encode())
    return flight.FlightClient(f"grpc+tcp://{target.data}")


def _options(token: str, draw: random.Random) -> Any:
    headers = [(b"gigl-job", f"{draw.randrange(8):064x}".encode())]
    if token:
        headers.append((b"authorization", f"Bearer {token}".encode()))
    return flight.FlightCallOptions(timeout=CALL_S, headers=headers)


def _ask(client: Any, verb: str, ticket: bytes, options: Any) -> None:
    descriptor = flight.FlightDescriptor.for_command(ticket)
    match verb:
        case "do_get":
            client.do_get(flight.Ticket(ticket), options).read_all()
        case "get_flight_info":
            client.get_flight_info(descriptor, options)
        case "do_action":
            list(client.do_action(flight.Action("x", ticket), options))
        case "list_flights":
            list(client.list_flights(ticket, options))
        case "do_put":
            batch = pa.record_batch([pa.array([1])], names=["a"])
            writer, _ = client.do_put(descriptor, batch.schema, options)
            with suppress(pa.ArrowException):
                writer.write_batch(batch)
            writer.close()


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
        encode_frame_request(draw.randbytes(16)),
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
