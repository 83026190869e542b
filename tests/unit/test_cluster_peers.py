"""How a storage server notices that others go and come back."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from gigl_loader.errors import StorageUnavailable
from gigl_loader.rpc.endpoint import Endpoint
from gigl_loader.rpc.requests import WIRE_VERSION
from gigl_server.cluster.peers import PeerResponse, PeerWatch

OTHER = Endpoint(
    host_index=1, host="host", control_port=20, data_port=21, partitions=(1,), what="storage server"
)


def test_a_change_is_one_line_and_one_slow_answer_is_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    silence = StorageUnavailable("nothing listens there")
    here = PeerResponse(version="1", wire_version=WIRE_VERSION, graph="a", itself=OTHER, others=())
    script: list[PeerResponse | Exception] = [here, silence, here, silence, silence, silence, here, here]

    def ask(address: str, timeout_s: float) -> PeerResponse:
        assert address == "host:20"
        said = script.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    watch = PeerWatch([OTHER], "a", ask)
    lost = []
    while script:
        watch.look(threading.Event())
        lost.append(bool(watch.lost))
    assert lost == [False, False, False, False, True, True, False, False]
    assert caplog.messages == ["storage server 1 at host:20 is lost", "storage server 1 at host:20 is back"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"graph": "b" * 64}, "has another graph: digest bbbbbbbbbbbb"),
        ({"wire_version": 99}, "whose wire version is 99"),
        ({"itself": replace(OTHER, partitions=(2, 3))}, r"it came back with partitions [2, 3]"),
    ],
)
def test_one_that_comes_back_as_another_is_not_back(
    caplog: pytest.LogCaptureFixture, changes: dict[str, Any], said: str
) -> None:
    here = PeerResponse(version="1", wire_version=WIRE_VERSION, graph="a", itself=OTHER, others=())
    watch = PeerWatch([OTHER], "a", lambda *_: replace(here, **changes))
    watch.look(threading.Event())
    watch.look(threading.Event())
    assert said in caplog.text
