"""What a compiled step may take: a budget, and what exceeds it."""

from dataclasses import dataclass

from jax_lm.compilation.explanation import Explanation


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Most that a step may take on one device.

    Attributes:
        kernels: of all kinds.
        traffic: bytes read and written, in parts of those that a step must read.
        sorts: how many, and the most columns that one has.
        collectives: how many.
        logits: float32 arrays over the vocabulary, and the most rows that one has.
    """

    kernels: int
    traffic: float
    sorts: int = 0
    sorted_columns: int = 0
    collectives: int = 0
    logits: int = 0
    logit_rows: int = 0


def excess(found: Explanation, budget: Budget, least: int) -> list[str]:
    """Name what a step takes beyond its budget: also weights read twice, copies, transfers to the host."""
    sorts, collectives, logits = (
        sum(each.count for each in groups) for groups in (found.sorts, found.collectives, found.logits)
    )
    columns = max((int(each.shape.strip("]").split(",")[-1].split("[")[-1]) for each in found.sorts), default=0)
    rows = max((int(each.what.split()[0]) for each in found.logits), default=0)
    limits = [
        ("kernels", found.launches, budget.kernels),
        ("traffic", (found.read + found.written) / least, budget.traffic),
        ("sorts", sorts, budget.sorts),
        ("sorted columns", columns, budget.sorted_columns),
        ("collectives", collectives, budget.collectives),
        ("logits", logits, budget.logits),
        ("rows of logits", rows, budget.logit_rows),
    ]
    over = [f"{name}: {number:.4g} of {limit:.4g}" for name, number, limit in limits if number > limit]
    again = [f"read again: {each.what} {each.count} times" for each in found.read_again]
    moved = [f"moved: {each.what}" for each in (*found.moves, *found.moves_before)]
    return over + again + moved + [f"host: {each.what}" for each in found.host]
