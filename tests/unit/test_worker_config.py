from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import Any

import pytest

from gigl_loader.channel.ring import RingLayout
from gigl_loader.workers.config import Handover, WorkerConfig
from tests.support.sources import PLAN

pytestmark = pytest.mark.usefixtures("no_leftovers")

SETTING = WorkerConfig(
    worker=1,
    incarnation=2,
    trainer_pid=3,
    sampler="somewhere:something",
    plan=PLAN.to_json(),
    inputs=PLAN.inputs,
    reference={"path": "/graphs/ünïcode"},
    ring=RingLayout(request_slots=1, request_bytes=32, slots=3, slot_bytes=4096),
)


def test_a_setting_survives_json() -> None:
    assert WorkerConfig.from_json(SETTING.to_json().encode()) == SETTING


def test_a_setting_does_not_show_the_token() -> None:
    assert "secret" not in repr(replace(SETTING, reference={"peers": {"token": "secret"}}))


@pytest.mark.parametrize("files", [0, 1, 200])
def test_a_handover_arrives_with_its_files(files: int) -> None:
    """Descriptors get other numbers on the way; the graph's keep their names."""
    fds = {f"part/{number}": os.memfd_create(str(number), os.MFD_CLOEXEC) for number in range(files)}
    for number, fd in enumerate(fds.values()):
        os.pwrite(fd, str(number).encode(), 0)
    reference = {"fds": fds, "more": 1}
    sent = Handover(config=replace(SETTING, reference=reference), ring_fd=0, trace_fd=1, stderr_fd=2)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        sent.send(near)
        received = Handover.receive(far)
    found = received.config.reference
    assert received.config == replace(SETTING, reference=found)
    assert found["more"] == 1
    assert list(found["fds"]) == list(fds)
    for number, fd in enumerate(found["fds"].values()):
        assert os.pread(fd, 10, 0) == str(number).encode()
    for fd in (
        *fds.values(),
        *found["fds"].values(),
        received.ring_fd,
        received.trace_fd,
        received.stderr_fd,
    ):
        os.close(fd)


@pytest.mark.parametrize("reference", [{"path": "/graph"}, {"fds": {"part": 0}}])
def test_files_of_a_seed_draw_come_under_their_names(reference: dict[str, Any]) -> None:
    draw = {"weights": os.memfd_create("weights"), "seeds": os.memfd_create("seeds")}
    for name, fd in draw.items():
        os.pwrite(fd, name.encode(), 0)
    sent = Handover(
        config=replace(SETTING, reference=reference, draw=draw), ring_fd=0, trace_fd=1, stderr_fd=2
    )
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        sent.send(near)
        received = Handover.receive(far)
    found = received.config.draw
    assert found is not None
    assert {name: os.pread(fd, 10, 0).decode() for name, fd in found.items()} == {n: n for n in draw}
    own = (received.ring_fd, received.trace_fd, received.stderr_fd)
    for fd in (*draw.values(), *found.values(), *received.config.reference.get("fds", {}).values(), *own):
        os.close(fd)


def test_a_trainer_that_is_gone_is_noticed() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.close()
    with far, pytest.raises(EOFError):
        Handover.receive(far)
