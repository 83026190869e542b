from __future__ import annotations

import re
from pathlib import Path

from gigl_loader.rpc import control, graph_store_pb2

PROTO = Path(control.__file__).with_name("graph_store.proto").read_text()


def test_the_generated_messages_are_those_of_the_proto() -> None:
    written = {
        message: re.findall(r"(\w+) = (\d+);", body)
        for message, body in re.findall(
            r"^message (\w+) \{(.*?)(?:^|(?<=\{))\}$", PROTO, re.MULTILINE | re.DOTALL
        )
    }
    generated = {
        message.name: [(field.name, str(field.number)) for field in message.fields]
        for message in graph_store_pb2.DESCRIPTOR.message_types_by_name.values()
    }
    assert generated == written
    calls = re.findall(r"rpc (\w+)\((\w+)\) returns \((\w+)\);", PROTO)
    methods = [
        *control.METHODS.items(),
        *control.STORE_METHODS.items(),
        *control.ADMIN_METHODS.items(),
    ]
    assert calls == [(name, ask.__name__, reply.__name__) for name, (ask, reply) in methods]


def test_the_generated_code_runs_under_old_and_new_protobuf() -> None:
    """Code of newer generators refuses every runtime older than itself."""
    assert "ValidateProtobufRuntimeVersion" not in Path(graph_store_pb2.__file__).read_text()
