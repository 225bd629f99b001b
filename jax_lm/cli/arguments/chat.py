"""Arguments of `diffucoder chat`. Imports no JAX."""

from dataclasses import dataclass

from jax_lm.cli.arguments.engine import EngineArguments
from jax_lm.options import GenerationOptions, require_not_negative


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
        engine: the model, and the devices that it runs on.
        system: system message.
        generation: how to decode.
        seed: random seed of the first answer; later answers use the next seeds.
    """

    # Options that the help lists first, in this order.
    FIRST = "model system max_new_tokens temperature preset num_steps dtype seed"

    engine: EngineArguments
    system: str | None = None
    generation: GenerationOptions
    seed: int = 0

    def __post_init__(self):
        require_not_negative(self, "seed")
        # an answer of a conversation is text with code in it, not a program
        if self.generation.grammar == "python":
            raise ValueError(
                "grammar='python': completes a program, while chat answers in a conversation"
            )
