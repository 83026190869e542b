"""Fixtures that several unit tests share."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.support import pyg_graphs
from tests.support.pyg_datasets import PLACES, open_variant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.pyg_datasets import Built


@pytest.fixture(
    scope="module",
    params=itertools.product(("homogeneous", "heterogeneous"), ("in", "out"), PLACES),
    ids="-".join,
)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    """A dataset of a PyG object, with PyG's stores: of both kinds of graphs, in every place."""
    graph, edge_dir, place = request.param
    data = getattr(pyg_graphs, graph)()
    with open_variant(place, data, edge_dir, tmp_path_factory.mktemp("graphs")) as opened:
        yield opened
