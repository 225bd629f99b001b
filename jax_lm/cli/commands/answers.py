"""`diffucoder generate --prompts`: answers a file of prompts in batches of similar length.

An answer depends on its prompt, the model, the settings, the seed and the line number. But for ties
that rounding decides, it does not depend on the batch size, nor on where an earlier run was killed.
(Draws of a rule by probability do, in texts of several blocks: they are numbered by the batch's
steps.)
Answers are appended to the file as they are decoded, and sorted at the end.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from jax_lm.cli.arguments.generation import Generate
from jax_lm.config import Fields
from jax_lm.data.prompts import open_prompts
from jax_lm.diffusion.canvas import check_context
from jax_lm.diffusion.state import row_keys
from jax_lm.host import distributed, terminal
from jax_lm.host.files import output_folder, remove_empty, require_writable, write_rows_whole
from jax_lm.inference import FIRST_NOTE, DiffuCoderInference
from jax_lm.inference.batches import share_batches
from jax_lm.model_source import find_model
from jax_lm.reports.run_folder import JsonLog, weights_digest
from jax_lm.results import Generation
from jax_lm.templates import Template


def answer_file(arguments: Generate, source: Path, out: Path) -> int:
    """Answer the prompts of a file that have no answer in `out` yet. Returns the exit status."""
    if not source.is_file():
        raise ValueError(f"prompts={str(source)!r}: must be an existing file")
    # Every host decodes, and the first one writes.
    is_writer = distributed.is_first()
    if is_writer:
        require_writable(out.parent)
    # prompts, and answers of an earlier run with the same settings
    rows = open_prompts(source, plain=True)
    model = find_model(arguments.engine.model, arguments.engine.adapter)
    run = settings_digest(arguments, rows, weights_digest(*model.folders))
    log = AnswerLog(out, run)
    answers = log.answers
    templates = []
    engine = DiffuCoderInference(
        **arguments.engine.settings,
        # refuse a prompt that exceeds the context before the weights are loaded
        before_weights=lambda engine: templates.extend(prompt_templates(engine, arguments, rows)),
        allow_nonfinite=arguments.allow_nonfinite,
    )
    widths = [template.width(engine.tokenizer) for template in templates]
    waiting = [number for number in range(len(rows)) if number not in answers]
    if answers and waiting and is_writer:
        terminal.say(f"resuming after {len(answers)} answers of an earlier run")
    size = arguments.batch_size
    if is_writer:
        output_folder(out.parent)
    with (
        terminal.progress("answering", FIRST_NOTE) as report,
        remove_empty(out) if is_writer else nullcontext(),
        log,
    ):
        if is_writer:
            log.open(out, out)
        for places in share_batches([widths[n] for n in waiting], size, engine.config):
            numbers = [waiting[place] for place in places]
            # Pad the last batch by repeating rows, as another number of rows would be compiled anew.
            # [7, 3, 5] with size 8 -> [7, 3, 5, 7, 3, 5, 7, 3]; repeated rows are dropped below
            filled = (numbers * size)[:size] if len(waiting) > size else numbers
            # one key per prompt, so that an answer does not depend on its batch
            keys = row_keys(arguments.seed, filled)
            batch = engine.decode(
                [templates[n] for n in filled],
                arguments.generation,
                seed=keys,
                on_progress=terminal.batch_progress(report, len(answers), len(numbers), len(rows)),
            )
            # each batch is on disk before the next one begins
            decoded = zip(numbers, batch.rows, strict=False)
            log.append(*(answer_line(number, rows[number], row, run) for number, row in decoded))
            if report:
                report(len(answers), len(rows))
    # all answers, in the order of the prompts
    if is_writer:
        write_rows_whole(out, (answers[number] for number in sorted(answers)))
        total = "" if len(waiting) == len(answers) else f", which now has {len(answers)}"
        print(f"wrote {len(waiting)} answers to {out}{total}")
    return 0


def settings_digest(arguments: Generate, rows: Sequence[Fields], weights: str) -> str:
    """Return a digest of everything that the answers depend on."""
    # without batch size and devices, because answers do not depend on them
    inputs = [
        asdict(arguments.engine) | {"mesh": None},
        weights,
        arguments.chat,
        asdict(arguments.generation),
        arguments.seed,
        [row["prompt"] for row in rows],
    ]
    return hashlib.sha256(json.dumps(inputs).encode()).hexdigest()[:16]


class AnswerLog(JsonLog):
    """The answers in a file, by index of the prompt: those of an earlier run, and new ones.

    Raises:
        ValueError: the file cannot be read, is no file of answers, or its answers belong to other
            prompts or settings.
    """

    kind = "an answer of this command; choose another file"

    def __init__(self, out: Path, run: str):
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
        except OSError as error:
            raise ValueError(f"out={str(out)!r}: cannot be read ({error.strerror})") from error
        if any(answer.get("run") != run for answer in self.answers.values()):
            raise ValueError(
                f"out={str(out)!r}: has answers to other prompts or with other settings; choose another file"
            )

    def take(self, record: Fields):
        # lines count from 1, prompts from 0
        self.answers[record["line"] - 1] = record


def prompt_templates(
    engine: DiffuCoderInference, arguments: Generate, rows: Sequence[Fields]
) -> Iterator[Template]:
    """Yield the template of every prompt.

    The chat template is applied to lists of chat messages, and with `chat` to every prompt.

    Raises:
        ValueError: a prompt and its answer exceed the context; the message names the first one.
    """
    length = arguments.generation.max_new_tokens
    context = engine.config.max_position_embeddings
    for number, row in enumerate(rows, 1):
        prompt = row["prompt"]
        if arguments.chat or not isinstance(prompt, str):
            prompt = engine.chat_prompt(prompt)
        template = Template.completion(prompt, length)
        try:
            check_context(template.width(engine.tokenizer), context, length)
        except ValueError as error:
            raise ValueError(f"{arguments.prompts}: prompt {number}: {error}") from None
        yield template


def answer_line(number: int, row: Fields, answer: Generation, run: str) -> Fields:
    """Return the JSON object of an answer."""
    return {
        "line": number + 1,
        **{name: row[name] for name in ("id", "task_id") if name in row},
        "prompt": row["prompt"],
        "completion": answer.text,
        "tokens": len(answer.token_ids),
        "stopped": answer.stopped,
        "run": run,
    }
