"""Every parser of bytes from elsewhere, with hostile input of the largest size that it reads.

Each input ends in a clean error, or is accepted. CPU time and memory are compared with those of reading plain
JSON of the same size: a parser may be some times slower, never by orders of magnitude.
"""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest

from gigl_loader.channel import message
from gigl_loader.errors import FormatError
from gigl_loader.graph.manifest import Manifest
from gigl_loader.rpc import request_reader, requests
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.refusals import Refusal, RefusalKind
from gigl_loader.rpc.replies import parsed
from gigl_loader.rpc.versions import WIRE_VERSION
from gigl_loader.strict_json import read_json
from gigl_loader.tensors import Layout
from tests.support.frames import frame_schema
from tests.support.sources import small_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gigl_loader.channel.frame import Frame

MAX_TIMES_SLOWER = 12
"""Than reading benign JSON of the same size; slack of 50 ms for the clock and this machine's other work."""
MAX_TIMES_LARGER = 60
"""Peak of memory, in sizes of the input; slack of 1 MiB."""
SLACK_S, SLACK_BYTES = 0.05, 1 << 20
LARGE = 256 << 10
"""Of parsers that read more: quadratic work would take seconds, and linear work does not in 400 cases."""


class Parser(NamedTuple):
    """What reads bytes of a header, the size it reads at most, and its clean errors."""

    read: Callable[[bytes], object]
    most_bytes: int
    errors: tuple[type[Exception], ...] = (FormatError,)


def _headed(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _layout(text: bytes) -> Layout:
    return Layout.parse(np.frombuffer(_headed(text), np.uint8))


def _frame(text: bytes) -> Frame:
    return frame_schema().parse(np.frombuffer(_headed(text), np.uint8))


def _request(text: bytes) -> object:
    graph = small_graph()
    return requests.parse(_headed(text), graph.schema, graph.manifest.digest, {0: lambda _: 10})


def _inner_json(text: bytes) -> object:
    """JSON within a string of a request's metadata."""
    metadata = {
        "wire": str(WIRE_VERSION),
        "graph": small_graph().manifest.digest,
        "partition": "0",
        "ask": "rows",
    }
    told = metadata | {"kind": text.decode("utf-8", "replace"), "columns": "[]"}
    return _request(json.dumps({"__metadata__": told}, ensure_ascii=False).encode())


def _reply(text: bytes) -> object:
    return parsed(np.frombuffer(_headed(text), np.uint8))


def _refusal(text: bytes) -> None:
    if Refusal.from_record(text) is None:
        raise FormatError("no record")


PARSERS: Mapping[str, Parser] = {
    "JSON": Parser(lambda text: read_json(text, what="x", max_bytes=LARGE), LARGE),
    "file": Parser(_layout, LARGE),
    "frame": Parser(_frame, LARGE),
    "request": Parser(_request, request_reader.MAX_HEADER_BYTES, (Refusal,)),
    "JSON in a request": Parser(_inner_json, request_reader.MAX_HEADER_BYTES // 4, (Refusal,)),
    "reply": Parser(_reply, request_reader.MAX_HEADER_BYTES),
    "refusal": Parser(_refusal, 16 << 10),
    "endpoint": Parser(lambda text: Endpoint.from_json(text.decode("utf-8", "replace")), LARGE),
    "manifest": Parser(lambda text: Manifest.parse(text, what="x"), LARGE),
    "message to a worker": Parser(message.Request.unpack, 256),
    "message of a worker": Parser(message.Response.unpack, 256),
}


def _filled(unit: str, size: int, head: str = "[", tail: str = "]") -> bytes:
    """Return a JSON list of as many ``unit`` as fit in ``size`` bytes."""
    times = max((size - len(head) - len(tail) + 1) // (len(unit) + 1), 1)
    return (head + ",".join([unit] * times) + tail).encode()


def _many_names(size: int) -> bytes:
    text = ",".join(f'"{number:07d}":0' for number in range(max((size - 2) // 12, 1)))
    return f"{{{text}}}".encode()


SHAPE = '{"a":{"dtype":"I32","data_offsets":[0,4],"shape":['

HOSTILE: Mapping[str, Callable[[int], bytes]] = {
    "nothing": lambda size: b"",
    "noise": lambda size: np.random.default_rng(0).bytes(size),
    "nested lists": lambda size: b"[" * size,
    "nested lists that end": lambda size: b"[" * (size // 2) + b"]" * (size // 2),
    "nested objects": lambda size: b'{"a":' * (size // 5),
    "a million digits": lambda size: b"9" * size,
    "a million digits in a shape": lambda size: (SHAPE + "9" * (size - len(SHAPE) - 3) + "]}}").encode(),
    "a million digits below 0": lambda size: b'{"a":-' + b"9" * (size - 7) + b"}",
    "a million digits of a fraction": lambda size: b'{"a":0.' + b"9" * (size - 8) + b"}",
    "numbers of 20 digits": lambda size: _filled("9" * 20, size),
    "many dimensions": lambda size: _filled("9223372036854775807", size, SHAPE, "]}}"),
    "many dimensions of 1": lambda size: _filled("1", size, SHAPE, "]}}"),
    "many dimensions of nothing": lambda size: _filled("0", size, SHAPE, "]}}"),
    "many offsets": lambda size: _filled("0", size, '{"a":{"dtype":"I32","shape":[],"data_offsets":[', "]}}"),
    "many names": _many_names,
    "one name many times": lambda size: _filled('"a":0', size, "{", "}"),
    "many empty lists": lambda size: _filled("[]", size),
    "many objects": lambda size: _filled('{"a":0}', size),
    "a name of a megabyte": lambda size: b'{"' + b"n" * (size - 6) + b'":0}',
    "a string of a megabyte": lambda size: b'{"__metadata__":{"ask":"' + b"s" * (size - 27) + b'"}}',
    "escapes": lambda size: b'{"a":"' + b"\\u0000" * (size // 6 - 2) + b'"}',
    "half of a surrogate pair": lambda size: b'{"\\ud800":0}',
    "half of a surrogate pair as a value": lambda size: b'{"__metadata__":{"ask":"\\udfff"}}',
    "raw surrogates": lambda size: b'{"\xed\xa0\x80":0}',
    "Infinity": lambda size: b'{"version":Infinity,"host_index":Infinity}',
    "-Infinity": lambda size: b"[-Infinity]",
    "NaN": lambda size: b'{"a":NaN}',
    "a number beyond float64": lambda size: b'{"a":1e999}',
    "2**63": lambda size: b'{"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}}',
    "UTF-16": lambda size: '{"a":0}'.encode("utf-16"),
    "a number alone": lambda size: b"1",
    "nulls": lambda size: _filled("null", size),
}


def _benign(size: int) -> bytes:
    entry = '"array/{:07d}":{{"dtype":"I64","shape":[10,20],"data_offsets":[0,1600]}}'
    count = max((size - 2) // len(entry), 1)
    return f"{{{','.join(entry.format(number) for number in range(count))}}}".encode()


def _cpu_s(read: Callable[[bytes], object], data: bytes, errors: tuple[type[Exception], ...]) -> float:
    """Return the CPU seconds of reading, the best of two: the first may pay for an import."""
    return min(_once_cpu_s(read, data, errors) for _ in range(2))


def _once_cpu_s(read: Callable[[bytes], object], data: bytes, errors: tuple[type[Exception], ...]) -> float:
    began = time.thread_time()
    caught: Exception | None = None
    try:
        read(data)
    except errors as error:
        caught = error
    took = time.thread_time() - began
    assert len(str(caught).encode()) < 2_000, "a message repeats its input"
    return took


@cache
def _plain_s(size: int) -> float:
    """Return the CPU seconds that reading benign JSON takes."""
    return _cpu_s(json.loads, _benign(size), ())


def _peak_bytes(read: Callable[[bytes], object], data: bytes, errors: tuple[type[Exception], ...]) -> int:
    tracemalloc.start()
    try:
        read(data)
    except errors:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("name", PARSERS)
def test_hostile_bytes_cost_little_and_end_cleanly(name: str, case: str) -> None:
    parser = PARSERS[name]
    data = HOSTILE[case](parser.most_bytes)[: parser.most_bytes]
    assert _cpu_s(parser.read, data, parser.errors) <= MAX_TIMES_SLOWER * _plain_s(len(data)) + SLACK_S


@pytest.mark.parametrize("name", ["JSON", "request", "refusal"])
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_bytes_take_a_bounded_multiple_of_memory(name: str, case: str) -> None:
    parser = PARSERS[name]
    data = HOSTILE[case](parser.most_bytes)[: parser.most_bytes]
    assert _peak_bytes(parser.read, data, parser.errors) <= MAX_TIMES_LARGER * len(data) + SLACK_BYTES


@pytest.mark.parametrize("name", ["request", "reply", "refusal", "JSON"])
def test_a_header_beyond_the_limit_is_not_read(name: str) -> None:
    parser = PARSERS[name]
    data = _benign(10 * parser.most_bytes)
    assert len(data) > 5 * parser.most_bytes
    with pytest.raises(parser.errors):
        parser.read(data)
    assert _peak_bytes(parser.read, data, parser.errors) < 4 * len(data) + SLACK_BYTES


def test_many_tickets_with_large_headers_take_little_memory() -> None:
    """24 headers of 10 MB took 4.6 GB while they were parsed, by as many threads."""
    ticket = _headed(HOSTILE["many empty lists"](10_000_000))
    graph = small_graph()

    def read(data: bytes) -> None:
        for _ in range(24):
            with pytest.raises(Refusal, match=r"a header of \d+ bytes; at most 65536 are read") as raised:
                requests.parse(data, graph.schema, graph.manifest.digest, {})
            assert raised.value.kind is RefusalKind.MALFORMED

    assert _peak_bytes(read, ticket, ()) < 1 << 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a":1,"a":2}', "a name occurs twice"),
        ("[" * 100_000, "nested too deeply|is not JSON"),
        ("1" * 21, "a number of 21 digits; at most 20 are read"),
        ("[Infinity]", "Infinity is no number of JSON"),
        ("[NaN]", "NaN is no number"),
        ("[-1e999]", "beyond float64"),
        ('"\\ud800"', "text that is no UTF-8"),
        ('"\ud800"', "text that is no UTF-8"),
        (b'"\xff"', "text that is no UTF-8"),
        ("x" * 200_001, "has 200001 bytes; at most 200000 are read"),
        ("\u00e9" * 100_001, "at most 200000 are read"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_json_that_breaks_a_rule_is_refused(text: bytes | str, message: str) -> None:
    with pytest.raises(FormatError, match=f"^some file .*({message})"):
        read_json(text, what="some file", max_bytes=200_000)


def test_json_of_every_kind_is_read() -> None:
    value = {"a": [1, -(2**63), 2**64 - 1, 0.5, -1e300, True, None], "\u00e9": "\U0001f600", "": {}}
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        assert read_json(text, what="x", max_bytes=1000) == value
        assert read_json(text.encode(), what="x", max_bytes=1000) == value
