"""Graphs with quantised columns: built from any table, read by loaders and PyG, and distrusted."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from gigl_loader import (
    DistDataset,
    DistLinkNeighborLoader,
    DistNeighborLoader,
    inference,
    write_embeddings,
)
from gigl_loader.errors import FormatError
from gigl_loader.graph import Column, Graph, GraphSchema
from gigl_loader.graph.folder import MemoryFolder
from gigl_loader.graph.manifest import Manifest
from gigl_loader.graph.quantization import Quantization, Quantized
from gigl_loader.loaders.dequantize import dequantizing
from gigl_loader.loaders.transfer import SynchronousTransfer
from gigl_loader.partition import build_graph, tables_from_pyg
from gigl_loader.partition.sources import open_table
from gigl_loader.partition.table import GraphTables, NodeTable
from tests.support.pyg_graphs import heterogeneous, homogeneous, weighted
from tests.support.quantised import allowed_error, values_of

EDGE = ("node", "to", "node")
BUYS = ("user", "buys", "item")
OPTIONS: dict[str, Any] = {"batch_size": 60, "num_workers": 0, "device": "cpu", "seed": 3}
INT8 = {"x": "int8", "edge_attr": "uint4:per-row"}


def first(dataset: DistDataset, **options: Any) -> Any:
    nodes = None if dataset.schema.homogeneous else ("item", None)
    with DistNeighborLoader(dataset, [4, 3], nodes, **{**OPTIONS, **options}) as loader:
        return next(iter(loader))


def stored_values(dataset: DistDataset, kind: Any, name: str) -> torch.Tensor:
    """Return the values of a column of a graph in one partition, by node id or edge id."""
    graph, schema = dataset._graph, dataset.schema
    if isinstance(kind, str):
        packed, ids = graph.node_column(kind, name, 0), np.arange(schema.nodes[kind].count)
    else:
        packed, ids = graph.edge_column(kind, name, 0), graph.topology(kind, 0)["edge_ids"]
    return torch.from_numpy(values_of(packed, schema.columns[kind][name])[np.argsort(ids)])


def test_batches_have_the_values_under_the_columns_own_name() -> None:
    data = homogeneous()
    dataset, exact = DistDataset.from_pyg(data, quantize=INT8), DistDataset.from_pyg(data)
    batch, other = first(dataset), first(exact)
    assert sorted(batch.keys()) == sorted(other.keys())
    assert torch.equal(batch.edge_index, other.edge_index)
    assert torch.equal(batch.x, stored_values(dataset, "node", "x")[batch.n_id])
    assert torch.equal(batch.edge_attr, stored_values(dataset, EDGE, "edge_attr")[batch.e_id])
    for name, kind, ids in (("x", "node", batch.n_id), ("edge_attr", EDGE, batch.e_id)):
        form = dataset.schema.columns[kind][name].quantized
        assert form is not None
        limit = torch.from_numpy(allowed_error(data[name].double().numpy(), form.how).copy())
        assert ((batch[name] - other[name]).abs() <= limit[ids]).all()


def test_the_schema_has_the_shape_of_values_and_the_bytes_of_codes() -> None:
    columns = DistDataset.from_pyg(homogeneous(), quantize={"x": "uint4"}).schema.columns["node"]
    assert (columns["x"].dtype, columns["x"].shape, columns["x"].row_bytes) == ("F32", (6,), 3)
    assert columns["y"].quantized is None


def test_types_of_a_heterogeneous_graph_have_their_own() -> None:
    data = heterogeneous()
    dataset = DistDataset.from_pyg(
        data, quantize={"user": {"x": "uint2:per-row"}, BUYS: {"edge_attr": "int8"}}
    )
    batch = first(dataset)
    assert torch.equal(batch["item"].x, data["item"].x[batch["item"].n_id])
    assert torch.equal(batch["user"].x, stored_values(dataset, "user", "x")[batch["user"].n_id])
    edges = batch[BUYS]
    assert torch.equal(edges.edge_attr, stored_values(dataset, BUYS, "edge_attr")[edges.e_id])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_values_have_the_dtype_asked_for_on_every_way(dtype: torch.dtype) -> None:
    dataset = DistDataset.from_pyg(homogeneous(), quantize=INT8)
    expected = first(dataset)
    with DistNeighborLoader(dataset, [4, 3], **OPTIONS, dequantize_to=dtype) as loader:
        batch = next(iter(loader))
        transfer = SynchronousTransfer(torch.device("cpu"))
        loader._pipeline.transfer = dequantizing(transfer, dataset.schema, dtype)
        copied = loader.sample(torch.arange(60), epoch=0)
    for found in (batch, copied):
        assert found.x.dtype == found.edge_attr.dtype == dtype
        assert torch.equal(found.x, expected.x.to(dtype))
        assert torch.equal(found.edge_attr, expected.edge_attr.to(dtype))


def test_batches_that_are_kept_keep_their_values() -> None:
    x = torch.rand(4000, 64)
    data = Data(x=x, edge_index=torch.randint(4000, (2, 8000)))
    dataset = DistDataset.from_pyg(data, quantize={"x": "int8"})
    values = stored_values(dataset, "node", "x")
    with DistNeighborLoader(dataset, [10], batch_size=1000, num_workers=0, device="cpu") as loader:
        batches = [*loader, *loader, *loader]
    for batch in batches:
        assert torch.equal(batch.x, values[batch.n_id])


def test_columns_may_be_left_out_and_links_have_them() -> None:
    dataset = DistDataset.from_pyg(homogeneous(), quantize=INT8)
    assert "x" not in first(dataset, node_columns=["y"])
    assert torch.equal(first(dataset, node_columns=["x"]).x, first(dataset).x)
    with DistLinkNeighborLoader(dataset, [2], **OPTIONS) as loader:
        batch = next(iter(loader))
    assert torch.equal(batch.x, stored_values(dataset, "node", "x")[batch.n_id])


def test_a_subclass_reads_values() -> None:
    class Features(DistNeighborLoader):
        def collate(self, tensors: Any) -> Any:
            return tensors.of_nodes("node", "n_id"), tensors.of_nodes("node", "x")

    dataset = DistDataset.from_pyg(homogeneous(), quantize={"x": "uint1"})
    with Features(dataset, [3], **OPTIONS) as loader:
        n_id, x = next(iter(loader))
    assert torch.equal(x, stored_values(dataset, "node", "x")[n_id])


def test_embeddings_and_inference_are_of_the_values(tmp_path: Path) -> None:
    data = homogeneous()
    dataset = DistDataset.from_pyg(data, quantize={"x": "uint4"})
    data.x = stored_values(dataset, "node", "x")
    exact = DistDataset.from_pyg(data)
    model = GraphSAGE(6, 8, num_layers=2, out_channels=3).eval()
    options: dict[str, Any] = {"batch_size": 100, "num_workers": 0, "device": "cpu", "progress_bar": False}
    found, expected = (inference(model, each, **options) for each in (dataset, exact))
    assert torch.allclose(
        found, expected, atol=1e-5
    )  # Kernels of torch round by the alignment of their input.
    for name, each in (("quantised", dataset), ("exact", exact)):
        with DistNeighborLoader(each, [4, 3], **OPTIONS) as loader:
            assert write_embeddings(loader, model, tmp_path / name, format="npy") == 300
    rows, same = (
        np.load(next((tmp_path / name).glob("embeddings-*.npy"))) for name in ("quantised", "exact")
    )
    assert np.allclose(rows, same, atol=1e-5)
    with (
        DistNeighborLoader(dataset, [4, 3], **OPTIONS, dequantize_to=torch.float64) as loader,
        pytest.raises(ValueError, match=r"of another run: dequantize_to is torch.float64 here, None there"),
    ):
        write_embeddings(loader, model, tmp_path / "quantised", format="npy")


@pytest.mark.parametrize("partitions", [1, 3])
def test_pygs_feature_store_has_values(partitions: int) -> None:
    data = homogeneous()
    whole = DistDataset.from_pyg(data, quantize=INT8)
    features, _ = DistDataset.from_pyg(data, quantize=INT8, num_partitions=partitions).as_pyg()
    x = stored_values(whole, "node", "x")
    assert torch.equal(features.get_tensor(None, "x", None), x)
    assert torch.equal(features.get_tensor(None, "x", torch.tensor([5, 2])), x[[5, 2]])
    assert torch.equal(features.get_tensor(None, "x", 7), x[7])
    assert features.get_tensor_size(None, "x") == (300, 6)
    attr = stored_values(whole, EDGE, "edge_attr")
    assert torch.equal(features.get_tensor(EDGE, "edge_attr", slice(3, 9)), attr[3:9])


def test_tables_of_every_kind_give_the_same_files(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, src, dst = random.random(50).astype(np.float32), *random.integers(0, 50, (2, 200))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "edges.npy", np.stack([src, dst]))
    pq.write_table(pa.table({"x": x}), tmp_path / "nodes.parquet")
    pq.write_table(pa.table({"src": src, "dst": dst}), tmp_path / "edges.parquet")
    (tmp_path / "nodes.csv").write_text("x\n" + "".join(f"{value!s}\n" for value in x))
    (tmp_path / "edges.csv").write_text(
        "src,dst\n" + "".join(f"{s},{d}\n" for s, d in zip(src, dst, strict=True))
    )
    data = Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(np.stack([src, dst])), num_nodes=50)
    quantize: dict[Any, Any] = {"node": {"x": Quantization("int8")}}
    tables = [tables_from_pyg(data, quantize=quantize)]
    for nodes, edges in (
        ("x.npy", "edges.npy"),
        ("nodes.parquet", "edges.parquet"),
        ("nodes.csv", "edges.csv"),
    ):
        node_table = NodeTable(open_table(str(tmp_path / nodes), role="nodes"))
        edge_table = open_table(str(tmp_path / edges), role="edges")
        tables.append(GraphTables({EDGE: edge_table}, {"node": node_table}, quantize=quantize))
    digests = set()
    for each in tables:
        folder = MemoryFolder()
        build_graph(each, folder, num_partitions=2)
        digests.add(Manifest.read(folder).digest)
    assert len(digests) == 1


def test_only_graphs_with_quantised_columns_have_the_new_version() -> None:
    versions = [
        DistDataset.from_pyg(homogeneous(), quantize=how)._graph.manifest.version for how in (None, INT8)
    ]
    assert versions == [2, 3]


def with_value(value: float, place: tuple[int, int], dtype: torch.dtype = torch.float32) -> Data:
    data = homogeneous()
    data.x = data.x.to(dtype)
    data.x[place] = value
    return data


@pytest.mark.parametrize(
    ("data", "quantize", "message"),
    [
        (
            homogeneous(),
            {"y": "int8"},
            "node type 'node', column 'y' holds I64: only F16, BF16, F32, F64 can",
        ),
        (homogeneous(), {"z": "int8"}, "quantize: no type has a column 'z'"),
        (homogeneous(), {"train_mask": "int8"}, "column 'train_mask' names ids or splits"),
        (homogeneous(), {"src": "int8"}, "column 'src' names ids or splits"),
        (with_value(torch.nan, (7, 2)), {"x": "int8"}, "column 'x', row 7: nan cannot be quantised"),
        (
            with_value(-torch.inf, (3, 0)),
            {"x": "int8:per-row"},
            "column 'x', row 3: -inf cannot be quantised",
        ),
        (with_value(1e300, (9, 5), torch.float64), {"x": "uint4"}, "row 9: 1e.300 cannot be quantised"),
        (
            Data(x=torch.empty(3, 0), edge_index=torch.zeros(2, 1, dtype=torch.long)),
            {"x": "int8"},
            "column 'x' has rows without values",
        ),
        (
            Data(x=torch.zeros(2, 70_000), edge_index=torch.zeros(2, 1, dtype=torch.long)),
            {"x": "int8"},
            "at most 65536 are quantised per column: use int8:per-row",
        ),
        (
            Data(x=torch.tensor([[3e38], [-3e38]]), edge_index=torch.zeros(2, 1, dtype=torch.long)),
            {"x": "uint1"},
            "column 'x': a step of uint1:per-column is larger than float32 can hold",
        ),
        (
            Data(x=torch.tensor([[0.0, 1], [3e38, -3e38]]), edge_index=torch.zeros(2, 1, dtype=torch.long)),
            {"x": "uint1:per-row"},
            "column 'x', row 1: a step of uint1:per-row is larger",
        ),
    ],
)
def test_what_cannot_be_quantised_is_named(data: Data, quantize: Any, message: str) -> None:
    with pytest.raises((ValueError, FormatError), match=message):
        DistDataset.from_pyg(data, quantize=quantize)


def test_weights_stay_exact() -> None:
    with pytest.raises(ValueError, match=r"column 'w' is declared as weights, which must be exact"):
        DistDataset.from_pyg(weighted(hetero=False), weight_attr="w", quantize={"w": "int8"})


def test_times_stay_exact() -> None:
    data = homogeneous()
    data.t = torch.arange(300)
    with pytest.raises(ValueError, match="column 't' is declared as times, which must be exact"):
        DistDataset.from_pyg(data, time_attr="t", quantize={"t": "int8"})


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (torch.int8, ValueError, "dequantize_to must be one of torch.float32, .*, got torch.int8"),
        ("float32", TypeError, "dequantize_to must be a dtype such as torch.float32, got 'float32'"),
    ],
)
def test_other_dtypes_are_refused(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        first(DistDataset.from_pyg(homogeneous()), dequantize_to=value)


def schema_with(**changes: Any) -> dict[str, Any]:
    """Return the JSON of a schema whose column ``x`` [6] is int8 per column, with changes of its form."""
    schema = DistDataset.from_pyg(homogeneous(), quantize={"x": "int8"}).schema.to_json()
    assert GraphSchema.from_json(json.loads(json.dumps(schema))).to_json() == schema
    column = schema["nodes"][0]["columns"]["x"]
    column["quantized"] = {**column["quantized"], **changes.pop("quantized", {})}
    column.update(changes)
    return schema


def floats(*values: float) -> str:
    return base64.b64encode(np.array(values, "<f4").tobytes()).decode()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantized": {"kind": "int9"}}, "quantised as one of int8, uint4, uint2, uint1, not 'int9'"),
        ({"quantized": {"kind": ["int8"]}}, "quantised as one of"),
        ({"quantized": {"per": "table"}}, "quantised per 'column' or 'row', not 'table'"),
        ({"quantized": {"source": "I64"}}, "quantised values were one of F16, BF16, F32, F64"),
        ({"quantized": {"scale": floats(*[1] * 5)}}, "scale has 20 bytes for rows of 6 values, not 24"),
        ({"quantized": {"scale": floats(*[1] * 5, -1)}}, "scales must not be negative"),
        (
            {"quantized": {"scale": floats(*[1] * 5, torch.nan)}},
            "scales must not be negative, and all values",
        ),
        ({"quantized": {"scale": floats(*[1] * 5, 3e38)}}, "scales must not be negative, and all values"),
        ({"quantized": {"zero_point": floats(*[1] * 5, torch.inf)}}, "scales must not be negative, and all"),
        ({"quantized": {"scale": "AAA"}}, "bad graph schema"),
        ({"quantized": {"scale": "A" * 500_000}}, "scale has 500000 characters; at most 393216 are read"),
        ({"quantized": {"scale": 7}}, "bad graph schema: TypeError"),
        ({"shape": [7]}, "scale has 24 bytes for rows of 7 values, not 28"),
        ({"shape": [0]}, "rows without values cannot be quantised"),
        ({"shape": [2**40]}, "rows of 1099511627776 values are quantised per row"),
        ({"dtype": "F16"}, "quantised values are read as F32, not as F16"),
        ({"unit": "ns"}, "a unit must be 'ns' of I64"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(changes: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        GraphSchema.from_json(schema_with(**changes))


def test_a_row_form_needs_no_scales_in_the_schema() -> None:
    column = Column("F32", (5,), None, Quantized(Quantization("uint2", "row"), "F64"))
    assert column.row_bytes == 10
    with pytest.raises(ValueError, match="scale has 4 bytes"):
        Column("F32", (5,), None, Quantized(Quantization("uint2", "row"), "F64", b"0000"))


def test_an_old_version_cannot_have_quantised_columns() -> None:
    manifest = DistDataset.from_pyg(homogeneous(), quantize=INT8)._graph.manifest
    older = Manifest(manifest.schema, manifest.build, manifest.files, 2)
    with pytest.raises(FormatError, match="quantised columns in format version 2"):
        Manifest.parse(older.to_bytes(), what="graph")


def test_codes_of_another_width_do_not_open() -> None:
    folder = MemoryFolder()
    build_graph(tables_from_pyg(homogeneous(), quantize={"x": "int8"}), folder)
    manifest = Manifest.read(folder)
    schema = manifest.schema.to_json()
    schema["nodes"][0]["columns"]["x"]["quantized"]["kind"] = "uint4"
    changed = Manifest(GraphSchema.from_json(schema), manifest.build, manifest.files, 3).to_bytes()
    other = MemoryFolder()
    for name in folder.names():
        data = changed if name == "graph.json" else bytes(folder.open(name))
        sink = other.create(name, len(data))
        sink.write(0, data)
        sink.close()
    with pytest.raises(FormatError, match=r"'x' is U8 \[300, 6\], the schema says U8 \[300, 3\]"):
        Graph.open(other)
