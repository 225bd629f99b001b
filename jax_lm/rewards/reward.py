"""The interface of rewards: `(prompts, completions, **columns) -> list[float | None]`, where None
means not applicable.

Any callable of that form is one; the rewards of this package are `Reward`s, whose settings are
fields. Knows texts and columns, not what is judged.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, overload

from jax_lm.tokenizer import Message

# A prompt or a completion: its text, or chat messages.
Chat = str | Sequence[Message]

Columns = Mapping[str, Sequence[Any]]
Scores = list[float | None]
RewardFunction = Callable[..., Sequence[float | None]]


def text_of(completion: Chat) -> str:
    """Take the text that is judged; of chat messages, the content of the last one."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if not isinstance(content, str):
        raise ValueError(
            f"a completion must be a string or chat messages with string content, not {completion!r:.80}"
        )
    return content


@dataclass(frozen=True, kw_only=True)
class Reward(ABC):
    """A named reward; its settings are its fields.

        code_format_reward(prompts, completions)                     scores
        code_format_reward(language="rust")                          the same reward with other settings
        code_format_reward(prompts, completions, language="rust")    both

    Raises:
        ValueError: an unknown setting, a bad one, a column that is missing or too long or short.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Columns without which it cannot judge."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Columns that it reads where they are given."""

    @abstractmethod
    def score(self, texts: Sequence[str], columns: Columns) -> Scores:
        """Give one number per text, None if it could not be judged.

        The texts are those that the reward applies to, and `columns` holds what it needs and reads,
        in their order.
        """

    def applies(self, columns: Columns, row: int) -> bool:
        """Tell whether the columns that it needs have a value in this row."""
        return all(columns[name][row] is not None for name in self.needs)

    @overload
    def __call__(
        self, prompts: Sequence[Chat], completions: Sequence[Chat], **columns: Any
    ) -> Scores: ...

    @overload
    def __call__(self, **settings: Any) -> "Reward": ...

    def __call__(
        self,
        prompts: Sequence[Chat] | None = None,
        completions: Sequence[Chat] | None = None,
        **columns: Any,
    ) -> "Scores | Reward":
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

    def judge(
        self, prompts: Sequence[Chat], completions: Sequence[Chat], columns: Columns
    ) -> Scores:
        """Score the completions; columns are data only here, whatever their names."""
        for name in self.needs:
            if name not in columns:
                raise ValueError(
                    f"reward {self.name!r} needs the column {name!r}; given: {sorted(columns)}"
                )
        own = {name: columns[name] for name in (*self.needs, *self.reads) if name in columns}
        check_lengths(len(completions), {"prompts": prompts, **own})
        rows = [row for row in range(len(completions)) if self.applies(columns, row)]
        chosen = {name: [values[row] for row in rows] for name, values in own.items()}
        scores: Scores = [None] * len(completions)
        for row, score in zip(
            rows, self.score([text_of(completions[row]) for row in rows], chosen), strict=True
        ):
            scores[row] = score
        return scores


def check_lengths(expected: int, columns: Columns) -> None:
    """Raise ValueError naming the first column that has not one value per completion."""
    for name, values in columns.items():
        if len(values) != expected:
            raise ValueError(f"column {name!r} has {len(values)} values for {expected} completions")
