"""`diffucoder generate`: complete a prompt, in one go or watched while it happens."""

import sys
from dataclasses import dataclass

import tyro

from jax_lm import terminal


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Complete a prompt with a DiffuCoder checkpoint, or with the built-in demonstration model.

    Examples:
        diffucoder generate "def fibonacci(n):"
        diffucoder generate --watch "def is_prime(n):"
        diffucoder generate --model apple/DiffuCoder-7B-Instruct --chat "Reverse a linked list."
        cat start.py | diffucoder generate -

    Attributes:
        prompt: what to complete; - or nothing reads standard input.
        model: folder or hub id; the built-in model if not given.
        tokenizer: folder with the tokenizer; the model's own if not given.
        dtype: float32 or bfloat16; chosen by the device if not given.
        chat: take the prompt as a user's message and answer it.
        watch: show the canvas while it fills in, coloured by confidence.
        max_new_tokens: length of the canvas that is filled.
        temperature: 0 is greedy.
        top_p: mass of the nucleus, in (0, 1]; None is off.
        top_k: candidates per position; None is off.
        num_steps: denoising steps; None takes max_new_tokens / tokens_per_step.
        tokens_per_step: tokens committed per step; more is faster and worse.
        alg: order: origin, maskgit_plus, topk_margin, entropy, random or left_to_right.
        alg_temp: 0 commits the most confident positions; above 0 they are drawn.
        seed: of the random draws.
        only_new: print the completion without the prompt.
    """

    prompt: tyro.conf.Positional[str | None] = None
    model: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    chat: bool = False
    watch: bool = False
    max_new_tokens: int = 256
    temperature: float = 0.3
    top_p: float | None = 0.95
    top_k: int | None = 50
    num_steps: int | None = None
    tokens_per_step: int = 1
    alg: str = "entropy"
    alg_temp: float = 0.0
    seed: int = 0
    only_new: bool = False

    def run(self) -> int:
        prompt = self.read_prompt()
        from jax_lm.inference import DiffuCoderInference, GenerationOptions

        options = GenerationOptions(**{name: getattr(self, name) for name in GenerationOptions.__dataclass_fields__})
        options.sampling()
        engine = DiffuCoderInference(self.model, self.tokenizer, self.dtype)
        if self.chat:
            prompt = engine.chat_prompt(prompt)
        if self.watch and sys.stdout.isatty():
            from jax_lm.commands.watch import watch

            watch(engine, prompt, options, shown_prompt="" if self.chat or self.only_new else prompt)
            return 0
        with terminal.progress("generating") as report:
            text = engine.complete([prompt], options, on_progress=report)[0]
        print(("" if self.chat or self.only_new else prompt) + text.rstrip("\n"))
        return 0

    def read_prompt(self) -> str:
        """The prompt argument, or standard input for `-` and for a pipe."""
        if self.prompt not in (None, "-"):
            return str(self.prompt)
        if self.prompt is None and sys.stdin.isatty():
            raise ValueError("prompt: none given; pass it as an argument, or - to read standard input")
        if terminal.shows_progress() and sys.stdin.isatty():
            print("reading the prompt; end with Ctrl-D", file=sys.stderr)
        text = sys.stdin.read()
        if not text.strip():
            raise ValueError("prompt: standard input was empty")
        return text
