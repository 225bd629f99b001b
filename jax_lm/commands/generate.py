"""`diffucoder generate`: complete a prompt or fill holes, in one go or watched while it happens."""

import sys
from dataclasses import dataclass
from pathlib import Path

import tyro

from jax_lm import distributed, terminal
from jax_lm.distributed import ONE_HOST, Hosts
from jax_lm.options import DEFAULTS, GenerationOptions


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
        dtype: float32, bfloat16 or int8 (kernels only); chosen by the device if not given.
        mesh: how to use several devices, such as data=2,tensor=4; chosen if not given.
        chat: take the prompt as a user's message and answer it.
        watch: show the canvas while it fills in, coloured by confidence.
        prefix: text before a hole, instead of a prompt.
        suffix: text after the hole.
        file: text file with <|hole|> or <|hole:12|> markers to fill, instead of a prompt.
        middle_length: tokens of the hole between prefix and suffix; auto tries a few and keeps the likeliest.
        hosts: several hosts as one (multi_host, or coordinator, num_processes and process_id); the first one prints.
        stats: say on standard error how many tokens and forwards it took, and how long.
        generation: how to answer; max_new_tokens is also the length of a hole.
        only_new: print the completion without the prompt.
    """

    prompt: tyro.conf.Positional[str | None] = None
    model: str | None = None
    tokenizer: str | None = None
    dtype: str | None = None
    mesh: str | None = None
    chat: bool = False
    watch: bool = False
    prefix: str | None = None
    suffix: str | None = None
    file: Path | None = None
    middle_length: str | None = None
    hosts: tyro.conf.OmitArgPrefixes[Hosts] = ONE_HOST
    stats: bool = False
    generation: tyro.conf.OmitArgPrefixes[GenerationOptions] = DEFAULTS
    only_new: bool = False

    def run(self) -> int:
        self.require_one_source()
        is_infilling = self.prefix is not None or self.suffix is not None
        text = None if is_infilling else self.read_text()
        self.hosts.start()
        from jax_lm.inference import DiffuCoderInference
        from jax_lm.infilling import Template

        options = self.generation
        options.sampling()
        if text is None:
            prefix, suffix = self.prefix or "", self.suffix or ""
            engine = DiffuCoderInference(self.model, self.tokenizer, self.dtype, mesh=self.mesh)
            middle = engine.infill(
                prefix, suffix, options.max_new_tokens, middle_length=self.hole_length(), options=options
            )
            if distributed.is_first():
                print(middle if self.only_new else prefix + middle + suffix)
            return 0
        template = Template.parse(text, options.max_new_tokens) if self.file else None
        engine = DiffuCoderInference(self.model, self.tokenizer, self.dtype, mesh=self.mesh)
        prompt = engine.chat_prompt(text) if self.chat else text
        template = template or Template.completion(prompt, options.max_new_tokens)
        if self.watch and sys.stdout.isatty():
            from jax_lm.commands.watch import watch

            watch(engine, template, options, shows_given=not (self.chat or self.only_new))
            return 0
        with terminal.progress("generating") as report:
            batch = engine.decode([template], options, on_progress=report)
        if not distributed.is_first():
            return 0
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
            return terminal.read_text(self.file)
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
