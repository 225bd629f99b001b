"""What a compiled step may take: a budget, and what exceeds it."""

from dataclasses import dataclass
from typing import Any

from experiments.compiled.explanation import Explanation, Group, Traffic


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Most that a step may take on one device.

    Attributes:
        kernels: of all kinds.
        traffic: bytes read and written, in parts of those that a step must read.
        sorts: how many, and the most columns that one has.
        collectives: how many.
        logits: float32 arrays over the vocabulary, and the most rows that one has.
        moved_before: copies and conversions of weights or cache outside of the step.
    """

    kernels: int
    traffic: float
    sorts: int = 0
    sorted_columns: int = 0
    collectives: int = 0
    logits: int = 0
    logit_rows: int = 0
    moved_before: int = 0


def excess(found: Explanation, budget: Budget, least: int) -> list[str]:
    """Name what a step takes beyond its budget: also weights read twice, copies, transfers to the
    host.
    """
    sorts, collectives, logits = (
        sum(each.count for each in groups)
        for groups in (found.sorts, found.collectives, found.logits)
    )
    columns = max(
        (int(each.shape.strip("]").split("[")[-1].split(",")[-1] or 1) for each in found.sorts),
        default=0,
    )
    rows = max((int(each.what.split()[0]) for each in found.logits), default=0)
    limits = [
        ("kernels", found.launches, budget.kernels),
        ("traffic", (found.read + found.written) / least, budget.traffic),
        ("sorts", sorts, budget.sorts),
        ("sorted columns", columns, budget.sorted_columns),
        ("collectives", collectives, budget.collectives),
        ("logits", logits, budget.logits),
        ("rows of logits", rows, budget.logit_rows),
        ("moved before", sum(each.count for each in found.moves_before), budget.moved_before),
    ]
    over = [
        f"{name}: {number:.4g} of {limit:.4g}" for name, number, limit in limits if number > limit
    ]
    again = [f"read again: {each.what} {each.count} times" for each in found.read_again]
    moved = [f"moved: {each.what}" for each in found.moves]
    return over + again + moved + [f"host: {each.what}" for each in found.host]


def read_explanation(data: dict[str, Any]) -> Explanation:
    """Read what `experiments/explain_plan.py --out` wrote of a pass."""
    values: dict[str, Any] = dict(data) | {
        "rows": {int(rows): count for rows, count in data["rows"].items()}
    }
    for name, value in data.items():
        if isinstance(value, list):
            values[name] = tuple(
                Group(**each) if isinstance(each, dict) else each for each in value
            )
        elif name in ("weights", "head", "cache"):
            values[name] = Traffic(**value)
    return Explanation(**values)


# What XLA made of each step on 2026-11-28 (docs/results/compiled), with 2 % more kernels. In `exact` on
# an H200, 1.78 times the least bytes is 11.1 GB besides the weights. A TPU's bytes include those of
# weights that are copied to the chip ahead of their product.
STEPS_7B = {
    ("h200:1", "exact", "step"): Budget(
        kernels=519, traffic=1.78, sorts=7, sorted_columns=3200, logits=1, logit_rows=256
    ),
    ("h200:1", "fast", "refresh"): Budget(
        kernels=509,
        traffic=1.69,
        sorts=7,
        sorted_columns=3200,
        logits=1,
        logit_rows=32,
        moved_before=56,
    ),
    ("h200:1", "fast", "step"): Budget(
        kernels=425, traffic=1.10, sorts=7, sorted_columns=3200, logits=1, logit_rows=32
    ),
    ("v5e:2x2", "exact", "step"): Budget(
        kernels=2252,
        traffic=1.08,
        sorts=7,
        sorted_columns=2376,
        collectives=107,
        logits=3,
        logit_rows=256,
    ),
    ("v5e:2x2", "fast", "refresh"): Budget(
        kernels=2150,
        traffic=1.02,
        sorts=7,
        sorted_columns=2376,
        collectives=107,
        logits=1,
        logit_rows=32,
        moved_before=56,
    ),
    ("v5e:2x2", "fast", "step"): Budget(
        kernels=2112,
        traffic=1.02,
        sorts=7,
        sorted_columns=2376,
        collectives=109,
        logits=1,
        logit_rows=32,
    ),
    ("v6e:1x1", "exact", "step"): Budget(
        kernels=1646, traffic=1.16, sorts=7, sorted_columns=2376, logits=5, logit_rows=256
    ),
    ("v6e:1x1", "fast", "refresh"): Budget(
        kernels=1707, traffic=1.02, sorts=7, sorted_columns=2376, logits=1, logit_rows=32
    ),
    ("v5p:2x2x1", "exact", "step"): Budget(
        kernels=1948,
        traffic=1.82,
        sorts=7,
        sorted_columns=3200,
        collectives=109,
        logits=5,
        logit_rows=256,
    ),
    ("v5p:2x2x1", "fast", "refresh"): Budget(
        kernels=1967,
        traffic=1.69,
        sorts=7,
        sorted_columns=3200,
        collectives=109,
        logits=2,
        logit_rows=32,
        moved_before=56,
    ),
    ("v5p:2x2x1", "fast", "step"): Budget(
        kernels=1864,
        traffic=1.07,
        sorts=7,
        sorted_columns=3200,
        collectives=109,
        logits=2,
        logit_rows=32,
    ),
    ("h100:8", "exact", "step"): Budget(
        kernels=593,
        traffic=2.25,
        sorts=6,
        sorted_columns=3200,
        collectives=64,
        logits=1,
        logit_rows=256,
    ),
    ("h100:8", "fast", "refresh"): Budget(
        kernels=587,
        traffic=2.28,
        sorts=6,
        sorted_columns=3200,
        collectives=64,
        logits=1,
        logit_rows=32,
    ),
    ("h100:8", "fast", "step"): Budget(
        kernels=631,
        traffic=1.3,
        sorts=6,
        sorted_columns=3200,
        collectives=64,
        logits=1,
        logit_rows=32,
    ),
}
"""Of the 7B model in bfloat16, one sequence of 512 tokens; figures of jax 0.10.2 with up to 2 % of room.

The entropies of the commit rule `entropy` are among them, 15 kernels and a pass over the logits of a GPU: a branch that
other rules do not take.

On TPUs traffic is that of the kernels alone, without the copies that run beside them.
"""
