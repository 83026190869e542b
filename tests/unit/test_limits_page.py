"""docs/limits.md: each row has a test that fails when what the row denies works."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import metadata, requires
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from packaging.requirements import Requirement
from torch.utils.data import DataLoader
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput

from gigl_client import RemoteDistDataset
from gigl_loader import (
    CustomSamplerOptions,
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    FormatError,
    NewNode,
    RandomWalkSamplerOptions,
    SharedTensors,
)
from gigl_loader.cli.build_options import TableOptions
from gigl_loader.cli.table_options import open_tables
from gigl_loader.graph import Graph
from gigl_loader.group import RankGroup
from gigl_loader.partition import ArrayTable, GraphTables, NodeTable, build_graph, open_table, tables_from_pyg
from gigl_loader.partition.job import Job, Stage
from gigl_loader.partition.runner import Runner
from gigl_loader.pyg import GiglSampler
from gigl_loader.rpc.requests import MAX_INDUCED_NODES
from gigl_loader.sampling.row_cache import reference_counts
from tests.support.clusters import addresses_of, servers_of
from tests.support.command_line import run_here
from tests.support.pyg_graphs import heterogeneous, homogeneous
from tests.support.spans import recorded
from tests.support.thread_ranks import run_ranks

ROOT = Path(__file__).parents[2]
TESTS: dict[str, Callable[..., None]] = {}
ELSEWHERE = {
    "skip_first_batches of Accelerate": (
        "integration/test_accelerate.py",
        "test_skipping_batches_is_refused_by_name",
    ),
    "seeds of several node types with seed_weights": (
        "unit/test_seeds_by_type.py",
        "test_what_does_not_fit_is_refused_by_name",
    ),
    "a checkpoint of Lightning after an exception": (
        "unit/test_resume.py",
        "test_batches_in_any_order_count_as_given",
    ),
    "rows in caches of a trainer that a server": (
        "unit/test_feature_cache.py",
        "test_rows_of_other_hosts_do_not_tell_that_their_files_changed",
    ),
    "rows of a disk, of storage servers": (
        "unit/test_host_rows.py",
        "test_rows_of_storage_servers_come_with_batches",
    ),
    "lists of any length in a TensorFrame": (
        "integration/test_tensor_frames.py",
        "test_batches_have_the_rows_of_a_tensor_frame",
    ),
    "sparse tensors of a PyG object": (
        "unit/test_pyg_adjacency.py",
        "test_sparse_attributes_are_named_and_left_out",
    ),
    "a seed twice in a batch of NodeLoader": (
        "unit/test_pyg_sampler.py",
        "test_what_does_not_fit_is_refused_by_name",
    ),
    "changes through the stores": ("unit/test_pyg_stores.py", "test_stores_are_read_only"),
    "graphs opened at a URI": ("unit/test_fetch.py", "test_mistakes_are_told_in_a_line"),
    "the end of a process while its disk hangs": (
        "integration/test_hanging_disk.py",
        "test_a_trainer_ends_while_its_disk_hangs",
    ),
    "another number of partitions": ("integration/test_store_mistakes.py", "test_a_server_of_another_graph"),
}
"""Row, and a test of another module that holds it."""

CUSTOM = "tests.support.user_samplers:Halved"
EDGE = ("node", "to", "node")


def limit(row: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a test for the row whose first cell begins with ``row``."""

    def register(test: Callable[..., None]) -> Callable[..., None]:
        TESTS[row] = test
        return test

    return register


def rows() -> list[str]:
    """Return the first cell of every row of the page."""
    lines = (ROOT / "docs/limits.md").read_text().splitlines()
    cells = [line.split(" | ")[0].removeprefix("| ") for line in lines if line.startswith("| ")]
    texts = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell).replace("`", "") for cell in cells]
    return [text for text in texts if text != "not there"]


@pytest.mark.skipif(not (ROOT / "docs").exists(), reason="copied without the pages")
def test_each_row_has_a_test() -> None:
    known = [*TESTS, *ELSEWHERE]
    assert [row for row in rows() if not any(row.startswith(name) for name in known)] == []
    assert [name for name in known if not any(row.startswith(name) for row in rows())] == []
    for path, test in ELSEWHERE.values():
        assert f"def {test}(" in (ROOT / "tests" / path).read_text()


@pytest.fixture(scope="module")
def dataset() -> DistDataset:
    return DistDataset.from_pyg(homogeneous())


@pytest.fixture(scope="module")
def hetero() -> DistDataset:
    return DistDataset.from_pyg(heterogeneous())


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteDistDataset]:
    path = tmp_path_factory.mktemp("graphs") / "graph"
    build_graph(tables_from_pyg(homogeneous()), path, num_partitions=1)
    with servers_of(path, 1) as servers, RemoteDistDataset.connect(addresses_of(servers)) as dataset:
        yield dataset


@pytest.fixture
def built(tmp_path: Path) -> Path:
    build_graph(tables_from_pyg(homogeneous()), tmp_path / "graph", num_partitions=2)
    return tmp_path / "graph"


@limit("induced subgraphs of disjoint trees, of walks")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"disjoint": True}, "induced"),
        ({"sampler_options": RandomWalkSamplerOptions(walk_length=2)}, "no meaning for random walks"),
        (
            {"sampler_options": CustomSamplerOptions(CUSTOM, fanout=6, keep=0.7)},
            "no meaning for a custom sampler",
        ),
    ],
)
def test_induced_subgraphs_of_trees_and_walks(
    dataset: DistDataset, options: dict[str, Any], said: str
) -> None:
    fanouts = None if "sampler_options" in options else [2]
    with pytest.raises(ValueError, match=said):
        DistNeighborLoader(dataset, fanouts, "train", subgraph_type="induced", num_workers=0, **options)


@limit("bidirectional batches of an edge type between two node types")
def test_bidirectional_batches_without_a_reverse(hetero: DistDataset) -> None:
    with pytest.raises(ValueError, match="reverse"):
        DistNeighborLoader(hetero, [2], "user", subgraph_type="bidirectional", num_workers=0)


@limit("loader.collate_fn in worker processes")
def test_collate_fn_in_spawned_workers(dataset: DistDataset) -> None:
    with DistNeighborLoader(dataset, [2], "train", num_workers=0) as loader:
        seeds: Any = range(8)
        batches: Any = DataLoader(
            seeds, 4, collate_fn=loader.collate_fn, num_workers=1, multiprocessing_context="spawn"
        )
        with pytest.raises(UserWarning, match="not picklable"):
            next(iter(batches))


@limit("given and custom negatives as pairs of nodes")
def test_given_negatives_as_pairs(dataset: DistDataset) -> None:
    links = torch.tensor([[0, 1], [2, 3]])
    with pytest.raises((TypeError, ValueError)):
        DistLinkNeighborLoader(
            dataset, [2], links, neg_sampling=torch.zeros(2, 4, 2, dtype=torch.long), num_workers=0
        )


@limit("shared_tensors in a graph store")
def test_shared_tensors_in_a_graph_store(remote: RemoteDistDataset) -> None:
    shared = SharedTensors.create({"left": np.ones(300)})
    plan = CustomSamplerOptions(CUSTOM, fanout=6, keep=0.7)
    with pytest.raises(ValueError, match="shared_tensors lie in the trainer's memory"):
        DistNeighborLoader(remote, None, "train", sampler_options=plan, shared_tensors=shared)


@limit("masks of a PyG object as columns")
def test_masks_are_no_columns(dataset: DistDataset) -> None:
    with DistNeighborLoader(dataset, [2], "train", num_workers=0) as loader:
        assert "train_mask" not in next(iter(loader))


@limit("attributes of a graph as a whole")
def test_attributes_of_the_graph_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    data = homogeneous()
    data.title = "a graph"
    dataset = DistDataset.from_pyg(data)
    assert "left out of the graph" in caplog.text
    assert ": title;" in caplog.text
    with DistNeighborLoader(dataset, [2], "train", num_workers=0) as loader:
        assert "title" not in next(iter(loader))


@limit("a ledger of batches on request")
def test_batches_on_request_are_in_no_ledger(dataset: DistDataset, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with DistNeighborLoader(dataset, [2], "train", num_workers=0) as loader:
        loader.ledger(path)
        loader.sample([0, 1])
    before = path.read_bytes() if path.exists() else b""
    assert before.count(b'"batch"') == 0


@limit("edges from new nodes of a batch on request")
def test_new_nodes_are_nobodys_neighbours(dataset: DistDataset) -> None:
    with dataset.sampler([-1], with_edge=True) as sampler:
        features, edges = {"x": torch.zeros(6), "y": torch.tensor(0)}, ([3], {"edge_attr": torch.zeros(1, 3)})
        new = NewNode(features=features, edges=edges)
        batch = sampler.sample(torch.tensor([3, -1]), new=[new])
        assert not bool((batch.n_id[batch.edge_index[0]] < 0).any())


@limit("induced batches of more than 4,194,304 nodes")
def test_the_bound_of_induced_batches() -> None:
    assert MAX_INDUCED_NODES == 4_194_304


# --- PyG's own loaders


@limit("num_workers with a graph on other hosts or servers")
def test_workers_of_pyg_with_a_remote_graph(remote: RemoteDistDataset) -> None:
    with (
        GiglSampler(remote, [2]) as sampler,
        pytest.raises(TypeError, match="num_workers"),
    ):
        pickle.dumps(sampler)


@limit("kinds of samplers other than k-hop")
@pytest.mark.parametrize(
    "options", [{"sampler_options": RandomWalkSamplerOptions(walk_length=2)}, {"exclude_targets": True}]
)
def test_other_samplers_behind_pyg(dataset: DistDataset, options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        GiglSampler(dataset, [2], **options)


@limit("edge ids and edge columns of bidirectional heterogeneous batches")
def test_edge_ids_of_bidirectional_batches_behind_pyg() -> None:
    data = heterogeneous()
    fanouts = {each: [2] if "buys" in each[1] else [0] for each in data.edge_types}
    dataset = DistDataset.from_pyg(data)
    with GiglSampler(dataset, fanouts, subgraph_type="bidirectional") as sampler:
        out = sampler.sample_from_nodes(NodeSamplerInput(None, torch.arange(4), input_type="user"))
    assert not any(ids is not None for ids in (out.edge or {}).values())


@limit("columns of edges without a transform")
def test_edge_columns_behind_pyg(dataset: DistDataset) -> None:
    features, graph = dataset.as_pyg()
    with GiglSampler(dataset, [2]) as sampler:
        batch = next(iter(NodeLoader((features, graph), sampler, torch.arange(8), batch_size=4)))
        assert "edge_attr" not in batch
        more = NodeLoader(
            (features, graph), sampler, torch.arange(8), batch_size=4, transform=features.edge_columns
        )
        assert "edge_attr" in next(iter(more))


@limit("the edges of a large graph through the GraphStore")
def test_the_graph_store_returns_all_edges(dataset: DistDataset) -> None:
    _, graph = dataset.as_pyg()
    row, _ = graph.get_edge_index(graph.get_all_edge_attrs()[0])
    assert len(row) == 2400


# --- graphs


@limit("ids other than integers and texts")
def test_ids_as_bytes(tmp_path: Path) -> None:
    ids = pa.array([b"\x00" * 16, b"\x01" * 16], pa.binary(16))
    pq.write_table(pa.table({"src": ids, "dst": ids}), tmp_path / "edges.parquet")
    with pytest.raises((FormatError, ValueError, TypeError), match="src"):
        build_graph(
            GraphTables({EDGE: open_table(str(tmp_path / "edges.parquet"), role="edges")}), tmp_path / "graph"
        )


@limit("changes to a graph that is built")
def test_a_graph_is_not_added_to(built: Path) -> None:
    with pytest.raises(ValueError, match="exists: give another name, or ask to overwrite it"):
        build_graph(tables_from_pyg(homogeneous()), built)


@limit("a directory of node ids that no machine")
def test_a_directory_beyond_the_memory_of_a_build(tmp_path: Path) -> None:
    ids = np.arange(1000) * 1_000_003
    edges = ArrayTable("edges", {"src": ids, "dst": ids[::-1]})
    nodes = NodeTable(ArrayTable("nodes", {"id": ids}))
    tables = GraphTables({EDGE: edges}, {"node": nodes})
    with pytest.raises(ValueError, match="more than half of the working memory"):
        build_graph(tables, tmp_path / "graph", memory_limit=10_000)


@limit("several tasks for one partition")
def test_a_partition_is_written_by_one_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: dict[str, int] = {}
    run = Runner.run

    def noting(self: Runner, job: Job, stage: Stage) -> list[Mapping[str, Any]]:
        tasks[stage.name] = stage.num_tasks
        return run(self, job, stage)

    monkeypatch.setattr(Runner, "run", noting)
    edges = ArrayTable("edges", {"src": np.arange(90), "dst": np.arange(90)[::-1]})
    build_graph(GraphTables({EDGE: edges}), tmp_path / "graph", num_partitions=3)
    assert [count for name, count in tasks.items() if name.endswith("/write")] == [3]


@limit(".npy tables, JSON lines and queries at URIs")
def test_npy_json_and_queries_at_a_uri(tmp_path: Path) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=r"npy"):
        open_tables(TableOptions(edges=["s3://bucket/edges.npy"]))
    with pytest.raises(FormatError, match="Queries read files of this machine"):
        open_tables(TableOptions(edges=["SELECT * FROM 's3://bucket/edges.parquet'"]))
    (tmp_path / "e.jsonl").write_text('{"src": 0, "dst": 1}\n')
    with pytest.raises(FormatError, match="read from a disk"):
        open_tables(TableOptions(edges=[f"file://{tmp_path}/e.jsonl"]))


@limit("text files of more than 16,384 columns")
def test_text_of_many_columns(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(",".join(f"f{at}" for at in range(16_385)) + "\n")
    with pytest.raises(FormatError, match="columns"):
        open_table(str(tmp_path / "n.csv"), role="nodes")


@limit("object stores that tests have seen")
def test_no_other_object_store_is_tested() -> None:
    needs = (ROOT / "pyproject.toml").read_text()
    assert "moto[s3]" in needs
    assert not re.search("gcs|hdfs|azur", needs)


@limit("quantised integers, or weights that are quantised")
def test_what_is_not_quantised(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="can be quantised"):
        DistDataset.from_pyg(homogeneous(), quantize={"y": "int8"})
    data = homogeneous()
    data.w = torch.rand(2400)
    with pytest.raises(ValueError, match="must be exact"):
        DistDataset.from_pyg(data, weight_attr="w", quantize={"w": "int8"})


@limit("quantised columns in a graph that is built")
def test_index_does_not_quantise(built: Path) -> None:
    done = run_here("index", str(built), "--quantize", "x=int8")
    assert done.returncode == 2
    assert "No such option" in done.stderr


@limit('cache_policy="degree" in a graph store')
def test_degree_in_a_graph_store(
    remote: RemoteDistDataset, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked: list[str] = []

    def counted(graph: Graph, node_type: str) -> Any:
        ranked.append(node_type)
        return reference_counts(graph, node_type)

    monkeypatch.setattr("gigl_loader.sampling.window.reference_counts", counted)
    options: dict[str, Any] = {"feature_memory": 4_000, "cache_policy": "degree", "batch_size": 20}
    with DistNeighborLoader(remote, [2], "train", **options) as loader:
        assert sum(1 for _ in loader) == len(loader)
    assert not ranked
    with DistNeighborLoader(DistDataset.open(built), [2], "train", num_workers=0, **options) as loader:
        next(iter(loader))
    assert ranked


@limit("edge features in GPU memory")
def test_device_rows_are_those_of_nodes(dataset: DistDataset) -> None:
    options: dict[str, Any] = {"feature_memory_device": "1MB", "device": "cpu", "num_workers": 0}
    with DistNeighborLoader(dataset, [2], "train", **options) as loader:
        next(iter(loader))
        stats = loader.stats()
    nodes, edges = (each["bytes"] for each in stats["feature_memory"]["types"])
    assert edges > 0
    assert stats["rows"]["device_bytes"] == nodes


@limit("a cache of rows in page-locked memory")
def test_the_cache_is_not_page_locked() -> None:
    names = ("feature_cache.py", "window.py", "window_threads.py", "disk_reader.py")
    sources = [ROOT / "gigl_loader/sampling" / name for name in names]
    assert not any("cudart" in path.read_text() for path in sources if path.exists())


# --- clusters


@limit("grpcio 1.84 and 1.85")
def test_versions_of_grpc_that_abort() -> None:
    [need] = [need for need in requires("gigl-loader") or () if re.match(r"grpcio\b(?!-)", need)]
    for version in ("1.84.0", "1.85.1"):
        assert not Requirement(need).specifier.contains(version)


@limit("Windows and macOS")
def test_other_systems() -> None:
    systems = [each for each in metadata("gigl-loader").get_all("Classifier") or [] if "System ::" in each]
    assert systems == ["Operating System :: POSIX :: Linux"]


# --- hosts


def on_two_hosts(path: Path, program: Callable[[DistDataset], Any]) -> list[Any]:
    """Return what ``program`` returns on each of two hosts, which hold a partition each."""

    def rank(group: RankGroup) -> Any:
        with DistDataset.open(path, partitions=group.rank, listen="127.0.0.1:0") as dataset:
            return program(dataset)

    return run_ranks(2, rank, hosts=["a", "b"])


@limit("spans of requests to other hosts")
def test_spans_of_hosts(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = recorded(monkeypatch)

    def program(dataset: DistDataset) -> int:
        with DistNeighborLoader(dataset, [3, 2], "train", num_workers=1, batch_size=50) as loader:
            return sum(1 for _ in loader)

    assert all(count > 0 for count in on_two_hosts(built, program))
    names = {each.name for each in spans.get_finished_spans()}
    assert "gigl.batch" in names
    assert not [name for name in names if "serve" in name or "request" in name]


@limit("features of this host's own partitions")
def test_own_features_are_mapped(built: Path) -> None:
    def program(dataset: DistDataset) -> Any:
        options: dict[str, Any] = {"feature_memory": 2_000, "num_workers": 0, "batch_size": 50}
        with DistNeighborLoader(dataset, [3, 2], "train", **options) as loader:
            for _ in loader:
                pass
            return loader.stats()["rows"]

    for rows_of in on_two_hosts(built, program):
        assert rows_of["memory"] > rows_of["slots"] > 0
        assert rows_of["disk"] == 0
