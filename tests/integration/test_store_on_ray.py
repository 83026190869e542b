"""Storage servers as actors of a Ray cluster: killed, and moved to another machine, under a trainer."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.learnable import learnable_graph
from tests.support.ray_cluster import ENVIRONMENT, RayCluster

pytestmark = pytest.mark.timeout(600)

_ROOT = Path(__file__).parents[2]
_PANDAS = _ROOT / "build/pandas"
"""What Ray Train needs."""
_END_S = 90.0
_PROGRAM = """
import json, os, signal, sys, time
import ray
from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistNeighborLoader
from gigl_ray import StoreCluster, find_servers
from tests.support.training import FANOUT, OPTIONS, digest

address, graph, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
ray.init(address, log_to_driver=False, namespace="somewhere else")

def say(**what):
    # A line of its own in one piece: threads of Ray print, too, and may have begun a line.
    sys.stdout.write(f"\\n{json.dumps(what)}\\n")
    sys.stdout.flush()

try:
    with StoreCluster(graph, **options) as cluster:
        servers = {actor: ray.get(actor.address.remote()) for actor in cluster._actors}
        found = find_servers(cluster.name)
        caller = Caller(token=cluster.token, insecure=True)
        with RemoteDistDataset.connect(find_servers(), credentials=caller, timeout=60) as dataset:
            with DistNeighborLoader(dataset, FANOUT, "train", **OPTIONS | {"timeout": 60.0}) as loader:
                say(ready=sorted(found), shown=sorted(cluster.addresses))
                for line in sys.stdin:
                    word, *more = line.split()
                    if word == "epoch":
                        loader.set_epoch(0)
                        say(epoch=[digest(batch) for batch in loader])
                    elif word == "kill":
                        actor = cluster._actors[int(more[0])]
                        before = ray.get(actor.pid.remote())
                        os.kill(before, signal.SIGKILL)
                        while ray.get(actor.pid.remote()) in (before, 0):
                            time.sleep(0.1)
                        ready = ray.get(actor.wait_ready.remote(60))
                        say(ready=ready, same=ray.get(actor.address.remote()) == servers[actor])
                    elif word == "again":
                        try:
                            StoreCluster(graph, **options)
                        except ValueError as error:
                            say(refused=str(error))
                    elif word == "moved":
                        deadline = time.monotonic() + 120
                        while len(now := cluster.addresses) < len(servers) or set(now) == set(found):
                            assert time.monotonic() < deadline, now
                            time.sleep(0.5)
                        say(ready=all(ray.get([a.wait_ready.remote(60) for a in cluster._actors])))
                    else:
                        break
    say(closed=True)
except Exception as error:
    say(error=[type(error).__name__, str(error)])
"""

_AT_ONCE = """
import json, sys
import ray
from gigl_client import Caller, RemoteDistDataset
from gigl_ray import StoreCluster

address, graph, tries = sys.argv[1:]
ray.init(address, log_to_driver=False)
for _ in range(int(tries)):
    with StoreCluster(graph, servers=2, replicas=2, options={"insecure": True}) as cluster:
        caller = Caller(insecure=True)
        with RemoteDistDataset.connect(cluster.addresses, credentials=caller, timeout=60) as dataset:
            sys.stdout.write(f"\\n{json.dumps({'servers': len(dataset._cluster.servers)})}\\n")
            sys.stdout.flush()
"""


class Driver:
    """The program above, in a process that is a driver of Ray."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def said(self) -> Any:
        """Return what the program said next. Ray prints there, too."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise AssertionError("the driver ended")

    def tell(self, words: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{words}\n")
        self._process.stdin.flush()
        return self.said()


@contextmanager
def driving(cluster: RayCluster, graph: Path, **options: Any) -> Iterator[Driver]:
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, cluster.address, str(graph), json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env=os.environ | ENVIRONMENT,
    )
    try:
        yield Driver(process)
    finally:
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        try:
            process.wait(_END_S)
        finally:
            process.kill()


@pytest.fixture
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster()
    try:
        cluster.add()
        cluster.add()
        yield cluster
    finally:
        cluster.close()


@pytest.mark.slow
def test_servers_come_back_and_move_under_a_trainer(
    cluster: RayCluster, graph: Path, expected: list[int]
) -> None:
    """Two servers on two machines: one is killed; then the machine of one is, and another machine comes."""
    with driving(
        cluster, graph, replicas=2, token="a-token-0123456789abcdef", options={"insecure": True}
    ) as driver:
        start = driver.said()
        assert len(start.get("ready", ())) == 2, start
        assert start["ready"] == start["shown"]
        assert "a StoreCluster 'gigl-store' already: give another name" in driver.tell("again")["refused"]
        assert driver.tell("epoch") == {"epoch": expected}
        assert driver.tell("kill 0") == {"ready": True, "same": True}
        assert driver.tell("epoch") == {"epoch": expected}
        cluster.kill()
        assert driver.tell("epoch") == {"epoch": expected}
        cluster.add()
        assert driver.tell("moved") == {"ready": True}
        assert driver.tell("epoch") == {"epoch": expected}
        assert driver.tell("end") == {"closed": True}


@pytest.mark.slow
@pytest.mark.skipif(not _PANDAS.exists(), reason="needs pandas, which make puts into build/pandas")
def test_the_example_with_ray_train_learns(tmp_path: Path) -> None:
    graph = learnable_graph(tmp_path / "graph", num_partitions=2)
    options = [
        "--batch-size",
        "64",
        "--token",
        "t" * 16,
        "--epochs",
        "4",
        "--results",
        str(tmp_path / "kept"),
    ]
    done = subprocess.run(
        [sys.executable, str(_ROOT / "examples/ray_train.py"), str(graph), *options],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        env=os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(_PANDAS)},
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"epoch 3: loss [\d.]+, accuracy (?:9\d|100)\.\d%", done.stdout), done.stdout


@pytest.mark.slow
def test_mistakes_are_told_in_a_line(cluster: RayCluster, graph: Path, tmp_path: Path) -> None:
    for options, error in (
        ({"num_cpus": 50, "timeout_s": 5}, "TimeoutError: Ray found no machines for 2 servers"),
        ({"servers": 7}, "partitions can have 1 to"),
        ({"options": {"token-file": "key"}}, "ValueError: unknown option 'token-file'; known: "),
        ({"replicas": 3}, "ValueError: 2 servers can hold 1 to 2 replicas, not 3"),
        ({"options": {"lease": 0}}, "ValueError: lease"),
        ({}, "say insecure on a network that you trust"),
        ({"options": {"insecure": True, "log_file": str(tmp_path / "no" / "log")}}, "storage server"),
    ):
        with driving(cluster, graph, **options) as driver:
            assert error in ": ".join(driver.said()["error"])
    with driving(cluster, tmp_path / "nowhere") as driver:
        assert driver.said()["error"] == ["FileNotFoundError", f"no graph at {tmp_path / 'nowhere'}"]


@pytest.mark.slow
def test_a_trainer_that_connects_at_once_finds_one_cluster(cluster: RayCluster, graph: Path) -> None:
    tries = 4
    done = subprocess.run(
        [sys.executable, "-c", _AT_ONCE, cluster.address, str(graph), str(tries)],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
        cwd=_ROOT,
        env=os.environ | ENVIRONMENT,
    )
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert said == [{"servers": 2}] * tries, done.stderr
