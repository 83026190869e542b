"""Examinations of ``gigl-loader doctor``: functions that return a finding or raise."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from gigl_loader.errors import naming_extra
from gigl_loader.options import size_text, workers_of
from gigl_loader.resources import free_memory, usable_cores

_LITTLE_MEMORY = 1 << 30


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on one subject."""

    subject: str
    verdict: Literal["ok", "note", "failed"]
    """``note``: works, but not as well as it could."""
    detail: str

    def to_json(self) -> dict[str, str]:
        return asdict(self)


def examine() -> list[Verdict]:
    """Look at everything. What breaks is a finding, not an error."""
    examinations: dict[str, Callable[[], Verdict]] = {
        "versions": _versions,
        "processor": _processor,
        "native core": _native_core,
        "torch": _torch,
        "memfd": _memfd,
        "seqpacket sockets": _seqpacket,
        "/dev/shm": _shared_memory,
        "open files": _open_files,
        "memory": _memory,
        "loader": _loader,
    }
    return [_seen(subject, look) for subject, look in examinations.items()]


def _seen(subject: str, look: Callable[[], Verdict]) -> Verdict:
    try:
        return look()
    except ModuleNotFoundError as error:
        told = naming_extra(error)
        if told is error:
            return Verdict(subject, "failed", f"{type(error).__name__}: {error}")
        return Verdict(subject, "note", f"{told}; a storage server needs none")
    except Exception as error:
        return Verdict(subject, "failed", f"{type(error).__name__}: {error}")


def _versions() -> Verdict:
    names = ("gigl-loader", "torch", "torch-geometric", "numpy", "pyarrow")
    installed = ", ".join(f"{name} {version}" for name in names if (version := _version_of(name)))
    return Verdict("versions", "ok", f"Python {platform.python_version()}, {installed}")


def _version_of(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> Verdict:
    flags = _cpu_field("flags").split()
    vectors = [name for name in ("avx2", "avx512f") if name in flags]
    model = _cpu_field("model name") or platform.machine()
    cores = f'{usable_cores()} cores usable (num_workers="auto": {workers_of("auto", ranks=1)} for one rank)'
    return Verdict("processor", "ok", f"{model}, {cores}, {', '.join(vectors) or 'no AVX2'}")


def _cpu_field(name: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def _native_core() -> Verdict:
    from gigl_loader.native import _core, philox

    # Known answer of Philox2x64-10 (Random123's test vectors): the all-zero key and counter.
    answer = philox(0, 0, 0)
    if answer != (0xCA00A0459843D731, 0x66C24222C9A845B5):
        return Verdict("native core", "failed", f"philox2x64 of zeros gives {answer}")
    return Verdict("native core", "ok", str(_core.__file__))


def _torch() -> Verdict:
    import torch

    if not torch.cuda.is_available():
        return Verdict("torch", "ok", f"{torch.__version__}, no CUDA device: batches stay on the CPU")
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return Verdict("torch", "ok", f"{torch.__version__}, CUDA {torch.version.cuda}: {names}")


def _memfd() -> Verdict:
    if not hasattr(os, "memfd_create"):
        return Verdict("memfd", "note", f"not on {sys.platform}: use num_workers=0")
    descriptor = os.memfd_create("gigl-doctor")
    try:
        os.ftruncate(descriptor, 1 << 30)
    finally:
        os.close(descriptor)
    return Verdict("memfd", "ok", "shared memory without a name")


def _seqpacket() -> Verdict:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.send(b"one")
        ours.send(b"two")
        if theirs.recv(16) != b"one":
            return Verdict("seqpacket sockets", "failed", "boundaries of messages are lost")
    return Verdict("seqpacket sockets", "ok", "boundaries of messages are kept")


def _shared_memory() -> Verdict:
    if not Path("/dev/shm").exists():
        return Verdict("/dev/shm", "note", "missing; not used by gigl-loader")
    size = shutil.disk_usage("/dev/shm").total
    return Verdict("/dev/shm", "ok", f"{size / 1e9:.1f} GB; not used by gigl-loader, whatever its size")


def _open_files() -> Verdict:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024:
        return Verdict("open files", "note", f"at most {soft}; raise it with `ulimit -n 4096`")
    return Verdict("open files", "ok", f"at most {soft}")


def _memory() -> Verdict:
    free = free_memory()
    text = f"{size_text(free.nbytes)} may still be taken: {free.source}"
    if free.nbytes < _LITTLE_MEMORY:
        return Verdict("memory", "note", f"{text}; features beyond memory are read when they are wanted")
    return Verdict("memory", "ok", text)


def _loader() -> Verdict:
    """Build a ring of 64 nodes and load it through a worker process."""
    import torch
    from torch_geometric.data import Data

    from gigl_loader import DistDataset, DistNeighborLoader

    nodes = torch.arange(64)
    data = Data(x=nodes.view(-1, 1).float(), edge_index=torch.stack([nodes, (nodes + 1) % 64]))
    start = time.perf_counter()
    with DistNeighborLoader(
        DistDataset.from_pyg(data), [2, 2], batch_size=16, num_workers=1, device="cpu", timeout=60
    ) as loader:
        seen = torch.cat([batch.n_id[: batch.batch_size] for batch in loader])
    if not torch.equal(seen, nodes):
        return Verdict("loader", "failed", "an epoch did not deliver every seed once")
    return Verdict("loader", "ok", f"1 worker, {time.perf_counter() - start:.1f} s for start and an epoch")
