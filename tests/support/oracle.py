"""Sampling in plain Python, from the written rules alone: slow, obvious, and right.

It knows nothing of positions, partitions or kernels. Graphs are dicts of edge lists between node
ids; draws are computed from their addresses as docs/internals/randomness.md says.
"""

from __future__ import annotations

import itertools
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

EdgeType = tuple[str, str, str]
Edge = tuple[int, int, int]  # source id, destination id, edge id

_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15


def philox(key: int, low: int, high: int) -> tuple[int, int]:
    for _ in range(10):
        product = low * 0xD2B74407B1CE6E93
        low, high = (product >> 64) ^ key ^ high, product & _MASK
        key = (key + _GOLDEN) & _MASK
    return low, high


def mix(x: int) -> int:
    x &= _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def epoch_key(run_seed: int, epoch: int) -> int:
    return mix(mix(run_seed + _GOLDEN) + epoch + _GOLDEN)


def batch_key(run_seed: int, epoch: int, numbers: Sequence[int]) -> int:
    fold = 0
    for number in numbers:
        fold = mix(fold + _GOLDEN + (number & _MASK))
    return mix(epoch_key(run_seed, epoch) + fold)


def request_key(run_seed: int, epoch: int, places: Sequence[int], *node_ids: Sequence[int]) -> int:
    """Key of all draws of a batch: the places of its entries in the input, then the ids of each column."""
    return batch_key(run_seed, epoch, [*places, *itertools.chain(*node_ids)])


def tree_key(key: int, tree: int) -> int:
    return philox(key, tree, 0xFE01 << 48)[0]


def permutation(run_seed: int, epoch: int, length: int) -> list[int]:
    key = epoch_key(run_seed, epoch)
    return sorted(range(length), key=lambda i: (philox(key, i, 0xFF << 56)[0], i))


def address(edge_type: EdgeType) -> int:
    return zlib.crc32("+".join(quote(part, safe="") for part in edge_type).encode()) & 0xFFFFFF


def draw(key: int, hop: int, edge_type: int, node: int, *, j: int, below: int) -> int:
    """Draw number j for a node: an integer in [0, below)."""
    words = philox(key, node & _MASK, j // 2 | edge_type << 32 | hop << 56)
    return (words[j % 2] * below) >> 64


def pick(
    key: int, hop: int, edge_type: int, node: int, *, degree: int, fanout: int, replace: bool
) -> list[int]:
    """Places in a sorted adjacency list of ``degree`` that a fanout takes."""
    if fanout < 0:
        return list(range(degree))
    if replace:
        return [draw(key, hop, edge_type, node, j=j, below=degree) for j in range(fanout if degree else 0)]
    if degree <= fanout:
        return list(range(degree))
    picks: list[int] = []
    for j in range(fanout):
        bound = degree - fanout + j
        drawn = draw(key, hop, edge_type, node, j=j, below=bound + 1)
        picks.append(bound if drawn in picks else drawn)
    return picks


def labor_word(key: int, hop: int, edge_type: int, node: int) -> int:
    return mix(philox(key, edge_type, 0xFE02 << 48 | hop)[0] + (node + 1) * _GOLDEN)


def round_key(epoch_key: int, number: int) -> int:
    return philox(epoch_key, number, 0xFE05 << 48)[0]


@dataclass(frozen=True)
class Dependency:
    """Batches for which a node keeps its number, with the place of a batch among them."""

    batches: int
    epoch_key: int
    number: int

    def key(self, hop: int, edge_type: int, node: int) -> int:
        """Key under which LABOR draws the number of a node."""
        phase = labor_word(self.epoch_key, hop, edge_type, node) * self.batches >> 64
        renewed = phase < self.number % self.batches
        return round_key(self.epoch_key, self.number // self.batches + renewed)


def pick_labor(
    key: int,
    hop: int,
    edge_type: int,
    *,
    neighbors: Sequence[int],
    fanout: int,
    dependency: Dependency | None = None,
) -> list[int]:
    """Places in an adjacency list of these nodes that LABOR takes."""
    if fanout < 0 or len(neighbors) <= fanout:
        return list(range(len(neighbors)))
    keys = [key if dependency is None else dependency.key(hop, edge_type, node) for node in neighbors]
    words = [labor_word(each, hop, edge_type, node) for each, node in zip(keys, neighbors, strict=True)]
    return [place for place, word in enumerate(words) if word * len(neighbors) >> 64 < fanout]


def whole_weights(weights: Sequence[float]) -> list[int]:
    """The weights of one list as whole numbers."""
    largest = max(weights, default=0.0)
    if largest == 0:
        return [0] * len(weights)
    shift = 62 - len(weights).bit_length() - math.frexp(largest)[1]
    return [0 if weight == 0 else max(1, int(math.ldexp(weight, shift))) for weight in weights]


def pick_weighted(
    key: int, hop: int, edge_type: int, node: int, *, weights: Sequence[float], fanout: int, replace: bool
) -> list[int]:
    """Places in a sorted adjacency list with these weights that a fanout takes."""
    whole = whole_weights(weights)
    return pick_whole(key, hop, edge_type, node, whole=whole, fanout=fanout, replace=replace)


def pick_whole(
    key: int, hop: int, edge_type: int, node: int, *, whole: Sequence[int], fanout: int, replace: bool
) -> list[int]:
    """Places in a list with these whole weights that a fanout takes."""
    left = list(whole)
    positive = [place for place, weight in enumerate(left) if weight]
    if fanout < 0 or (not replace and len(positive) <= fanout):
        return positive
    picks: list[int] = []
    for j in range(fanout if positive else 0):
        drawn = draw(key, hop, edge_type, node, j=j, below=sum(left))
        place = 0
        while drawn >= left[place]:
            drawn -= left[place]
            place += 1
        picks.append(place)
        if not replace:
            left[place] = 0
    return picks


def is_early(time: int, bound: int, *, strictly: bool) -> bool:
    return time < bound if strictly else time <= bound


def pick_in_time(
    key: int,
    hop: int,
    edge_type: int,
    node: int,
    *,
    times: Sequence[int],
    bound: int,
    start: int,
    fanout: int,
    replace: bool,
    last: bool,
    strictly_earlier: bool,
    weights: Sequence[float] | None,
) -> list[int]:
    """Places in a sorted adjacency list with these times (and weights) that a fanout takes in time."""
    in_order = sorted(range(len(times)), key=lambda i: times[i])
    early = [
        place
        for place in in_order
        if start <= times[place] and is_early(times[place], bound, strictly=strictly_earlier)
    ]
    whole = None if weights is None else whole_weights(weights)
    if last:
        latest = [place for place in reversed(early) if whole is None or whole[place]]
        return latest if fanout < 0 else latest[:fanout]
    at = (key, hop, edge_type, node)
    if whole is None:
        picks = pick(*at, degree=len(early), fanout=fanout, replace=replace)
    else:
        picks = pick_whole(*at, whole=[whole[place] for place in early], fanout=fanout, replace=replace)
    return [early[place] for place in picks]


def pick_weighted_node(word: int, weights: Sequence[float]) -> int:
    """Rank of the node that a random word draws."""
    sums, total = [], 0.0
    for weight in weights:
        total += weight
        sums.append(total)
    drawn = (word >> 11) * 2.0**-53 * total
    return next((rank for rank, end in enumerate(sums) if end > drawn), sums.index(total))


def pick_node(
    word: int,
    ids: Sequence[int],
    weights: Sequence[float] | None,
    times: Sequence[int] | None,
    bound: int,
    *,
    strictly_earlier: bool,
) -> int:
    """The node (of ``ids``, which ascend) that a random word draws, among those early enough."""
    if times is not None:
        ranks = sorted(range(len(ids)), key=lambda rank: times[rank])
        early = [rank for rank in ranks if is_early(times[rank], bound, strictly=strictly_earlier)]
        if early and (weights is None or any(weights[rank] for rank in early)):
            ids = [ids[rank] for rank in early]
            weights = None if weights is None else [weights[rank] for rank in early]
    return ids[word * len(ids) >> 64 if weights is None else pick_weighted_node(word, weights)]


def negatives(
    key: int,
    links: Sequence[tuple[int, int]],
    *,
    mode: str,
    amount: float,
    src_ids: Sequence[int],
    dst_ids: Sequence[int],
    strict_against: set[tuple[int, int]] | None = None,
    src_weight: Sequence[float] | None = None,
    dst_weight: Sequence[float] | None = None,
    src_times: Sequence[int] | None = None,
    dst_times: Sequence[int] | None = None,
    link_times: Sequence[int] = (),
    strictly_earlier: bool = False,
) -> tuple[list[tuple[int, int]], int]:
    """Negatives of links (pairs of node ids), and how many are among the edges ``strict_against``.

    ``src_ids``, ``dst_ids``: all ids of both types, ascending. Weights and times of nodes are in their order.
    """
    drawn, not_strict = [], 0
    ends = ((src_ids, src_weight, src_times), (dst_ids, dst_weight, dst_times))
    for j in range(math.ceil(len(links) * amount)):
        pair = (0, 0)
        for draw_number in range(100):
            words = philox(key, j, 0xFF << 56 | draw_number)
            bound = link_times[j % len(links)] if link_times else 0
            src, dst = (
                pick_node(word, ids, weights, times, bound, strictly_earlier=strictly_earlier)
                for word, (ids, weights, times) in zip(words, ends, strict=True)
            )
            pair = (links[j % len(links)][0] if mode == "triplet" else src, dst)
            if strict_against is None or pair not in strict_against:
                break
        else:
            not_strict += 1
        drawn.append(pair)
    return drawn, not_strict


def labels(
    key: int,
    anchors: Sequence[int],
    edges: Sequence[Edge],
    *,
    edge_type: EdgeType,
    cap: int | None,
    disjoint: bool = False,
) -> list[list[int]]:
    """Label nodes of each anchor by the edges of a supervision type, ascending."""
    found = []
    batch_key = key
    for tree, anchor in enumerate(anchors):
        key = tree_key(batch_key, tree) if disjoint else batch_key
        listed = sorted((dst, edge_id) for src, dst, edge_id in edges if src == anchor)
        fanout = -1 if cap is None else cap
        places = pick(key, 253, address(edge_type), anchor, degree=len(listed), fanout=fanout, replace=False)
        found.append([listed[place][0] for place in sorted(places)])
    return found


def random_nodes(key: int, edge_type: EdgeType, ids: Sequence[int], count: int) -> list[int]:
    """Random negatives of a supervision type among ``ids``, ascending."""
    whole, rest = divmod(count, len(ids))
    picks: list[int] = []
    for j in range(rest):
        bound = len(ids) - rest + j
        words = philox(key, 0, 0xFF << 56 | 1 << 48 | address(edge_type) << 24 | j // 2)
        drawn = words[j % 2] * (bound + 1) >> 64
        picks.append(bound if drawn in picks else drawn)
    return [*list(ids) * whole, *(ids[place] for place in picks)]


def without_pairs(
    batch: OracleBatch, edge_type: EdgeType, pairs: set[tuple[int, int]], *, edge_dir: str
) -> None:
    """Remove the sampled edges from ``pairs[...][0]`` to ``pairs[...][1]`` (node ids)."""
    source, _, destination = edge_type
    target_type, neighbor_type = (destination, source) if edge_dir == "in" else (source, destination)
    kept, hops = [], []
    begin = 0
    for count in batch.edges_per_hop[edge_type]:
        of_hop = []
        for e in range(begin, begin + count):
            neighbor = batch.nodes[neighbor_type][batch.rows[edge_type][e]]
            target = batch.nodes[target_type][batch.targets[edge_type][e]]
            if ((neighbor, target) if edge_dir == "in" else (target, neighbor)) not in pairs:
                of_hop.append(e)
        begin += count
        hops.append(len(of_hop))
        kept += of_hop
    batch.edges_per_hop[edge_type] = hops
    for lists in (batch.rows, batch.targets, batch.edge_ids):
        lists[edge_type] = [lists[edge_type][e] for e in kept]


def induce(
    batch: OracleBatch,
    edges: Mapping[EdgeType, Sequence[Edge]],
    *,
    fanouts: Mapping[EdgeType, Sequence[int]],
    edge_dir: str = "in",
    weights: Mapping[EdgeType, Mapping[int, float]] | None = None,
) -> None:
    """Replace the sampled edges by all edges among the nodes, of the types of which some are drawn.

    Without any hop, those of all types.
    """
    for edge_type, listed in edges.items():
        source, _, destination = edge_type
        target_type, neighbor_type = (destination, source) if edge_dir == "in" else (source, destination)
        local = {node: number for number, node in enumerate(batch.nodes[neighbor_type])}
        drawn = any(fanouts[edge_type]) or not fanouts[edge_type]
        lists = _adjacency(listed, edge_dir) if drawn else {}
        found = [
            (local[neighbor], target, edge_id)
            for target, node in enumerate(batch.nodes[target_type])
            for neighbor, edge_id in lists.get(node, [])
            if neighbor in local and ((weights or {}).get(edge_type, {}).get(edge_id, 1.0) > 0)
        ]
        batch.rows[edge_type] = [row for row, _, _ in found]
        batch.targets[edge_type] = [target for _, target, _ in found]
        batch.edge_ids[edge_type] = [edge_id for _, _, edge_id in found]
        batch.edges_per_hop[edge_type] = [len(found)]


def both_directions(batch: OracleBatch, edge_type: EdgeType, reverse: EdgeType) -> list[tuple[int, int, int]]:
    """Edges of a type, and of its reverse the other way round: (target, neighbour, edge id).

    Of those with one target and neighbour, the first stays: own ones come before reversed ones.
    """
    own = zip(batch.targets[edge_type], batch.rows[edge_type], batch.edge_ids[edge_type], strict=True)
    turned = zip(batch.rows[reverse], batch.targets[reverse], batch.edge_ids[reverse], strict=True)
    found: dict[tuple[int, int], int] = {}
    for target, neighbor, edge_id in (*own, *turned):
        found.setdefault((target, neighbor), edge_id)
    return sorted((*pair, edge_id) for pair, edge_id in found.items())


@dataclass
class OracleBatch:
    """Nodes by type in first-seen order; edges by type as (neighbour, target) local pairs with ids."""

    nodes: dict[str, list[int]]
    nodes_per_hop: dict[str, list[int]]
    rows: dict[EdgeType, list[int]] = field(default_factory=dict)
    targets: dict[EdgeType, list[int]] = field(default_factory=dict)
    edge_ids: dict[EdgeType, list[int]] = field(default_factory=dict)
    edges_per_hop: dict[EdgeType, list[int]] = field(default_factory=dict)
    trees: dict[str, list[int]] = field(default_factory=dict)
    """Of the nodes. All 0 where trees are not disjoint."""


def sample(
    edges: Mapping[EdgeType, Sequence[Edge]],
    node_types: Sequence[str],
    *,
    fanouts: Mapping[EdgeType, Sequence[int]],
    key: int,
    seed_type: str = "",
    seeds: Sequence[int] = (),
    groups: Sequence[tuple[str, Sequence[int]]] = (),
    trees: Sequence[Sequence[int]] | None = None,
    edge_dir: str = "in",
    replace: bool = False,
    labor: bool = False,
    dependency: Dependency | None = None,
    weights: Mapping[EdgeType, Mapping[int, float]] | None = None,
    times: Mapping[EdgeType, Mapping[int, int]] | None = None,
    tree_times: Sequence[int] = (),
    tree_starts: Sequence[int] = (),
    last: bool = False,
    monotone: bool = False,
    strictly_earlier: bool = False,
) -> OracleBatch:
    """Sample around ``seeds`` (node ids), or groups of them by type. Edge types are visited in sorted order.

    ``weights``, ``times``: those of the edges of some types, by edge id. ``trees``: of the seeds of each
    group, where trees are disjoint; ``tree_times``, ``tree_starts``: of the trees.
    """
    lists = {edge_type: _adjacency(edges[edge_type], edge_dir) for edge_type in sorted(edges)}
    batch = OracleBatch({t: [] for t in node_types}, {t: [] for t in node_types})
    batch.trees = {t: [] for t in node_types}
    for edge_type in lists:
        batch.rows[edge_type], batch.targets[edge_type] = [], []
        batch.edge_ids[edge_type], batch.edges_per_hop[edge_type] = [], []
    local: dict[str, dict[tuple[int, int], int]] = {t: {} for t in node_types}
    done = dict.fromkeys(node_types, 0)
    bounds: dict[str, list[int]] = {t: [] for t in node_types}

    def add(node_type: str, node: int, tree: int, bound: int) -> int:
        if (tree, node) not in local[node_type]:
            local[node_type][tree, node] = len(batch.nodes[node_type])
            batch.nodes[node_type].append(node)
            batch.trees[node_type].append(tree)
            bounds[node_type].append(bound)
        return local[node_type][tree, node]

    for number, (node_type, group) in enumerate(groups or [(seed_type, seeds)]):
        for place, seed in enumerate(group):
            tree = 0 if trees is None else trees[number][place]
            add(node_type, seed, tree, tree_times[tree] if tree_times else 0)
    num_hops = len(next(iter(fanouts.values()), ()))
    for hop in range(num_hops + 1):
        frontier = {t: range(done[t], len(batch.nodes[t])) for t in node_types}
        for node_type in node_types:
            batch.nodes_per_hop[node_type].append(len(frontier[node_type]))
            done[node_type] = len(batch.nodes[node_type])
        if hop == num_hops:
            return batch
        for edge_type, adjacency in lists.items():
            source, _, destination = edge_type
            target_type, neighbor_type = (destination, source) if edge_dir == "in" else (source, destination)
            before = len(batch.rows[edge_type])
            for target in frontier[target_type]:
                node, tree = batch.nodes[target_type][target], batch.trees[target_type][target]
                neighbors = adjacency.get(node, [])
                fanout = fanouts[edge_type][hop]
                bound = bounds[target_type][target]
                of_edges = None if times is None else times.get(edge_type)
                own_key = key if trees is None else tree_key(key, tree)
                places = _places(
                    (own_key, hop, address(edge_type), node),
                    neighbors,
                    fanout=fanout,
                    replace=replace,
                    labor=labor,
                    dependency=dependency,
                    weights=None if weights is None else weights.get(edge_type),
                    times=of_edges,
                    bound=bound,
                    start=tree_starts[tree] if tree_starts else -(2**63),
                    last=last,
                    strictly_earlier=strictly_earlier,
                )
                for place in places:
                    neighbor, edge_id = neighbors[place]
                    passed_on = of_edges[edge_id] if monotone and of_edges is not None else bound
                    batch.rows[edge_type].append(add(neighbor_type, neighbor, tree, passed_on))
                    batch.targets[edge_type].append(target)
                    batch.edge_ids[edge_type].append(edge_id)
            batch.edges_per_hop[edge_type].append(len(batch.rows[edge_type]) - before)
    raise AssertionError("unreachable")


def _places(
    at: tuple[int, int, int, int],
    neighbors: Sequence[tuple[int, int]],
    *,
    fanout: int,
    replace: bool,
    labor: bool,
    dependency: Dependency | None,
    weights: Mapping[int, float] | None,
    times: Mapping[int, int] | None,
    bound: int,
    start: int,
    last: bool,
    strictly_earlier: bool,
) -> list[int]:
    """Places in the list of a node's neighbours that a hop takes."""
    weighed = None if weights is None else [weights[edge_id] for _, edge_id in neighbors]
    if labor:
        nodes = [neighbor for neighbor, _ in neighbors]
        return pick_labor(*at[:3], neighbors=nodes, fanout=fanout, dependency=dependency)
    if times is not None:
        listed = [times[edge_id] for _, edge_id in neighbors]
        return pick_in_time(
            *at,
            times=listed,
            bound=bound,
            start=start,
            fanout=fanout,
            replace=replace,
            last=last,
            strictly_earlier=strictly_earlier,
            weights=weighed,
        )
    if weighed is not None:
        return pick_weighted(*at, weights=weighed, fanout=fanout, replace=replace)
    return pick(*at, degree=len(neighbors), fanout=fanout, replace=replace)


def _adjacency(edges: Sequence[Edge], edge_dir: str) -> dict[int, list[tuple[int, int]]]:
    """Neighbours of each node: (neighbour's id, edge id), in ascending order."""
    lists: dict[int, list[tuple[int, int]]] = {}
    for source, destination, edge_id in edges:
        target, neighbor = (destination, source) if edge_dir == "in" else (source, destination)
        lists.setdefault(target, []).append((neighbor, edge_id))
    return {node: sorted(neighbors) for node, neighbors in lists.items()}


def random_walk(
    key: int,
    number: int,
    start: int,
    path: Sequence[tuple[EdgeType, Mapping[int, Sequence[int]]]],
    *,
    p: float = 1.0,
    q: float = 1.0,
) -> list[int]:
    """Node ids of walk ``number``, -1 after a dead end.

    ``path``: the edge type of each step, and its lists by node id.
    """
    walk = [start]
    for step, (edge_type, lists) in enumerate(path):
        neighbors = lists.get(walk[-1], [])
        if walk[-1] < 0 or not neighbors:
            walk.append(-1)
            continue
        at = (step, address(edge_type), walk[-1])
        if p == q == 1 or step == 0:
            walk.append(neighbors[draw(tree_key(key, number), *at, j=0, below=len(neighbors))])
            continue
        weights: dict[int | None, float] = {None: max(1 / p, 1.0, 1 / q)}
        weights.update((node, 1.0 if node in lists.get(walk[-2], []) else 1 / q) for node in neighbors)
        weights[walk[-2]] = 1 / p
        walk.append(_biased(key, number, at, neighbors, weights))
    return walk


def _biased(
    key: int,
    number: int,
    at: tuple[int, int, int],
    neighbors: Sequence[int],
    weights: Mapping[int | None, float],
) -> int:
    """The next node of a walk, by rejection. ``weights``: of each neighbour; under ``None``, the largest."""
    candidate = -1
    for attempt in range(16):
        round_key = key if attempt == 0 else philox(key, attempt, 0xFE04 << 48)[0]
        for j in range(8):
            candidate = neighbors[draw(tree_key(round_key, number), *at, j=j, below=len(neighbors))]
            word = philox(round_key, number, 0xFE03 << 48 | at[0] << 8 | j // 2)[j % 2]
            if (word >> 11) * 2.0**-53 * weights[None] < weights[candidate]:
                return candidate
    return candidate
