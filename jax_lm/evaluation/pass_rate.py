"""pass@1: fill the gaps of problems with a model, and execute what came out in the sandbox."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jax_lm.evaluation.problems import Problem
from jax_lm.inference import DiffuCoderInference, Progress
from jax_lm.infilling import Template, candidate_lengths
from jax_lm.options import Generation, GenerationOptions
from jax_lm.sandbox import Executor, Job

ORACLE = "oracle"
TOO_LONG = "too long"


@dataclass(frozen=True)
class Attempt:
    """One problem, what was written into its gap, and what became of it."""

    problem: Problem
    middle: str
    outcome: str
    detail: str = ""
    tier: str = ""

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"


def judge(
    executor: Executor, written: Sequence[tuple[Problem, str]], *, on_progress: Progress | None = None
) -> list[Attempt]:
    """Execute programs with their gaps filled like this."""
    jobs = [Job(problem.program(middle), apart(problem.tests)) for problem, middle in written]
    return [
        Attempt(problem, middle, result.outcome, result.detail, result.tier)
        for (problem, middle), result in zip(written, executor.run_many(jobs, on_progress=on_progress), strict=True)
    ]


def apart(tests: Sequence[str]) -> tuple[str, ...]:
    """Assertions are tests of their own; statements that build on each other are one."""
    return tuple(tests) if all(test.startswith("assert ") for test in tests) else ("\n".join(tests),)


def evaluate(
    engine: DiffuCoderInference,
    problems: Sequence[Problem],
    options: GenerationOptions,
    *,
    batch_size: int,
    executor: Executor,
    middle_length: int | str | None = None,
    on_progress: Progress | None = None,
) -> Iterator[Attempt]:
    """Generate in batches and test each completion; problems of similar length share a batch.

    `middle_length` is as in `DiffuCoderInference.infill`, or "oracle" for that of the canonical filling. Problems
    that do not fit the model's context count as not passed.

    Raises:
        ValueError: a batch size or a length below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: must be at least 1")
    limit = engine.config.max_position_embeddings
    todo: list[tuple[int, Problem, list[Template]]] = []
    for problem in problems:
        templates = candidates(engine, problem, options.max_new_tokens, middle_length)
        width = max(len(template.encoded(engine.tokenizer)[0]) for template in templates)
        if width > limit:
            yield Attempt(problem, "", TOO_LONG, f"takes {width} tokens: the context holds {limit}")
        else:
            todo.append((width, problem, templates))
    todo.sort(key=lambda entry: entry[0])
    for start in range(0, len(todo), batch_size):
        batch = todo[start : start + batch_size]
        rows = [template for *_, templates in batch for template in templates]
        # A last batch of another size would compile the loop once more.
        rows += [rows[-1]] * (batch_size * len(batch[0][2]) - len(rows))
        generations = iter(engine.decode(rows, options).rows)
        best = [max((next(generations) for _ in templates), key=likelihood) for *_, templates in batch]
        yield from judge(executor, [(entry[1], row.text) for entry, row in zip(batch, best, strict=True)])
        if on_progress:
            on_progress(start + len(batch), len(todo))


def likelihood(generation: Generation) -> float:
    """By which the best of several lengths is taken."""
    return generation.mean_log_confidence


def candidates(
    engine: DiffuCoderInference, problem: Problem, limit: int, middle_length: int | str | None
) -> list[Template]:
    """The problem with a gap of each length to try."""
    if middle_length == ORACLE:
        lengths = [max(1, len(engine.tokenizer.encode(problem.canonical)))]
    else:
        lengths = candidate_lengths(limit, middle_length)
    return [Template.infilling(problem.prefix, length, problem.suffix) for length in lengths]


def standard_error(passed: int, count: int) -> float:
    """Binomial standard error of a pass rate."""
    rate = passed / count
    return math.sqrt(rate * (1 - rate) / count)
