"""Personalised PageRank in plain Python: by forward push as docs/internals/randomness.md says, and exact."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tests.support.oracle import EdgeType, address, pick, pick_weighted

Node = tuple[int, str, int]
"""A node at a step of a channel: step, node type, node id."""

Kept = dict[str, list[tuple[int, np.float32, int]]]
"""Neighbours by node type, in their order: node id, score, hop."""


class Lists(NamedTuple):
    """Adjacency lists of one edge type."""

    target_type: str
    neighbor_type: str
    by_node: Mapping[int, Sequence[tuple[int, float]]]
    """Neighbours of each node id in canonical order, with their weights."""
    weighted: bool


class Push(NamedTuple):
    """What a push came to."""

    scores: dict[Node, float]
    residuals: dict[Node, float]
    """Of the nodes that were reached."""
    hops: dict[Node, int]
    end: int
    """Step whose nodes are kept, as those of step 0 are."""
    passed: int
    """Edges."""

    def kept(self, most: int, *, top_up: bool) -> Kept:
        """The neighbours of each type."""
        scores: dict[tuple[str, int], float] = {}
        left: dict[tuple[str, int], float] = {}
        hops: dict[tuple[str, int], int] = {}
        for at in sorted(self.hops):
            step, node = at[0], at[1:]
            if step not in (0, self.end):
                continue
            hops[node] = min(hops.get(node, self.hops[at]), self.hops[at])
            if at in self.scores:
                scores[node] = scores.get(node, 0.0) + self.scores[at]
            elif node not in scores:
                left[node] = self.residuals[at]
        found: Kept = {}
        for kind in sorted({kind for kind, _ in hops}):
            ranked = sorted((-_rounded_down(score), id_) for (t, id_), score in scores.items() if t == kind)[
                :most
            ]
            if top_up:
                reached = sorted(
                    (-_rounded_down(score), id_) for (t, id_), score in left.items() if t == kind
                )
                ranked = sorted(ranked + reached[: most - len(ranked)])
            found[kind] = [(id_, -score, hops[kind, id_]) for score, id_ in ranked]
        return found


def lists_of_edges(
    edges: Mapping[EdgeType, Sequence[tuple[int, int]]],
    edge_dir: str,
    weights: Mapping[EdgeType, Sequence[float]] | None = None,
) -> dict[EdgeType, Lists]:
    """Return the lists of edges (pairs of source and destination), by edge type."""
    found = {}
    for edge_type in sorted(edges):
        source, _, destination = edge_type
        of_type = (weights or {}).get(edge_type)
        lists: dict[int, list[tuple[int, int, float]]] = {}
        for number, pair in enumerate(edges[edge_type]):
            target, neighbor = pair[::-1] if edge_dir == "in" else pair
            weight = 1.0 if of_type is None else of_type[number]
            lists.setdefault(target, []).append((neighbor, number, weight))
        ends = (destination, source) if edge_dir == "in" else (source, destination)
        by_node = {node: [(each[0], each[2]) for each in sorted(listed)] for node, listed in lists.items()}
        found[edge_type] = Lists(*ends, by_node, of_type is not None)
    return found


def push(
    lists: Mapping[EdgeType, Lists],
    seed: tuple[str, int],
    *,
    alpha: float,
    eps: float,
    max_neighbors: int = 1000,
    max_rounds: int | None = None,
    steps: Sequence[Sequence[EdgeType]] | None = None,
    repeat_from: int | None = 0,
    excluded: frozenset[tuple[EdgeType, int, int]] = frozenset(),
) -> Push:
    """Push from a seed, a pair of node type and id.

    ``steps``: the edge types of each step of a channel, all by default. ``excluded``: edge type, target and
    neighbour of edges that carry nothing.
    """
    path = [list(lists)] if steps is None else steps
    end = len(path) if repeat_from is None else repeat_from

    @cache
    def neighbors(node: Node) -> list[tuple[Node, float, bool]]:
        """The neighbours with their weights, and whether they are passed anything."""
        step, kind, id_ = node
        taken = []
        for edge_type, of_type in lists.items():
            if step == len(path) or edge_type not in path[step] or of_type.target_type != kind:
                continue
            listed = of_type.by_node.get(id_, [])
            at = (0, 0, address(edge_type), id_)
            if of_type.weighted:
                weights = [weight for _, weight in listed]
                places = pick_weighted(*at, weights=weights, fanout=max_neighbors, replace=False)
            else:
                places = pick(*at, degree=len(listed), fanout=max_neighbors, replace=False)
            after = step + 1 if step + 1 < len(path) else end
            for neighbor, weight in (listed[place] for place in places):
                taken.append(
                    (
                        (after, of_type.neighbor_type, neighbor),
                        weight,
                        (edge_type, id_, neighbor) not in excluded,
                    )
                )
        return taken

    start = (0, *seed)
    found = Push({}, {start: alpha}, {start: 0}, end, 0)
    passed = number = 0
    due: list[Node] = [start]
    while due and number != max_rounds:
        number += 1
        for node in due:
            residual = found.residuals[node]
            found.residuals[node] = 0.0
            found.scores[node] = found.scores.get(node, 0.0) + residual
            listed = neighbors(node)
            passed += len(listed)
            total = 0.0
            for _, weight, _ in listed:
                total += weight
            for each, weight, allowed in listed:
                if allowed:
                    share = (1 - alpha) * residual / total * weight
                    found.residuals[each] = found.residuals.get(each, 0.0) + share
                    found.hops.setdefault(each, number)
        due = [
            node
            for node, residual in sorted(found.residuals.items())
            if residual > alpha * eps * max(len(neighbors(node)), 1)
        ]
    return found._replace(passed=passed)


def merged(
    channels: Sequence[Kept], shares: Sequence[int]
) -> dict[str, list[tuple[int, list[np.float32], list[int]]]]:
    """Return the neighbours of each type: node id, and score and hop in each channel (0 and -1 without)."""
    found = {}
    for kind in sorted({kind for kept in channels for kind in kept}):
        of_type = [{id_: (score, hop) for id_, score, hop in kept.get(kind, [])} for kept in channels]
        none = (np.float32(0), -1)
        rows = {id_: [kept.get(id_, none) for kept in of_type] for kept in of_type for id_ in kept}
        best = {id_: max(score for score, _ in row) for id_, row in rows.items()}
        owner = {
            id_: next(number for number, (score, hop) in enumerate(row) if score == best[id_] and hop >= 0)
            for id_, row in rows.items()
        }
        ranked = sorted(rows, key=lambda id_: (-best[id_], id_))
        taken: set[int] = set()
        for number, share in enumerate(shares):
            taken.update([id_ for id_ in ranked if owner[id_] == number][:share])
        others = [id_ for id_ in ranked if id_ not in taken]
        taken.update(others[: sum(shares) - len(taken)])
        found[kind] = [
            (id_, [score for score, _ in rows[id_]], [hop for _, hop in rows[id_]])
            for id_ in ranked
            if id_ in taken
        ]
    return found


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
