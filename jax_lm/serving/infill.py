"""llama.cpp's endpoint for editors, /infill, as llama.vscode asks it: what stands between the text before and after.

Knows neither HTTP nor the engine.
"""

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from jax_lm.serving.ignored_fields import NEUTRAL, Neutral, Part
from jax_lm.serving.jobs import Event
from jax_lm.serving.schemas import MAX_CHOICES, DecodingBody, Text

LLAMA_NEUTRAL: Neutral = {**NEUTRAL, "samplers": ([], ["top_k", "top_p", "infill"]), "stream": (False,), "lora": ([],)}
SUFFIX_SHARE = 4
"""The part of the context, one in so many, that the text after the cursor takes if the text before fills the rest."""


class Snippet(Part):
    """Text from elsewhere in the project; where it is from does not matter here."""

    unread = ("filename", "time")
    text: Text


class InfillBody(DecodingBody):
    """POST /infill: `prompt` is the line up to the cursor, `input_prefix` what stands before it.

    `n_predict` is the length of the hole, 0 asks for nothing and -1 for the default; `t_max_predict_ms` is when what is
    decided of the text must do; lines indented less than `n_indent` end it. Snippets stand before the prefix, as far as
    there is room; what does not fit of prefix and suffix is cut off far from the cursor.
    """

    neutral = LLAMA_NEUTRAL
    unread = (*DecodingBody.unread, "id_slot", "t_max_prompt_ms")
    input_prefix: Text = ""
    input_suffix: Text = ""
    prompt: Text = ""
    input_extra: list[Snippet] = Field([], max_length=256)
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
    """Keep of the ids what is nearest to the cursor and fits into `room`; also whether prefix or suffix lost any."""
    kept_after = after[: max(room // SUFFIX_SHARE, room - len(before))]
    left = room - len(kept_after)
    kept_before = (snippets + before)[-left:] if left > 0 else []
    return kept_before, kept_after, len(before) > left or len(kept_after) < len(after)


def indented(text: str, least: int) -> str:
    """Keep the first line, and those after it up to one that is indented by less than `least` spaces or tabs."""
    lines = text.split("\n")
    short = (
        place for place, line in enumerate(lines) if place and line.strip() and len(line) - len(line.lstrip()) < least
    )
    return "\n".join(lines[: next(short, len(lines))])


StopType = Literal["eos", "limit", "word", "none"]


def worded(body: InfillBody, ends: Sequence[Event], model: str, prompt_tokens: int, *, is_cut: bool) -> Any:
    """The answer as llama.cpp gives it: an object, or a list of them where several were asked for."""
    kinds: dict[str | None, StopType] = {"stop": "eos", "length": "limit"}
    answers = [
        {
            "index": index,
            "content": indented(end.text, body.n_indent),
            "model": model,
            "stop": True,
            "stop_type": kinds.get(end.reason, "none"),
            "truncated": is_cut,
            "tokens_predicted": len(end.tokens),
            "tokens_evaluated": prompt_tokens,
            "timings": {"prompt_n": prompt_tokens, "predicted_n": len(end.tokens)},
        }
        for index, end in enumerate(ends)
    ]
    return answers[0] if body.n_cmpl == 1 else answers
