"""Linear deterministic greedy in plain Python, from its paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction


def fewest_and_most(count: int, num_partitions: int) -> tuple[int, int]:
    """Return how few and how many of ``count`` nodes a partition may have: 5 % off the mean, or one node."""
    mean = Fraction(count, num_partitions)
    fewest = min(count // num_partitions, -(-mean * 95 // 100).__floor__())
    most = max(-(-count // num_partitions), (mean * 105 / 100).__floor__())
    return fewest, most


def stream_order(counts: Sequence[int], windows: int = 4096) -> list[tuple[int, int]]:
    """Return (number of the type, rank) of all nodes: of every type the same share in each window."""
    return [
        (number, rank)
        for window in range(windows)
        for number, count in enumerate(counts)
        for rank in range(window * count // windows, (window + 1) * count // windows)
    ]


def greedy_owners(kinds: Sequence[int], edges: Iterable[tuple[int, int]], num_partitions: int) -> list[int]:
    """Return the partition of each node of a stream. ``edges`` are pairs of places in it."""
    neighbors: list[list[int]] = [[] for _ in kinds]
    for one, other in edges:
        if one != other:
            neighbors[max(one, other)].append(min(one, other))
    left = Counter(kinds)
    bounds = {kind: fewest_and_most(count, num_partitions) for kind, count in left.items()}
    sizes = {kind: [0] * num_partitions for kind in left}
    owners: list[int] = []
    for place, kind in enumerate(kinds):
        (fewest, most), held = bounds[kind], sizes[kind]
        lacking = sum(max(fewest - size, 0) for size in held)
        possible = [
            part for part, size in enumerate(held) if size < most and (left[kind] > lacking or size < fewest)
        ]
        near = Counter(owners[other] for other in neighbors[place])
        best = min(possible, key=lambda part: (-near[part] * (most - held[part]), held[part], part))
        owners.append(best)
        held[best] += 1
        left[kind] -= 1
    return owners
