"""Combine several rewards into one number per completion.

`WeightedSum` is itself a reward, so that a trainer needs a single callable. It validates the return
values of all rewards, as users write some of them.
"""

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite, nan

from jax_lm.config import Fields
from jax_lm.rewards.reward import (
    Chat,
    Chats,
    Columns,
    Reward,
    RewardFunction,
    Scores,
    check_lengths,
)


@dataclass(frozen=True)
class Scored:
    """Totals of the completions, and the scores of each reward by name.

    A completion whose total is None enters neither a baseline nor the loss.
    """

    totals: Scores
    parts: Mapping[str, Scores]

    @property
    def missing(self) -> dict[str, int]:
        """Number of completions that each reward did not score."""
        return {name: sum(score is None for score in scores) for name, scores in self.parts.items()}


@dataclass(frozen=True)
class WeightedSum:
    """The sum of weight times reward.

    - A reward that does not apply to a row is left out of that row's sum, and the other weights are
      not scaled up, as with TRL's `nansum`. A `Reward` does not apply if a required column is empty
      in the row; a plain function if it returned None.
    - A `Reward` that applies but returned None failed to score the completion: the sandbox could
      not run the program, for example. That completion gets no total, since the sum of the other
      rewards would count our failure against it.
    - A row to which no reward applies has no total.
    - A reward of weight 0 is reported among the parts but does not change the totals.

    Args:
        rewards: callables by their name in reports and errors.
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
            if not isfinite(weight):
                raise ValueError(
                    f"the weight of reward {name!r} must be a finite number, not {weight}"
                )

    def __call__(self, prompts: Chats, completions: Chats, **columns) -> Scores:
        return self.score(prompts, completions, **columns).totals

    def require_columns(self, rows: Iterable[Fields]):
        """Raise ValueError if a reward needs a column that no row has, before a run begins."""
        # a trainer adds the ids of a completion
        names = {"completion_ids"}
        for row in rows:
            names.update(name for name, value in row.items() if value is not None)
        for reward in self.rewards.values():
            if isinstance(reward, Reward):
                reward.require_columns(names)

    def try_out(self, prompt: Chat, /, **columns):
        """Call every function of the user once, with an empty completion, before a run begins.

        Raises:
            ValueError: one raises, or returns something else than one score.
        """
        for name, reward in self.rewards.items():
            if not isinstance(reward, Reward):
                values = {column: [value] for column, value in columns.items()}
                call_reward(name, reward, [prompt], [""], values)

    def score(self, prompts: Chats, completions: Chats, /, **columns) -> Scored:
        """Score completions by each reward, and add up the totals.

        Raises:
            ValueError: a column or the return value of a reward does not have one value per
                completion, or a score is neither None nor a finite number.
        """
        check_lengths(len(completions), {"prompts": prompts, **columns})
        parts = {
            name: call_reward(name, reward, prompts, completions, columns)
            for name, reward in self.rewards.items()
        }
        return Scored([self.total(parts, columns, row) for row in range(len(completions))], parts)

    def total(self, parts: Mapping[str, Scores], columns: Columns, row: int) -> float | None:
        """Return the weighted sum of the scores of one completion; None if it has no total."""
        # Weights 2.0 and 0.5: scores 1.0 and 1.0 -> 2.5; 1.0 and None (not applicable) -> 2.0.
        terms = []
        for name, weight in self.weights.items():
            score = parts[name][row]
            reward = self.rewards[name]
            if weight and score is not None:
                terms.append(weight * score)
            elif weight and isinstance(reward, Reward) and reward.applies(columns, row):
                # The reward applies, but could not score this completion.
                return None
        return sum(terms) if terms else None


def call_reward(
    name: str, reward: RewardFunction, prompts: Chats, completions: Chats, columns: Columns
) -> Scores:
    """Score completions by one reward.

    Raises:
        ValueError: a function of the user raises, or returns something else than one score per
            completion.
    """
    # `judge` takes columns whose names are also settings; a plain function takes keywords.
    if isinstance(reward, Reward):
        scores = reward.judge(prompts, completions, columns)
    else:
        try:
            scores = reward(prompts, completions, **columns)
        except Exception as error:  # a reward is code of the user: it may raise anything
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise ValueError(
                f"reward {name!r} raised {error!r:.200} in {frame.filename}, line {frame.lineno}"
            ) from error
    return validate_scores(name, scores, len(completions))


def validate_scores(name: str, scores, expected: int) -> Scores:
    """Return the scores of a reward as floats and None.

    Raises:
        ValueError: it is not a list of `expected` values, or a value is neither None nor finite.
    """
    values = list(scores) if isinstance(scores, Iterable) else None
    if values is None or len(values) != expected:
        actual = type(scores).__name__ if values is None else f"{len(values)} values"
        raise ValueError(
            f"reward {name!r} returned {actual} for {expected} completions, "
            "not a list of that length"
        )
    result = []
    for row, value in enumerate(values):
        try:
            # Users return numpy and JAX scalars too.
            score = None if value is None else float(value)
        except (TypeError, ValueError, OverflowError):
            score = nan
        if score is not None and not isfinite(score):
            raise ValueError(
                f"reward {name!r} returned {value!r:.80} for completion {row}, "
                "not a finite number or None"
            )
        result.append(score)
    return result
