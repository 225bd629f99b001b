"""`diffucoder generate`: complete a prompt or fill holes, in one go or watched while it happens."""

import sys
from dataclasses import asdict

from jax_lm import distributed, terminal
from jax_lm.arguments.generation import Generate
from jax_lm.commands.watch import watch
from jax_lm.inference import DiffuCoderInference
from jax_lm.infilling import Template


def run_generate(arguments: Generate) -> int:
    """Write a completion, or a text with its holes filled, to standard output."""
    require_one_source(arguments)
    infills = arguments.prefix is not None or arguments.suffix is not None
    text = "" if infills else read_text(arguments)
    middle_length = hole_length(arguments.middle_length)
    distributed.start(**asdict(arguments.hosts))
    options = arguments.generation
    template = Template.parse(text, options.max_new_tokens) if arguments.file else None
    engine = DiffuCoderInference(arguments.model, arguments.tokenizer, arguments.dtype, mesh=arguments.mesh)
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
