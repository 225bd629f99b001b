"""Rewards for mathematical answers, verified by math-verify, as in Hugging Face's open-r1.

Requires the extra `math` and the main thread: math-verify limits the time per expression by a
signal.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import cos, pi
from threading import current_thread, main_thread

from jax_lm.options import require_sizes
from jax_lm.rewards.reward import Reward, Scores


def correct_answers(texts: Sequence[str], solutions: Sequence[str]) -> list[bool | None]:
    """Return whether each text's LaTeX answer equals the solution; None if that cannot be parsed.

    A boxed answer takes precedence. The answer must be correct LaTeX: misspelt operators are not
    repaired.
    """
    # On demand: the other rewards do not need the extra.
    package = import_module("math_verify")
    if current_thread() is not main_thread():
        raise ValueError(
            "rewards for mathematics run in the main thread only: "
            "math-verify limits time by signals"
        )
    # Extraction as configured in open-r1.
    lenient = package.LatexExtractionConfig()
    correct_latex = replace(lenient.normalization_config, nits=False, malformed_operators=False)
    answer = replace(
        lenient,
        normalization_config=correct_latex,
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    verdicts = []
    for text, solution in zip(texts, solutions, strict=True):
        gold = package.parse(solution, extraction_mode="first_match")
        parsed = package.parse(text, extraction_config=[answer], extraction_mode="first_match")
        # `verify` is not symmetric: the solution comes first.
        verdicts.append(bool(package.verify(gold, parsed)) if gold else None)
    return verdicts


class AnswerReward(Reward):
    """Base of rewards that depend on whether an answer is correct.

    They are None where the solution cannot be parsed.
    """

    needs = ("solution",)

    def require_columns(self, names):
        # without the extra, a run should end before its first rollout
        import_module("math_verify")
        super().require_columns(names)

    def score(self, texts, columns) -> Scores:
        verdicts = correct_answers(texts, columns["solution"])
        lengths = [
            len(text) for text, correct in zip(texts, verdicts, strict=True) if correct is not None
        ]
        # (shortest, longest) text of the call, in characters
        bounds = min(lengths, default=0), max(lengths, default=0)
        return [
            None if correct is None else self.value(len(text), correct, bounds)
            for text, correct in zip(texts, verdicts, strict=True)
        ]

    @abstractmethod
    def value(self, length: int, correct: bool, bounds: tuple[int, int]) -> float:
        """Return the score of an answer.

        Args:
            length: characters of the text.
            correct: whether the answer is correct.
            bounds: shortest and longest length of the call.
        """


class Accuracy(AnswerReward):
    """1.0 if the answer equals `solution`, else 0.0; None if the solution cannot be parsed."""

    name = "accuracy"

    def value(self, length, correct, bounds) -> float:
        return float(correct)


@dataclass(frozen=True, kw_only=True)
class Cosine(AnswerReward):
    """Half a cosine of the length: correct answers should be short, wrong ones long.

    The score of a correct answer falls from `max_value_correct` at length 0 to `min_value_correct`
    at `max_len` characters; that of a wrong one rises from `min_value_wrong` to `max_value_wrong`.
    Longer texts score as texts of `max_len`. Yeo et al. 2025 (arXiv 2502.03373).
    """

    name = "cosine"
    min_value_wrong: float = -1.0
    max_value_wrong: float = -0.5
    min_value_correct: float = 0.5
    max_value_correct: float = 1.0
    max_len: int = 1000

    def __post_init__(self):
        require_sizes(self, "max_len")

    def value(self, length, correct, bounds) -> float:
        # A correct answer of 500 of 1000 characters: halfway from 1.0 to 0.5, 0.75.
        start = self.min_value_wrong
        end = self.max_value_wrong
        if correct:
            start = self.max_value_correct
            end = self.min_value_correct
        # cos falls from 1 at length 0 to -1 at `max_len`: from `start` to `end`
        return end + 0.5 * (start - end) * (1.0 + cos(pi * min(1.0, length / self.max_len)))


class Length(AnswerReward):
    """0.5 for the shortest text of the call down to -0.5 for the longest; at most 0 if wrong.

    All are 0 if all texts have the same length. The Kimi k1.5 technical report (arXiv 2501.12599)
    compares the answers to one prompt. Like open-r1, this reward compares all texts of a call, so
    call it with the answers to a single prompt.
    """

    name = "length"

    def value(self, length, correct, bounds) -> float:
        # Lengths 10, 20 and 30 score 0.5, 0 and -0.5.
        shortest, longest = bounds
        value = 0.5 - (length - shortest) / (longest - shortest) if longest > shortest else 0.0
        return value if correct else min(0.0, value)
