"""`diffucoder generate`: completes a prompt, fills holes, or answers a file of prompts."""

import json
import sys
from dataclasses import asdict

from jax_lm.cli.arguments.generation import Generate
from jax_lm.cli.commands.answers import answer_file
from jax_lm.cli.commands.watching import watch
from jax_lm.host import distributed, terminal
from jax_lm.host.files import write_whole
from jax_lm.inference import CHAT_NOTICE, FIRST_NOTE, DiffuCoderInference
from jax_lm.reports.replay import Replay
from jax_lm.results import DecodedBatch
from jax_lm.templates import Template


def run_generate(arguments: Generate) -> int:
    """Print a completion, or a text with its holes filled."""
    options = arguments.generation
    # text, or template with holes
    text = "" if arguments.infills or arguments.prompts else read_text(arguments)
    template = Template.parse(text, options.max_new_tokens) if arguments.file else None
    # before the first use of JAX
    distributed.start(**asdict(arguments.hosts))
    if arguments.prompts is not None:
        return answer_file(arguments)
    engine = DiffuCoderInference(
        arguments.model,
        arguments.tokenizer,
        arguments.dtype,
        mesh=arguments.mesh,
        adapter=arguments.adapter,
    )
    # with `auto`, several lengths are tried and the likeliest answer is kept
    lengths = []
    if arguments.infills or template:
        lengths = engine.hole_lengths(options.max_new_tokens, arguments.hole_length, options)
    # a prefix and a suffix
    if arguments.infills:
        prefix, suffix = arguments.prefix or "", arguments.suffix or ""
        template = Template.infilling(prefix, lengths[0], suffix)
        batch = engine.decode_hole(prefix, suffix, lengths, options, seed=arguments.seed)
    # a prompt, or a file with holes
    else:
        prompt = engine.chat_prompt(text) if arguments.chat else text
        # parsed again: holes that find their own length begin with fewer masks
        parsed = template and Template.parse(text, lengths[0])
        template = parsed or Template.completion(prompt, options.max_new_tokens)
        if arguments.watch and sys.stdout.isatty():
            watch(engine, template, options, arguments.seed, shows_given=shows_given(arguments))
            return 0
        with terminal.progress("generating", FIRST_NOTE) as report:
            batch = engine.decode([template], options, seed=arguments.seed, on_progress=report)
    # every host has the result, and one prints it
    if distributed.is_first():
        show(engine, arguments, template, batch)
        if arguments.animation is not None:
            read, (row,) = engine.tokenizer.decode, batch.rows
            replay = Replay.of("" if arguments.chat else text, row, read, options.temperature)
            write_whole(arguments.animation, replay.animation())
    return 0


def shows_given(arguments: Generate) -> bool:
    """Whether the given text is printed with the new text."""
    return not (arguments.chat or arguments.only_new)


def show(
    engine: DiffuCoderInference, arguments: Generate, template: Template, batch: DecodedBatch
) -> None:
    """Print the text or a JSON object; warnings and statistics go to standard error."""
    # doubt: a remark on how far the answer can be trusted
    (row,) = batch.rows
    full = template.filled(row.holes)
    doubt = (
        row.doubt(arguments.generation.temperature)
        if engine.is_builtin and not arguments.infills
        else None
    )
    if arguments.chat and engine.is_builtin:
        doubt = CHAT_NOTICE
    if arguments.json:
        answer = {
            "model": arguments.model or "builtin",
            "text": full,
            "holes": row.holes,
            "token_ids": row.token_ids,
            "confidence": row.confidence,
            "commit_step": row.commit_step,
            "stopped": row.stopped,
            "doubt": doubt,
            "tokens": batch.tokens,
            "forwards": batch.forwards,
            "run_seconds": round(batch.run_seconds, 4),
            "compile_seconds": round(batch.compile_seconds, 4),
        }
        print(json.dumps(answer, ensure_ascii=False))
    # the text alone on standard output, so that it can be piped
    else:
        text = full if shows_given(arguments) else row.text
        print(text if arguments.infills else text.rstrip("\n"))
    if doubt and not arguments.json:
        print(f"warning: {doubt}", file=sys.stderr)
    if arguments.stats:
        print(batch.describe(), file=sys.stderr)


def read_text(arguments: Generate) -> str:
    """Return the text of the file, the prompt argument, or standard input for `-` and for a pipe."""
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
