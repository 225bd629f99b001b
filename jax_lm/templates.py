"""Templates: given text with holes of a stated number of tokens.

    Template.parse("def area(r):\\n    return <|hole:12|>\\n", 64)

A completion is a prompt with one hole after it. Knows text and tokens, nothing of models.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jax_lm.tokenizer import DiffuCoderTokenizer

# The number is checked afterwards: `<|hole:-3|>` is a mistake, not text.
HOLE = re.compile(r"<\|hole(?::([^|>\n]*))?\|>")
# Lengths that `middle_length="auto"` tries, up to the limit.
AUTO_LENGTHS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Masks that a hole begins with where it finds its own length; the published evaluation takes 4 to
# 64.
INITIAL_MASKS = 16


@dataclass(frozen=True)
class Template:
    """Given text and holes: a string is given text, a number is a hole of that many tokens."""

    parts: tuple[str | int, ...]

    def __post_init__(self) -> None:
        if not self.lengths:
            raise ValueError("template has no hole: mark one with <|hole|>")
        if min(self.lengths) < 1:
            raise ValueError(f"hole of {min(self.lengths)} tokens: must be at least 1")

    @classmethod
    def completion(cls, prompt: str, new_tokens: int) -> "Template":
        if new_tokens < 1:
            raise ValueError(f"max_new_tokens={new_tokens}: must be at least 1")
        return cls((prompt, new_tokens))

    @classmethod
    def infilling(cls, prefix: str, length: int, suffix: str) -> "Template":
        return cls((prefix, length, suffix))

    @classmethod
    def parse(cls, text: str, default_length: int) -> "Template":
        """Read a text with markers: `<|hole|>` of the default length, `<|hole:12|>` of 12 tokens.

        Raises ValueError for a marker without a number of tokens after its colon.
        """
        # "f(<|hole:3|>)" -> ("f(", 3, ")")
        parts: list[str | int] = []
        end = 0
        for marker in HOLE.finditer(text):
            if marker[1] is not None and not marker[1].isdecimal():
                raise ValueError(f"hole {marker[0]!r:.80}: must be <|hole|> or <|hole:12|>")
            parts += [text[end : marker.start()], int(marker[1] or default_length)]
            end = marker.end()
        return cls((*parts, text[end:]))

    @property
    def lengths(self) -> list[int]:
        """Tokens of each hole."""
        return [part for part in self.parts if isinstance(part, int)]

    @property
    def has_end(self) -> bool:
        """Whether text, which may be empty, follows the last hole; none does in a completion."""
        return isinstance(self.parts[-1], str)

    def width(self, tokenizer: DiffuCoderTokenizer) -> int:
        """Count the tokens of the encoded row without making it: it may exceed the memory."""
        return sum(
            part if isinstance(part, int) else len(tokenizer.encode(part)) for part in self.parts
        )

    def encoded(self, tokenizer: DiffuCoderTokenizer) -> tuple[list[int], list[int]]:
        """Encode to ids, and mark the columns of holes with 1.

        Parts are encoded separately, because the text of a hole is not known yet.
        """
        # ("a b", 2, "c") -> ids [a, b, MASK, MASK, c] and holes [0, 0, 1, 1, 0]
        ids: list[int] = []
        holes: list[int] = []
        for part in self.parts:
            piece = [tokenizer.mask_id] * part if isinstance(part, int) else tokenizer.encode(part)
            ids += piece
            holes += [int(isinstance(part, int))] * len(piece)
        return ids, holes

    def filled(self, texts: Sequence[str]) -> str:
        """Fill the holes with texts, in order."""
        remaining = iter(texts)
        return "".join(next(remaining) if isinstance(part, int) else part for part in self.parts)


def candidate_lengths(limit: int, middle_length: int | str | None) -> list[int]:
    """List the lengths of the hole to try. Raises ValueError for an argument out of range."""
    if limit < 1:
        raise ValueError(f"max_new_tokens={limit}: must be at least 1")
    if middle_length == "auto":
        return [length for length in AUTO_LENGTHS if length <= limit] or [limit]
    if isinstance(middle_length, str) or (middle_length is not None and middle_length < 1):
        raise ValueError(
            f'middle_length={middle_length!r}: must be at least 1, "auto", or None for max_new_tokens'
        )
    return [limit if middle_length is None else middle_length]


def initial_length(limit: int, middle_length: int | str | None) -> int:
    """Return the initial masks of a variable-length hole.

    Raises ValueError for a value out of range.
    """
    if middle_length == "auto":
        raise ValueError(
            "middle_length='auto': such a hole finds its own length; a number of masks, or growth='off'"
        )
    (length,) = candidate_lengths(limit, middle_length)
    return min(length, INITIAL_MASKS) if middle_length is None else length


def require_prompts(prompts: Sequence[str]) -> Sequence[str]:
    """Return the prompts. Raises ValueError if there is none, or one is not a string."""
    if not prompts:
        raise ValueError("prompt_or_list=[]: must hold at least one prompt")
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise ValueError(f"prompt {prompt!r}: must be a string, not {type(prompt).__name__}")
    return prompts
