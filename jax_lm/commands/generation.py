"""`diffucoder generate`: complete a prompt or fill holes, in one go or watched while it happens."""

import sys
import time
from dataclasses import asdict

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from jax_lm import distributed, terminal
from jax_lm.arguments.generation import Generate
from jax_lm.diffusion.canvas import Canvas
from jax_lm.diffusion.step import SamplerState
from jax_lm.inference import DiffuCoderInference
from jax_lm.infilling import Template
from jax_lm.options import GenerationOptions
from jax_lm.tokenizer import DiffuCoderTokenizer


def run_generate(arguments: Generate) -> int:
    """Write a completion, or a text with its holes filled, to standard output."""
    require_one_source(arguments)
    infills = arguments.prefix is not None or arguments.suffix is not None
    text = "" if infills else read_text(arguments)
    middle_length = hole_length(arguments.middle_length)
    distributed.start(**asdict(arguments.hosts))
    options = arguments.generation
    template = Template.parse(text, options.max_new_tokens) if arguments.file else None
    engine = DiffuCoderInference(
        arguments.model, arguments.tokenizer, arguments.dtype, mesh=arguments.mesh, adapter=arguments.adapter
    )
    if infills:
        prefix, suffix = arguments.prefix or "", arguments.suffix or ""
        length = options.max_new_tokens
        middle = engine.infill(
            prefix, suffix, length, middle_length=middle_length, options=options, seed=arguments.seed
        )
        if distributed.is_first():
            print(middle if arguments.only_new else prefix + middle + suffix)
        return 0
    if template is None:
        template = Template.completion(engine.chat_prompt(text) if arguments.chat else text, options.max_new_tokens)
    shows_given = not (arguments.chat or arguments.only_new)
    if arguments.watch and sys.stdout.isatty():
        watch(engine, template, options, arguments.seed, shows_given=shows_given)
        return 0
    with terminal.progress("generating") as report:
        batch = engine.decode([template], options, seed=arguments.seed, on_progress=report)
    if distributed.is_first():
        holes = batch.rows[0].holes
        print((template.filled(holes) if shows_given else "".join(holes)).rstrip("\n"))
        doubt = engine.doubt(batch.rows[0], options.temperature)
        if doubt:
            print(f"warning: {doubt}", file=sys.stderr)
        if arguments.stats:
            print(batch.describe(), file=sys.stderr)
    return 0


def require_one_source(arguments: Generate) -> None:
    """ValueError if the text comes from two places, or an option has nothing to act on."""
    infills = arguments.prefix is not None or arguments.suffix is not None
    sources = {"prompt": arguments.prompt, "file": arguments.file, "prefix/suffix": infills or None}
    given = [name for name, value in sources.items() if value is not None]
    if len(given) > 1:
        raise ValueError(f"{' and '.join(given)} given: the text can come from one of {', '.join(sources)}")
    if arguments.middle_length is not None and not infills:
        raise ValueError(f"middle_length={arguments.middle_length}: needs prefix or suffix")
    if arguments.chat and given and given != ["prompt"]:
        raise ValueError(f"chat: answers a prompt, not {given[0]}")
    if infills and (arguments.watch or arguments.stats):
        raise ValueError("prefix/suffix: watch and stats work with a prompt or a file with holes")


def hole_length(text: str | None) -> int | str | None:
    """The middle_length argument, as a number where it is one."""
    if text is None or text == "auto":
        return text
    if not text.isdecimal():
        raise ValueError(f"middle_length={text!r}: must be a number of tokens, or auto")
    return int(text)


def read_text(arguments: Generate) -> str:
    """The file, the prompt argument, or standard input for `-` and for a pipe."""
    if arguments.file is not None:
        return terminal.read_text_file(arguments.file)
    if arguments.prompt not in (None, "-"):
        return str(arguments.prompt)
    if arguments.prompt is None and sys.stdin.isatty():
        raise ValueError("prompt: none given; pass it as an argument, or - to read standard input")
    if terminal.shows_progress() and sys.stdin.isatty():
        print("reading the prompt; end with Ctrl-D", file=sys.stderr)
    text = sys.stdin.read()
    if not text.strip():
        raise ValueError("prompt: standard input was empty")
    return text


MASK_GLYPH = "░"
COLOURS = ((0.5, "red"), (0.8, "yellow"), (0.95, "green"), (1.01, "bright_green"))
"""Upper bound of the confidence, and its colour."""


def watch(
    engine: DiffuCoderInference, template: Template, options: GenerationOptions, seed: int, *, shows_given: bool
) -> None:
    """Denoise one template live, and leave the finished text on the screen."""
    console = Console(highlight=False)
    canvas = engine.canvas([template])
    start = time.monotonic()
    with Live(console=console, refresh_per_second=20, vertical_overflow="crop") as live:
        for state in engine.states(canvas, options, seed=seed):
            left = int(np.asarray(state.masked).sum())
            text = canvas_text(state, engine.tokenizer, canvas, shows_given=shows_given)
            note = f"step {int(state.step)}, {left} masks left  {legend()}"
            if not left:
                note = footer(state, time.monotonic() - start)
            live.update(Group(text, Text(note, style="dim")))


def canvas_text(
    state: SamplerState, tokenizer: DiffuCoderTokenizer, canvas: Canvas, *, shows_given: bool = False
) -> Text:
    """The first row: given text bold, each hole's tokens up to its first decided stop token, masks as glyphs."""
    tokens, masked, confidence, starts = (
        np.asarray(values)[0].tolist() for values in (state.tokens, state.masked, state.confidence, canvas.hole_starts)
    )
    text = Text()
    ended = -1
    for place in np.flatnonzero(canvas.attention_mask[0]).tolist():
        if not canvas.holes[0, place]:
            if shows_given:
                text.append(tokenizer.decode([tokens[place]]), style="bold")
        elif starts[place] == ended:
            # What follows an end token will not be part of the answer.
            continue
        elif masked[place]:
            text.append(MASK_GLYPH, style="dim")
        elif tokens[place] in tokenizer.stop_ids:
            ended = starts[place]
        else:
            text.append(tokenizer.decode([tokens[place]]), style=colour(confidence[place]))
    return text


def colour(confidence: float) -> str:
    return next(name for bound, name in COLOURS if confidence < bound)


def legend() -> str:
    return "  ".join(f"{name} < {bound:.0%}" for bound, name in COLOURS[:-1])


def footer(state: SamplerState, seconds: float) -> str:
    return f"{int(state.forwards)} forward passes in {seconds:.1f} s, compilation included"
