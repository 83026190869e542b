"""Every example in the tables of docs/migration.md runs: what they name under "here" is there, and works."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData
from torch_geometric.loader import NeighborLoader, NodeLoader
from torch_geometric.sampler.base import NumNeighbors

import gigl_loader
import gigl_loader.partition
from gigl_client import RemoteDistDataset
from gigl_loader import DistABLPLoader, DistDataset, DistLinkNeighborLoader, DistNeighborLoader
from gigl_loader.loaders.base import BaseDistLoader
from gigl_loader.pyg import GiglSampler
from tests.support.clusters import addresses_of, servers_of
from tests.support.pyg_graphs import heterogeneous, weighted
from tests.unit.test_public_names import _options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PAGE = Path(__file__).parents[2] / "docs" / "migration.md"
WORDS = {
    "rev_...",
    "root_n_id",
    "worker_options=",
    "DistributedSampler",
    "trim_to_layer",
    'if __name__ == "__main__":',
}
"""Spans that name nothing of this library."""
VARIABLES = re.compile(r"[a-z]|\[[A-Z\d, ]+\]")
"""Letters and shapes."""
ALONE = "of 4 partitions, .* there is no process group"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="the tests were copied without the pages")


def _examples() -> dict[str, list[str]]:
    """Return the code in the last column of each table under "here", by the line of its header."""
    found: dict[str, list[str]] = {}
    table: list[str] | None = None
    for number, line in enumerate(PAGE.read_text().splitlines(), 1):
        if not line.startswith("|"):
            table = None
        elif table is None:
            table = found.setdefault(f"line {number}", []) if line.endswith("| here |") else []
        else:
            table += re.findall(r"`([^`]+)`", line.rsplit(" | ", 1)[-1])
    return {name: spans for name, spans in found.items() if spans}


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What the examples take for granted."""
    path = tmp_path_factory.mktemp("graphs")
    data, nodes = weighted(), torch.arange(20)
    tables = gigl_loader.partition.tables_from_pyg(data, weight_attr="w")
    gigl_loader.partition.build_graph(tables, path / "graph", num_partitions=2)
    dataset = DistDataset.open(path / "graph")
    with (
        servers_of(path / "graph", 1) as servers,
        RemoteDistDataset.connect(addresses_of(servers)[0]) as remote,
        gigl_loader.DistSubgraphLoader(dataset, [2], num_workers=0) as loader,
        DistNeighborLoader(dataset, [2], num_workers=0) as plain,
    ):
        yield {
            **{name: getattr(gigl_loader, name) for name in (*gigl_loader.__all__, "splits")},
            **vars(gigl_loader.partition),
            **{name: __import__(name) for name in ("gigl_loader", "itertools", "torch")},
            **{
                each.__name__: each
                for each in (
                    Data,
                    HeteroData,
                    FeatureStore,
                    GraphStore,
                    NeighborLoader,
                    NodeLoader,
                    NumNeighbors,
                )
            },
            **{each.__name__: each for each in (GiglSampler, RemoteDistDataset)},
            **dict.fromkeys(("nodes", "seeds", "input_nodes", "clusters"), nodes),
            **dict.fromkeys(("links", "edge_label_index"), torch.stack([nodes, nodes + 1])),
            **dict.fromkeys(("loader", "first", "second"), loader),
            "DIR": path / "built",
            "address": addresses_of(servers)[0],
            "batch": next(loader),
            "data": data,
            "dataset": dataset,
            "hetero_dataset": DistDataset.from_pyg(heterogeneous()),
            "num_neighbors": [3, 2],
            "ours": gigl_loader.__all__,
            "out": torch.zeros(300, 2),
            "path": path / "graph",
            "plain": next(plain),
            "pid": 0,
            "remote": remote,
        }


def _owners(names: dict[str, Any]) -> list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
    """Return what takes keyword arguments, and the arguments that it needs besides."""
    remote, data = names["remote"], names["data"]
    return [
        (DistNeighborLoader, (remote, [2]), {}),
        (DistLinkNeighborLoader, (remote, [2]), {}),
        (DistABLPLoader, (remote, [2]), {"supervision_edge_type": ("node", "to", "node")}),
        (gigl_loader.NegativeSampling, (), {}),
        (gigl_loader.PPRSamplerOptions, (), {}),
        (DistDataset.open, (names["path"],), {}),
        (DistDataset.from_pyg, (data,), {}),
    ]


def _known(names: dict[str, Any]) -> set[str]:
    """Return names of arguments, and of attributes of batches and datasets."""
    arguments = {name for each, _, _ in _owners(names) for name in inspect.signature(each).parameters}
    return {
        *arguments,
        *dir(names["batch"]),
        *names["batch"].keys(),
        *names["plain"].keys(),
        *dir(RemoteDistDataset),
        *dir(builtins),
    }


def _run(span: str, names: dict[str, Any]) -> None:
    """Run one example. What it leaves open (``...``, ``name=``) is left out of a call."""
    if span.startswith(("gigl-loader", "--")):
        return _check_command(span)
    code = re.sub(r"(\w=)(?=[,)]|$)", r"\1...", span.replace(", ...)", ")")).replace(
        "host:port", names["address"]
    )
    if re.match(r"\w+=", code):
        return _run_keywords(code, names)
    tree = ast.parse(code).body[0]
    if not isinstance(tree, ast.Expr):
        return exec(code, dict(names))
    if isinstance(tree.value, ast.Name) and tree.value.id not in names:
        assert tree.value.id in _known(names)
        return None
    for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        call.args = [each for each in call.args if not _is_open(each)]
        for keyword in [each for each in call.keywords if _is_open(each.value)]:
            assert keyword.arg in _known(names)
            call.keywords.remove(keyword)
        callee = ast.unparse(call.func)
        if callee.endswith("Loader") and callee in names["ours"]:
            more = "num_workers=0, supervision_edge_type=('node', 'to', 'node')"
            added: Any = ast.parse(f"f({more if 'ABLP' in callee else 'num_workers=0'})").body[0]
            call.keywords += added.value.keywords
    _take_one(eval(ast.unparse(tree), dict(names)))
    return None


def _run_keywords(code: str, names: dict[str, Any]) -> None:
    call: Any = ast.parse(f"dict({code})").body[0]
    told = {each.arg for each in call.value.keywords}
    call.value.keywords = [each for each in call.value.keywords if not _is_open(each.value)]
    given = eval(ast.unparse(call), dict(names))
    for owner, arguments, more in _owners(names):
        if told <= inspect.signature(owner).parameters.keys():
            return _take_one(owner(*arguments, **{**more, **given}))
    raise AssertionError(f"nothing takes {told}")


def _take_one(result: Any) -> None:
    if isinstance(result, (BaseDistLoader, NodeLoader)):
        next(iter(result))
    if isinstance(result, BaseDistLoader):
        result.shutdown()
    if isinstance(result, RemoteDistDataset):
        result.close()


def _is_open(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _check_command(span: str) -> None:
    known = {name.removeprefix("gigl-loader ") for name in _options()}
    command, *words = span.removeprefix("gigl-loader ").split()
    if command.startswith("--"):
        assert any(name.endswith(f" {command}") for name in known), command
        return
    assert command in known
    for option in (word for word in words if word.startswith("-")):
        assert f"{command} {option}" in known, option


def _error_of(span: str, names: dict[str, Any]) -> str:
    try:
        if span not in WORDS and not VARIABLES.fullmatch(span):
            _run(span, names)
    except Exception as error:
        if span != "DistDataset.open(DIR, partitions=[pid])" or not re.search(ALONE, str(error)):
            return f"{span}: {error!r}"
    return ""


@pytest.mark.parametrize("table", _examples())
@pytest.mark.filterwarnings("ignore:.*Expected 'edge_label_time':UserWarning")
def test_examples_run(table: str, names: dict[str, Any]) -> None:
    failed = [error for span in _examples()[table] if (error := _error_of(span, names))]
    assert failed == []


def test_all_tables_are_found() -> None:
    assert len(_examples()) == PAGE.read_text().count("| here |") >= 8
