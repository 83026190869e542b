"""What version 0.1 wrote: a plan and a request of its wire are read, a state is refused by name.

``tests/data/version_0_1.json`` was written by a build of it: a loader over the graph below was left after two
batches. The file has the loader's state and plan, the request for the third batch as a trainer sent it, and a
digest of that batch.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gigl_loader import DistDataset, DistNeighborLoader
from gigl_loader.native import draws
from gigl_loader.rpc.graph_store_pb2 import SampleRequest
from gigl_loader.sampling.plans import read_plan
from gigl_loader.sampling.request import SEED, BatchRequest
from gigl_server.admission import Limits
from gigl_server.sessions.registry import read_request
from tests.support.plans import key_without_places
from tests.support.pyg_graphs import homogeneous

WRITTEN: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "version_0_1.json").read_text())


def _loader() -> DistNeighborLoader:
    dataset = DistDataset.from_pyg(homogeneous())
    return DistNeighborLoader(
        dataset, [3, 2], "train", batch_size=30, shuffle=True, seed=3, num_workers=0, with_edge=True
    )


def _digest(batch: Any) -> str:
    digest = hashlib.sha256()
    for name in ("n_id", "e_id", "input_id", "batch", "edge_index"):
        digest.update(batch[name].numpy().tobytes())
    return digest.hexdigest()


def test_a_state_is_refused_as_its_batches_had_other_draws() -> None:
    told = (
        "draw specification 1, .* has 2: .* resume it with the version that wrote it, or begin the run again$"
    )
    with pytest.raises(ValueError, match=told):
        _loader().load_state_dict(WRITTEN["state"])


def test_a_state_goes_on_by_its_own_draws_with_the_batch_that_came_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other rule has changed since."""
    monkeypatch.setattr(draws, "DRAW_SPECIFICATION", 1)
    monkeypatch.setattr(BatchRequest, "key", key_without_places)
    loader = _loader()
    loader.load_state_dict(WRITTEN["state"])
    assert _digest(next(loader)) == WRITTEN["next_batch"]
    state = loader.state_dict()
    assert state.pop("digests").keys() == {"run", "plan", "graph"}
    assert state == {**WRITTEN["state"], "format": 2, "batches": 3, "draws": 1}


def test_a_plan_is_read_and_written_as_it_was() -> None:
    loader = _loader()
    plan = read_plan(WRITTEN["plan"], loader.dataset.schema)
    assert plan == loader.plan
    assert plan.to_json() == WRITTEN["plan"]


def test_a_request_is_read_and_written_as_it_was() -> None:
    """The fields of the message have other names now, and the bytes of before."""
    loader = _loader()
    data = bytes.fromhex(WRITTEN["request"])
    message = SampleRequest.FromString(data)
    request = read_request(message, loader.plan.inputs, schema=loader.dataset.schema, limits=Limits())
    assert len(request) == 30
    train = np.flatnonzero(homogeneous().train_mask.numpy())
    assert (request.inputs[SEED] == train[request.index]).all()
    again = BatchRequest(0, 2, request.index, {SEED: request.inputs[SEED]})
    written = SampleRequest(
        channel=message.channel,
        epoch=0,
        batch=2,
        fence=message.fence,
        inputs=again.input_bytes(),
        index=again.index.tobytes(),
        slot=message.slot,
    )
    assert written.SerializeToString() == data
