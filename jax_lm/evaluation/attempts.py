"""Attempts at problems: a model writes programs, the sandbox executes them, and a resumable run
folder keeps them.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jax_lm.evaluation.problems import Problem
from jax_lm.evaluation.prompting import CompletionPrompting, Prompting
from jax_lm.inference import DiffuCoderInference, Progress
from jax_lm.options import GenerationOptions
from jax_lm.reports.run_folder import Record, RunLog, file_digest, weights_digest
from jax_lm.templates import Template
from untrusted import Limits, Local, Program
from untrusted.results import Executor
from untrusted.runner import choose_tier

TOO_LONG = "too long"
SANDBOX_ERROR = "sandbox_error"
COMPLETION = CompletionPrompting()
# numpy and the largest inputs of EvalPlus do not fit the sandbox's default of half as much.
MEMORY_BYTES = 2**30

# Name of a problem, number of the sample.
Key = tuple[str, int]


@dataclass(frozen=True)
class Attempt:
    """One program for a problem, and what became of it.

    Attributes:
        program: what was executed, before the tests.
        outcome: passed, failed, timeout, out_of_memory, sandbox_error (which says nothing about the
            program), or too long for the model's context; empty before it was executed.
        detail: why it did not pass.
        tier: how it was contained.
        sample: 0, 1, … of the same problem.
        prompt: text that stood before the answer.
        completion: what it wrote, as a whole.
        tokens: how many the answer has, without stop tokens.
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
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return self.outcome == "passed"

    @property
    def key(self) -> Key:
        return self.problem.name, self.sample

    @property
    def job(self) -> Program:
        """Its program and tests: assertions are tests of their own, statements that build on each
        other are one.
        """
        tests, seconds = self.problem.tests, self.problem.seconds
        statements = [test for test in tests if isinstance(test, str)]
        if not all(test.startswith("assert ") for test in statements):
            tests = ("\n".join(statements), *(test for test in tests if not isinstance(test, str)))
        limits = Limits(
            seconds=seconds, total_seconds=max(seconds, 60.0), memory_bytes=MEMORY_BYTES
        )
        return Program(self.program, tests, limits)

    def record(self) -> Record:
        """Turn it into plain data."""
        problem, data = self.problem, vars(self) | {"seconds": round(self.seconds, 4)}
        del data["problem"]
        return {"name": problem.name, "group": problem.group, "suffix": problem.suffix, **data}


class Draft(NamedTuple):
    """An attempt to be written, the templates to decode for it, and the longest of them in tokens."""

    attempt: Attempt
    templates: list[Template]
    width: int


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Lets a model attempt problems, `batch_size` (at least 1) decoded together, and executes what
    it wrote.

    With `timed` a batch for which something was compiled is decoded again, so that its seconds are
    of decoding alone.
    """

    engine: DiffuCoderInference
    executor: Executor
    options: GenerationOptions
    prompting: Prompting = COMPLETION
    batch_size: int
    seed: int = 0
    timed: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size={self.batch_size}: must be at least 1")

    def attempts(
        self,
        problems: Sequence[Problem],
        *,
        done: Collection[Key] = frozenset(),
        on_progress: Progress | None = None,
    ) -> Iterator[Attempt]:
        """Generate in batches and test each completion; problems of similar length share a batch.

        A problem that is listed several times gets several samples. Problems that do not fit the
        model's context are not passed. What is in `done` is left out; the batches, and what is
        drawn in them, are the same with and without it.
        """
        limit = self.engine.config.max_position_embeddings
        drafts: list[Draft] = []
        for draft in self.drafts(problems):
            if draft.width <= limit:
                drafts.append(draft)
            elif draft.attempt.key not in done:
                detail = f"takes {draft.width} tokens: the context holds {limit}"
                yield replace(draft.attempt, outcome=TOO_LONG, detail=detail)
        drafts.sort(key=lambda draft: draft.width)
        for number, start in enumerate(range(0, len(drafts), self.batch_size)):
            batch = drafts[start : start + self.batch_size]
            if any(draft.attempt.key not in done for draft in batch):
                written = self.written(batch, batch_seed(self.seed, number))
                yield from execute_attempts(
                    self.executor, [each for each in written if each.key not in done]
                )
            if on_progress:
                on_progress(start + len(batch), len(drafts))

    def drafts(self, problems: Sequence[Problem]) -> Iterator[Draft]:
        """Prepare an attempt at each problem, numbered where it is listed again."""
        seen: Counter[str] = Counter()
        for problem in problems:
            templates = self.prompting.templates(self.engine, problem, self.options)
            width = max(template.width(self.engine.tokenizer) for template in templates)
            prompt = self.prompting.prompt(self.engine, problem)
            yield Draft(
                Attempt(problem, "", sample=seen[problem.name], prompt=prompt), templates, width
            )
            seen[problem.name] += 1

    def written(self, batch: Sequence[Draft], seed: int) -> Iterator[Attempt]:
        """Decode a batch of drafts; the attempts are not executed yet."""
        rows = [template for draft in batch for template in draft.templates]
        # A last batch of another size would compile the loop once more.
        rows += [rows[-1]] * (self.batch_size * len(batch[0].templates) - len(rows))
        decoded = self.engine.decode(rows, self.options, seed=seed)
        if self.timed and decoded.compile_seconds:
            decoded = self.engine.decode(rows, self.options, seed=seed)
        generations = iter(decoded.rows)
        for attempt, templates, _ in batch:
            answer = max(
                (next(generations) for _ in templates), key=lambda row: row.mean_log_confidence
            )
            yield replace(
                attempt,
                program=self.prompting.program(attempt.problem, answer.text),
                completion=answer.text,
                tokens=len(answer.token_ids),
                forwards=decoded.forwards,
                seconds=decoded.seconds / len(batch),
            )


def execute_attempts(
    executor: Executor, attempts: Sequence[Attempt], *, on_progress: Progress | None = None
) -> list[Attempt]:
    """Execute the programs of attempts, in order."""
    results = executor.run_many([attempt.job for attempt in attempts], on_progress=on_progress)
    return [
        replace(attempt, outcome=result.outcome, detail=result.detail, tier=result.tier)
        for attempt, result in zip(attempts, results, strict=True)
    ]


def batch_seed(seed: int, number: int) -> int:
    """Derive the seed of a batch: with one for all, samples of a problem in the same row of two
    batches were equal.
    """
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0] >> 1)


def problem_executor(executor: str, *, allow_unsafe: bool = False) -> Local:
    """Choose where the programs of problems run on this machine; raises SandboxUnavailableError
    where nowhere.
    """
    tier = choose_tier(executor, allow_unsafe=allow_unsafe)
    return Local(tier, allow_unsafe=allow_unsafe)


class Journal(RunLog):
    """Attempts so far, by problem and sample."""

    name, kind = "attempts.jsonl", "attempt"

    def __init__(self, folder: Path | None, settings: Mapping[str, Any]) -> None:
        self.records: dict[Key, Record] = {}
        super().__init__(folder, settings)

    @property
    def done(self) -> set[Key]:
        """Attempts that need not be made again; a failure of the sandbox said nothing."""
        return {key for key, record in self.records.items() if record["outcome"] != SANDBOX_ERROR}

    def take(self, record: Record) -> None:
        self.records[record["name"], record["sample"]] = record


def journal_settings(
    evaluator: Evaluator,
    problems: Sequence[Problem],
    *,
    data: Path | None,
    model: str | None,
    **others: Any,
) -> Record:
    """Collect all that the results depend on, the bytes of data and weights included; `others` as
    they are.

    Raises ValueError if the data cannot be read.
    """
    found = evaluator.engine.found
    if found.adapter:
        others["adapter"] = f"sha256:{file_digest(found.adapter.files[1])}"
    return {
        **others,
        "data": None if data is None else f"{data.name} sha256:{file_digest(data)}",
        "problems": len(problems),
        "model": model or ("built-in model" if evaluator.engine.is_builtin else found.name.name),
        "weights": f"sampled sha256:{weights_digest(found.folder)}",
        "dtype": evaluator.engine.dtype,
        "prompts": evaluator.prompting.name,
        "batch_size": evaluator.batch_size,
        "seed": evaluator.seed,
        "generation": asdict(evaluator.options),
    }
