"""Arguments of `diffucoder chat`. Imports no JAX."""

from dataclasses import dataclass
from typing import ClassVar

from jax_lm.options import DEFAULTS, GenerationOptions


@dataclass(frozen=True, kw_only=True)
class Chat:
    """Chat with a model in the terminal, and watch the canvas fill in.

    Each line is a message; a backslash at its end continues it on the next line. /infill fills
    holes in text, /reset clears the conversation, /save FILE writes it as JSON, /help lists the
    commands. Ctrl-C stops an answer; /exit, Ctrl-D, or Ctrl-C at the prompt quits.

    Examples:
        diffucoder chat --model apple/DiffuCoder-7B-Instruct
        diffucoder chat --model ./DiffuCoder-7B-Instruct --system "Answer with code alone." --preset turbo
        echo "Write a function gcd(a, b)." | diffucoder chat

    Attributes:
        model: folder or hub id; by default the built-in model, which only knows small Python
            functions.
        adapter: folder or hub id of a LoRA adapter in PEFT's layout. Its base model is used unless
            `model` is given.
        tokenizer: folder of the tokenizer; the model's own by default.
        dtype: float32, bfloat16 or int8 (kernels only); depends on the device by default.
        mesh: how to use several devices, for example data=2,tensor=4; automatic by default.
        system: system message.
        generation: how to decode.
        seed: random seed of the first answer; later answers use the next seeds.
    """

    # Common options, in the order of the help.
    FIRST: ClassVar = (
        "model",
        "system",
        "max_new_tokens",
        "temperature",
        "preset",
        "num_steps",
        "dtype",
        "seed",
    )

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
        # an answer of a conversation is text with code in it, not a program
        if self.generation.grammar == "python":
            raise ValueError(
                "grammar='python': completes a program, while chat answers in a conversation"
            )
