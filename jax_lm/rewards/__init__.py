"""Rewards: what a completion is worth, as `(prompts, completions, **columns) -> list[float | None]`.

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

CODE = (Code, BinaryCode, CodeFormat, CompletedCode)
MATHEMATICS = (Accuracy, Cosine, Length)
TEXT = (Format, TagCount, ReasoningSteps, RepetitionPenalty, SoftOverlongPunishment)
REWARDS: dict[str, Reward] = {kind.name: kind() for kind in (*CODE, *MATHEMATICS, *TEXT)}
"""Each with its default settings. The names are those of open-r1."""

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
    """Find a reward of this package ("code"), or a callable of the user's, with settings.

    The user's is named "package.module:function", or "folder/file.py:function".

    Raises:
        ValueError: no such reward or module, no callable, or a setting that it does not have.
    """
    if ":" in name:
        found = imported(name)
        # A class is made with its settings, a `Reward` takes them over, a function keeps them for its calls.
        if isinstance(found, type | Reward):
            return found(**settings)
        return partial(found, **settings) if settings else found
    if name not in REWARDS:
        similar = difflib.get_close_matches(name, REWARDS, n=1)
        hint = f" Did you mean {similar[0]!r}?" if similar else ""
        others = "or 'package.module:function', or 'file.py:function'"
        raise ValueError(f"no reward named {name!r}.{hint} Known: {', '.join(sorted(REWARDS))}, {others}")
    return REWARDS[name](**settings)


def imported(path: str) -> Any:
    """Import the callable at "package.module:function" or "folder/file.py:function", also of the current folder."""
    module, _, attribute = path.rpartition(":")
    try:
        found = getattr(module_of_file(Path(module)) if module.endswith(".py") else module_of_name(module), attribute)
    except (ImportError, AttributeError, ValueError, OSError, SyntaxError) as error:
        raise ValueError(f"reward {path!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ValueError(f"reward {path!r} is not callable: {found!r:.80}")
    return found


def module_of_name(name: str) -> ModuleType:
    """Import a module that is installed, or lies in the current folder as with `python -m`."""
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    return import_module(name)


def module_of_file(path: Path) -> ModuleType:
    """Import a file; modules beside it can be imported by it."""
    if not path.is_file():
        raise ValueError("there is no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    if (beside := str(path.resolve().parent)) not in sys.path:
        sys.path.append(beside)
    module = importlib.util.module_from_spec(spec)
    # Under its name, as pickles and dataclasses look it up there.
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module


def weighted_sum(weights: Mapping[str, float], settings: Mapping[str, Mapping[str, Any]] | None = None) -> WeightedSum:
    """Make the weighted sum of rewards by name, `{"code": 2.0, "code_format": 0.5}`; `settings` by the same names."""
    settings = settings or {}
    if unused := settings.keys() - weights.keys():
        raise ValueError(f"settings for {min(unused)!r}, which is not among the rewards {sorted(weights)}")
    return WeightedSum({name: find_reward(name, **settings.get(name, {})) for name in weights}, dict(weights))
