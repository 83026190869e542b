"""Metrics of link prediction: the rank of a true destination among candidates that are none."""

from __future__ import annotations

from torch import Tensor

__all__ = ["rank_sums", "ranks"]


def ranks(scores: Tensor) -> Tensor:
    """Return the rank of column 0 in each row, 1 for the highest score.

    Candidates with the same score share the mean of their ranks, so that a constant score ranks in the
    middle. Ranks are filtered where the other columns are no edges of the graph, as strict negatives are.

    ``scores``
        Float [M, 1 + A]: the true destination of each link, then A candidates.
    Returns float32 [M].
    """
    true, others = scores[:, :1], scores[:, 1:]
    return 1 + (others > true).sum(dim=1) + 0.5 * (others == true).sum(dim=1)


def rank_sums(scores: Tensor) -> dict[str, Tensor]:
    """Return sums over links, scalars: of the reciprocal rank, and of ranks that are at most 1 and 10.

    Divided by the number of links, they are the mean reciprocal rank, hits@1 and hits@10. ``scores`` are
    those of :func:`ranks`.
    """
    found = ranks(scores)
    return {"mrr": found.reciprocal().sum(), **{f"hits@{best}": (found <= best).sum() for best in (1, 10)}}
