"""Prompts in which an editor has marked a gap, in the template of some model.

    split_gap("<fim_prefix>def f(x):\\n<fim_suffix>\\n    return y<fim_middle>")

Editors choose a template by the name of the model. This server fills gaps whatever the template, so
that it reads all of them. Knows neither tokens nor HTTP.
"""

import re

# Code Llama's template has spaces that belong to no text: "<PRE> {prefix} <SUF>{suffix} <MID>".
CODE_LLAMA = ("<PRE>", "<SUF>", "<MID>")
# Markers of the text before the gap, of the text after it, and of the gap.
MARKERS = (
    # Qwen2.5-Coder, CodeGemma
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    # StarCoder, Granite, StableCode
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    # Seed-Coder
    ("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"),
    # DeepSeek-Coder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # noqa: RUF001 - its own bars
    # CodeGeeX4, GLM-4
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
    CODE_LLAMA,
)
# Codestral has no marker of the gap, and the text after it comes first.
CODESTRAL = re.compile(
    r"(?P<files>.*?)\[SUFFIX\](?P<suffix>.*?)\[PREFIX\](?P<prefix>.*)", re.DOTALL
)
# Markers of other files of a project, which come before the text, and of a turn of CodeGeeX4: they
# begin a comment here.
FILES = re.compile(
    r"<\|repo_name\|>|<\|file_sep\|>|<reponame>|<repo_name>|<file_sep>|<filename>|<\|user\|>"
)
# In order: as read, the text after the gap first, and the same behind an empty text before the gap.
ORDERS = (
    "{prefix}(?P<prefix>.*){suffix}(?P<suffix>.*){middle}(<\\|assistant\\|>)?\\s*",
    "{suffix}(?P<suffix>.*){prefix}(?P<prefix>.*){middle}(<\\|assistant\\|>)?\\s*",
    "{prefix}{suffix}(?P<suffix>.*){middle}(?P<prefix>.*)",
)


def split_gap(prompt: str) -> tuple[str, str | None] | None:
    """Return the texts before and after the gap of a prompt; None if it has no markers.

    A prompt that has only markers of files is a text to complete: nothing stands after its gap.

    Raises:
        ValueError: there are markers, but not in an order that can be read.
    """
    match = CODESTRAL.fullmatch(prompt)
    if match is not None:
        return match["files"] + match["prefix"], match["suffix"]
    for markers in MARKERS:
        if not any(marker in prompt for marker in markers):
            continue
        names = dict(zip(("prefix", "suffix", "middle"), map(re.escape, markers), strict=True))
        for order in ORDERS:
            # the text of other files stands before the first marker
            pattern = "(?P<files>.*?)" + order.format(**names)
            if match := re.fullmatch(pattern, prompt, re.DOTALL):
                before, after = match["prefix"], match["suffix"]
                if markers is CODE_LLAMA:
                    before = before.removeprefix(" ").removesuffix(" ")
                    after = after.removesuffix(" ")
                return FILES.sub("# ", match["files"] + before), after
        before, after, gap = markers
        raise ValueError(
            f"prompt: its markers cannot be read; must be {before}…{after}…{gap}, or "
            f"{after}…{before}…{gap}"
        )
    return (FILES.sub("# ", prompt), None) if FILES.match(prompt) else None
