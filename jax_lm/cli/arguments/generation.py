"""Arguments of `diffucoder generate`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from jax_lm.cli.arguments.hosts import ONE_HOST, Hosts
from jax_lm.cli.declared import Positional
from jax_lm.options import DEFAULTS, GenerationOptions


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Complete prompts, or fill the holes of a text, with a DiffuCoder checkpoint or the built-in model.

    Examples:
        diffucoder generate "def fibonacci(n):"
        diffucoder generate --watch "def is_prime(n):"
        diffucoder generate --preset turbo --stats "def is_prime(n):"
        diffucoder generate --grammar python --temperature 1 "def is_prime(n):"
        diffucoder generate --model apple/DiffuCoder-7B-Instruct --chat "Reverse a linked list."
        diffucoder generate --adapter out/lora/adapter "def fibonacci(n):"
        diffucoder generate --prefix "def area(r):" --suffix "    return result" --max-new-tokens 16
        diffucoder generate --file draft.py        (with <|hole|> or <|hole:12|> where code is missing)
        diffucoder generate --prompts prompts.jsonl --out answers.jsonl
        cat start.py | diffucoder generate -

    Attributes:
        prompt: what to complete; - or nothing reads standard input.
        model: folder or hub id; the built-in model if not given.
        adapter: folder or hub id of a LoRA adapter (PEFT's layout); without `model`, of the base that it names.
        tokenizer: folder with the tokenizer; the model's own if not given.
        dtype: float32, bfloat16 or int8 (kernels only); chosen by the device if not given.
        mesh: how to use several devices, such as data=2,tensor=4; chosen if not given.
        chat: take the prompt as a user's message and answer it.
        watch: show the canvas while it fills in, coloured by confidence.
        prefix: text before a hole, instead of a prompt.
        suffix: text after the hole.
        file: text file with <|hole|> or <|hole:12|> markers to fill, instead of a prompt.
        middle_length: tokens of the hole between prefix and suffix; auto tries a few and keeps the likeliest. Where the
            hole finds its own length, the masks that it begins with.
        prompts: JSONL file instead of a prompt; a line is a string, or has "prompt" (text, or chat messages).
        out: JSONL file to write the answers of `prompts` to; a run that was killed goes on there.
        batch_size: prompts of a file decoded together, those of similar length.
        hosts: several hosts as one (multi_host, or coordinator, num_processes and process_id); the first one prints.
        stats: say on standard error how many tokens and forwards it took, and how long, compilation apart.
        json: print a JSON object in place of the text.
        generation: how to answer; max_new_tokens is also the length of a hole.
        seed: of the draws; those of a row depend on it and on the place in the batch.
        only_new: print the completion without the prompt.
    """

    FIRST: ClassVar = (
        "model", "chat", "watch", "max_new_tokens", "temperature", "preset", "num_steps", "file", "prompts", "out",
    )  # fmt: skip

    prompt: Positional[str | None] = None
    model: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    mesh: str | None = None
    chat: bool = False
    watch: bool = False
    prefix: str | None = None
    suffix: str | None = None
    file: Path | None = None
    middle_length: str | None = None
    prompts: Path | None = None
    out: Path | None = None
    batch_size: int = 8
    hosts: Hosts = ONE_HOST
    stats: bool = False
    json: bool = False
    generation: GenerationOptions = DEFAULTS
    seed: int = 0
    only_new: bool = False

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: must not be negative")
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}: must be at least 1")
        if (self.prompts is None) != (self.out is None):
            raise ValueError(f"prompts={self.prompts}, out={self.out}: answers of a file go to a file, give both")
        if self.prompts is not None and (self.watch or self.json):
            raise ValueError("prompts: watch and json are for one prompt; the file of answers is JSONL already")
        if self.watch and self.json:
            raise ValueError("watch, json: one of them; what is watched is no JSON")
        if self.prompt is not None and not self.prompt.strip():
            raise ValueError(f"prompt={self.prompt!r}: must hold more than blanks")
        if self.chat and self.generation.grammar == "python":
            raise ValueError("grammar='python': completes a program, while chat answers in a conversation")
        self.require_one_source()

    @property
    def infills(self) -> bool:
        """Tell whether a hole between two texts is to be filled."""
        return self.prefix is not None or self.suffix is not None

    @property
    def hole_length(self) -> int | str | None:
        """The middle_length, as a number where it is one."""
        if self.middle_length is None or self.middle_length == "auto":
            return self.middle_length
        if not self.middle_length.isdecimal():
            raise ValueError(f"middle_length={self.middle_length!r}: must be a number of tokens, or auto")
        return int(self.middle_length)

    def require_one_source(self) -> None:
        """ValueError if the text comes from two places, or an option has nothing to act on."""
        sources = {
            "prompt": self.prompt,
            "file": self.file,
            "prefix/suffix": self.infills or None,
            "prompts": self.prompts,
        }
        given = [name for name, value in sources.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} given: the text can come from one of {', '.join(sources)}")
        if self.hole_length is not None and not self.infills:
            raise ValueError(f"middle_length={self.middle_length}: needs prefix or suffix")
        if self.chat and given and given[0] not in ("prompt", "prompts"):
            raise ValueError(f"chat: answers a prompt, not {given[0]}")
        if self.infills and (self.watch or self.stats):
            raise ValueError("prefix/suffix: watch and stats work with a prompt or a file with holes")
