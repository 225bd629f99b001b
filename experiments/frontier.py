"""Measure the frontier of decoding: solved tasks and forward passes, by commit rule and setting.

    python experiments/frontier.py --out frontier
    python experiments/frontier.py --model apple/DiffuCoder-7B-Instruct --suite humaneval \
        --data HumanEval.jsonl.gz --max-new-tokens 256 --out frontier-7b

Tasks are decoded one by one, so that the forward passes are those of one answer, not of the slowest
of a batch. Tokens after a stop token do not count. A run that was killed resumes with the same
command. frontier.yaml lists the settings.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import yaml

from jax_lm.benchmark.machine import about, machine_lines
from jax_lm.evaluation.attempts import (
    TOO_LONG,
    Evaluator,
    Journal,
    journal_settings,
    problem_executor,
)
from jax_lm.evaluation.pass_at_k import wilson
from jax_lm.evaluation.problems import Problem, suite_problems
from jax_lm.evaluation.prompting import choose_prompting
from jax_lm.host import terminal
from jax_lm.host.compile_clock import compile_clock
from jax_lm.host.declared import run_main
from jax_lm.host.files import output_folder
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.reports.document import Document, print_report
from jax_lm.reports.run_folder import Record
from jax_lm.reports.tables import Row, row_chart, table_section
from untrusted.results import UNJUDGED

COLUMNS = {
    "setting": "{setting}",
    "pass@1": "{pass_rate:.1%}",
    "95 % interval": "{low:.1%} to {high:.1%}",
    "tokens per forward": "{tokens_per_forward:.2f}",
}
ALL_COLUMNS = COLUMNS | {
    "forwards per answer": "{forwards_per_answer:.1f}",
    "canvases per forward": "{canvases}",
}
TIMED_COLUMNS = ALL_COLUMNS | {"tokens/s": "{tokens_per_second:.0f}"}


class TimedEvaluator(Evaluator):
    """Decodes a batch again if it caused a compilation, so that its seconds are those of decoding."""

    def decode_batch(self, batch, size, seed, on_progress):
        attempts = [*super().decode_batch(batch, size, seed, on_progress)]
        # `DiffuCoderInference.decode` clears the clock when it begins.
        if compile_clock().intervals:
            attempts = [*super().decode_batch(batch, size, seed, on_progress)]
        return iter(attempts)


class FrontierSetting(NamedTuple):
    """A way of decoding whose speed and quality are measured together.

    Attributes:
        family: the line of the chart that it belongs to.
        options: options of an answer, whose length and temperature `Arguments` set.
    """

    family: str
    options: GenerationOptions


@cache
def frontier_settings() -> dict[str, FrontierSetting]:
    """Return all settings of the frontier by name, from frontier.yaml."""
    text = Path(__file__).with_name("frontier.yaml").read_text(encoding="utf-8")
    of_decoding = {field.name for field in fields(Decoding)}
    settings = {}
    for name, values in yaml.safe_load(text).items():
        family = values.pop("family")
        # {preset: fast, draft: 2} -> decoding {preset: fast}, values {draft: 2}
        decoding = {key: values.pop(key) for key in of_decoding & values.keys()}
        options = GenerationOptions(decoding=Decoding(**decoding), **values)
        settings[name] = FrontierSetting(family, options)
    return settings


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Solve tasks at every setting, and count the forward passes.

    Attributes:
        out: folder for the attempts, frontier.json, frontier.md, frontier.html and frontier.svg.
        model: folder or hub id; the built-in model by default.
        dtype: float32 or bfloat16; depends on the device by default.
        suite: as in `diffucoder eval`.
        data: the file of the problems; none for builtin.
        limit: number of problems; 300 for builtin and all of a file if not given.
        only: names of settings; all if not given.
        max_new_tokens: length of the canvas.
        temperature: 0 is greedy.
        seed: seed of the draws.
        executor: how programs are contained; auto takes bubblewrap, then Landlock.
        timed: also measure tokens per second, which is meaningful only on an idle machine.
    """

    out: Path
    model: str | None = None
    dtype: Literal["float32", "bfloat16"] | None = None
    suite: Literal[
        "builtin", "humaneval", "humaneval+", "mbpp", "mbpp+", "infilling", "livecodebench"
    ] = "builtin"
    data: Path | None = None
    limit: int | None = None
    only: tuple[str, ...] = ()
    max_new_tokens: int = 144
    temperature: float = 0.0
    seed: int = 0
    executor: Literal["auto", "bubblewrap", "landlock"] = "auto"
    timed: bool = False

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in frontier_settings():
                known = ", ".join(map(repr, frontier_settings()))
                raise ValueError(f"only={name!r}: must be one of {known}")

    def options(self) -> dict[str, GenerationOptions]:
        """Return the options of every setting that is measured, by its name."""
        known = frontier_settings()
        length, temperature = self.max_new_tokens, self.temperature
        return {
            name: replace(known[name].options, max_new_tokens=length, temperature=temperature)
            for name in self.only or known
        }


def frontier_point(name: str, records: Collection[Record], *, timed: bool) -> Row:
    """Summarize the attempts of a setting in a row.

    Attempts that the sandbox could not run do not count. Problems that are too long for the model
    count as missed and have no answer. The values:

    - `family` groups settings into one line of the chart.
    - `low` and `high` bound the 95 % interval of the `pass_rate`.
    - `tokens` are those before stop tokens.
    - `canvases` are computed by one forward pass for an answer: the canvas itself, and drafts or
      branches.
    - `seconds`, if timed, are those of decoding without compilation.

    Raises:
        ValueError: no attempt counts.
    """
    counted = [record for record in records if record["outcome"] not in UNJUDGED]
    if not counted:
        raise ValueError(f"{name}: the sandbox could run no program")
    outcomes = [record["outcome"] for record in counted]
    total, passed = len(outcomes), outcomes.count("passed")
    answers = total - outcomes.count(TOO_LONG)
    tokens, forwards, seconds = (
        sum(record[key] for record in counted) for key in ("tokens", "forwards", "seconds")
    )
    low, high = wilson(passed / total, total)
    family, options = frontier_settings()[name]
    row = {
        "setting": name,
        "family": family,
        "problems": total,
        "answers": answers,
        "passed": passed,
        "pass_rate": passed / total,
        "low": low,
        "high": high,
        "tokens": tokens,
        "forwards": forwards,
        "tokens_per_forward": tokens / max(forwards, 1),
        "forwards_per_answer": forwards / max(answers, 1),
        "canvases": 1 + options.extra_canvases,
    }
    if timed:
        row |= {"seconds": seconds, "tokens_per_second": tokens / max(seconds, 1e-9)}
    return row


def measure_frontier(
    engine: DiffuCoderInference, problems: Sequence[Problem], arguments: Arguments
) -> list[Row]:
    """Let the model attempt the problems with every setting.

    Attempts that are already in the folder are not repeated.
    """
    executor, settings = problem_executor(arguments.executor), arguments.options()
    prompting = choose_prompting(engine, problems, None, chat=False, base=False)
    points: list[Row] = []
    with terminal.progress("measuring") as progress:
        for name, options in settings.items():
            evaluator = (TimedEvaluator if arguments.timed else Evaluator)(
                engine=engine,
                executor=executor,
                options=options,
                prompting=prompting,
                batch_size=1,
                seed=arguments.seed,
            )
            recorded = journal_settings(
                evaluator,
                problems,
                data=arguments.data,
                model=arguments.model,
                suite=arguments.suite,
                timed=arguments.timed,
            )
            # The journal holds the attempts of earlier runs; only the missing ones are made.
            folder = arguments.out / "attempts" / "-".join(re.findall(r"[\w.]+", name))
            with Journal(folder, recorded) as journal:
                for attempt in evaluator.attempts(problems, done=journal.done):
                    journal.append(attempt.record())
                    # Over all settings together
                    done = len(points) * len(problems) + len(journal.records)
                    if progress:
                        progress(done, len(settings) * len(problems))
                records: list[Record] = list(journal.records.values())
            points.append(frontier_point(name, records, timed=arguments.timed))
    return points


def undominated(points: Iterable[Row]) -> list[Row]:
    """Return the points that no other point beats in both pass rate and tokens per forward.

    The most careful settings come first. Drafts and branches are omitted: they cost canvases, not
    quality.
    """
    best: list[Row] = []
    alone = [point for point in points if point["canvases"] == 1]
    # From fast to slow: a point stays only if its rate is above that of every faster one.
    #   (tokens, rate): (4, 50), (3, 45), (2, 60) -> (2, 60), (4, 50)
    for point in sorted(
        alone, key=lambda point: (-point["tokens_per_forward"], -point["pass_rate"])
    ):
        if not best or point["pass_rate"] > best[-1]["pass_rate"]:
            best.append(point)
    return best[::-1]


def frontier_report(points: Sequence[Row], metadata: Mapping[str, str]) -> Document:
    """Return the report.

    It has a table and a chart of all settings, and the settings that no other one beats.
    """
    x, y = "tokens_per_forward", "pass@1, %"
    drawn = sorted(
        (point | {y: 100 * point["pass_rate"]} for point in points), key=lambda point: point[x]
    )
    rates = [point[y] for point in drawn]
    # The axis runs between multiples of ten, not from 0: settings differ by a few tasks.
    bottom = 10 * math.floor(min(rates) / 10)
    top = max(10 * math.ceil(max(rates) / 10), bottom + 10)
    text = (
        "Each answer is decoded alone; tokens after its stop token do not count. Drafts do not "
        "change the text; a forward pass then computes more canvases."
    )
    return Document(
        title="Frontier of decoding",
        metadata=metadata,
        sections=[
            table_section(
                "Settings",
                points,
                TIMED_COLUMNS if "seconds" in points[0] else ALL_COLUMNS,
                text=text,
                picture=row_chart(
                    "pass@1 and tokens per forward",
                    drawn,
                    x,
                    y,
                    by="family",
                    bottom=bottom,
                    top=top,
                ),
                name="frontier",
            ),
            table_section(
                "Settings that no other one beats",
                undominated(points),
                COLUMNS,
                text="From one line to the next, tokens per forward rise and the share of solved tasks falls.",
            ),
        ],
    )


def main(arguments: Arguments) -> None:
    """Measure, then write and print the report."""
    # An unusable folder should be reported before anything is measured.
    output_folder(arguments.out)
    problems, total = suite_problems(arguments.suite, arguments.data, arguments.limit)
    engine = DiffuCoderInference(arguments.model, dtype=arguments.dtype)
    points = measure_frontier(engine, problems, arguments)
    metadata = {
        "model": f"{arguments.model or 'built-in model'}, {engine.parameter_count:,} parameters, {engine.dtype}",
        "problems": f"{len(problems)} of {total} of {arguments.suite}",
        "decoding": f"{arguments.max_new_tokens} new tokens, temperature {arguments.temperature:g}, "
        f"seed {arguments.seed}",
        **machine_lines(about()),
    }
    document = frontier_report(points, metadata)
    document.write(arguments.out, "frontier", {"metadata": metadata, "points": points})
    print_report(document, with_sections=True)


if __name__ == "__main__":
    main(run_main(Arguments))
