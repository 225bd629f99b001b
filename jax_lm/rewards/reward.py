"""The interface of rewards: `(prompts, completions, **columns) -> list[float | None]`.

A score of None means that the reward does not apply to the completion. Any callable with this
signature is a reward. Those of this package are `Reward`s, whose settings are fields. Knows texts
and columns, but not how they are scored.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from jax_lm.config import Texts
from jax_lm.tokenizer import Conversation

# A prompt or a completion: its text, or chat messages.
Chat = str | Conversation
Chats = Sequence[Chat]

# The columns of a data set by name, each with one value per completion.
Columns = Mapping[str, Sequence[Any]]
Scores = list[float | None]
RewardFunction = Callable[..., Sequence[float | None]]


def text_of(completion: Chat) -> str:
    """Return the text to score: the completion itself, or the content of its last chat message."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if not isinstance(content, str):
        raise ValueError(
            "a completion must be a string or chat messages with string content, "
            f"not {completion!r:.80}"
        )
    return content


@dataclass(frozen=True, kw_only=True)
class Reward(ABC):
    """A named reward; its settings are its fields.

        code_format_reward(prompts, completions)                   # scores
        code_format_reward(language="rust")                        # a reward with other settings
        code_format_reward(prompts, completions, language="rust")  # scores with other settings

    Raises:
        ValueError: a setting is unknown or invalid, or a column is missing or has the wrong length.
    """

    name: ClassVar[str]
    needs: ClassVar[Texts] = ()
    """Required columns."""
    reads: ClassVar[Texts] = ()
    """Optional columns."""

    @abstractmethod
    def score(self, texts: Sequence[str], columns: Columns) -> Scores:
        """Return one score per text; None for a text that cannot be scored.

        Args:
            texts: the texts to which the reward applies.
            columns: the columns in `needs` and `reads`, with one value per text.
        """

    def require_columns(self, names: Collection[str]):
        """Raise ValueError if a required column is not among `names`."""
        for name in self.needs:
            if name not in names:
                raise ValueError(
                    f"reward {self.name!r} needs the column {name!r}; given: {sorted(names)}"
                )

    def applies(self, columns: Columns, row: int) -> bool:
        """Return whether all required columns have a value in this row."""
        return all(columns[name][row] is not None for name in self.needs)

    def __call__(
        self, prompts: Chats | None = None, completions: Chats | None = None, **columns
    ) -> Any:
        """Return the scores of completions, or without any, a reward with these settings."""
        # Keyword arguments named like a field are settings; all others are columns.
        names = {field.name for field in fields(self)}
        settings = {key: columns.pop(key) for key in names & columns.keys()}
        reward = replace(self, **settings) if settings else self
        if prompts is None and completions is None:
            if columns:
                raise ValueError(
                    f"reward {self.name!r} has no setting {min(columns)!r}, only {sorted(names)}"
                )
            return reward
        if prompts is None or completions is None:
            raise ValueError(f"reward {self.name!r} needs prompts and completions, not one of them")
        return reward.judge(prompts, completions, columns)

    def judge(self, prompts: Chats, completions: Chats, columns: Columns) -> Scores:
        """Score the completions with the settings of this reward; all of `columns` are columns."""
        self.require_columns(columns)
        # Columns of other rewards are not checked: they may be of any length.
        own_columns = {
            name: columns[name] for name in (*self.needs, *self.reads) if name in columns
        }
        check_lengths(len(completions), {"prompts": prompts, **own_columns})
        # Score only the rows to which the reward applies: rows [0, 2] of 3 -> [s0, None, s2].
        rows = [row for row in range(len(completions)) if self.applies(columns, row)]
        texts = [text_of(completions[row]) for row in rows]
        selected = {name: [values[row] for row in rows] for name, values in own_columns.items()}
        scores: Scores = [None] * len(completions)
        for row, score in zip(rows, self.score(texts, selected), strict=True):
            scores[row] = score
        return scores


def check_lengths(expected: int, columns: Columns):
    """Raise ValueError if a column does not have one value for each of `expected` completions."""
    for name, values in columns.items():
        if len(values) != expected:
            raise ValueError(f"column {name!r} has {len(values)} values for {expected} completions")
