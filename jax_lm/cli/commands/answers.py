"""`diffucoder generate --prompts`: answers a file of prompts in batches of similar length.

An answer depends on its prompt, the model, the settings, the seed and its place in the file. It does
not depend on the batch size, nor on where an earlier run was killed, with two exceptions: ties that
rounding decides, and commit rules by chance in texts of several blocks, whose random numbers follow
the steps of the batch.

Answers are appended to the file as they are decoded, and sorted at the end.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path

from jax_lm.cli.arguments.generation import Generate
from jax_lm.config import Fields, counted
from jax_lm.data.prompts import open_prompts
from jax_lm.diffusion.canvas import check_context
from jax_lm.diffusion.state import row_keys
from jax_lm.host import distributed, terminal
from jax_lm.host.files import (
    output_folder,
    remove_empty,
    require_writable,
    whole_lines,
    write_rows_whole,
)
from jax_lm.inference import FIRST_NOTE, DiffuCoderInference
from jax_lm.inference.batches import share_batches
from jax_lm.model_source import find_model
from jax_lm.reports.run_folder import JsonLog, weights_digest
from jax_lm.results import Generation
from jax_lm.templates import Template

# What the line of an answer begins with.
LINE_START = b'{"line": '


def answer_file(arguments: Generate, source: Path, out: Path) -> int:
    """Answer the prompts of a file that have no answer in `out` yet. Returns the exit status."""
    if not source.is_file():
        raise ValueError(f"prompts={str(source)!r}: must be an existing file")
    # Every host decodes, and the first one writes.
    is_writer = distributed.is_first()
    if is_writer:
        require_writable(out.parent)
    # a line may be a prompt itself, or an object that holds one: {"line 3": …} -> {3: …}
    prompts = open_prompts(source, plain=True)
    rows = {int(where.split()[-1]): row for where, row in prompts.items()}
    model = find_model(arguments.engine.model, arguments.engine.adapter)
    log = AnswerLog(out, settings_digest(arguments, rows, weights_digest(*model.folders)))
    known = len(log.answers)
    # Lock the file before the weights are loaded, so that a second run is refused at once.
    if is_writer:
        output_folder(out.parent)
        log.open(out, out)
    # The file is removed while it is locked: without the lock, it may be that of another run.
    with log, remove_empty(out) if is_writer else nullcontext():
        answer_rows(arguments, rows, log)
        if is_writer:
            # all answers, in the order of the prompts
            write_rows_whole(out, (log.answers[line] for line in rows))
            total = f", which now has {len(rows)}" if known else ""
            print(f"wrote {counted(len(rows) - known, 'answer')} to {out}{total}")
    return 0


def answer_rows(arguments: Generate, rows: Mapping[int, Fields], log: "AnswerLog"):
    """Decode an answer to each prompt that the log has none for, and append it to the log."""
    answers = log.answers
    templates = {}
    engine = DiffuCoderInference(
        **arguments.engine.settings,
        # refuse a prompt that exceeds the context before the weights are loaded
        before_weights=lambda engine: templates.update(prompt_templates(engine, arguments, rows)),
        allow_nonfinite=arguments.allow_nonfinite,
    )
    waiting = [line for line in rows if line not in answers]
    widths = [templates[line].width(engine.tokenizer) for line in waiting]
    if answers and waiting and distributed.is_first():
        terminal.say(f"resuming after {counted(len(answers), 'answer')} of an earlier run")
    size = arguments.batch_size
    with terminal.progress("answering", FIRST_NOTE) as report:
        for places in share_batches(widths, size, engine.config):
            batch = [waiting[place] for place in places]
            # Pad the last batch by repeating rows, as another number of rows would be compiled anew.
            # [7, 3, 5] with size 8 -> [7, 3, 5, 7, 3, 5, 7, 3]; repeated rows are dropped below
            filled = (batch * size)[:size] if len(waiting) > size else batch
            decoded = engine.decode(
                [templates[line] for line in filled],
                arguments.generation,
                # one key per prompt, so that an answer does not depend on its batch
                seed=row_keys(arguments.seed, [line - 1 for line in filled]),
                on_progress=terminal.batch_progress(report, len(answers), len(batch), len(rows)),
            )
            # each batch is on disk before the next one begins
            log.append(
                *(
                    answer_line(line, rows[line], answer, log.run)
                    for line, answer in zip(batch, decoded.rows, strict=False)
                )
            )
            if report:
                report(len(answers), len(rows))


def settings_digest(arguments: Generate, rows: Mapping[int, Fields], weights: str) -> str:
    """Return a digest of everything that the answers depend on."""
    # Not the batch size and the devices: an interrupted run may be resumed with others.
    inputs = [
        asdict(arguments.engine) | {"mesh": None},
        weights,
        arguments.chat,
        asdict(arguments.generation),
        arguments.seed,
        [(line, row["prompt"]) for line, row in rows.items()],
    ]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]


class AnswerLog(JsonLog):
    """The answers in a file, by the line of the prompt: those of an earlier run, and new ones.

    Args:
        out: the file, which need not exist.
        run: digest of the settings, which each answer holds.

    Raises:
        ValueError: the file cannot be read, is no file of answers, or its answers belong to other
            prompts or settings.
    """

    kind = "an answer of this command; choose another file"

    def __init__(self, out: Path, run: str):
        self.run = run
        self.answers: dict[int, Fields] = {}
        if not out.exists():
            return
        # reading a pipe would block
        if not out.is_file():
            raise ValueError(
                f"out={str(out)!r}: must be a file, or not exist yet (earlier answers are read)"
            )
        try:
            self.replay(out)
            last = out.read_bytes().removeprefix(whole_lines(out))
        except OSError as error:
            raise ValueError(f"out={str(out)!r}: cannot be read ({error.strerror})") from error
        # A kill may have cut off the last line, which `open` removes. A file of one line without a
        # line end may also be anything else, such as results in JSON.
        if last[: len(LINE_START)] != LINE_START[: len(last)]:
            raise ValueError(f"{out}: its last line is not {self.kind}")
        if any(answer.get("run") != run for answer in self.answers.values()):
            raise ValueError(
                f"out={str(out)!r}: has answers to other prompts or with other settings; choose another file"
            )

    def take(self, record: Fields):
        # a record that lacks one of these is no answer
        line, _, _ = itemgetter("line", "prompt", "completion")(record)
        self.answers[line] = record


def prompt_templates(
    engine: DiffuCoderInference, arguments: Generate, rows: Mapping[int, Fields]
) -> Iterator[tuple[int, Template]]:
    """Yield the line of every prompt, and its template.

    The chat template is applied to lists of chat messages, and with `chat` to every prompt.

    Raises:
        ValueError: an option does not fit the model, or a prompt and its answer exceed the context;
            the message names the first one.
    """
    engine.is_growing(engine.fit(arguments.generation))
    length = arguments.generation.max_new_tokens
    context = engine.config.max_position_embeddings
    for line, row in rows.items():
        prompt = row["prompt"]
        if arguments.chat or not isinstance(prompt, str):
            prompt = engine.chat_prompt(prompt)
        template = Template.completion(prompt, length)
        try:
            check_context(template.width(engine.tokenizer), context, length)
        except ValueError as error:
            raise ValueError(f"{arguments.prompts}: line {line}: {error}") from None
        yield line, template


def answer_line(line: int, row: Fields, answer: Generation, run: str) -> Fields:
    """Return the JSON object of the answer to the prompt in a line."""
    return {
        "line": line,
        **{name: row[name] for name in ("id", "task_id") if name in row},
        "prompt": row["prompt"],
        "completion": answer.text,
        "tokens": len(answer.token_ids),
        "stopped": answer.stopped,
        "run": run,
    }
