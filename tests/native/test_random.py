"""Draws are where the written rules say, and they are uniform."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gigl_loader import native
from tests.support import oracle
from tests.support.rules import native_rules

words = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("key", "low", "high", "expected"),
    [
        (0, 0, 0, (0xCA00A0459843D731, 0x66C24222C9A845B5)),
        (2**64 - 1, 2**64 - 1, 2**64 - 1, (0x65B021D60CD8310F, 0x4D02F3222F86DF20)),
    ],
)
def test_philox_gives_its_published_answers(key: int, low: int, high: int, expected: tuple[int, int]) -> None:
    assert native.philox(key, low, high) == expected


@given(words, words, words)
def test_philox_equals_the_oracle(key: int, low: int, high: int) -> None:
    assert native.philox(key, low, high) == oracle.philox(key, low, high)


@given(words, st.integers(0, 2**32), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
def test_batch_key_equals_the_oracle(run_seed: int, epoch: int, seeds: list[int]) -> None:
    key = native.batch_key(run_seed, epoch, np.array(seeds, np.int64))
    assert key == oracle.batch_key(run_seed, epoch, seeds)


@given(words, st.integers(0, 2**32), st.integers(0, 50))
def test_permutation_equals_the_oracle(run_seed: int, epoch: int, length: int) -> None:
    out = np.empty(length, np.int64)
    native.permutation(run_seed, epoch, out)
    assert out.tolist() == oracle.permutation(run_seed, epoch, length)


def test_permutations_of_epochs_look_independent() -> None:
    length, epochs = 50, 400
    place = np.zeros((length, length), np.int64)  # how often index i came to place p
    for epoch in range(epochs):
        out = np.empty(length, np.int64)
        native.permutation(3, epoch, out)
        place[out, np.arange(length)] += 1
    assert stats.chisquare(place.ravel()).pvalue > 1e-3


def _frequencies(degree: int, fanout: int, *, replace: bool, batches: int) -> npt.NDArray[np.int64]:
    """How often each entry of one adjacency list is drawn, over many batches."""
    indices = np.arange(1, degree + 1, dtype=np.int32)
    num_nodes = degree + 1
    indptr = np.full(num_nodes + 1, degree, np.int64)
    indptr[0] = 0
    sampler = native.NeighborSampler(
        adjacencies=[native.Adjacency(np.array([0, num_nodes]), [indptr], [indices], [indices])],
        target_types=[0],
        neighbor_types=[0],
        addresses=[77],
        rules=native_rules([[fanout]], replace=replace),
        node_ids=[None],
        num_nodes=[num_nodes],
        with_edge_ids=True,
        with_slots=False,
    )
    counts = np.zeros(degree, np.int64)
    seeds = np.zeros(1, np.int64)
    for epoch in range(batches):
        sampler.sample([(0, seeds)], native.batch_key(11, epoch, seeds))
        ids = np.empty(sum(sampler.edges_per_hop(0)), np.int64)
        sampler.write_edge_ids(0, ids)
        np.add.at(counts, ids - 1, 1)
    return counts


@pytest.mark.parametrize(("degree", "fanout"), [(2, 1), (7, 3), (40, 15), (64, 63), (65, 5), (300, 100)])
@pytest.mark.parametrize("replace", [False, True])
def test_every_neighbour_is_equally_likely(degree: int, fanout: int, replace: bool) -> None:
    """Chi-square over the entries of a list. Without replacement the entries of a batch exclude each
    other, which shrinks the variance by (degree - fanout) / (degree - 1): the statistic is scaled."""
    batches = 3000
    counts = _frequencies(degree, fanout, replace=replace, batches=batches)
    expected = batches * fanout / degree
    statistic = ((counts - expected) ** 2 / expected).sum()
    if not replace:
        statistic *= (degree - 1) / (degree - fanout)
    low, high = stats.chi2.ppf([5e-5, 1 - 5e-5], degree - 1)
    assert low < statistic < high


def test_pairs_of_neighbours_are_equally_likely() -> None:
    """Floyd's algorithm must give every subset the same chance, not only every entry."""
    degree, fanout, batches = 6, 3, 6000
    subsets: dict[tuple[int, ...], int] = {}
    for epoch in range(batches):
        key = native.batch_key(5, epoch, np.zeros(1, np.int64))
        chosen = tuple(sorted(oracle.pick(key, 0, 77, 0, degree=degree, fanout=fanout, replace=False)))
        subsets[chosen] = subsets.get(chosen, 0) + 1
    assert len(subsets) == 20
    assert stats.chisquare(list(subsets.values())).pvalue > 1e-3
