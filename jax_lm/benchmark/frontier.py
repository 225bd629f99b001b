"""Measure the frontier of decoding: solved tasks and forward passes, by commit rule and setting.

Tasks are decoded one by one, so that the forward passes are those of one answer, not of the slowest
of a batch. Tokens after a stop token do not count. Entry command: `diffucoder bench --frontier`.
"""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from jax_lm.benchmark.settings import QualitySettings, frontier_settings
from jax_lm.evaluation.attempts import (
    TOO_LONG,
    UNJUDGED,
    Evaluator,
    Journal,
    journal_settings,
    problem_executor,
)
from jax_lm.evaluation.pass_at_k import wilson
from jax_lm.evaluation.problems import Problem
from jax_lm.evaluation.prompting import choose_prompting
from jax_lm.inference import DiffuCoderInference
from jax_lm.reports.document import Document
from jax_lm.reports.run_folder import Record
from jax_lm.reports.tables import Row, row_chart, table_section

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
    engine: DiffuCoderInference,
    problems: Sequence[Problem],
    quality: QualitySettings,
    out: Path,
    *,
    model: str | None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Row]:
    """Let the model attempt the problems with every setting.

    Attempts that are already in the folder are not repeated.
    """
    executor, settings = problem_executor(quality.executor), quality.options()
    prompting = choose_prompting(engine, problems, None, chat=False, base=False)
    report, points = on_progress or (lambda done, total: None), []
    for name, options in settings.items():
        evaluator = Evaluator(
            engine=engine,
            executor=executor,
            options=options,
            prompting=prompting,
            batch_size=1,
            seed=quality.seed,
            timed=quality.timed,
        )
        others = {"suite": quality.suite, "timed": quality.timed}
        recorded = journal_settings(evaluator, problems, data=quality.data, model=model, **others)
        # The journal holds the attempts of earlier runs; only the missing ones are made.
        folder = out / "attempts" / "-".join(re.findall(r"[\w.]+", name))
        with Journal(folder, recorded) as journal:
            for attempt in evaluator.attempts(problems, done=journal.done):
                journal.append(attempt.record())
                # Over all settings together
                done = len(points) * len(problems) + len(journal.records)
                report(done, len(settings) * len(problems))
            records: list[Record] = list(journal.records.values())
        points.append(frontier_point(name, records, timed=quality.timed))
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
