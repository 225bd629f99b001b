"""`diffucoder eval`: how often a model solves held-out tasks."""

import json
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

from jax_lm import terminal


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure pass@1 on held-out tasks by executing their unit tests.

    The programs run in the sandbox; where this host has none, the command refuses (see `diffucoder sandbox check`).

    Examples:
        diffucoder eval builtin
        diffucoder eval builtin --limit 64 --steps 32 --out attempts.jsonl

    Attributes:
        suite: the tasks; builtin is the held-out side of the corpus of the built-in model.
        model: folder or hub id; the built-in model if not given.
        dtype: float32 or bfloat16; chosen by the device if not given.
        limit: number of tasks.
        batch_size: tasks decoded together.
        max_new_tokens: length of the canvas.
        steps: denoising steps; one token per step if not given.
        temperature: 0 is greedy.
        alg: order of unmasking.
        out: file for one JSON line per task.
        allow_unsafe_exec: run what the model wrote without containment where there is none.
    """

    suite: tyro.conf.Positional[Literal["builtin"]]
    model: str | None = None
    dtype: str | None = None
    limit: int = 300
    batch_size: int = 25
    max_new_tokens: int = 144
    steps: int | None = None
    temperature: float = 0.0
    alg: str = "entropy"
    out: Path | None = None
    allow_unsafe_exec: bool = False

    def run(self) -> int:
        from jax_lm.evaluation.builtin import Attempt, evaluate, held_out_tasks, standard_error
        from jax_lm.inference import DiffuCoderInference, GenerationOptions
        from jax_lm.sandbox import Local
        from jax_lm.sandbox.runner import choose

        # A host that cannot contain programs is better told before the model has written them.
        choose("auto", allow_unsafe=self.allow_unsafe_exec)
        executor = Local(allow_unsafe=self.allow_unsafe_exec)
        options = GenerationOptions(
            max_new_tokens=self.max_new_tokens, num_steps=self.steps, temperature=self.temperature, alg=self.alg
        )
        tasks = held_out_tasks(self.limit)
        engine = DiffuCoderInference(self.model, dtype=self.dtype)
        start = time.monotonic()
        attempts: list[Attempt] = []
        with terminal.progress("evaluating") as report:
            attempts.extend(
                evaluate(engine, tasks, options, batch_size=self.batch_size, executor=executor, on_progress=report)
            )
        if self.out:
            lines = (
                {
                    "family": attempt.task.family,
                    "prompt": attempt.task.prompt,
                    "completion": attempt.completion,
                    "outcome": attempt.result.outcome,
                    "detail": attempt.result.detail,
                    "tier": attempt.result.tier,
                }
                for attempt in attempts
            )
            self.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        table = Table("held-out tasks", "count", "passed", "pass@1", "± s.e.", title=f"{self.limit} tasks, {self.alg}")
        for group in ("families", "compositions", "all"):
            chosen = [attempt for attempt in attempts if group in ("all", attempt.group)]
            if chosen:
                passed = sum(attempt.result.passed for attempt in chosen)
                rate, error = passed / len(chosen), standard_error(passed, len(chosen))
                table.add_row(group, str(len(chosen)), str(passed), f"{rate:.1%}", f"{error:.1%}")
        console = Console(highlight=False)
        console.print(table)
        outcomes = Counter(attempt.result.outcome for attempt in attempts)
        seconds = time.monotonic() - start
        console.print(", ".join(f"{count} {outcome}" for outcome, count in outcomes.items()) + f" in {seconds:.0f} s")
        return 0
