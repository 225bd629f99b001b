"""Several rewards as one number per completion.

`WeightedSum` is itself a reward, so that a trainer knows of one callable. It checks what the others
return, as users write some of them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax_lm.rewards.reward import Chat, Columns, Reward, RewardFunction, Scores, check_lengths


@dataclass(frozen=True)
class Scored:
    """Totals of the completions, and what each reward gave to them."""

    totals: Scores
    parts: Mapping[str, Scores]

    @property
    def excluded(self) -> int:
        """Completions without a total: they belong in no baseline and no loss."""
        return sum(total is None for total in self.totals)

    @property
    def missing(self) -> dict[str, int]:
        """How many completions each reward did not judge."""
        return {name: sum(score is None for score in scores) for name, scores in self.parts.items()}


@dataclass(frozen=True)
class WeightedSum:
    """The sum of weight times reward.

    A reward that does not apply to a row (a column that it needs is empty there; for a plain
    function: it returned None) is left out of that row's sum, and the other weights are not scaled
    up: TRL's `nansum`. A `Reward` that applies and returned None could not judge, such as a program
    that the sandbox failed to run: that completion gets no total, as a sum of the rest would count
    a failure of ours against it. A row that nothing applies to has none. Weight 0 shows a reward
    among the parts and leaves the totals alone.

    Args:
        rewards: callables by the name that they have in reports and errors.
        weights: a finite number for each of these names.
    """

    rewards: Mapping[str, RewardFunction]
    weights: Mapping[str, float]

    def __post_init__(self):
        if not self.rewards:
            raise ValueError("rewards must name at least one reward")
        if self.rewards.keys() != self.weights.keys():
            raise ValueError(
                f"weights are for {sorted(self.weights)}, rewards are {sorted(self.rewards)}"
            )
        for name, weight in self.weights.items():
            if not math.isfinite(weight):
                raise ValueError(
                    f"the weight of reward {name!r} must be a finite number, not {weight}"
                )

    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[Chat], **columns: Any
    ) -> Scores:
        return self.score(prompts, completions, **columns).totals

    def score(self, prompts: Sequence[Chat], completions: Sequence[Chat], **columns: Any) -> Scored:
        """Score completions: totals and parts.

        Raises:
            ValueError: a column, or what a reward returned, has not one value per completion, or a
                value is neither None nor a finite number.
        """
        check_lengths(len(completions), {"prompts": prompts, **columns})
        parts = {}
        for name, reward in self.rewards.items():
            is_ours = isinstance(reward, Reward)
            scores = (
                reward.judge(prompts, completions, columns)
                if is_ours
                else reward(prompts, completions, **columns)
            )
            parts[name] = checked_scores(name, scores, len(completions))
        return Scored([self.total(parts, columns, row) for row in range(len(completions))], parts)

    def total(self, parts: Mapping[str, Scores], columns: Columns, row: int) -> float | None:
        """Add up the weighted scores of one completion."""
        terms = []
        for name, weight in self.weights.items():
            score, reward = parts[name][row], self.rewards[name]
            if weight and score is not None:
                terms.append(weight * score)
            elif weight and isinstance(reward, Reward) and reward.applies(columns, row):
                return None
        return sum(terms) if terms else None


def checked_scores(name: str, scores: Any, expected: int) -> Scores:
    """Check what a reward returned; returns it as floats and None."""
    values = list(scores) if isinstance(scores, Iterable) else None
    if values is None or len(values) != expected:
        found = type(scores).__name__ if values is None else f"{len(values)} values"
        raise ValueError(
            f"reward {name!r} returned {found} for {expected} completions, not a list of that length"
        )
    result: Scores = []
    for row, value in enumerate(values):
        try:
            score = None if value is None else float(value)
        except (TypeError, ValueError):
            score = math.nan
        if score is not None and not math.isfinite(score):
            raise ValueError(
                f"reward {name!r} returned {value!r:.80} for completion {row}, not a finite number or None"
            )
        result.append(score)
    return result
