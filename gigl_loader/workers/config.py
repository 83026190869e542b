"""Configuration of a sampling process, sent at its start: JSON and file descriptors, nothing pickled."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gigl_loader.channel.message import receive_fds, send_fds
from gigl_loader.channel.ring import RingLayout
from gigl_loader.memfile import create_memory, map_memory
from gigl_loader.sampling.request import InputColumn
from gigl_loader.shared import SharedTensors

if TYPE_CHECKING:
    import socket


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """Everything that a sampling process needs to start."""

    worker: int
    """Number of the worker, from 0."""
    incarnation: int
    """Number of processes that this worker had before: 0 for its first."""
    trainer_pid: int
    sampler: str
    """``module:function`` that takes this configuration and returns a sequence of ``BatchSampler``. Each
    sampler has a thread, so that as many batches are sampled at once."""
    plan: str
    """``BatchPlan.to_json()``."""
    inputs: tuple[InputColumn, ...]
    """Columns of the requests."""
    reference: dict[str, Any] = field(repr=False)
    """Names the graph. Left out of ``repr``, because it holds the token of the peers. File descriptors in
    it are valid in the process that reads them."""
    ring: RingLayout
    concurrency: int = 1
    """Batches in flight, hence the number of samplers that can be busy."""
    timeout_s: float = 300.0
    """Seconds that the trainer waits for a batch."""
    deferred: bool = False
    """Frames have the places of features instead of the features."""
    values: bool = False
    """Frames have the values of quantised columns, too, beside the codes."""
    files: dict[str, int] = field(default_factory=dict)
    """Descriptors of ``SharedTensors`` by name: ``"weights"`` and ``"seeds"`` where weights draw seeds, and
    ``"shared"`` for code of the user."""

    def take_shared(self) -> SharedTensors | None:
        """Map the loader's shared tensors, and take over their descriptor."""
        fd = self.files.get("shared")
        return None if fd is None else SharedTensors(fd)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: bytes) -> WorkerConfig:
        document = json.loads(text)
        inputs = tuple(
            InputColumn(**{**each, "node_types": tuple(each["node_types"])})
            for each in document.pop("inputs")
        )
        ring = RingLayout(**document.pop("ring"))
        return cls(**document, inputs=inputs, ring=ring)


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """A configuration and its open files, which the caller of ``send`` or ``receive`` closes."""

    config: WorkerConfig
    ring_fd: int
    trace_fd: int
    """Memory file for the text of a crash, which the trainer reads."""
    stderr_fd: int
    """Standard error of the trainer, for what the worker prints while it runs."""

    def send(self, link: socket.socket) -> None:
        """Queue everything in the socket's buffer. Does not wait for a reader."""
        text = self.config.to_json().encode()
        setting_fd = create_memory("gigl-setting", len(text))
        try:
            os.pwrite(setting_fd, text, 0)
            own_fds = (setting_fd, self.ring_fd, self.trace_fd, self.stderr_fd)
            of_graph = [self.config.reference["fd"]] if "fd" in self.config.reference else []
            send_fds(link, [*own_fds, *self.config.files.values(), *of_graph])
        finally:
            os.close(setting_fd)

    @classmethod
    def receive(cls, link: socket.socket) -> Handover:
        """Wait for what ``send`` sent. Raises ``EOFError`` when the trainer is gone."""
        setting_fd, ring_fd, trace_fd, stderr_fd, *others = receive_fds(link)
        text = map_memory(setting_fd, os.fstat(setting_fd).st_size).tobytes()
        os.close(setting_fd)
        config = WorkerConfig.from_json(text)
        if "fd" in config.reference:
            config = replace(config, reference=config.reference | {"fd": others.pop()})
        config = replace(config, files=dict(zip(config.files, others, strict=True)))
        return cls(config=config, ring_fd=ring_fd, trace_fd=trace_fd, stderr_fd=stderr_fd)
