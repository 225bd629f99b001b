"""Estimates of pass@k from the outcomes of samples, with 95 % confidence intervals."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import comb, sqrt

from jax_lm.reports.run_folder import Record
from untrusted.results import UNJUDGED

# Standard normal quantile of a two-sided 95 % interval.
NINETY_FIVE = 1.959963984540054

# Group of the rates over all problems.
ALL = "all"


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Compute the unbiased estimate of the probability that at least one of `k` samples passes.

    Source: Chen et al. 2021, "Evaluating Large Language Models Trained on Code", equation 1.

    Raises:
        ValueError: k is below 1 or above the number of samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k={k}: must be between 1 and the number of samples, {samples}")
    # 1 - C(n - c, k) / C(n, k): C(n - c, k) of the C(n, k) choices of k samples contain no passing
    # one. n=4, c=1, k=2: 1 - 3/6 = 0.5
    return 1.0 - comb(samples - passed, k) / comb(samples, k)


def wilson(rate: float, count: int) -> tuple[float, float]:
    """Compute Wilson's score interval of a rate over `count` problems.

    It is meant for pass@1 with one sample, where each problem is a Bernoulli trial. With more
    samples or a larger k, each problem has a value between 0 and 1, whose variance is at most that
    of a Bernoulli variable with the same mean. The interval is then too wide rather than too
    narrow.
    """
    # 5 of 10: middle 0.5, half 0.263 -> (0.237, 0.763); 10 of 10 -> (0.722, 1.0)
    z = NINETY_FIVE
    scale = 1 + z * z / count
    middle = (rate + z * z / (2 * count)) / scale
    half = z / scale * sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
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


def rates(records: Collection[Record], ks: Sequence[int]) -> list[Rate]:
    """Estimate pass@k of each group, and of all problems if there are several groups.

    Programs that the sandbox could not run or judge do not count. Problems with fewer than k
    remaining samples are excluded.
    """
    counted = [record for record in records if record["outcome"] not in UNJUDGED]
    groups = sorted({record["group"] for record in counted}, reverse=True)
    result = []
    for group in [*groups, ALL] if len(groups) > 1 else groups:
        passed = defaultdict(list)
        for record in counted:
            if group in (ALL, record["group"]):
                passed[record["name"]].append(record["outcome"] == "passed")
        for k in ks:
            counts = [
                (len(samples), sum(samples)) for samples in passed.values() if len(samples) >= k
            ]
            if counts:
                value = sum(pass_at_k(*count, k) for count in counts) / len(counts)
                totals = [sum(column) for column in zip(*counts, strict=True)]
                result.append(
                    Rate(group, k, value, *wilson(value, len(counts)), len(counts), *totals)
                )
    return result
