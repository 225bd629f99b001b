"""`diffucoder generate`: completes a prompt, fills holes, or answers a file of prompts."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path

from jax_lm.cli.arguments.generation import Generate
from jax_lm.cli.commands.answers import answer_file
from jax_lm.cli.commands.watching import watch
from jax_lm.grammar import find_grammar
from jax_lm.host import distributed, terminal
from jax_lm.host.files import write_whole
from jax_lm.inference import CHAT_NOTICE, DiffuCoderInference
from jax_lm.reports.replay import Replay
from jax_lm.results import DecodedBatch
from jax_lm.templates import HOLE, Template
from jax_lm.tokenizer import TokenizerError, require_unicode

STANDARD_INPUT = Path("-")


def run_generate(arguments: Generate) -> int:
    """Print a completion, or a text with its holes filled."""
    options = arguments.generation
    given = "" if arguments.infills or arguments.prompts else read_text(arguments)
    if arguments.file:
        # A file without holes is refused before anything is loaded.
        Template.parse(given, options.max_new_tokens)
    elif HOLE.search(given) and not arguments.chat:
        terminal.say("warning: <|hole|> is text in a prompt; it is filled in a --file")
    # So is a grammar that cannot be prepared.
    if options.grammar:
        find_grammar(options.grammar)
    # This must come before the first use of JAX.
    distributed.start(**asdict(arguments.hosts))
    if arguments.prompts and arguments.out:
        return answer_file(arguments, arguments.prompts, arguments.out)
    # Models were trained on text without a byte order mark, whose lines end in \n.
    text = given.removeprefix("\ufeff").replace("\r\n", "\n")
    engine = DiffuCoderInference(
        **arguments.engine.settings,
        # A text that exceeds the context is refused before the weights are loaded.
        before_weights=lambda engine: engine.canvas(
            make_templates(engine, arguments, text), options
        ),
        allow_nonfinite=arguments.allow_nonfinite,
    )
    templates = make_templates(engine, arguments, text)
    if arguments.watch and sys.stdout.isatty():
        watch(engine, templates[0], options, arguments.seed, shows_given=shows_given(arguments))
        return 0
    batch = engine.decode_shown(templates, options, seed=arguments.seed)
    # Every host has the result, and one prints it.
    if distributed.is_first():
        show(engine, arguments, given, batch)
        if arguments.animation:
            (row,) = batch.rows
            shown = "" if arguments.chat else text
            replay = Replay.of(shown, row, engine.tokenizer.decode, options.temperature)
            write_whole(arguments.animation, replay.animation())
    return 0


def make_templates(
    engine: DiffuCoderInference, arguments: Generate, text: str
) -> Sequence[Template]:
    """Return the template to fill, or several with holes of different lengths to choose from."""
    limit = arguments.generation.max_new_tokens
    if not (arguments.infills or arguments.file):
        text = engine.chat_prompt(text) if arguments.chat else text
        return [Template.completion(text, limit)]
    lengths = engine.hole_lengths(limit, arguments.middle_length, arguments.generation)
    if arguments.file:
        # Holes that find their own length begin with fewer masks.
        return [Template.parse(text, lengths[0])]
    # With `auto`, several lengths are tried, and `show` prints the most likely answer.
    return [
        Template.infilling(arguments.prefix or "", length, arguments.suffix or "")
        for length in lengths
    ]


def shows_given(arguments: Generate) -> bool:
    """Return whether the given text is printed together with the new text."""
    return not (arguments.chat or arguments.only_new)


def show(engine: DiffuCoderInference, arguments: Generate, given: str, batch: DecodedBatch):
    """Print the answer as text or JSON. Warnings and statistics go to standard error.

    `given` is the text as it was read; the new text gets the line ends that most of its lines have.
    """
    row = max(batch.rows, key=lambda row: row.mean_log_confidence)
    end = "\r\n" if 2 * given.count("\r\n") > given.count("\n") else "\n"
    holes = tuple(hole.replace("\n", end) for hole in row.holes)
    text = end.join(holes)
    if shows_given(arguments):
        text = make_templates(engine, arguments, given)[0].fill(holes)
    # The warning, if the answer may be wrong.
    doubt = engine.doubt(row, arguments.generation.temperature)
    if arguments.chat and engine.is_builtin:
        doubt = CHAT_NOTICE
    if arguments.json:
        answer = {
            "model": arguments.engine.model or "builtin",
            "text": text,
            "holes": holes,
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
    # Standard output gets the text alone, so that it can be piped. A file keeps its last lines.
    elif arguments.file:
        print(text, end="" if text.endswith("\n") else end)
    else:
        print(text if arguments.infills else text.rstrip("\r\n"), end=end)
    if doubt and not arguments.json:
        print(f"warning: {doubt}", file=sys.stderr)
    if arguments.stats:
        print(batch.describe(), file=sys.stderr)


def read_text(arguments: Generate) -> str:
    """Return the text of the file or the prompt argument; of standard input if that is - or missing."""
    if arguments.file not in (None, STANDARD_INPUT):
        return terminal.read_text_file(arguments.file, keep_line_ends=True)
    if arguments.prompt not in (None, "-"):
        return str(arguments.prompt)
    if not (arguments.prompt or arguments.file) and sys.stdin.isatty():
        raise ValueError("prompt: none given; pass it as an argument, or - to read standard input")
    if terminal.shows_progress() and sys.stdin.isatty():
        print("reading the prompt; end with Ctrl-D", file=sys.stderr)
    # Otherwise, standard input would convert \r\n to \n.
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(newline="")
    try:
        text = require_unicode(sys.stdin.read())
    except TokenizerError as error:
        raise ValueError(f"prompt: standard input is {error}") from error
    if not text.strip():
        raise ValueError("prompt: standard input was empty")
    return text
