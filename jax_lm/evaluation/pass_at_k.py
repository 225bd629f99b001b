"""How often a model would pass, from how often it did. Numbers only."""

import math
from collections.abc import Sequence

NINETY_FIVE = 1.959963984540054
"""Standard normal quantile of a two-sided 95 % interval."""


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Unbiased estimate of the probability that one of `k` samples passes: 1 - C(n - c, k) / C(n, k).

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.

    Raises:
        ValueError: k below 1 or above the number of samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k={k}: must be between 1 and the number of samples, {samples}")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> float:
    """The mean over problems, of which each has (samples, passed)."""
    return sum(pass_at_k(samples, passed, k) for samples, passed in counts) / len(counts)


def wilson(rate: float, count: int, z: float = NINETY_FIVE) -> tuple[float, float]:
    """Wilson's score interval of a rate over `count` problems.

    Meant for pass@1 with one sample, where each problem is a coin. For more samples or a larger k, it gives a number
    between 0 and 1 whose variance is at most that of a coin with the same mean, so that the interval is too wide
    rather than too narrow.
    """
    middle = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return max(0.0, middle - half), min(1.0, middle + half)
