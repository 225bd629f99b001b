"""pass@1 of a model on held-out tasks of the built-in corpus, by executing their unit tests."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jax_lm.data.corpus import Task, draw_task
from jax_lm.inference import DiffuCoderInference, GenerationOptions
from jax_lm.sandbox import Executor, Job, Local, Result

EVALUATION_SEED = 20_000_000
"""Far from the seeds of training; the split itself does not depend on seeds."""


@dataclass(frozen=True)
class Attempt:
    """One task, what the model wrote, and what became of it."""

    task: Task
    completion: str
    result: Result

    @property
    def group(self) -> str:
        return "compositions" if self.task.family == "composition" else "families"


def held_out_tasks(count: int) -> list[Task]:
    """The first `count` distinct held-out tasks of the evaluation seed."""
    if count < 1:
        raise ValueError(f"limit={count}: must be at least 1")
    rng = random.Random(EVALUATION_SEED)
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        task = draw_task(rng, held_out=True)
        tasks.setdefault(task.key, task)
    return list(tasks.values())


def evaluate(
    engine: DiffuCoderInference,
    tasks: Sequence[Task],
    options: GenerationOptions,
    *,
    batch_size: int,
    executor: Executor | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Iterator[Attempt]:
    """Generate in batches and test each completion in the sandbox; tasks of similar length share a batch."""
    if batch_size < 1:
        raise ValueError(f"batch_size={batch_size}: must be at least 1")
    ordered = sorted(tasks, key=lambda task: len(engine.tokenizer.encode(task.prompt)))
    executor = executor or Local()
    done = 0
    for start in range(0, len(ordered), batch_size):
        batch = ordered[start : start + batch_size]
        prompts = [task.prompt for task in batch]
        # A last batch of another size would compile the loop once more.
        padding = [prompts[-1]] * (batch_size - len(batch))
        completions = engine.complete(prompts + padding, options)[: len(batch)]
        pairs = list(zip(batch, completions, strict=True))
        results = executor.run_many([job_of(task, completion) for task, completion in pairs])
        for (task, completion), result in zip(pairs, results, strict=True):
            yield Attempt(task, completion, result)
        done += len(batch)
        if on_progress:
            on_progress(done, len(ordered))


def job_of(task: Task, completion: str) -> Job:
    """The program and its tests: assertions apart, but statements that build on each other are one test."""
    apart = all(test.startswith("assert ") for test in task.tests)
    return Job(task.prompt + completion, tuple(task.tests) if apart else ("\n".join(task.tests),))


def standard_error(passed: int, count: int) -> float:
    """Binomial standard error of a pass rate."""
    rate = passed / count
    return math.sqrt(rate * (1 - rate) / count)
