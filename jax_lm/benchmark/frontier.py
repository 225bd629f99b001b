"""The frontier of decoding: what each commit rule and setting solves, and how many evaluations of the model it takes.

Tasks are decoded one by one, so that evaluations are those of an answer, not of the slowest of a batch. Tokens after a
stop token do not count. Entry: `diffucoder bench --frontier`.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_lm.benchmark.settings import FrontierSetting, QualitySettings
from jax_lm.evaluation.attempts import SANDBOX_ERROR, TOO_LONG, Evaluator, Journal, journal_settings, problem_executor
from jax_lm.evaluation.pass_at_k import wilson
from jax_lm.evaluation.problems import Problem
from jax_lm.evaluation.prompting import choose_prompting
from jax_lm.inference import DiffuCoderInference
from jax_lm.reports.charts import line_chart
from jax_lm.reports.document import Document, Section
from jax_lm.reports.run_folder import Record

COLUMNS = ("setting", "pass@1", "95 % interval", "tokens per forward", "forwards per answer", "canvases per forward")


@dataclass(frozen=True, kw_only=True)
class FrontierPoint:
    """What a setting does on tasks.

    Attributes:
        setting: its name.
        family: settings that are drawn as one line.
        problems: tasks that count; what the sandbox could not run does not.
        answers: of those tasks; none where a task is too long for the model.
        passed: those solved.
        low, high: 95 % interval of their share.
        tokens: of all answers, before their stop tokens.
        forwards: model evaluations for all answers.
        canvases: that an evaluation computes for an answer: guesses or branches, and the canvas itself.
        seconds: of decoding, without compilation; None where that was not asked for.
    """

    setting: str
    family: str
    problems: int
    answers: int
    passed: int
    low: float
    high: float
    tokens: int
    forwards: int
    canvases: int
    seconds: float | None

    @classmethod
    def of(
        cls, name: str, setting: FrontierSetting, records: Collection[Mapping[str, Any]], *, timed: bool
    ) -> "FrontierPoint":
        """Sum up the attempts of a setting; ValueError if none counts."""
        counted = [record for record in records if record["outcome"] != SANDBOX_ERROR]
        if not counted:
            raise ValueError(f"{name}: the sandbox could run no program")
        passed = sum(record["outcome"] == "passed" for record in counted)
        low, high = wilson(passed / len(counted), len(counted))
        return cls(
            setting=name,
            family=setting.family,
            problems=len(counted),
            answers=sum(record["outcome"] != TOO_LONG for record in counted),
            passed=passed,
            low=low,
            high=high,
            tokens=sum(record["tokens"] for record in counted),
            forwards=sum(record["forwards"] for record in counted),
            canvases=1 + setting.draft + setting.lookahead,
            seconds=sum(record["seconds"] for record in counted) if timed else None,
        )

    @property
    def rate(self) -> float:
        return self.passed / self.problems

    @property
    def tokens_per_forward(self) -> float:
        return self.tokens / max(self.forwards, 1)

    def cells(self) -> list[str]:
        """Format it for a table."""
        interval = f"{self.low:.1%} to {self.high:.1%}"
        counts = [f"{self.tokens_per_forward:.2f}", f"{self.forwards / max(self.answers, 1):.1f}", str(self.canvases)]
        speed = [] if self.seconds is None else [f"{self.tokens / max(self.seconds, 1e-9):.0f}"]
        return [self.setting, f"{self.rate:.1%}", interval, *counts, *speed]


def measure_frontier(
    engine: DiffuCoderInference,
    problems: Sequence[Problem],
    quality: QualitySettings,
    out: Path,
    *,
    model: str | None,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[FrontierPoint]:
    """Let the model attempt the problems at every setting; what is in the folder already is not done again."""
    executor, settings = problem_executor(quality.executor), quality.settings
    prompting = choose_prompting(engine, problems, None, chat=False, base=False)
    points = []
    for place, (name, setting) in enumerate(settings.items()):
        evaluator = Evaluator(
            engine=engine,
            executor=executor,
            options=setting.options(quality),
            prompting=prompting,
            batch_size=1,
            seed=quality.seed,
            timed=quality.timed,
        )
        others = {"suite": quality.suite, "timed": quality.timed}
        recorded = journal_settings(evaluator, problems, data=quality.data, model=model, **others)

        def report(done: int, total: int, place: int = place) -> None:
            if on_progress:
                on_progress(place * total + done, len(settings) * total)

        with Journal(out / "attempts" / slug(name), recorded) as journal:
            for attempt in evaluator.attempts(problems, done=journal.done, on_progress=report):
                journal.append(attempt.record())
            records: list[Record] = list(journal.records.values())
        points.append(FrontierPoint.of(name, setting, records, timed=quality.timed))
    return points


def slug(name: str) -> str:
    """A name that a folder may have."""
    return "-".join("".join(letter if letter.isalnum() or letter == "." else " " for letter in name).split())


def undominated(points: Iterable[FrontierPoint]) -> list[FrontierPoint]:
    """The points than which no other solves as many with more tokens per evaluation, the most careful first.

    Guesses are left out: they cost canvases, not quality.
    """
    best: list[FrontierPoint] = []
    alone = [point for point in points if point.canvases == 1]
    for point in sorted(alone, key=lambda point: (-point.tokens_per_forward, -point.rate)):
        if not best or point.rate > best[-1].rate:
            best.append(point)
    return best[::-1]


def frontier_report(points: Sequence[FrontierPoint], metadata: Mapping[str, str]) -> Document:
    """Lay out the frontier: a table of all settings, a picture, and the settings that no other one beats."""
    families: dict[str, list[tuple[float, float]]] = {}
    for point in sorted(points, key=lambda point: point.tokens_per_forward):
        families.setdefault(point.family, []).append((point.tokens_per_forward, 100 * point.rate))
    rates = [100 * point.rate for point in points]
    # The axis ends at whole tens, and not at 0: settings differ by a few tasks.
    bottom = 10 * math.floor(min(rates) / 10)
    picture = line_chart(
        "pass@1 and tokens per forward",
        "tokens per forward",
        "pass@1, %",
        families,
        bottom=bottom,
        top=max(10 * math.ceil(max(rates) / 10), bottom + 10),
    )
    timed = any(point.seconds is not None for point in points)
    text = (
        "An answer is decoded alone; tokens after its stop token do not count. Guesses (draft) give the text there "
        "is without them, and an evaluation then computes more canvases."
    )
    return Document(
        title="Frontier of decoding",
        metadata=metadata,
        sections=[
            Section(
                title="Settings",
                text=text,
                columns=(*COLUMNS, "tokens/s") if timed else COLUMNS,
                rows=[point.cells() for point in points],
                picture=picture,
                name="frontier",
            ),
            Section(
                title="Settings that no other one beats",
                text="More tokens per forward come with less solved, from one line to the next.",
                columns=COLUMNS[:4],
                rows=[point.cells()[:4] for point in undominated(points)],
            ),
        ],
    )
