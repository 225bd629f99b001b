"""Prompts in which an editor has marked a gap, in the infilling template of some model.

    split_gap("<fim_prefix>def f(x):\\n<fim_suffix>\\n    return y<fim_middle>")

Editors choose a template by the name of the model. This server reads all of these templates,
whichever model it serves. Knows neither tokens nor HTTP.
"""

import re

# Models, and their markers of the text before the gap, of the text after it, and of the gap.
TEMPLATES = """
    Qwen2.5-Coder,CodeGemma        <|fim_prefix|>   <|fim_suffix|>   <|fim_middle|>
    StarCoder,Granite,StableCode   <fim_prefix>     <fim_suffix>     <fim_middle>
    SantaCoder                     <fim-prefix>     <fim-suffix>     <fim-middle>
    Seed-Coder                     <[fim-prefix]>   <[fim-suffix]>   <[fim-middle]>
    DeepSeek-Coder                 <｜fim▁begin｜>  <｜fim▁hole｜>   <｜fim▁end｜>
    CodeGeeX4,GLM-4                <|code_prefix|>  <|code_suffix|>  <|code_middle|>
    CodeLlama                      <PRE>            <SUF>            <MID>
"""  # noqa: RUF001 - DeepSeek's own bars
# Markers of other files of a project, which precede the text, and of a turn of CodeGeeX4. They are
# replaced by "# ", so that names of files become comments.
FILES = re.compile(
    r"<\|repo_name\|>|<\|file_sep\|>|<reponame>|<repo_name>|<file_sep>|<filename>|<\|user\|>"
)
# Texts allowed after the marker of the gap.
ENDS = ("", "<|assistant|>")


def split_gap(prompt: str) -> tuple[str, str | None] | None:
    """Return the texts before and after the gap of a prompt; None if it has no markers.

    A prompt with markers of files only is a text to complete, so nothing follows its gap.

    Raises:
        ValueError: there are markers, but not in an order that can be read.
    """
    # Codestral: the text after the gap comes first, and the gap has no marker; row[SUFFIX] is Python
    files, _, rest = prompt.partition("[SUFFIX]")
    after, marker, before = rest.partition("[PREFIX]")
    if marker and (not files or files.endswith("\n")):
        return files + before, after
    for model, *markers in map(str.split, TEMPLATES.strip().splitlines()):
        # "<P>a<S>b<M>" -> ["", "<P>", "a", "<S>", "b", "<M>", ""]; linear in the length of the text
        files, *parts = re.split(f"({'|'.join(map(re.escape, markers))})", prompt)
        order = parts[::2]
        texts = parts[1::2]
        # <PRE> alone is HTML
        if {*order} <= {"<PRE>"}:
            continue
        prefix, suffix, middle = markers
        if order == markers and texts[2].strip() in ENDS:
            before, after, _ = texts
        elif order == markers and not texts[0].strip():
            # the text after the gap, then the text before it
            _, after, before = texts
        elif order == [suffix, prefix, middle] and texts[2].strip() in ENDS:
            after, before, _ = texts
        else:
            raise ValueError(
                f"prompt: its markers cannot be read; must be {prefix}…{suffix}…{middle}, or "
                f"{suffix}…{prefix}…{middle}, each once"
            )
        # Its templates have spaces that belong to no text: "<PRE> {prefix} <SUF>{suffix} <MID>" and
        # "<PRE> <SUF>{suffix} <MID> {prefix}".
        if model == "CodeLlama":
            before = before.removeprefix(" ")
            after = after.removesuffix(" ")
            # "<MID> {prefix}" has no space after the prefix
            if not texts[2].strip():
                before = before.removesuffix(" ")
        return FILES.sub("# ", files + before), after
    return (FILES.sub("# ", prompt), None) if FILES.match(prompt) else None
