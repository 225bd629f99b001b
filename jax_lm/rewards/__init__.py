"""Rewards score completions: `(prompts, completions, **columns) -> list[float | None]`.

    code_reward(prompts, completions, test_cases=[["assert f(1) == 2"]])
    weighted_sum({"code": 2.0, "code_format": 0.5})(prompts, completions, test_cases=...)

docs/rewards.md describes each of them.
"""

import difflib
import importlib.util
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

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

# All rewards of this package, by subject.
CODE = (Code, BinaryCode, CodeFormat, CompletedCode)
MATHEMATICS = (Accuracy, Cosine, Length)
TEXT = (Format, TagCount, ReasoningSteps, RepetitionPenalty, SoftOverlongPunishment)
# Every reward with its default settings, under its name in open-r1.
REWARDS: dict[str, Reward] = {kind.name: kind() for kind in (*CODE, *MATHEMATICS, *TEXT)}

# Under the names of open-r1, for programs that import them.
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


def find_reward(name: str, **settings: Any) -> RewardFunction:
    """Return a reward of this package or a user's callable, with settings applied.

    Args:
        name: name of a reward ("code"), or path of a callable: "package.module:function" or
            "folder/file.py:function".
        **settings: settings of the reward.

    Raises:
        ValueError: there is no such reward or module, the object is not callable, or the reward
            does not have a setting.
    """
    if ":" in name:
        reward = import_callable(name)
        # A class is instantiated with its settings, a `Reward` returns a copy with them, and a
        # function gets them in every call.
        if isinstance(reward, type | Reward):
            return reward(**settings)
        return partial(reward, **settings) if settings else reward
    if name not in REWARDS:
        similar = difflib.get_close_matches(name, REWARDS, n=1)
        hint = f" Did you mean {similar[0]!r}?" if similar else ""
        others = "or 'package.module:function', or 'file.py:function'"
        raise ValueError(
            f"no reward named {name!r}.{hint} Known: {', '.join(sorted(REWARDS))}, {others}"
        )
    return REWARDS[name](**settings)


def import_callable(path: str) -> Any:
    """Import the callable at "package.module:function" or "folder/file.py:function".

    Modules in the current folder can be imported too.

    Raises:
        ValueError: it cannot be imported, or is not callable.
    """
    # rpartition: "C:\rewards.py:score" has another colon.
    module, _, attribute = path.rpartition(":")
    try:
        value = getattr(
            import_file(Path(module)) if module.endswith(".py") else import_installed(module),
            attribute,
        )
    except (ImportError, AttributeError, ValueError, OSError, SyntaxError) as error:
        raise ValueError(f"reward {path!r} cannot be imported: {error}") from error
    if not callable(value):
        raise ValueError(f"reward {path!r} is not callable: {value!r:.80}")
    return value


def import_installed(name: str) -> ModuleType:
    """Import a module that is installed or, as with `python -m`, in the current folder."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    return import_module(name)


def import_file(path: Path) -> ModuleType:
    """Import a file. It can import modules from its own folder."""
    if not path.is_file():
        raise ValueError("there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.append(folder)
    module = importlib.util.module_from_spec(spec)
    # pickle and dataclasses look the module up in `sys.modules` by its name.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def weighted_sum(
    weights: Mapping[str, float], settings: Mapping[str, Mapping[str, Any]] | None = None
) -> WeightedSum:
    """Return the weighted sum of rewards.

    Args:
        weights: weight of each reward by name, such as `{"code": 2.0, "code_format": 0.5}`.
        settings: settings of the rewards, by the same names.

    Raises:
        ValueError: there is no such reward, or settings are for a reward without a weight.
    """
    settings = settings or {}
    if unused := settings.keys() - weights.keys():
        raise ValueError(
            f"settings for {min(unused)!r}, which is not among the rewards {sorted(weights)}"
        )
    # {"code": 2.0} -> rewards {"code": REWARDS["code"]()} and weights {"code": 2.0}
    return WeightedSum(
        {name: find_reward(name, **settings.get(name, {})) for name in weights}, dict(weights)
    )
