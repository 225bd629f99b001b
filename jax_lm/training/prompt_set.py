"""The prompts of a coupled-GRPO run: encoded, filtered by length, in a random order."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Shaped

from jax_lm.config import Fields, Ints
from jax_lm.rewards.reward import Chat
from jax_lm.tokenizer import DiffuCoderTokenizer

logger = logging.getLogger(__name__)

# Objects in an array, one per row.
HostObjects = Shaped[np.ndarray, "b"]
PROMPT = "prompt"
# Prompts are padded to a multiple of this.
WIDTH_BUCKET = 32

# Takes the place of an epoch's or rollout's number in the random keys of held-out prompts.
HELD_OUT = 2**32 - 1


@dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        content: text or chat messages, as rewards see it.
        ids: its tokens.
        columns: the other columns of the rows, for rewards.
    """

    content: Chat
    ids: Ints
    columns: Fields


Prompts = Sequence[Prompt] | HostObjects


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a run, in a random order that depends only on the seed and the rollout.

    Attributes:
        prompts: the prompts that fit.
        width: columns that fit the longest prompt; the same for all, so that everything compiles
            once.
    """

    prompts: tuple[Prompt, ...]
    width: int

    @classmethod
    def of(
        cls, rows: Iterable[Fields], tokenizer: DiffuCoderTokenizer, max_length: int
    ) -> "PromptSet":
        """Encode rows.

        Args:
            rows: mappings with a `prompt`, which is text (completed as it is) or chat messages,
                and the columns that rewards read.
            tokenizer: encodes prompts and applies the chat template.
            max_length: longer prompts are dropped.

        Raises:
            ValueError: a row has no prompt, or no prompt fits.
        """
        prompts = []
        for number, row in enumerate(rows):
            content = row.get(PROMPT)
            if not content or not isinstance(content, str | list | tuple):
                raise ValueError(
                    f"row {number} has no 'prompt' that is text or chat messages: {str(row)[:80]}"
                )
            # Text is completed as it is; messages get the chat template.
            text = content if isinstance(content, str) else tokenizer.apply_chat_template(content)
            columns = {name: value for name, value in row.items() if name != PROMPT}
            prompts.append(Prompt(content, tuple(tokenizer.encode(text)), columns))
        # drop prompts that are too long
        fitting = [prompt for prompt in prompts if len(prompt.ids) <= max_length]
        too_long = len(prompts) - len(fitting)
        limit = f"max_prompt_length={max_length} tokens"
        if not fitting:
            raise ValueError(f"no prompt has at most {limit} ({too_long} are longer)")
        if too_long:
            logger.warning("prompts dropped: %d, longer than %s", too_long, limit)
        # a column that only other prompts have is None: its rewards do not apply
        blank = dict.fromkeys(name for prompt in fitting for name in prompt.columns)
        filled = (replace(prompt, columns=blank | prompt.columns) for prompt in fitting)
        longest = max(len(prompt.ids) for prompt in fitting)
        # longest == 40: 40 + 24 = 64 columns
        return cls(tuple(filled), longest + -longest % WIDTH_BUCKET)

    def hold_out(self, count: int, seed: int) -> tuple["PromptSet", tuple[Prompt, ...]]:
        """Split off `count` prompts drawn by the seed; the remaining set keeps its width.

        Raises:
            ValueError: no prompt would remain.
        """
        total = len(self.prompts)
        if count >= total:
            raise ValueError(
                f"held_out_prompts={count}: must leave some of the {total} prompts that fit"
            )
        # 5 prompts, order [3, 0, 4, 1, 2] and count 2: held out [3, 0], the rest is [1, 2, 4]
        order = np.random.default_rng((seed, HELD_OUT)).permutation(total)
        held_out = tuple(self.prompts[number] for number in order[:count])
        rest = tuple(self.prompts[number] for number in sorted(order[count:]))
        return PromptSet(rest, self.width), held_out

    def select(self, seed: int, first: int, count: int, draw: int = 0) -> list[Prompt]:
        """Select prompts number `first` to `first + count - 1` of an endless sequence of epochs.

        Every prompt comes once per epoch, and each epoch has its own order. With 5 prompts, numbers
        4 and 5 are the last prompt of epoch 0 and the first one of epoch 1.

        Args:
            seed: seed of the orders.
            first: number of the first prompt.
            count: number of prompts.
            draw: number of the draw within a rollout; each draw orders the epochs differently.
        """
        size = len(self.prompts)
        numbers = range(first, first + count)
        # Without dynamic sampling there is only draw 0, whose seed has no third number.
        stream = (draw,) if draw else ()
        orders = {
            epoch: np.random.default_rng((seed, epoch, *stream)).permutation(size)
            for epoch in {number // size for number in numbers}
        }
        return [self.prompts[orders[number // size][number % size]] for number in numbers]
