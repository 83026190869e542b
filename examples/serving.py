"""Train from storage servers, and answer requests from the same servers meanwhile, with the same batches.

    gigl-loader local-cluster DIR -- python examples/serving.py --port 8000
    curl -d '{"ids": [3, 14]}' -H 'content-type: application/json' http://127.0.0.1:8000/predict

DIR is a graph as for examples/graph_store.py. One thread trains; each epoch's model answers until the next is
there. `POST /predict` has ids of nodes, `POST /predict-new` nodes that the graph does not have. `GET /model`
tells which model answers. Needs fastapi and uvicorn from PyPI.

A request is sampled as a training batch of the same ids, epoch and seed is: nothing about the inputs of the
model differs between training and serving. `digest` in an answer proves it.
"""

import argparse
import asyncio
import copy
import hashlib
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from torch.nn.functional import cross_entropy
from torch_geometric.nn import GraphSAGE

from gigl_client import Caller, RemoteDistDataset
from gigl_loader import DistNeighborLoader, NewNode, SamplingError, StorageUnavailable

FANOUT = [10, 5]
SEED = 0
TIMEOUT_S = 2.0

Id = Annotated[int, Field(ge=-(2**63), lt=2**63)]


class Nodes(BaseModel):
    """Nodes of the graph, and the epoch as which they are sampled."""

    ids: Annotated[list[Id], Field(min_length=1, max_length=64)]
    epoch: Annotated[int, Field(ge=0, lt=2**31)] = 0


class New(BaseModel):
    """A node that the graph does not have: its features, and the nodes with edges to it."""

    x: list[float]
    neighbors: Annotated[list[Id], Field(max_length=1000)]


class Answer(BaseModel):
    """Classes of the nodes that were asked for, the model that told them, and what it was shown."""

    classes: list[int]
    scores: list[list[float]]
    epochs_trained: int
    digest: str


def digest_of(batch: Any) -> str:
    """Return a digest of what a model sees of a batch."""
    digest = hashlib.sha256()
    for tensor in (batch.n_id, batch.edge_index, batch.x, batch.seed_index):
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


class Service:
    """A model that is trained in one thread, while its last finished epoch answers requests."""

    def __init__(self, dataset: RemoteDistDataset, options: argparse.Namespace) -> None:
        self._dataset, self._options = dataset, options
        width = dataset.schema.nodes["node"].columns["x"].shape[0]
        torch.manual_seed(SEED)
        self._model = GraphSAGE(width, 64, num_layers=2, out_channels=options.classes)
        self._answers = (copy.deepcopy(self._model).eval(), 0)
        self._sampler = dataset.sampler(
            FANOUT, node_columns=["x"], seed=SEED, device="cpu", timeout=TIMEOUT_S
        )
        self._stop = threading.Event()
        self._trainer = threading.Thread(target=self._train, name="trainer")
        self.error: Exception | None = None

    def start(self) -> None:
        self._trainer.start()

    def close(self) -> None:
        self._stop.set()
        self._trainer.join()
        self._sampler.close()

    @property
    def epochs_trained(self) -> int:
        return self._answers[1]

    async def predict(self, ids: list[int] | None, epoch: int, new: list[NewNode] | None = None) -> Answer:
        try:
            batch = await self._sampler.asample(ids, new=new, epoch=epoch)
        except (
            ValueError,
            TypeError,
        ) as error:  # An id that the graph does not have, features of another width
            raise HTTPException(422, str(error)) from None
        except (StorageUnavailable, TimeoutError, SamplingError) as error:
            raise HTTPException(503, str(error)) from None
        return await asyncio.to_thread(self._answer, batch)

    def _answer(self, batch: Any) -> Answer:
        model, epochs = self._answers
        with torch.no_grad():
            scores = model(batch.x, batch.edge_index)[batch.seed_index]
        return Answer(
            classes=scores.argmax(dim=1).tolist(),
            scores=scores.tolist(),
            epochs_trained=epochs,
            digest=digest_of(batch),
        )

    def _batches(self, loader: DistNeighborLoader) -> Iterator[Any]:
        """Yield the batches of an epoch. While servers are away, wait for them, until the service ends."""
        batches = iter(loader)
        while not self._stop.is_set():
            with suppress(
                StorageUnavailable, TimeoutError
            ):  # Nothing was consumed: the next call asks again.
                batch = next(batches, None)
                if batch is None:
                    return
                yield batch

    def _train(self) -> None:
        try:
            size = self._options.batch_size
            run: Any = {"batch_size": size, "seed": SEED, "shuffle": True, "timeout": 5 * TIMEOUT_S}
            optimizer = torch.optim.Adam(self._model.parameters(), lr=0.01)
            with DistNeighborLoader(self._dataset, FANOUT, "train", num_workers=1, **run) as loader:
                while loader.epoch < self._options.epochs:
                    for batch in self._batches(loader):
                        out = self._model(batch.x, batch.edge_index)[batch.seed_index]
                        loss = cross_entropy(out, batch.y[batch.seed_index])
                        optimizer.zero_grad()
                        loss.backward()
                        optimizer.step()
                    if self._stop.is_set():
                        return
                    self._answers = (copy.deepcopy(self._model).eval(), loader.epoch)
                    print(f"epoch {loader.epoch - 1}: loss {loss:.3f}", flush=True)
        except Exception as error:  # The service goes on with the model that it has, and tells.
            self.error = error


def application(dataset: RemoteDistDataset, options: argparse.Namespace) -> FastAPI:
    """Return the web application. It trains while it is up."""
    service = Service(dataset, options)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        await asyncio.to_thread(service.close)

    app = FastAPI(title="Predictions from a graph store", lifespan=lifespan)

    @app.post("/predict")
    async def predict(nodes: Nodes) -> Answer:
        return await service.predict(nodes.ids, nodes.epoch)

    @app.post("/predict-new")
    async def predict_new(node: New) -> Answer:
        new = NewNode(features=node.x, edges=node.neighbors)
        return await service.predict(None, 0, [new])

    @app.get("/model")
    async def model() -> dict[str, Any]:
        return {"epochs_trained": service.epochs_trained, "error": service.error and str(service.error)}

    return app


def main() -> None:
    """Read the options, connect, serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description="a model that is trained and served from storage servers")
    store = os.environ.get("GIGL_STORE")
    parser.add_argument(
        "--store", metavar="HOST:PORT", default=store, required=store is None, help="[GIGL_STORE]"
    )
    parser.add_argument("--token-file", default=os.environ.get("GIGL_TOKEN_FILE"), help="[GIGL_TOKEN_FILE]")
    parser.add_argument("--tls-ca", default=os.environ.get("GIGL_TLS_CA"), help="PEM to trust  [GIGL_TLS_CA]")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at (%(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="(%(default)s)")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--classes", type=int, default=16, help="labels y lie in [0, CLASSES)")
    options = parser.parse_args()
    caller = Caller.from_files(token=options.token_file, ca=options.tls_ca)
    with RemoteDistDataset.connect(options.store.split(","), credentials=caller) as dataset:
        app = application(dataset, options)
        web = uvicorn.Config(app, host=options.host, port=options.port, log_level="warning")
        listening = web.bind_socket()
        print(f"http://{options.host}:{listening.getsockname()[1]}", flush=True)
        uvicorn.Server(web).run(sockets=[listening])


if __name__ == "__main__":
    main()
