"""Estimates of how often a model would pass, from how often it did, with 95 % intervals."""

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax_lm.evaluation.attempts import SANDBOX_ERROR

# Standard normal quantile of a two-sided 95 % interval.
NINETY_FIVE = 1.959963984540054

ALL = "all"


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Estimate without bias the probability that one of `k` samples passes: 1 - C(n - c, k) / C(n,
    k).

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.

    Raises:
        ValueError: k below 1 or above the number of samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k={k}: must be between 1 and the number of samples, {samples}")
    return 1.0 - math.comb(samples - passed, k) / math.comb(samples, k)


def mean_pass_at_k(counts: Sequence[tuple[int, int]], k: int) -> float:
    """Average pass@k over problems, of which each has (samples, passed)."""
    return sum(pass_at_k(samples, passed, k) for samples, passed in counts) / len(counts)


def wilson(rate: float, count: int, z: float = NINETY_FIVE) -> tuple[float, float]:
    """Compute Wilson's score interval of a rate over `count` problems.

    Meant for pass@1 with one sample, where each problem is a coin. For more samples or a larger k,
    it gives a number between 0 and 1 whose variance is at most that of a coin with the same mean,
    so that the interval is too wide rather than too narrow.
    """
    middle = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = (
        z / (1 + z * z / count) * math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    )
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True)
class Rate:
    """Estimated pass@k of a group of problems, with a 95 % interval."""

    group: str
    k: int
    value: float
    low: float
    high: float
    problems: int
    samples: int
    passed: int


def rates(records: Collection[Mapping[str, Any]], ks: Sequence[int]) -> list[Rate]:
    """Estimate pass@k per group, then of all where there are several groups.

    What the sandbox could not run does not count. A problem that is left with fewer than k samples
    is left out.
    """
    counted = [record for record in records if record["outcome"] != SANDBOX_ERROR]
    groups = sorted({record["group"] for record in counted}, reverse=True)
    found = []
    for group in [*groups, ALL] if len(groups) > 1 else groups:
        passed: dict[str, list[bool]] = defaultdict(list)
        for record in counted:
            if group in (ALL, record["group"]):
                passed[record["name"]].append(record["outcome"] == "passed")
        for k in ks:
            counts = [
                (len(samples), sum(samples)) for samples in passed.values() if len(samples) >= k
            ]
            if counts:
                value, totals = (
                    mean_pass_at_k(counts, k),
                    [sum(column) for column in zip(*counts, strict=True)],
                )
                found.append(
                    Rate(group, k, value, *wilson(value, len(counts)), len(counts), *totals)
                )
    return found
