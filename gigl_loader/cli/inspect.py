"""``gigl-loader inspect``: what a graph directory holds, and whether it is whole."""

from __future__ import annotations

import json as json_module
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gigl_loader.cli.errors import importing
from gigl_loader.options import FeatureOptions

if TYPE_CHECKING:
    from rich.table import Table

    from gigl_loader.graph import Column, Graph
    from gigl_loader.graph.quantization import Quantization
    from gigl_loader.graph.schema import GraphSchema
    from gigl_loader.options import EdgeType, NodeType


def inspect(
    graph: Annotated[str, typer.Argument(help="A directory made by gigl-loader partition.")],
    *,
    verify: Annotated[bool, typer.Option("--verify", help="Read and check every byte.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Show the types, sizes and columns of a graph, and check that it is whole."""
    with importing():
        from gigl_loader.graph import Graph

    opened = Graph.open(graph)
    if verify:
        with _progress(quiet=json) as progress:
            opened.verify(progress)
    if json:
        print(json_module.dumps(_document(graph, opened, verified=verify)))
    else:
        _show(graph, opened, verified=verify)


def _document(path: str, graph: Graph, *, verified: bool) -> dict[str, Any]:
    return {
        "path": path,
        "bytes": graph.nbytes,
        "topology_bytes": graph.structure_bytes,
        "files": len(graph.manifest.files),
        "digest": graph.manifest.digest,
        "build": dict(graph.manifest.build),
        "verified": verified,
        "quantized": [
            {
                "type": each.kind if isinstance(each.kind, str) else list(each.kind),
                "column": each.name,
                "as": str(each.how),
                "bytes": each.nbytes,
                "saved_bytes": each.saved_bytes,
            }
            for each in _quantized(graph.schema)
        ],
        "splits": _splits(graph),
        "features": _features_here(graph),
        "partitioning": _partitioning(graph),
        "schema": graph.schema.to_json(),
    }


def _splits(graph: Graph) -> list[dict[str, Any]]:
    """Return the splits of nodes, with the digest that states and ledgers have of their seeds."""
    from gigl_loader.arrays import digest_of_integers

    found = []
    for node_type, nodes in graph.schema.nodes.items():
        for name, count in nodes.splits.items():
            ids = graph.directory(node_type).node_ids(graph.split(node_type, name))
            digest = digest_of_integers(ids)
            found.append({"type": node_type, "split": name, "nodes": count, "digest of seeds": digest})
    return found


def _features_here(graph: Graph) -> dict[str, Any]:
    """Return the bytes of columns by type, and where a loader of all columns would read them here and now."""
    from gigl_loader.resources import free_memory
    from gigl_loader.sampling.feature_memory import decide, place_of, sizes_of

    free, sizes = free_memory(), sizes_of(graph.schema)
    told = {"free_bytes": free.nbytes, "limit": free.source}
    try:
        found = decide(
            sizes,
            FeatureOptions(),
            where=place_of(graph),
            free=free,
            structure_bytes=graph.structure_bytes,
            num_workers=1,
        )
    except ValueError as error:
        types = [
            {"type": kind if isinstance(kind, str) else list(kind), "bytes": size.nbytes}
            for kind, size in sizes.items()
            if size.nbytes
        ]
        return {**told, "types": types, "decision": str(error)}
    return {**told, **found.to_json()}


def _partitioning(graph: Graph) -> dict[str, Any]:
    from gigl_loader.partition.assigners import balance_of, edge_quality

    measured = {edge_type: edge_quality(graph, edge_type) for edge_type in graph.schema.edges}
    return {
        "nodes": [
            {"type": node_type, "per_part": sizes, "balance": balance_of(sizes)}
            for node_type, nodes in graph.schema.nodes.items()
            for sizes in [_sizes(nodes.bounds)]
        ],
        "edges": [
            {
                "type": list(edge_type),
                "per_part": list(each.per_part),
                "balance": each.balance,
                "cut": each.cut,
                "cut_share": each.cut_share,
            }
            for edge_type, each in measured.items()
        ],
    }


class _Quantized(NamedTuple):
    """A quantised column: its bytes over all rows, and the bytes that it saves."""

    kind: NodeType | EdgeType
    name: str
    how: Quantization
    source: str
    nbytes: int
    saved_bytes: int


def _quantized(schema: GraphSchema) -> list[_Quantized]:
    found = []
    for kind, columns in schema.columns.items():
        rows = schema.nodes[kind].count if isinstance(kind, str) else schema.edges[kind].count
        for name, column in columns.items():
            if column.quantized is not None:
                how, source = column.quantized.how, column.quantized.source
                values = replace(column, dtype=source, quantized=None)
                nbytes, before = rows * column.row_bytes, rows * values.row_bytes
                found.append(_Quantized(kind, name, how, source, nbytes, before - nbytes))
    return found


def _show(path: str, graph: Graph, *, verified: bool) -> None:
    from gigl_loader.cli.console import table_console

    schema = graph.schema
    console = table_console()
    kind = "homogeneous" if schema.homogeneous else "heterogeneous"
    parts = f"{schema.num_partitions} part{'s' if schema.num_partitions > 1 else ''}"
    assigner = graph.manifest.build.get("assigner", "?")
    console.print(
        f"{path}: {kind}, edge_dir {schema.edge_dir}, {parts} by {assigner}, "
        f"{len(graph.manifest.files)} files, {graph.nbytes / 1e6:,.1f} MB, "
        f"of which topology {graph.structure_bytes / 1e6:,.1f} MB"
        + (", every byte verified" if verified else "")
        + f", digest {graph.manifest.digest}",
        highlight=False,
        soft_wrap=True,
    )
    features = _features_here(graph)
    reasons = dict.fromkeys(each["reason"] for each in features["types"] if "reason" in each)
    told = "; ".join([features["decision"], *reasons])
    console.print(f"a loader here: {told}", highlight=False, soft_wrap=True)
    console.print(_node_table(graph))
    if schema.edges:
        console.print(_edge_table(graph))
    if features["types"]:
        console.print(_feature_table(features))
    if schema.has_quantized_columns:
        console.print(_quantized_table(schema))
    if any(edges.splits for edges in schema.edges.values()):
        console.print(_split_table(schema))
    if any(not name[1].endswith("#held") for name in schema.labels):
        console.print(_label_table(graph))


def _node_table(graph: Graph) -> Table:
    from rich.table import Table

    from gigl_loader.partition.assigners import balance_of

    balance = ["balance"] if graph.schema.num_partitions > 1 else []
    table = Table(
        _typed("nodes", graph.schema.nodes), "count", "per part", *balance, "ids", "columns", "splits"
    )
    for node_type, nodes in graph.schema.nodes.items():
        sizes = _sizes(nodes.bounds)
        splits = ", ".join(f"{name} {size:,}" for name, size in nodes.splits.items())
        table.add_row(
            node_type,
            f"{nodes.count:,}",
            _spread(sizes),
            *(f"{balance_of(sizes):.3f}" for _ in balance),
            "text" if nodes.text_ids else nodes.ids,
            ", ".join(filter(None, [_columns(nodes.columns), _times(nodes.times)])),
            splits,
        )
    return table


def _edge_table(graph: Graph) -> Table:
    from rich.table import Table

    from gigl_loader.partition.assigners import edge_quality

    names = map(",".join, graph.schema.edges)
    several = graph.schema.num_partitions > 1
    quality = ["balance", "cut"] if several else []
    table = Table(_typed("edges", names), "count", "per part", *quality, "mean degree", "columns")
    for edge_type, edges in graph.schema.edges.items():
        measured = edge_quality(graph, edge_type)
        columns = [
            _columns(edges.columns),
            "weight" if edges.weight else "",
            "time" if edges.time else "",
            f"weights: {', '.join(edges.weights)}" if edges.weights else "",
            _times(edges.times),
        ]
        targets = graph.schema.nodes[graph.schema.target_type(edge_type)].count
        table.add_row(
            ",".join(edge_type),
            f"{edges.count:,}",
            _spread(measured.per_part),
            *([f"{measured.balance:.3f}", f"{measured.cut_share:.1%}"] if several else []),
            f"{edges.count / max(targets, 1):.2f}",
            ", ".join(filter(None, columns)),
        )
    return table


def _feature_table(features: dict[str, Any]) -> Table:
    from rich.table import Table

    names = [
        each["type"] if isinstance(each["type"], str) else ",".join(each["type"])
        for each in features["types"]
    ]
    table = Table(_typed("features", names), "bytes", "read here from")
    for name, each in zip(names, features["types"], strict=True):
        table.add_row(name, f"{each['bytes']:,}", each.get("reader", "nowhere"))
    return table


def _quantized_table(schema: GraphSchema) -> Table:
    from rich.table import Table

    columns = _quantized(schema)
    names = [each.kind if isinstance(each.kind, str) else ",".join(each.kind) for each in columns]
    table = Table(_typed("quantised", names), "column", "as", "bytes", "bytes saved")
    for name, each in zip(names, columns, strict=True):
        before = each.nbytes + each.saved_bytes
        share = f" of {before:,} as {each.source} ({each.saved_bytes / max(before, 1):.0%})"
        table.add_row(name, each.name, str(each.how), f"{each.nbytes:,}", f"{each.saved_bytes:,}{share}")
    return table


def _split_table(schema: GraphSchema) -> Table:
    from rich.table import Table

    from gigl_loader.graph.schema import held_out_list

    split = {edge_type: edges.splits for edge_type, edges in schema.edges.items() if edges.splits}
    table = Table(_typed("splits of edges", map(",".join, split)), "count", "held out")
    for edge_type, splits in split.items():
        held = schema.labels.get(held_out_list(edge_type))
        counts = ", ".join(f"{name} {count:,}" for name, count in splits.counts.items())
        table.add_row(",".join(edge_type), counts, "" if held is None else f"{held.count:,}")
    return table


def _label_table(graph: Graph) -> Table:
    from rich.table import Table

    types = dict.fromkeys(
        (name[0], name[1].rpartition("#")[0], name[2])
        for name in graph.schema.labels
        if not name[1].endswith("#held")
    )
    table = Table(_typed("labels", map(",".join, types)), "positive", "negative")
    for edge_type in types:
        counts = []
        for sign in ("positive", "negative"):
            pairs = graph.schema.labels.get((edge_type[0], f"{edge_type[1]}#{sign}", edge_type[2]))
            counts.append("" if pairs is None else f"{pairs.count:,}")
        table.add_row(",".join(edge_type), *counts)
    return table


def _typed(title: str, names: Iterable[str]) -> Any:
    """Return a column that shows the names of types whole: they are what one types elsewhere."""
    from rich.table import Column as Shown

    longest = max(map(len, names), default=0)
    # no_wrap, not min_width: rich would narrow this column in vain and cut off those on its right instead.
    return Shown(title, overflow="fold", no_wrap=longest <= 40)


def _sizes(bounds: Sequence[int]) -> list[int]:
    return [high - low for low, high in pairwise(bounds)]


def _spread(sizes: Sequence[int]) -> str:
    low, high = min(sizes), max(sizes)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _times(names: Sequence[str]) -> str:
    return f"times: {', '.join(names)}" if names else ""


def _columns(columns: Any) -> str:
    def said(name: str, column: Column) -> str:
        shape = "x".join(map(str, column.shape))
        unit = " (ns since 1970 UTC)" if column.unit == "ns" else ""
        kind = column.dtype if column.quantized is None else column.quantized.how.kind
        return f"{name} {kind}" + (f"[{shape}]" if shape else "") + unit

    return ", ".join(said(name, column) for name, column in columns.items())


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from gigl_loader.cli.console import plain_console

    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=plain_console(stderr=True)) as bars:
        task = bars.add_task("verifying")
        yield lambda done, total: bars.update(task, completed=done, total=total)
