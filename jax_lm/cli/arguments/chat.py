"""Arguments of `diffucoder chat`. Imports no JAX."""

from dataclasses import dataclass
from typing import ClassVar

from jax_lm.options import DEFAULTS, GenerationOptions


@dataclass(frozen=True, kw_only=True)
class Chat:
    """Talk with a model at the terminal; the canvas is shown while it fills in.

    A line is a message, and the model sees all of them; a line that ends in a backslash goes on. /infill fills the
    holes of a text, /reset forgets the conversation, /save FILE writes it as JSON, /help lists the commands, /exit or
    Ctrl-D ends. Ctrl-C stops an answer, and at the prompt the command.

    Examples:
        diffucoder chat --model apple/DiffuCoder-7B-Instruct
        diffucoder chat --model ./DiffuCoder-7B-Instruct --system "Answer with code alone." --preset turbo
        echo "Write a function gcd(a, b)." | diffucoder chat

    Attributes:
        model: folder or hub id; the built-in model if not given, which knows small Python functions alone.
        adapter: folder or hub id of a LoRA adapter (PEFT's layout); without `model`, of the base that it names.
        tokenizer: folder with the tokenizer; the model's own if not given.
        dtype: float32, bfloat16 or int8 (kernels only); chosen by the device if not given.
        mesh: how to use several devices, such as data=2,tensor=4; chosen if not given.
        system: message that stands before all others.
        generation: how to answer.
        seed: of the draws of the first answer; each answer takes the next one.
    """

    FIRST: ClassVar = ("model", "system", "max_new_tokens", "temperature", "preset", "num_steps", "dtype", "seed")

    model: str | None = None
    adapter: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    mesh: str | None = None
    system: str | None = None
    generation: GenerationOptions = DEFAULTS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed={self.seed}: must not be negative")
        if self.generation.grammar == "python":
            raise ValueError("grammar='python': completes a program, while chat answers in a conversation")
