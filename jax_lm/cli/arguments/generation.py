"""Arguments of `diffucoder generate`. Imports no JAX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jax_lm.cli.arguments.engine import EngineArguments
from jax_lm.cli.arguments.hosts import Hosts
from jax_lm.host.declared import Positional
from jax_lm.host.files import require_new
from jax_lm.options import (
    GenerationOptions,
    require_at_most_one,
    require_not_negative,
    require_only,
    require_sizes,
)


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Complete prompts or fill holes in text, with a DiffuCoder checkpoint or the built-in model.

    Examples:
        diffucoder generate "def fibonacci(n):"
        diffucoder generate --watch --temperature 0 --top-p 1 "def is_prime(n):"
        diffucoder generate --preset turbo --stats "def is_prime(n):"
        diffucoder generate --animation canvas.svg --temperature 0 --top-p 1 "def is_prime(n):"
        diffucoder generate --grammar python --temperature 1 "def is_prime(n):"
        diffucoder generate --model apple/DiffuCoder-7B-Instruct --chat "Reverse a linked list."
        diffucoder generate --adapter out/lora/adapter "def fibonacci(n):"
        diffucoder generate --prefix "def gcd(a, b):" --suffix "    return a" --max-new-tokens 24
        diffucoder generate --file draft.py    # with <|hole|> or <|hole:12|> where code is missing
        diffucoder generate --prompts prompts.jsonl --out answers.jsonl
        cat start.py | diffucoder generate -

    Attributes:
        prompt: text to complete; read from standard input if it is - or missing.
        engine: the model, and the devices that it runs on.
        allow_nonfinite: load weights that hold NaN or infinity.
        chat: answer the prompt as a user message.
        watch: show the canvas while it fills in, coloured by confidence.
        prefix: text before a hole, instead of a prompt.
        suffix: text after the hole.
        file: text file with <|hole|> or <|hole:12|> markers to fill, instead of a prompt; - is
            standard input.
        middle_length: number of tokens between prefix and suffix; auto tries several lengths and
            keeps the most likely. With a model that grows holes, the initial length.
        prompts: JSONL file of prompts; each line is a string, or has "prompt" (text or chat
            messages).
        out: JSONL file for the answers to `prompts`; a killed run resumes there.
        batch_size: number of prompts of a file decoded together; they have similar lengths.
        hosts: run on several hosts as one; the first one prints.
        stats: print tokens, forward passes, run time and compile time on standard error.
        json: print a JSON object instead of the text.
        generation: how to decode; max_new_tokens is also the length of a hole.
        seed: random seed. A row's draws depend on the seed and on its place in the batch.
        only_new: print the completion without the prompt.
        animation: SVG file for an animated picture of how the canvas was filled, coloured by
            confidence. Shows most at temperature 0 and top_p 1, where confidences differ.
    """

    FIRST = "model chat watch max_new_tokens temperature preset num_steps file prompts out"

    prompt: Positional[str | None] = None
    engine: EngineArguments
    allow_nonfinite: bool = False
    chat: bool = False
    watch: bool = False
    prefix: str | None = None
    suffix: str | None = None
    file: Path | None = None
    middle_length: int | Literal["auto"] | None = None
    prompts: Path | None = None
    out: Path | None = None
    batch_size: int = 8
    hosts: Hosts
    stats: bool = False
    json: bool = False
    generation: GenerationOptions
    seed: int = 0
    only_new: bool = False
    animation: Path | None = None

    def __post_init__(self):
        require_not_negative(self, "seed")
        require_sizes(self, "batch_size")
        # a file of prompts is answered in a file
        if (self.prompts is None) != (self.out is None):
            if self.prompts is None:
                raise ValueError(
                    f"out={self.out}: needs --prompts; the answer to one prompt is printed, and "
                    f"> {self.out} writes it to a file"
                )
            raise ValueError(f"prompts={self.prompts}: needs --out, a file for the answers")
        if self.prompts:
            require_only(
                self,
                {"watch": False, "json": False, "stats": False, "only_new": False},
                "with prompts, whose answers are a JSONL file",
            )
        # both write to standard output
        require_at_most_one(self, "watch", "json")
        # nothing is printed after the canvas
        require_at_most_one(self, "watch", "stats")
        if self.prompt is not None and not self.prompt.strip():
            raise ValueError(f"prompt={self.prompt!r}: must hold more than blanks")
        if self.chat and self.generation.grammar == "python":
            raise ValueError(
                "grammar='python': completes a program, while chat answers in a conversation"
            )
        self.require_one_source()

    @property
    def infills(self) -> bool:
        """Whether a hole between two texts is filled."""
        return self.prefix is not None or self.suffix is not None

    def require_one_source(self):
        """Raise ValueError if there are two sources of text, or an option that has no effect."""
        # None: not given
        sources = {
            "prompt": self.prompt,
            "file": self.file,
            "prefix/suffix": self.infills or None,
            "prompts": self.prompts,
        }
        given = [name for name, value in sources.items() if value is not None]
        # one source of the text
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} given: the text can come from one of {', '.join(sources)}"
            )
        # options that need a certain source
        if self.middle_length is not None and not self.infills:
            raise ValueError(f"middle_length={self.middle_length}: needs prefix or suffix")
        if self.animation:
            if self.watch or given not in ([], ["prompt"]):
                raise ValueError("animation: works with a prompt, and without watch")
            require_new(self.animation, "animation")
        if self.chat and given not in ([], ["prompt"], ["prompts"]):
            raise ValueError(f"chat: answers a prompt, not {given[0]}")
        if self.infills and (self.watch or self.stats):
            raise ValueError(
                "prefix/suffix: watch and stats work with a prompt or a file with holes"
            )
