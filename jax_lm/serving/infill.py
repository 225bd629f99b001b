"""llama.cpp's endpoints: POST /infill, as llama.vscode and llama.vim use it, and POST /completion.

Knows neither HTTP nor the engine.
"""

import math
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from jax_lm.config import Fields
from jax_lm.serving.ignored_fields import NEUTRAL, Part
from jax_lm.serving.jobs import Event
from jax_lm.serving.responses import AnswerFormat, Pieces, data
from jax_lm.serving.schemas import (
    DEFAULT_TOKENS,
    MAX_CHOICES,
    DecodingBody,
    Gap,
    Gaps,
    Prompts,
    Text,
    prompt_gap,
    prompt_list,
)
from jax_lm.tokenizer import TokenIds

# The text after the cursor gets at least 1 / SUFFIX_PART of the context.
SUFFIX_PART = 4
# Longest time limit.
MAX_MILLISECONDS = 10**9
STOP_TYPES = {"stop": "eos", "length": "limit"}


class Snippet(Part):
    """Text from elsewhere in the project; its origin is not used."""

    unread = ("filename", "time")
    text: Text


class LlamaBody(DecodingBody):
    """POST /completion: complete a `prompt`; infilling if it marks a gap.

    - `n_predict` is the number of tokens; 0 asks for nothing.
    - `t_max_predict_ms` is a time limit, after which the text that is final is the answer.
    - Lines indented less than `n_indent` end the answer.
    - `response_fields` names the fields of the answer, inner ones as `timings/prompt_n`.
    """

    neutral = NEUTRAL["request"] | NEUTRAL["llama"]
    unread = (*DecodingBody.unread, *NEUTRAL["llama, unread"])
    reported = (*DecodingBody.reported, "n_probs")
    prompt: Prompts
    stream: bool = False
    response_fields: list[str] = Field([], max_length=64)
    n_cmpl: int = Field(1, ge=1, le=MAX_CHOICES)
    n_indent: int = Field(0, ge=0)
    t_max_predict_ms: int | None = Field(None, ge=1)

    def gaps(self, tokenizer, context) -> Gaps:
        return [prompt_gap(prompt, tokenizer) for prompt in prompt_list(self.prompt)]

    @property
    def needs_tokens(self) -> bool:
        return False

    @property
    def choices(self) -> int:
        return self.n_cmpl

    @property
    def seconds(self) -> float:
        # a float holds no integer of 400 digits
        return min(self.t_max_predict_ms or math.inf, MAX_MILLISECONDS) / 1000


class InfillBody(LlamaBody):
    """Fill the gap between `input_prefix` + `prompt` (the current line) and `input_suffix`.

    Snippets (`input_extra`) go before the prefix, as far as there is room. What does not fit of prefix
    and suffix is cut off far from the cursor. The other fields are those of /completion.
    """

    input_prefix: Text = ""
    input_suffix: Text = ""
    prompt: Text = ""  # type: ignore[override] - one text, and none is one too
    input_extra: list[Snippet] = Field([], max_length=256)

    def gaps(self, tokenizer, context) -> Gaps:
        encode = tokenizer.encode_plain
        # other files, then text before and after the cursor
        extra = encode("".join(f"{snippet.text}\n" for snippet in self.input_extra))
        before = encode(self.input_prefix + self.prompt)
        after = encode(self.input_suffix)
        length = min(DEFAULT_TOKENS, context // 2) if self.length is None else self.length
        # one token of the context is kept for the beginning of an empty text
        before, after, is_cut = cut_to_fit(extra, before, after, context - length - 1)
        return [Gap(before, after, is_cut=is_cut)]


def cut_to_fit(
    snippets: TokenIds, before: TokenIds, after: TokenIds, room: int
) -> tuple[TokenIds, TokenIds, bool]:
    """Cut texts to `room` tokens in total, dropping tokens far from the cursor.

    Returns:
        The ids before and after the cursor, and whether prefix or suffix was cut.
    """
    # With room for 8, a prefix of 10 and a suffix of 5 keep their nearest 6 and 2 tokens.
    kept_after = after[: max(room // SUFFIX_PART, room - len(before))]
    left = room - len(kept_after)
    kept_before = (snippets + before)[-left:] if left > 0 else []
    return kept_before, kept_after, len(before) > left or len(kept_after) < len(after)


def cut_at_dedent(text: str, least: int) -> str:
    """Cut a text before a line with an indentation below `least`, but never before the first."""
    # least 4: "    a\n  b" -> "    a"; the first line continues the cursor's line, so it stays
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if number and line.strip() and len(line) - len(line.lstrip()) < least:
            return "\n".join(lines[:number])
    return text


class LlamaFormat(AnswerFormat):
    """Format of llama.cpp's answers: one object, or a list for several answers; streams of chunks."""

    allows_partial = True
    opening = closing = AnswerFormat.nothing

    def whole(self, ends) -> Any:
        answers = [self.answer(*each) for each in enumerate(ends)]
        return answers if len(answers) > 1 else answers[0]

    def progress(self, index, event) -> Pieces:
        # a last line of blanks may get an indentation that is too small
        known = event.text if event.reason else event.text.rstrip()
        if text := self.new_text(index, cut_at_dedent(known, self.body.n_indent)):
            yield data(
                {
                    "index": index,
                    "content": text,
                    "stop": False,
                    "tokens_predicted": count_tokens(event),
                }
            )
        if event.reason:
            yield data(self.answer(index, event) | {"content": ""})

    def answer(self, index: int, end: Event) -> Fields:
        gap = self.choices[index]
        # without a request no tokens were asked for
        length = self.requests[index].options.max_new_tokens if self.requests else 0
        answer = {
            "index": index,
            "content": cut_at_dedent(end.text, self.body.n_indent),
            "model": self.model,
            "stop": True,
            "stop_type": STOP_TYPES.get(end.reason, "none"),
            "truncated": gap.is_cut,
            "tokens_predicted": count_tokens(end),
            "tokens_evaluated": gap.tokens,
            "tokens_cached": 0,
            "generation_settings": {"n_predict": length},
            "timings": self.timings(end),
        }
        fields = self.body.response_fields
        return fields_at(answer, fields) if fields else answer

    def timings(self, end: Event) -> Fields:
        """Return llama.cpp's timings of an answer; prompts are not processed separately."""
        seconds = end.job.sequence.seconds if end.job else 0.0
        tokens = count_tokens(end)
        return {
            "prompt_n": self.prompt_tokens,
            "prompt_ms": 0.0,
            "prompt_per_second": 0.0,
            "predicted_n": tokens,
            "predicted_ms": round(1000 * seconds, 3),
            "predicted_per_second": round(tokens / seconds, 3) if seconds else 0.0,
        }


def count_tokens(event: Event) -> int:
    """Return the number of an answer's tokens; of one that is not complete, those decided so far."""
    # an answer that needed no decoding is complete
    if event.is_answer or event.job is None:
        return len(event.tokens)
    return int(event.job.sequence.final.sum())


def fields_at(answer: Fields, paths: Sequence[str]) -> Fields:
    """Return fields of an answer by their paths, as llama.cpp does; unknown ones are left out."""
    # "timings/prompt_n" -> {"timings/prompt_n": 12}
    fields = {}
    for path in paths:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            fields[path] = value
    return fields
