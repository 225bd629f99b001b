"""Rewards score completions: `(prompts, completions, **columns) -> list[float | None]`.

    code_reward(prompts, completions, test_cases=[["assert f(1) == 2"]])
    weighted_sum({"code": 2.0, "code_format": 0.5})(prompts, completions, test_cases=...)

docs/rewards.md describes each of them.
"""

import importlib.util
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from jax_lm.config import Fields
from jax_lm.options import require_one_of
from jax_lm.rewards.code import BinaryCode, Code, CodeFormat, CompletedCode
from jax_lm.rewards.mathematics import Accuracy, Cosine, Length
from jax_lm.rewards.reward import Reward, RewardFunction
from jax_lm.rewards.text import (
    Format,
    ReasoningSteps,
    RepetitionPenalty,
    SoftOverlongPunishment,
    TagCount,
)
from jax_lm.rewards.weighted_sum import Scored, WeightedSum

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

# Every reward with its default settings, under the names of open-r1.
code_reward = Code()
binary_code_reward = BinaryCode()
code_format_reward = CodeFormat()
completed_code_reward = CompletedCode()
accuracy_reward = Accuracy()
format_reward = Format()
tag_count_reward = TagCount()
reasoning_steps_reward = ReasoningSteps()
cosine_reward = Cosine()
length_reward = Length()
repetition_penalty_reward = RepetitionPenalty()
soft_overlong_punishment = SoftOverlongPunishment()

REWARDS = {reward.name: reward for reward in list(vars().values()) if isinstance(reward, Reward)}


def find_reward(name: str, **settings) -> RewardFunction:
    """Return a reward of this package or a user's callable, with settings applied.

    Args:
        name: name of a reward ("code"), or path of a callable ("package.module:function" or
            "folder/file.py:function").
        **settings: settings of the reward.

    Raises:
        ValueError: there is no such reward or module, the object is not callable, or the reward
            lacks a setting.
    """
    if ":" in name:
        reward = import_callable(name)
        # Settings go to the constructor of a class, to a copy of a `Reward`, and to every call of a
        # function.
        if isinstance(reward, type | Reward):
            return reward(**settings)
        return partial(reward, **settings) if settings else reward
    require_one_of(
        "reward", name, (*sorted(REWARDS), "package.module:function", "file.py:function")
    )
    return REWARDS[name](**settings)


def import_callable(path: str) -> Any:
    """Import the callable at "package.module:function" or "folder/file.py:function".

    Modules in the current folder can be imported too.

    Raises:
        ValueError: it cannot be imported, or is not callable.
    """
    # The last colon, as "C:\rewards.py:score" has two.
    module, _, attribute = path.rpartition(":")
    try:
        value = getattr(import_module_or_file(module), attribute)
    except Exception as error:  # The user's code may raise anything.
        raise ValueError(f"reward {path!r} cannot be imported: {error}") from error
    if not callable(value):
        raise ValueError(f"reward {path!r} is not callable: {value!r:.80}")
    return value


def import_module_or_file(name: str) -> ModuleType:
    """Import a file ("folder/file.py"), or a module by its name ("package.module").

    A file can import modules from its own folder. As with `python -m`, a module may be in the
    current folder.
    """
    path = Path(name) if name.endswith(".py") else None
    folder = str(path.resolve().parent if path else Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    if path is None:
        return import_module(name)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # pickle and dataclasses look the module up in `sys.modules` by its name.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def weighted_sum(weights: Mapping[str, float], settings: Mapping[str, Fields] = {}) -> WeightedSum:
    """Return the weighted sum of rewards.

    Args:
        weights: weight of each reward by name, such as `{"code": 2.0, "code_format": 0.5}`.
        settings: settings of the rewards, by the same names.

    Raises:
        ValueError: there is no such reward, or a reward with settings has no weight.
    """
    if unused := settings.keys() - weights.keys():
        raise ValueError(
            f"settings for {min(unused)!r}, which is not among the rewards {sorted(weights)}"
        )
    # {"code": 2.0} -> rewards {"code": REWARDS["code"]()} and weights {"code": 2.0}
    return WeightedSum(
        {name: find_reward(name, **settings.get(name, {})) for name in weights}, dict(weights)
    )
