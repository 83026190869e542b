"""``examples/serving.py`` over HTTP: what serves a node is what training would have seen."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
import torch

from gigl_client import RemoteDistDataset
from gigl_loader import DistDataset, DistNeighborLoader
from gigl_server.local_cluster import LocalCluster
from tests.support.learnable import learnable_graph
from tests.support.leftovers import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "serving.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("no_leftovers"),
    pytest.mark.skipif(not SCRIPT.exists(), reason="the tests were copied without the examples"),
]


def post(url: str, **content: Any) -> Any:
    body = json.dumps(content).encode()
    with urlopen(Request(url, body, {"content-type": "application/json"}), timeout=60) as reply:
        return json.load(reply)


def get(url: str) -> Any:
    with urlopen(url, timeout=60) as reply:
        return json.load(reply)


def is_up(url: str) -> bool:
    try:
        return get(f"{url}/model")["error"] is None
    except URLError:
        return False


def refused(url: str, **content: Any) -> tuple[int, str]:
    with pytest.raises(HTTPError) as caught:
        post(url, **content)
    with caught.value as error:
        return error.code, error.read().decode()


@contextmanager
def serving(store: str) -> Iterator[str]:
    """Run the example beside storage servers, and yield its address."""
    options = ["--store", store, "--port", "0", "--epochs", "100000", "--batch-size", "64"]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *options],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert wait_until(lambda: is_up(url), seconds=60)
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode in (0, -signal.SIGINT)


def digests(dataset: Any, ids: list[int], epochs: range) -> list[str]:
    """Return the digests of the batches that a loader over these nodes has."""
    spec = importlib.util.spec_from_file_location("serving", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    options: Any = {"batch_size": len(ids), "seed": example.SEED, "device": "cpu"}
    with DistNeighborLoader(dataset, example.FANOUT, torch.tensor(ids), **options) as loader:
        return [example.digest_of(batch) for _ in epochs for batch in loader]


def test_a_served_batch_is_that_of_training_while_training_goes_on(tmp_path: Path) -> None:
    graph = learnable_graph(tmp_path / "graph", num_partitions=2)
    ids, epochs = [5, 410, 599, 5], range(4)
    with LocalCluster(graph, servers=2) as cluster, serving(",".join(map(str, cluster.addresses))) as url:
        answers = [post(f"{url}/predict", ids=ids, epoch=epoch) for epoch in epochs]
        assert wait_until(lambda: get(f"{url}/model")["epochs_trained"] >= 5, seconds=120)
        later = post(f"{url}/predict", ids=list(range(400, 464)))
        assert later["epochs_trained"] >= 5
        right = sum(found == node % 4 for found, node in zip(later["classes"], range(400, 464), strict=True))
        assert right > 56
        # A node like those of class 2, which nobody has seen.
        new = post(f"{url}/predict-new", x=[0.0, 0.0, 1.0, 0.0], neighbors=[2, 6, 10, 14])
        assert new["classes"] == [2]
        wrong: list[dict[str, Any]] = [{"ids": [600]}, {"ids": []}, {"ids": ["a"]}, {"ids": [1], "epoch": -1}]
        for content in wrong:
            assert refused(f"{url}/predict", **content)[0] == 422
        assert "unknown node ids" in refused(f"{url}/predict", ids=[600])[1]
        assert "must have the shape" in refused(f"{url}/predict-new", x=[1.0], neighbors=[])[1]
        with RemoteDistDataset.connect(cluster.addresses) as dataset:
            assert digests(dataset, ids, epochs) == [each["digest"] for each in answers]
        assert get(f"{url}/model")["error"] is None
        cluster.kill(0)
        assert refused(f"{url}/predict", ids=ids)[0] == 503
    assert digests(DistDataset.open(graph), ids, epochs) == [each["digest"] for each in answers]
    assert len({each["digest"] for each in answers}) == len(epochs)
