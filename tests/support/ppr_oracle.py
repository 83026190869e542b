"""Personalised PageRank in plain Python: by forward push as docs/randomness.md says, and exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tests.support.oracle import EdgeType, address, pick

Node = tuple[str, int]
Lists = Mapping[EdgeType, tuple[str, str, Mapping[int, Sequence[int]]]]
"""By edge type: target type, neighbour type, and the neighbours of each node id in canonical order."""


class Push(NamedTuple):
    """What a push came to."""

    scores: dict[Node, float]
    residuals: dict[Node, float]
    """Of the nodes that were reached."""
    hops: dict[Node, int]
    passed: int
    """Edges."""

    def kept(self, most: int, *, top_up: bool) -> list[tuple[Node, np.float32, int]]:
        """The neighbours in their order: node, score, hop."""
        ranked = sorted(((-_rounded_down(score), node) for node, score in self.scores.items()))[:most]
        if top_up:
            left = [each for each in self.residuals if each not in self.scores]
            reached = sorted((-_rounded_down(self.residuals[node]), node) for node in left)
            ranked = sorted(ranked + reached[: most - len(ranked)])
        return [(node, -score, self.hops[node]) for score, node in ranked]


def lists_of_edges(edges: Mapping[EdgeType, Sequence[tuple[int, int]]], edge_dir: str) -> Lists:
    """Return the lists of edges (pairs of source and destination), by edge type."""
    found: dict[EdgeType, tuple[str, str, dict[int, list[int]]]] = {}
    for edge_type in sorted(edges):
        source, _, destination = edge_type
        lists: dict[int, list[int]] = {}
        for pair in edges[edge_type]:
            target, neighbor = pair[::-1] if edge_dir == "in" else pair
            lists.setdefault(target, []).append(neighbor)
        ends = (destination, source) if edge_dir == "in" else (source, destination)
        found[edge_type] = (*ends, {node: sorted(each) for node, each in lists.items()})
    return found


def push(
    lists: Lists,
    seed: Node,
    *,
    alpha: float,
    eps: float,
    max_neighbors: int = 1000,
    max_rounds: int | None = None,
) -> Push:
    """Push from a seed, a pair of node type and id."""

    def neighbors(node: Node) -> list[Node]:
        taken = []
        for edge_type, (target_type, neighbor_type, by_node) in lists.items():
            listed = by_node.get(node[1], []) if target_type == node[0] else []
            at = (0, 0, address(edge_type), node[1])
            places = pick(*at, degree=len(listed), fanout=max_neighbors, replace=False)
            taken += [(neighbor_type, listed[place]) for place in places]
        return taken

    found = Push({}, {seed: alpha}, {seed: 0}, 0)
    passed = number = 0
    due = [seed]
    while due and number != max_rounds:
        number += 1
        for node in due:
            residual = found.residuals[node]
            found.residuals[node] = 0.0
            found.scores[node] = found.scores.get(node, 0.0) + residual
            listed = neighbors(node)
            passed += len(listed)
            for each in listed:
                share = (1 - alpha) * residual / len(listed)
                found.residuals[each] = found.residuals.get(each, 0.0) + share
                found.hops.setdefault(each, number)
        due = [
            node
            for node, residual in sorted(found.residuals.items())
            if residual > alpha * eps * max(len(neighbors(node)), 1)
        ]
    return found._replace(passed=passed)


def exact_pagerank(transitions: npt.NDArray[np.float64], seed: int, alpha: float) -> npt.NDArray[np.float64]:
    """Return the personalised PageRank of every node. Rows of ``transitions`` add up to 1, or are 0: what a
    node without neighbours would pass on is lost."""
    count = len(transitions)
    start = np.zeros(count)
    start[seed] = alpha
    return np.linalg.solve(np.eye(count) - (1 - alpha) * transitions.T, start).astype(np.float64)


def _rounded_down(score: float) -> np.float32:
    rounded = np.float32(score)
    return np.float32(np.nextafter(rounded, np.float32(0))) if float(rounded) > score else rounded
