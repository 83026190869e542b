"""Checks of splits: no node or edge is in two of them, in either direction, nor held out and a message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from gigl_loader.graph.reverses import reverses_of
from gigl_loader.graph.schema import held_out_list
from gigl_loader.loaders.audit_report import Tally, Violation
from gigl_loader.loaders.leaks import SHARE_OF_REVERSE

if TYPE_CHECKING:
    from gigl_loader.arrays import Int64Array
    from gigl_loader.loaders.audit_report import Finding
    from gigl_loader.loaders.dataset import Dataset, LinkDirectory
    from gigl_loader.options import EdgeType, NodeType


def split_findings(dataset: Dataset, progress: Callable[[str, int, int], None]) -> list[Finding]:
    """Return a finding for the splits of each node and edge type. ``progress``: step, done, all of it."""
    schema = dataset.schema
    checks = [partial(_nodes, dataset, kind) for kind, each in schema.nodes.items() if len(each.splits) > 1]
    checked: set[EdgeType] = set()
    for kind in sorted(schema.edges, key=lambda each: (len(each[1]), each)):
        reverses = reverses_of(kind, schema.edges, schema.reverses)
        if schema.edges[kind].splits is not None and checked.isdisjoint(reverses):
            checked.add(kind)
            checks.append(partial(_edges, dataset, kind))
    findings = []
    for done, check in enumerate(checks):
        progress("splits", done, len(checks))
        findings.append(check())
    progress("splits", len(findings), len(findings))
    return findings or [Tally("splits", "nodes and edges").finding("the graph has no splits")]


def _nodes(dataset: Dataset, kind: NodeType) -> Finding:
    splits = {name: dataset.split_positions(kind, name) for name in dataset.schema.nodes[kind].splits}
    tally = Tally("splits", f"{', '.join(splits)} of nodes {kind}")
    tally.looked(nodes=sum(map(len, splits.values())))
    positions = np.concatenate([*splits.values()])
    names = np.repeat(np.arange(len(splits)), [len(each) for each in splits.values()])
    order = np.lexsort((names, positions))
    twice = np.flatnonzero(np.diff(positions[order]) == 0)

    def describe(place: int) -> Violation:
        first, second = (list(splits)[names[order[each]]] for each in (place, place + 1))
        [node] = dataset.node_ids(kind, positions[order[place : place + 1]]).tolist()
        return Violation(check="splits", text=f"node {node} of type {kind} is in {first} and in {second}")

    tally.found(twice, describe)
    return tally.finding()


class _Pairs(NamedTuple):
    """Ends of edges of one type, in one group of those that share no pair with another group."""

    edge_type: EdgeType
    group: str
    """Human-readable: the split, or whether the edges are held out."""
    src: Int64Array
    """Positions of the ends, [E], in the direction of the type that is checked."""
    dst: Int64Array


def _edges(dataset: Dataset, kind: EdgeType) -> Finding:
    schema = dataset.schema
    splits = schema.edges[kind].splits
    assert splits is not None
    reverses = [each for each in reverses_of(kind, schema.edges, schema.reverses) if each != kind]
    with_reverses = "".join(f" and {','.join(each)}" for each in reverses)
    tally = Tally("splits", f"{', '.join(splits.fractions)} of edges {','.join(kind)}{with_reverses}")
    in_splits = [*_in_splits(dataset, kind, reverses)]
    tally.looked(edges=sum(len(each.src) for each in in_splits))
    is_undirected = schema.reverses.get(kind) == kind or (
        kind[0] == kind[2] and _looks_undirected(in_splits, schema.nodes[kind[0]].count)
    )
    for groups in (in_splits, [*_held_out_and_not(dataset, kind, reverses)]):
        _add_clashes(dataset, kind, [*map(_sorted, groups)] if is_undirected else groups, tally)
    return tally.finding()


def _in_splits(dataset: Dataset, kind: EdgeType, reverses: Sequence[EdgeType]) -> Iterator[_Pairs]:
    """Yield the edges of each split of a type, and those of its reverses, turned round."""
    for each in (kind, *reverses):
        splits = dataset.schema.edges[each].splits
        for name in () if splits is None else splits.fractions:
            src, dst = cast("LinkDirectory", dataset).all_edges(each, name)
            yield _Pairs(each, f"{name}", *((src, dst) if each == kind else (dst, src)))


def _held_out_and_not(dataset: Dataset, kind: EdgeType, reverses: Sequence[EdgeType]) -> Iterator[_Pairs]:
    """Yield the edges that are held out, and those that batches may have. Nothing where none is held out."""
    queries: Any = dataset
    types = [each for each in (kind, *reverses) if held_out_list(each) in dataset.schema.labels]
    for each in (kind, *reverses) if types else ():
        for name, group in ((held_out_list(each), "held out"), (each, "a message edge")):
            if name in dataset.schema.lists:
                src, dst, _ = queries._ends(name)
                yield _Pairs(each, group, *((src, dst) if each == kind else (dst, src)))


def _looks_undirected(groups: Sequence[_Pairs], num_nodes: int) -> bool:
    """Return whether many edges are there in both directions, though their type is no declared reverse."""
    src, dst = _joined(groups)
    if num_nodes >= 1 << 31 or not len(src):  # Pairs then have no number of 64 bits.
        return False
    other = src != dst
    keys, turned = (ends[0][other] * num_nodes + ends[1][other] for ends in ((src, dst), (dst, src)))
    return len(keys) > 0 and float(np.isin(turned, keys).mean()) >= SHARE_OF_REVERSE


def _joined(groups: Sequence[_Pairs]) -> tuple[Int64Array, Int64Array]:
    none = np.empty(0, np.int64)
    ends = ([none, *(each.src for each in groups)], [none, *(each.dst for each in groups)])
    return np.concatenate(ends[0]), np.concatenate(ends[1])


def _sorted(pairs: _Pairs) -> _Pairs:
    """Return pairs with the lower position first: an edge and its reverse are then one pair."""
    return pairs._replace(src=np.minimum(pairs.src, pairs.dst), dst=np.maximum(pairs.src, pairs.dst))


def _add_clashes(dataset: Dataset, kind: EdgeType, groups: Sequence[_Pairs], tally: Tally) -> None:
    """Add the pairs that are in two groups."""
    src, dst = _joined(groups)
    owners = np.repeat(np.arange(len(groups)), [len(each.src) for each in groups])
    names = [each.group for each in groups]
    labels = np.array([names.index(name) for name in names], np.int64)[owners]
    order = np.lexsort((labels, dst, src))
    is_same = (np.diff(src[order]) == 0) & (np.diff(dst[order]) == 0) & (np.diff(labels[order]) != 0)

    def describe(place: int) -> Violation:
        first, second = (groups[owners[order[each]]] for each in (place, place + 1))
        at = order[place : place + 1]
        ends = (*dataset.node_ids(kind[0], src[at]).tolist(), *dataset.node_ids(kind[2], dst[at]).tolist())
        told = [f"{each.group} (type {','.join(each.edge_type)})" for each in (first, second)]
        return Violation(
            check="splits",
            text=f"the edge of {ends[0]} and {ends[1]} is in {told[0]} and in {told[1]}",
            edge_type=kind,
            edge=(ends[0], ends[1]),
        )

    tally.found(np.flatnonzero(is_same), describe)
