"""`diffucoder generate`: complete a prompt or fill holes, in one go or watched while it happens."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from jax_lm import terminal


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Complete a prompt, or fill the holes of a text, with a DiffuCoder checkpoint or the built-in model.

    Examples:
        diffucoder generate "def fibonacci(n):"
        diffucoder generate --watch "def is_prime(n):"
        diffucoder generate --preset turbo --stats "def is_prime(n):"
        diffucoder generate --model apple/DiffuCoder-7B-Instruct --chat "Reverse a linked list."
        diffucoder generate --prefix "def area(r):" --suffix "    return result" --max-new-tokens 16
        diffucoder generate --file draft.py        (with <|hole|> or <|hole:12|> where code is missing)
        cat start.py | diffucoder generate -

    Attributes:
        prompt: what to complete; - or nothing reads standard input.
        model: folder or hub id; the built-in model if not given.
        tokenizer: folder with the tokenizer; the model's own if not given.
        dtype: float32 or bfloat16; chosen by the device if not given.
        chat: take the prompt as a user's message and answer it.
        watch: show the canvas while it fills in, coloured by confidence.
        prefix: text before a hole, instead of a prompt.
        suffix: text after the hole.
        file: text file with <|hole|> or <|hole:12|> markers to fill, instead of a prompt.
        middle_length: tokens of the hole between prefix and suffix; auto tries a few and keeps the likeliest.
        stats: say on standard error how many tokens and forwards it took, and how long.
        max_new_tokens: length of the canvas that is filled, or of a hole.
        temperature: 0 is greedy.
        top_p: mass of the nucleus, in (0, 1]; None is off.
        top_k: candidates per position; None is off.
        num_steps: denoising steps; None takes max_new_tokens / tokens_per_step.
        tokens_per_step: tokens committed per step; more is faster and worse.
        alg: order: origin, maskgit_plus, topk_margin, entropy, random or left_to_right.
        alg_temp: 0 commits the most confident positions; above 0 they are drawn.
        seed: of the random draws.
        early_stop: do not decode what comes after a stop token.
        preset: exact (equal to the reference), fast or turbo; the options below replace parts of it.
        commit: steps, threshold, factor or dynamic.
        threshold: probability from which threshold and dynamic commit.
        factor: of the commit rule factor.
        decay: of the commit rule dynamic.
        block_length: columns filled before those after them; 0 is the whole canvas.
        cache: none, prefix, dual or window.
        refresh_every: blocks between two full forwards.
        refresh_steps: evaluations between two full forwards within a block.
        freeze_prompt: leave the cache of the prompt as first computed.
        first_token: rule, or force as Fast-dLLM does.
        only_new: print the completion without the prompt.
    """

    prompt: tyro.conf.Positional[str | None] = None
    model: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    chat: bool = False
    watch: bool = False
    prefix: str | None = None
    suffix: str | None = None
    file: Path | None = None
    middle_length: str | None = None
    stats: bool = False
    max_new_tokens: int = 256
    temperature: float = 0.3
    top_p: float | None = 0.95
    top_k: int | None = 50
    num_steps: int | None = None
    tokens_per_step: int = 1
    alg: str = "entropy"
    alg_temp: float = 0.0
    seed: int = 0
    early_stop: tyro.conf.FlagConversionOff[bool] = True
    preset: str = "exact"
    commit: str | None = None
    threshold: float | None = None
    factor: float | None = None
    decay: float | None = None
    block_length: int | None = None
    cache: str | None = None
    refresh_every: int | None = None
    refresh_steps: int | None = None
    freeze_prompt: bool | None = None
    first_token: str | None = None
    only_new: bool = False

    def run(self) -> int:
        self.require_one_source()
        is_infilling = self.prefix is not None or self.suffix is not None
        text = None if is_infilling else self.read_text()
        from jax_lm.inference import DiffuCoderInference
        from jax_lm.infilling import Template
        from jax_lm.options import GenerationOptions

        options = GenerationOptions(**{name: getattr(self, name) for name in GenerationOptions.__dataclass_fields__})
        options.sampling()
        if text is None:
            prefix, suffix = self.prefix or "", self.suffix or ""
            engine = DiffuCoderInference(self.model, self.tokenizer, self.dtype)
            middle = engine.infill(
                prefix, suffix, self.max_new_tokens, middle_length=self.hole_length(), options=options
            )
            print(middle if self.only_new else prefix + middle + suffix)
            return 0
        template = Template.parse(text, self.max_new_tokens) if self.file else None
        engine = DiffuCoderInference(self.model, self.tokenizer, self.dtype)
        prompt = engine.chat_prompt(text) if self.chat else text
        template = template or Template.completion(prompt, self.max_new_tokens)
        if self.watch and sys.stdout.isatty():
            from jax_lm.commands.watch import watch

            watch(engine, template, options, shows_given=not (self.chat or self.only_new))
            return 0
        with terminal.progress("generating") as report:
            batch = engine.decode([template], options, on_progress=report)
        holes = batch.rows[0].holes
        print(("".join(holes) if self.chat or self.only_new else template.filled(holes)).rstrip("\n"))
        if self.stats:
            print(batch.describe(), file=sys.stderr)
        return 0

    def require_one_source(self) -> None:
        """ValueError if the text comes from two places, or an option has nothing to act on."""
        infills = self.prefix is not None or self.suffix is not None
        names = ("prompt", "file", "prefix/suffix")
        given = [name for name, is_given in zip(names, (self.prompt, self.file, infills), strict=True) if is_given]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} given: the text can come from one of {', '.join(names)}")
        if self.middle_length is not None and not infills:
            raise ValueError(f"middle_length={self.middle_length}: needs prefix or suffix")
        if self.chat and given and given != ["prompt"]:
            raise ValueError(f"chat: answers a prompt, not {given[0]}")
        if infills and (self.watch or self.stats):
            raise ValueError("prefix/suffix: watch and stats work with a prompt or a file with holes")

    def hole_length(self) -> int | str | None:
        """The middle_length argument, as a number where it is one."""
        if self.middle_length is None or self.middle_length == "auto":
            return self.middle_length
        if not self.middle_length.isdecimal():
            raise ValueError(f"middle_length={self.middle_length!r}: must be a number of tokens, or auto")
        return int(self.middle_length)

    def read_text(self) -> str:
        """The file, the prompt argument, or standard input for `-` and for a pipe."""
        if self.file is not None:
            try:
                return self.file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise ValueError(f"file={str(self.file)!r} cannot be read: {error}") from error
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
