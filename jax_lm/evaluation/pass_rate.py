"""Let a model write programs for problems, and execute them in the sandbox."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from jax_lm.evaluation.problems import Problem
from jax_lm.evaluation.prompting import Asking, Completing
from jax_lm.inference import DiffuCoderInference, Progress
from jax_lm.infilling import Template
from jax_lm.options import GenerationOptions
from jax_lm.results import Generation
from jax_lm.sandbox import Executor, Limits, Program

TOO_LONG = "too long"
SANDBOX_ERROR = "sandbox_error"
MEMORY_BYTES = 2**30
"""numpy and the largest inputs of EvalPlus do not fit the sandbox's default of half as much."""

Key = tuple[str, int]
"""Name of a problem, number of the sample."""


@dataclass(frozen=True)
class Attempt:
    """One program for a problem, and what became of it.

    Attributes:
        problem: what it is for.
        program: what was executed, before the tests.
        outcome: passed, failed, timeout, out_of_memory, sandbox_error (which says nothing about the program), or
            too long for the model's context; empty before it was executed.
        detail: why it did not pass.
        tier: how it was contained.
        sample: 0, 1, … of the same problem.
        prompt: what the model was given before its answer.
        completion: what it wrote, as a whole.
        forwards: model evaluations of its batch.
        seconds: its share of the time that decoding the batch took.
    """

    problem: Problem
    program: str
    outcome: str = ""
    detail: str = ""
    tier: str = ""
    sample: int = 0
    prompt: str = ""
    completion: str = ""
    forwards: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"

    @property
    def key(self) -> Key:
        return self.problem.name, self.sample


def judge(executor: Executor, attempts: Sequence[Attempt], *, on_progress: Progress | None = None) -> list[Attempt]:
    """Execute the programs of attempts, in order."""
    jobs = [job_of(attempt) for attempt in attempts]
    return [
        replace(attempt, outcome=result.outcome, detail=result.detail, tier=result.tier)
        for attempt, result in zip(attempts, executor.run_many(jobs, on_progress=on_progress), strict=True)
    ]


def job_of(attempt: Attempt) -> Program:
    """Assertions are tests of their own; statements that build on each other are one."""
    tests, seconds = attempt.problem.tests, attempt.problem.seconds
    if not all(test.startswith("assert ") for test in tests):
        tests = ("\n".join(tests),)
    limits = Limits(seconds=seconds, total_seconds=max(seconds, 60.0), memory_bytes=MEMORY_BYTES)
    return Program(attempt.program, tests, limits)


@dataclass(frozen=True)
class Task:
    """An attempt before the model has written it."""

    problem: Problem
    sample: int
    templates: list[Template]
    width: int

    @property
    def key(self) -> Key:
        return self.problem.name, self.sample


def evaluate(
    engine: DiffuCoderInference,
    problems: Sequence[Problem],
    options: GenerationOptions,
    *,
    batch_size: int,
    executor: Executor,
    asking: Asking | None = None,
    seed: int = 0,
    done: Collection[Key] = frozenset(),
    on_progress: Progress | None = None,
) -> Iterator[Attempt]:
    """Generate in batches and test each completion; problems of similar length share a batch.

    A problem that is listed several times gets several samples. Problems that do not fit the model's context are not
    passed. What is in `done` is left out; the batches, and what is drawn in them, are the same with and without it.

    Raises:
        ValueError: a batch size or a length below 1.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: must be at least 1")
    asking = asking or Completing()
    limit = engine.config.max_position_embeddings
    tasks: list[Task] = []
    for task in tasks_of(engine, problems, options, asking):
        if task.width <= limit:
            tasks.append(task)
        elif task.key not in done:
            detail = f"takes {task.width} tokens: the context holds {limit}"
            prompt = asking.prompt(engine, task.problem)
            yield Attempt(task.problem, "", TOO_LONG, detail, sample=task.sample, prompt=prompt)
    tasks.sort(key=lambda task: task.width)
    for number, start in enumerate(range(0, len(tasks), batch_size)):
        batch = tasks[start : start + batch_size]
        if any(task.key not in done for task in batch):
            written = write(engine, batch, options, asking, batch_size, batch_seed(seed, number))
            yield from judge(executor, [attempt for attempt in written if attempt.key not in done])
        if on_progress:
            on_progress(start + len(batch), len(tasks))


def tasks_of(
    engine: DiffuCoderInference, problems: Sequence[Problem], options: GenerationOptions, asking: Asking
) -> Iterator[Task]:
    """Each problem with what is to be decoded for it, numbered where it is listed again."""
    seen: Counter[str] = Counter()
    for problem in problems:
        templates = asking.templates(engine, problem, options.max_new_tokens)
        width = max(len(template.encoded(engine.tokenizer)[0]) for template in templates)
        yield Task(problem, seen[problem.name], templates, width)
        seen[problem.name] += 1


def write(
    engine: DiffuCoderInference,
    batch: Sequence[Task],
    options: GenerationOptions,
    asking: Asking,
    batch_size: int,
    seed: int,
) -> list[Attempt]:
    """What the model writes for a batch, not executed yet."""
    rows = [template for task in batch for template in task.templates]
    # A last batch of another size would compile the loop once more.
    rows += [rows[-1]] * (batch_size * len(batch[0].templates) - len(rows))
    decoded = engine.decode(rows, options, seed=seed)
    generations = iter(decoded.rows)
    attempts = []
    for task in batch:
        answer = max((next(generations) for _ in task.templates), key=likelihood).text
        attempts.append(
            Attempt(
                task.problem,
                asking.program(task.problem, answer),
                sample=task.sample,
                prompt=asking.prompt(engine, task.problem),
                completion=answer,
                forwards=decoded.forwards,
                seconds=decoded.seconds / len(batch),
            )
        )
    return attempts


def batch_seed(seed: int, number: int) -> int:
    """A seed per batch: with one for all, the samples of a problem at the same place of two batches would be equal."""
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0] >> 1)


def likelihood(generation: Generation) -> float:
    """By which the best of several lengths is taken."""
    return generation.mean_log_confidence
