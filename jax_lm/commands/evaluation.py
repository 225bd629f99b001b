"""`diffucoder eval`: how often a model solves problems, by executing what it writes."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tyro
from rich.console import Console
from rich.table import Table

from jax_lm import terminal

if TYPE_CHECKING:
    from jax_lm.evaluation.pass_rate import Attempt
    from jax_lm.evaluation.problems import Problem

HELD_OUT_LIMIT = 300


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure pass@1 by executing unit tests.

    The programs run in the sandbox; where this host has none, the command refuses (see `diffucoder sandbox check`).

    Examples:
        diffucoder eval builtin
        diffucoder eval builtin --limit 64 --preset turbo --out attempts.jsonl
        diffucoder eval infilling --data HumanEval-SingleLineInfilling.jsonl.gz --middle-length auto

    Attributes:
        suite: builtin is the held-out side of the built-in model's corpus, infilling a HumanEval-infilling file.
        data: the problems of infilling, .jsonl or .jsonl.gz.
        model: folder or hub id; the built-in model if not given.
        dtype: float32 or bfloat16; chosen by the device if not given.
        limit: number of problems, evenly spread over a file; 300 for builtin and all of a file if not given.
        batch_size: problems decoded together.
        max_new_tokens: length of the canvas, or the longest gap tried.
        middle_length: tokens of a gap, "auto" (the likeliest of several) or "oracle" (as many as the canonical
            filling has); max_new_tokens if not given.
        canonical: score the canonical fillings instead of a model: all of them must pass.
        steps: denoising steps; one token per step if not given.
        temperature: 0 is greedy.
        alg: order of unmasking.
        preset: exact, fast or turbo.
        out: file for one JSON line per problem.
        allow_unsafe_exec: run what the model wrote without containment where there is none.
    """

    suite: tyro.conf.Positional[Literal["builtin", "infilling"]]
    data: Path | None = None
    model: str | None = None
    dtype: str | None = None
    limit: int | None = None
    batch_size: int = 25
    max_new_tokens: int = 144
    middle_length: int | Literal["auto", "oracle"] | None = None
    canonical: bool = False
    steps: int | None = None
    temperature: float = 0.0
    alg: str = "entropy"
    preset: str = "exact"
    out: Path | None = None
    allow_unsafe_exec: bool = False

    def run(self) -> int:
        problems = self.problems()
        start = time.monotonic()
        attempts = self.attempts(problems)
        seconds = time.monotonic() - start
        if self.out:
            self.out.write_text("".join(json.dumps(line_of(attempt)) + "\n" for attempt in attempts), encoding="utf-8")
        self.report(attempts, seconds)
        return 0

    def problems(self) -> "list[Problem]":
        from jax_lm.evaluation.problems import held_out_problems, infilling_problems

        if (self.suite == "infilling") != (self.data is not None):
            raise ValueError(f"data={self.data}: infilling needs a file, builtin takes none")
        if self.data is None:
            return held_out_problems(HELD_OUT_LIMIT if self.limit is None else self.limit)
        return infilling_problems(self.data, self.limit)

    def attempts(self, problems: "Sequence[Problem]") -> "list[Attempt]":
        from jax_lm.evaluation.pass_rate import evaluate, judge
        from jax_lm.inference import DiffuCoderInference, GenerationOptions
        from jax_lm.sandbox import Local
        from jax_lm.sandbox.runner import choose

        # A host that cannot contain programs is better told before the model has written them.
        choose("auto", allow_unsafe=self.allow_unsafe_exec)
        executor = Local(allow_unsafe=self.allow_unsafe_exec)
        if self.canonical:
            with terminal.progress("executing") as report:
                return judge(executor, [(problem, problem.canonical) for problem in problems], on_progress=report)
        options = GenerationOptions(
            max_new_tokens=self.max_new_tokens, num_steps=self.steps, temperature=self.temperature, alg=self.alg,
            preset=self.preset,
        )  # fmt: skip
        options.sampling()
        engine = DiffuCoderInference(self.model, dtype=self.dtype)
        with terminal.progress("evaluating") as report:
            return list(
                evaluate(
                    engine,
                    problems,
                    options,
                    batch_size=self.batch_size,
                    executor=executor,
                    middle_length=self.middle_length,
                    on_progress=report,
                )
            )

    def report(self, attempts: "Sequence[Attempt]", seconds: float) -> None:
        from jax_lm.evaluation.pass_rate import standard_error

        what = "canonical fillings" if self.canonical else f"{self.alg}, {self.preset}"
        table = Table("problems", "count", "passed", "pass@1", "± s.e.", title=f"{len(attempts)} problems, {what}")
        groups = sorted({attempt.problem.group for attempt in attempts}, reverse=True)
        for group in [*groups, "all"] if len(groups) > 1 else groups:
            chosen = [attempt for attempt in attempts if group in ("all", attempt.problem.group)]
            passed = sum(attempt.passed for attempt in chosen)
            rate, error = passed / len(chosen), standard_error(passed, len(chosen))
            table.add_row(group, str(len(chosen)), str(passed), f"{rate:.1%}", f"{error:.1%}")
        console = Console(highlight=False)
        console.print(table)
        outcomes = Counter(attempt.outcome for attempt in attempts)
        console.print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) + f" in {seconds:.0f} s")


def line_of(attempt: "Attempt") -> dict[str, str]:
    """What `--out` says of a problem."""
    return {
        "name": attempt.problem.name,
        "prefix": attempt.problem.prefix,
        "suffix": attempt.problem.suffix,
        "middle": attempt.middle,
        "outcome": attempt.outcome,
        "detail": attempt.detail,
        "tier": attempt.tier,
    }
