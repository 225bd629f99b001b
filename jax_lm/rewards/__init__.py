"""Rewards: what a completion is worth, as `(prompts, completions, **columns) -> list[float | None]`.

    code_reward(prompts, completions, test_cases=[["assert f(1) == 2"]])
    weighted_sum({"code": 2.0, "code_format": 0.5})(prompts, completions, test_cases=...)

docs/rewards.md describes each of them.
"""

from jax_lm.rewards.registry import REWARDS, find_reward, weighted_sum
from jax_lm.rewards.reward import Reward
from jax_lm.rewards.weighted_sum import Scored, WeightedSum

code_reward = REWARDS["code"]
binary_code_reward = REWARDS["binary_code"]
code_format_reward = REWARDS["code_format"]
completed_code_reward = REWARDS["completed_code"]
accuracy_reward = REWARDS["accuracy"]
format_reward = REWARDS["format"]
tag_count_reward = REWARDS["tag_count"]
reasoning_steps_reward = REWARDS["reasoning_steps"]
cosine_reward = REWARDS["cosine"]
length_reward = REWARDS["length"]
repetition_penalty_reward = REWARDS["repetition_penalty"]
soft_overlong_punishment = REWARDS["soft_overlong_punishment"]

__all__ = [
    "REWARDS",
    "Reward",
    "Scored",
    "WeightedSum",
    "accuracy_reward",
    "binary_code_reward",
    "code_format_reward",
    "code_reward",
    "completed_code_reward",
    "cosine_reward",
    "find_reward",
    "format_reward",
    "length_reward",
    "reasoning_steps_reward",
    "repetition_penalty_reward",
    "soft_overlong_punishment",
    "tag_count_reward",
    "weighted_sum",
]
