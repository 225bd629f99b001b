"""POST /infill, llama.cpp's endpoint for editors, as llama.vscode and llama.vim use it.

Knows neither HTTP nor the engine.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import Field

from jax_lm.serving.ignored_fields import NEUTRAL, Neutral, Part
from jax_lm.serving.jobs import Event
from jax_lm.serving.schemas import MAX_CHOICES, DecodingBody, Text

LLAMA_NEUTRAL: Neutral = {
    **NEUTRAL,
    "samplers": ([], ["top_k", "top_p", "infill"]),
    "stream": (False,),
    "lora": ([],),
}
# The text after the cursor gets at least 1 / SUFFIX_PART of the context.
SUFFIX_PART = 4
STOP_TYPES = {"stop": "eos", "length": "limit"}


class Snippet(Part):
    """Text from elsewhere in the project; its origin is not used."""

    unread = ("filename", "time")
    text: Text


class InfillBody(DecodingBody):
    """Fill the gap between `input_prefix` + `prompt` (the current line) and `input_suffix`.

    - `n_predict` is the length of the hole; 0 asks for nothing, -1 for the default.
    - `t_max_predict_ms` is a time limit, after which the text that is final is the answer.
    - Lines indented less than `n_indent` end the answer.
    - `response_fields` names the fields of the answer, inner ones as `timings/prompt_n`.
    - Snippets go before the prefix, as far as there is room. What does not fit of prefix and
      suffix is cut off far from the cursor.
    """

    neutral = LLAMA_NEUTRAL
    unread = (*DecodingBody.unread, "id_slot", "t_max_prompt_ms")
    input_prefix: Text = ""
    input_suffix: Text = ""
    prompt: Text = ""
    input_extra: list[Snippet] = Field([], max_length=256)
    response_fields: list[str] = Field([], max_length=64)
    n_predict: int | None = Field(None, ge=-1)
    n_cmpl: int = Field(1, ge=1, le=MAX_CHOICES)
    n_indent: int = Field(0, ge=0)
    t_max_predict_ms: int | None = Field(None, ge=1)

    @property
    def needs_tokens(self) -> bool:
        return False

    @property
    def length(self) -> int | None:
        return self.max_tokens if self.n_predict in (None, -1) else self.n_predict


def cut_to_fit(
    snippets: list[int], before: list[int], after: list[int], room: int
) -> tuple[list[int], list[int], bool]:
    """Cut texts to `room` tokens in all. Tokens far from the cursor are dropped.

    Returns:
        The ids before and after the cursor, and whether prefix or suffix was cut.
    """
    # With room for 8, a prefix of 10 and a suffix of 5 keep their nearest 6 and 2 tokens.
    kept_after = after[: max(room // SUFFIX_PART, room - len(before))]
    left = room - len(kept_after)
    kept_before = (snippets + before)[-left:] if left > 0 else []
    return kept_before, kept_after, len(before) > left or len(kept_after) < len(after)


def indented(text: str, least: int) -> str:
    """Cut a text before the first line, after the first, with an indentation below `least`."""
    # least 4: "    a\n  b" -> "    a"; the first line continues the one with the cursor
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if number and line.strip() and len(line) - len(line.lstrip()) < least:
            return "\n".join(lines[:number])
    return text


def infill_answer(
    body: InfillBody, ends: Sequence[Event], model: str, prompt_tokens: int, *, is_cut: bool
) -> Any:
    """Format the answer as llama.cpp does: one object, or a list for several answers."""
    answers = [
        {
            "index": index,
            "content": indented(end.text, body.n_indent),
            "model": model,
            "stop": True,
            "stop_type": STOP_TYPES.get(end.reason or "", "none"),
            "truncated": is_cut,
            "tokens_predicted": len(end.tokens),
            "tokens_evaluated": prompt_tokens,
            "timings": {"prompt_n": prompt_tokens, "predicted_n": len(end.tokens)},
        }
        for index, end in enumerate(ends)
    ]
    if body.response_fields:
        answers = [chosen_fields(answer, body.response_fields) for answer in answers]
    return answers[0] if body.n_cmpl == 1 else answers


def chosen_fields(answer: dict[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """Return fields of an answer by their paths, as llama.cpp does; unknown ones are left out."""
    # "timings/prompt_n" -> {"timings/prompt_n": 12}
    found = {}
    for path in paths:
        value: Any = answer
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return found
