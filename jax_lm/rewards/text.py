"""Rewards for the form of a text: tags, steps, repetition and length, as in Hugging Face's open-r1.

They read the text or count its tokens, and need no solution.
"""

import re
from dataclasses import dataclass

from jax_lm.options import require_sizes
from jax_lm.rewards.reward import Reward, Scores

# Line breaks are part of the tags: open-r1 requires each tag on its own line.
TAGS = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
ANSWERED = re.compile(r"<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>(?=\n|\Z)", re.DOTALL)
# As in open-r1, a numbered item counts only at the start of the text, and a bullet at the start of
# any line but the first.
STEP = re.compile(r"Step \d+:|\A\d+\.|\n[-*]|(?:First|Second|Next|Finally),")

# Number of step markers from which `reasoning_steps` is 1.0.
ENOUGH_STEPS = 3


class Format(Reward):
    """1.0 for <think>…</think><answer>…</answer> with each tag on a line of its own, else 0.0.

    The text must begin with <think>, and may continue after the line of </answer>.
    """

    name = "format"

    def score(self, texts, columns) -> Scores:
        return [float(ANSWERED.match(text) is not None) for text in texts]


class TagCount(Reward):
    """A quarter for each of the four tags, including its line breaks, that occurs exactly once."""

    name = "tag_count"

    def score(self, texts, columns) -> Scores:
        return [sum(text.count(tag) == 1 for tag in TAGS) / len(TAGS) for text in texts]


class ReasoningSteps(Reward):
    """1 / ENOUGH_STEPS for each marker of a step ("Step 1:", a bullet, "Next,"), at most 1.0."""

    name = "reasoning_steps"

    def score(self, texts, columns) -> Scores:
        return [min(1.0, len(STEP.findall(text)) / ENOUGH_STEPS) for text in texts]


@dataclass(frozen=True, kw_only=True)
class RepetitionPenalty(Reward):
    """`max_penalty` times the share of word n-grams that repeat an earlier one.

    It is 0 for texts shorter than one n-gram. Words are separated by whitespace and compared in
    lower case. Yeo et al. 2025, "Demystifying Long Chain-of-Thought Reasoning", appendix C.2
    (arXiv 2502.03373).
    """

    name = "repetition_penalty"
    ngram_size: int = 3
    max_penalty: float = -1.0

    def __post_init__(self):
        require_sizes(self, "ngram_size")
        if self.max_penalty > 0:
            raise ValueError(f"max_penalty must not be positive, not {self.max_penalty}")

    def score(self, texts, columns) -> Scores:
        return [self.penalty(text.lower().split()) for text in texts]

    def penalty(self, words: list[str]) -> float:
        # a b a b a with n = 2: ab, ba, ab, ba -> 2 of 4 are distinct, half the penalty
        count = len(words) - self.ngram_size + 1
        if count < 1:
            return 0.0
        distinct = {tuple(words[start : start + self.ngram_size]) for start in range(count)}
        return (1 - len(distinct) / count) * self.max_penalty


@dataclass(frozen=True, kw_only=True)
class SoftOverlongPunishment(Reward):
    """Penalty for completions close to or above the maximum length, in tokens.

    It is 0 up to `max_completion_len - soft_punish_cache` tokens, falls linearly to -1 at
    `max_completion_len`, and stays there. Lengths are those of the column `completion_ids`. Yu et
    al. 2025, "DAPO", equation 13 (arXiv 2503.14476).
    """

    name = "soft_overlong_punishment"
    needs = ("completion_ids",)
    max_completion_len: int = 16384
    soft_punish_cache: int = 4096

    def __post_init__(self):
        if not 0 <= self.soft_punish_cache <= self.max_completion_len:
            raise ValueError(
                "soft_punish_cache must be between 0 and max_completion_len "
                f"({self.max_completion_len}), not {self.soft_punish_cache}"
            )

    def score(self, texts, columns) -> Scores:
        # defaults: 12288 tokens -> 0, 14336 -> -0.5, 16384 and more -> -1
        free = self.max_completion_len - self.soft_punish_cache
        # without a cache, any excess is -1
        cache = max(1, self.soft_punish_cache)
        return [max(-1.0, min(0, free - len(ids)) / cache) for ids in columns["completion_ids"]]
