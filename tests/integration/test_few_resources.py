"""Processes with few files or little address space: one line that names the limit, and a prompt end."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.store_graph import write_graph

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = ["-c", "from gigl_loader.cli import main; main()", "serve"]
SMALL = ("--listen", "127.0.0.1:0", "--workers", "2", "--frame-memory", "64MB")
END_S = 60.0


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("few") / "graph")


LIMITED = """
import os, resource, sys
for limit in sys.argv[1].split():
    name, _, value = limit.partition("=")
    resource.setrlimit(getattr(resource, f"RLIMIT_{name.upper()}"), (int(value), int(value)))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
"""Sets limits, named as by ``resource``, and becomes the command. In a process of its own: in a fork of this
one libraries run code of theirs, which may not survive the limits."""


def started(graph: Path, *options: str, **limits: int) -> subprocess.Popen[str]:
    given = " ".join(f"{name}={value}" for name, value in limits.items())
    return subprocess.Popen(
        [sys.executable, "-c", LIMITED, given, *COMMAND, str(graph), *(options or SMALL)],
        text=True,
        stderr=subprocess.PIPE,
    )


def outcome(process: subprocess.Popen[str]) -> tuple[str, int, str]:
    """End a server once it is ready, or wait until it ends. Return which, its exit code and last line."""
    assert process.stderr is not None
    said: list[str] = []
    try:
        for line in process.stderr:
            said.append(line)
            if " ready: " in line:
                process.send_signal(signal.SIGTERM)
        code = process.wait(END_S)
    finally:
        process.kill()
        process.communicate(timeout=20)
    ready = any(" ready: " in line for line in said)
    assert "Traceback" not in "".join(said)
    assert ready or len(said) == 1, said
    return ("ready" if ready else "refused"), code, said[-1]


@pytest.mark.some(3)
@pytest.mark.parametrize("files", [16, 20, 24, 28, 32, 48, 64, 256])
def test_a_server_with_few_files_serves_or_names_the_limit(graph: Path, files: int) -> None:
    what, code, last = outcome(started(graph, nofile=files))
    if files < 64:
        assert (what, code) == ("refused", 2)
        assert f"a limit of {files} open files is too low" in last
        assert "ulimit -n" in last
    else:
        assert (what, code) == ("ready", 0)


@pytest.mark.some(3)
@pytest.mark.parametrize("megabytes", [128, 256, 500, 800, 1200, 1800, 4096])
@pytest.mark.parametrize("limit", ["as", "data"])
def test_a_server_with_little_memory_serves_or_names_the_limit(
    graph: Path, limit: str, megabytes: int
) -> None:
    what, code, last = outcome(started(graph, **{limit: megabytes << 20}))
    if what == "refused":
        assert code == 2
        assert f"a limit of {megabytes} MB of" in last
        assert f"RLIMIT_{limit.upper()}" in last
        assert "frame_memory" in last
    else:
        assert code == 0
    assert megabytes < 4096 or what == "ready"


def test_frame_memory_counts_as_it_will_be_filled(graph: Path) -> None:
    options = (*SMALL[:-1], "8GB")
    what, code, last = outcome(started(graph, *options, **{"as": 6 << 30}))
    assert (what, code) == ("refused", 2)
    assert "8192 MB of it for batches" in last


def test_a_server_out_of_files_for_callers_ends_in_order(graph: Path) -> None:
    process = started(graph, nofile=64)
    assert process.stderr is not None
    with ExitStack() as stack:
        port = 0
        for line in process.stderr:
            if "control port at" in line:
                port = int(line.partition("127.0.0.1:")[2].partition(",")[0])
            if " ready: " in line:
                break
        for _ in range(100):
            with suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=END_S)
    assert process.returncode == 0, said


TRAINER = """
import resource, sys
import torch
from gigl_loader import DistDataset, DistNeighborLoader
limit, value = sys.argv[2], int(sys.argv[3])
dataset = DistDataset.open(sys.argv[1])
number = getattr(resource, limit)
used = 0
if limit == "RLIMIT_AS":
    used = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmSize")) << 10
if limit == "RLIMIT_NOFILE":
    import os
    used = len(os.listdir("/proc/self/fd"))
resource.setrlimit(number, (used + value, resource.getrlimit(number)[1]))
try:
    loader = DistNeighborLoader(
        dataset, [3], torch.arange(8), batch_size=4, device="cpu", num_workers=int(sys.argv[4]),
        channel_size=sys.argv[5],
    )
    next(iter(loader))
except OSError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_with_little_address_space_is_told_of_channel_size(graph: Path, workers: int) -> None:
    said = trained(graph, "RLIMIT_AS", 512 << 20, workers, "8GB")
    assert "[Errno 12] channel_size of 8192 MB does not fit" in said
    assert "lower channel_size" in said


@pytest.mark.slow
def test_a_trainer_with_few_files_is_told_of_the_limit(graph: Path) -> None:
    said = trained(graph, "RLIMIT_NOFILE", 2, 4, "64MB")
    assert "[Errno 24] the limit of" in said
    assert "ulimit -n" in said


@pytest.mark.slow
def test_a_trainer_with_small_files_is_told_of_channel_size(graph: Path) -> None:
    assert "lower channel_size" in trained(graph, "RLIMIT_FSIZE", 1 << 20, 2, "64MB")


def trained(graph: Path, limit: str, value: int, workers: int, channel_size: str) -> str:
    run: Any = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=110)
    arguments = (str(graph), limit, str(value), str(workers), channel_size)
    result = run([sys.executable, "-c", TRAINER, *arguments])
    assert result.returncode == 0, result.stderr
    return str(result.stdout)


PROCESSES = """
import os, resource, sys
import torch
from gigl_loader import DistDataset, DistNeighborLoader
dataset, method = DistDataset.open(sys.argv[1]), sys.argv[4]
more, workers = int(sys.argv[2]), int(sys.argv[3])
DistNeighborLoader(dataset, [3], torch.arange(8), num_workers=0, device="cpu").sample([0])
used = len(os.listdir("/proc/self/task"))  # No other process has this user.
resource.setrlimit(resource.RLIMIT_NPROC, (used + more, used + more))
try:
    if method == "sampler":
        print(dataset.sampler([3], concurrency=workers, device="cpu").sample([0]).batch_size)
    else:
        print(len(list(DistNeighborLoader(
            dataset, [3], torch.arange(8), batch_size=4, device="cpu", num_workers=workers,
            multiprocessing_context=method,
        ))))
except OSError as error:
    print(error)
"""
AS_A_USER = (
    *("setpriv", "--reuid", "54321", "--regid", "54321", "--clear-groups"),
    *("--inh-caps=-all,+dac_override,+dac_read_search", "--ambient-caps=+dac_override,+dac_read_search"),
)
"""Root has no limit of processes. This user may read what root may."""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
@pytest.mark.parametrize(
    ("more", "workers", "method", "option"),
    [
        (0, 2, "spawn", "num_workers=2"),  # No process can be started,
        (1, 1, "spawn", "num_workers=1"),  # or its threads cannot,
        (4, 2, "spawn", "num_workers=2"),  # or those of another.
        (1, 1, "fork", "num_workers=1"),
        (0, 3, "sampler", "concurrency=3"),
    ],
)
def test_the_limit_of_processes_is_one_error_that_names_it(
    graph: Path, more: int, workers: int, method: str, option: str
) -> None:
    done = few_processes(graph, more, workers, method)
    assert done.stdout.startswith(f"[Errno 11] {option}: no further process or thread can be started"), done
    assert "(ulimit -u" in done.stdout
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
def test_a_sampler_goes_on_with_the_threads_that_it_has(graph: Path) -> None:
    done = few_processes(graph, 1, 3, "sampler")
    assert (done.stdout, done.stderr) == ("1\n", "")


def few_processes(graph: Path, *arguments: int | str) -> subprocess.CompletedProcess[str]:
    graph.parent.chmod(0o755)
    return subprocess.run(
        [*AS_A_USER, sys.executable, "-c", PROCESSES, str(graph), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
        env=os.environ | {"HOME": "/"},
    )


PEER = """
import resource, sys
from gigl_loader.graph.graph import Graph
from gigl_loader.rpc.credentials import Credentials
from gigl_loader.rpc.host_service import HostService
resource.setrlimit(getattr(resource, sys.argv[2]), (int(sys.argv[3]), int(sys.argv[3])))
try:
    HostService.start(
        Graph.open(sys.argv[1]).reference, [0], credentials=Credentials.plaintext(), timeout_s=60
    ).close()
except ValueError as error:
    print(error)
"""


@pytest.mark.parametrize(("limit", "value"), [("RLIMIT_NOFILE", 48), ("RLIMIT_DATA", 600 << 20)])
def test_a_peer_service_below_a_limit_names_it(graph: Path, limit: str, value: int) -> None:
    result = subprocess.run(
        [sys.executable, "-c", PEER, str(graph), limit, str(value)],
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert result.returncode == 0, result.stderr
    assert "is too low: a peer service needs" in result.stdout
    assert limit in result.stdout
