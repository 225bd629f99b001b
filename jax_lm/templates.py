"""Templates: given text with holes, each of a number of tokens.

    Template.parse("def area(r):\\n    return <|hole:12|>\\n", 64)

A completion is a prompt with one hole after it. Knows text and tokens, nothing of models.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index

from jax_lm.options import LEFT_TO_RIGHT_ONLY
from jax_lm.tokenizer import DiffuCoderTokenizer, TokenIds

# Any text may follow the colon, and `parse` refuses what is not a number: `<|hole:-3|>` is a mistake,
# not given text.
HOLE = re.compile(r"<\|hole(?::([^|>\n]*))?\|>")
# Tokens of a hole, "auto" to try several lengths, or None for the most tokens allowed.
HoleLength = int | str | None
# The tokens by which Qwen2.5-Coder fills a gap: before its text, after it, and at its place.
GAP_TOKENS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
# Lengths that `middle_length="auto"` tries, as far as they are allowed.
AUTO_LENGTHS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Masks that a hole of variable length begins with; the published evaluation takes 4 to 64.
INITIAL_MASKS = 16


@dataclass(frozen=True)
class Template:
    """Given text and holes, in order: a string is given text, a number is a hole of that many tokens."""

    parts: tuple[str | int, ...]

    def __post_init__(self):
        # Integers of numpy and JAX become Python's; anything else raises TypeError.
        parts = tuple(part if isinstance(part, str) else index(part) for part in self.parts)
        object.__setattr__(self, "parts", parts)
        if not self.lengths:
            raise ValueError("template has no hole: mark one with <|hole|>")
        if min(self.lengths) < 1:
            raise ValueError(f"hole of {min(self.lengths)} tokens: must be at least 1")

    @classmethod
    def completion(cls, prompt: str, new_tokens: int) -> "Template":
        """Return a prompt with a hole after it."""
        return cls((prompt, new_tokens))

    @classmethod
    def infilling(cls, prefix: str, length: int, suffix: str) -> "Template":
        """Return a hole between two texts."""
        return cls((prefix, length, suffix))

    @classmethod
    def parse(cls, text: str, default_length: int) -> "Template":
        """Read a text with markers: `<|hole|>` of the default length, `<|hole:12|>` of 12 tokens.

        Raises ValueError if no number follows the colon of a marker, or no text separates it from the
        marker before it.
        """
        # "f(<|hole:3|>)" -> ("f(", 3, ")")
        parts = []
        end = 0
        for marker in HOLE.finditer(text):
            if marker[1] is not None and not marker[1].isdecimal():
                raise ValueError(f"hole {marker[0]!r:.80}: must be <|hole|> or <|hole:12|>")
            if parts and marker.start() == end:
                raise ValueError(
                    f"hole {marker[0]!r}: must have text between it and the hole before"
                )
            parts += [text[end : marker.start()], int(marker[1] or default_length)]
            end = marker.end()
        return cls((*parts, text[end:]))

    def left_to_right(self, tokenizer: DiffuCoderTokenizer) -> "Template":
        """Return the template as a completion, for a model that reads only what is before a position.

        Text after the hole goes into the prompt, between the gap tokens of Qwen2.5-Coder.

        Raises:
            ValueError: several holes, or text after the hole and a tokenizer without gap tokens.
        """
        # ("a", 8, "b") -> ("<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", 8)
        if len(self.lengths) > 1:
            raise ValueError(f"{len(self.lengths)} holes: must be one, {LEFT_TO_RIGHT_ONLY}")
        texts = [part for part in self.parts if isinstance(part, str)]
        before = "" if isinstance(self.parts[0], int) else texts.pop(0)
        after = "".join(texts)
        # A prompt without a token has no row to predict from.
        prompt = before or tokenizer.special.end
        if after:
            gap_ids(tokenizer)
            prefix, suffix, middle = GAP_TOKENS
            prompt = f"{prefix}{before}{suffix}{after}{middle}"
        return Template.completion(prompt, *self.lengths)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each hole."""
        return [part for part in self.parts if isinstance(part, int)]

    @property
    def has_end(self) -> bool:
        """Whether the last part is text, which may be empty; in a completion it is the hole."""
        return isinstance(self.parts[-1], str)

    def width(self, tokenizer: DiffuCoderTokenizer) -> int:
        """Count the tokens of the encoded row without building it: a hole may exceed the memory."""
        return sum(
            part if isinstance(part, int) else len(tokenizer.encode(part)) for part in self.parts
        )

    def encode(self, tokenizer: DiffuCoderTokenizer) -> tuple[TokenIds, TokenIds]:
        """Encode to ids, and mark the columns of holes with 1.

        Parts are encoded separately, because the text of a hole is not known yet.
        """
        # ("a b", 2, "c") -> ids [a, b, MASK, MASK, c] and holes [0, 0, 1, 1, 0]
        # A tokenizer without a mask token has the pad token there. Either is a placeholder, which the
        # sampler replaces.
        open_id = tokenizer.pad_id if tokenizer.special.mask is None else tokenizer.mask_id
        ids = []
        holes = []
        for part in self.parts:
            piece = [open_id] * part if isinstance(part, int) else tokenizer.encode(part)
            ids += piece
            holes += [int(isinstance(part, int))] * len(piece)
        return ids, holes

    def fill(self, texts: Sequence[str]) -> str:
        """Fill the holes with texts, in order."""
        remaining = iter(texts)
        return "".join(next(remaining) if isinstance(part, int) else part for part in self.parts)


Templates = Sequence[Template]


def gap_ids(tokenizer: DiffuCoderTokenizer) -> TokenIds:
    """Return the ids of the gap tokens. Raises ValueError if the tokenizer lacks one."""
    found = (tokenizer.backend.token_to_id(token) for token in GAP_TOKENS)
    ids = [token for token in found if token is not None]
    if len(ids) < len(GAP_TOKENS):
        raise ValueError(
            f"text after a hole: must be empty without the tokens {', '.join(GAP_TOKENS)}, "
            f"{LEFT_TO_RIGHT_ONLY}"
        )
    return ids


def candidate_lengths(limit: int, middle_length: HoleLength) -> list[int]:
    """Return the lengths to try for a hole of at most `limit` tokens.

    Raises ValueError unless `middle_length` is at least 1, "auto" or None.
    """
    if middle_length == "auto":
        return [length for length in AUTO_LENGTHS if length <= limit] or [limit]
    if isinstance(middle_length, str) or (middle_length is not None and middle_length < 1):
        raise ValueError(
            f'middle_length={middle_length!r}: must be at least 1, "auto", or None for max_new_tokens'
        )
    return [limit if middle_length is None else middle_length]


def initial_length(limit: int, middle_length: HoleLength) -> int:
    """Return the number of masks that a hole of variable length begins with.

    Raises ValueError unless `middle_length` is at least 1 or None.
    """
    if middle_length == "auto":
        raise ValueError(
            "middle_length='auto': must be a number or None, because the hole finds its own length; "
            "growth='off' tries fixed lengths"
        )
    (length,) = candidate_lengths(limit, middle_length)
    return min(length, INITIAL_MASKS) if middle_length is None else length


def completion_templates(prompts: Sequence[str], new_tokens: int) -> list[Template]:
    """Return a template for each prompt. Raises ValueError if there is none, or one is no string."""
    # A string is a sequence of strings.
    if isinstance(prompts, str):
        raise ValueError(f"prompts={prompts!r:.80}: must be a list of prompts")
    if not prompts:
        raise ValueError("prompts=[]: must hold at least one prompt")
    for prompt in prompts:
        if not isinstance(prompt, str):
            raise ValueError(f"prompt {prompt!r}: must be a string, not {type(prompt).__name__}")
    return [Template.completion(prompt, new_tokens) for prompt in prompts]
