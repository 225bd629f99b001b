"""Orders in which positions were decided, and how autoregressive they are.

Definitions: arXiv 2506.20639 (DiffuCoder), appendix A.2. An order lists positions as they were decided, one per step.
Pure functions of arrays; they know neither model nor sampler.
"""

import math

import numpy as np
from jaxtyping import Float, Int


def decoding_order(
    commit_step: Int[np.ndarray, "t"], confidence: Float[np.ndarray, "t"] | None = None
) -> Int[np.ndarray, "t"]:
    """List positions in the order in which they were decided.

    Args:
        commit_step: step at which each position was decided.
        confidence: orders positions of one step, the most confident first (the leftmost of equals).

    Raises:
        ValueError: several positions at one step, and no confidence: the paper leaves that open.
    """
    if confidence is None:
        if len(np.unique(commit_step)) < len(commit_step):
            raise ValueError("commit_step: several positions at one step; their order is undefined without confidence")
        return np.argsort(commit_step)
    return np.lexsort((np.arange(len(commit_step)), -confidence, commit_step))


def within(order: Int[np.ndarray, "t"], end: int) -> Int[np.ndarray, "e"]:
    """Restrict an order to the first `end` positions."""
    return order[order < end]


def local_ar_ness(order: Int[np.ndarray, "t"], k: int) -> float:
    """Compute local AR-ness@k: how often the k steps before were the k positions to the left, in whatever order.

    The mean over the steps t > k, so that left to right is exactly 1; nan where there is no such step.

    Raises:
        ValueError: k below 1, or positions that are not 0, 1, …
    """
    require_order(order, k)
    if len(order) <= k:
        return math.nan
    windows = np.lib.stride_tricks.sliding_window_view(order, k + 1)
    before, now = np.sort(windows[:, :k], axis=1), windows[:, k:]
    return float(np.mean(np.all(before == now - np.arange(k, 0, -1), axis=1)))


def global_ar_ness(order: Int[np.ndarray, "t"], k: int) -> float:
    """Compute global AR-ness@k: how often the position was among the k leftmost ones that were still masked.

    Raises:
        ValueError: k below 1, or positions that are not 0, 1, …
    """
    require_order(order, k)
    # Of the masked positions, those to the left of the chosen one are the smaller ones that come later.
    later_and_smaller = np.triu(order[None, :] < order[:, None], 1).sum(axis=1)
    return float(np.mean(later_and_smaller < k))


def require_order(order: Int[np.ndarray, "t"], k: int) -> None:
    """Refuse, by ValueError, a k below 1 and what is no order of positions."""
    if k < 1:
        raise ValueError(f"k={k}: must be at least 1")
    if not len(order) or not np.array_equal(np.sort(order), np.arange(len(order))):
        raise ValueError(f"order: must hold each of the positions 0 to {len(order) - 1} once")


def heat_map(orders: list[Int[np.ndarray, "t"]], cells: int = 64) -> Float[np.ndarray, "s p"]:
    """Compute the share of decisions of each stretch of steps (row) per stretch of positions (column).

    At most `cells` rows and columns; each row sums to 1.

    Raises:
        ValueError: no order, or orders of different lengths.
    """
    lengths = {len(order) for order in orders}
    if len(lengths) != 1:
        raise ValueError(f"orders: must be one length, there are {sorted(lengths)}")
    (length,) = lengths
    size = min(cells, length)
    counts = np.zeros((size, size))
    for order in orders:
        np.add.at(counts, (np.arange(length) * size // length, order * size // length), 1)
    return counts / counts.sum(axis=1, keepdims=True)
