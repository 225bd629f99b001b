"""Attempts at problems: a model writes programs, and the sandbox executes them.

Attempts are recorded in a run folder, from which an interrupted evaluation resumes.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jax_lm.checkpoints.checksums import sha256
from jax_lm.data.prompts import group_tests
from jax_lm.evaluation.problems import Problem, Problems
from jax_lm.evaluation.prompting import CompletionPrompting, Prompting
from jax_lm.host import terminal
from jax_lm.inference import DiffuCoderInference
from jax_lm.inference.batches import share_batches
from jax_lm.options import GenerationOptions
from jax_lm.reports.run_folder import Record, RunLog, weights_digest
from jax_lm.templates import Template
from untrusted import Limits, Local, Program
from untrusted.results import Executor
from untrusted.runner import choose_tier

# Outcome of a problem that does not fit into the model's context.
TOO_LONG = "too long"
# Outcomes of a program that the sandbox could not run, or whose tests it could not judge.
SANDBOX_ERROR = "sandbox_error"
CANNOT_JUDGE = "cannot_judge"
# Suffix of the tier if the program ran in the process of its tests, and could forge the verdict.
NO_BORDER = ", in the program's process"
COMPLETION = CompletionPrompting()
# 1 GiB: numpy and EvalPlus's largest inputs do not fit into the sandbox's default of half of it.
MEMORY_BYTES = 2**30

# Name of a problem, index of the sample.
Key = tuple[str, int]


@dataclass(frozen=True)
class Attempt:
    """One program for a problem, and its outcome.

    Attributes:
        problem: the problem.
        program: code executed before the tests.
        outcome: an outcome of the sandbox, of which `UNJUDGED` say nothing about the program, or
            `TOO_LONG`; empty before execution.
        detail: reason of an outcome other than passed.
        tier: isolation tier of the sandbox.
        sample: index among the samples of the same problem.
        prompt: text before the answer.
        completion: the whole answer.
        tokens: tokens of the answer, without stop tokens.
        forwards: forward passes of the batch.
        seconds: decoding time of the batch, divided by its number of attempts.
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
        """Whether the program passed all tests."""
        return self.outcome == "passed"

    @property
    def key(self) -> Key:
        """Name of the problem and index of the sample."""
        return self.problem.name, self.sample

    @property
    def job(self) -> Program:
        """The program with its tests, for the sandbox."""
        seconds = self.problem.seconds
        tests = group_tests(self.problem.tests)
        limits = Limits(
            seconds=seconds,
            # at least a minute, at most what the sandbox allows
            total_seconds=min(max(seconds, seconds * len(tests), 60.0), 3600.0),
            memory_bytes=MEMORY_BYTES,
            canary=self.problem.canary,
        )
        return Program(self.program, tests, limits)

    def record(self) -> Record:
        """Return the attempt as plain data."""
        problem = self.problem
        named = {"name": problem.name, "group": problem.group, "suffix": problem.suffix}
        record = vars(self) | named | {"seconds": round(self.seconds, 4)}
        del record["problem"]
        return record


class Draft(NamedTuple):
    """An attempt before decoding, its templates, and the width of the longest of them in tokens."""

    attempt: Attempt
    templates: list[Template]
    width: int


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Decodes answers to problems in batches, and executes the programs.

    Attributes:
        engine: the model.
        executor: runs the programs.
        options: options of decoding.
        prompting: converts problems to prompts, and answers to programs.
        batch_size: attempts decoded together, at least 1.
        seed: seed of all batches, see `batch_seed`.
    """

    engine: DiffuCoderInference
    executor: Executor
    options: GenerationOptions
    prompting: Prompting = COMPLETION
    batch_size: int
    seed: int = 0

    def attempts(
        self,
        problems: Problems,
        *,
        done: Collection[Key] = frozenset(),
        on_progress: terminal.Report | None = None,
    ) -> Iterator[Attempt]:
        """Decode the problems in batches, and execute the programs of each batch.

        Problems of similar length share a batch. Problems that do not fit into the model's context
        are yielded with outcome `TOO_LONG`.

        Args:
            problems: a problem that is listed n times gets n samples.
            done: keys of attempts to skip. Batches and their random numbers do not depend on it.
            on_progress: called with the number of decoded attempts, the total, and a note.
        """
        # drafts, without those that are too long
        limit = self.engine.config.max_position_embeddings
        drafts = []
        for draft in self.drafts(problems):
            if draft.width <= limit:
                drafts.append(draft)
            elif draft.attempt.key not in done:
                yield replace(
                    draft.attempt,
                    outcome=TOO_LONG,
                    detail=f"takes {draft.width} tokens: the context holds {limit}",
                )
        widths = [draft.width for draft in drafts]
        # decode and execute
        start = 0
        for number, rows in enumerate(share_batches(widths, self.batch_size, self.engine.config)):
            batch = [drafts[row] for row in rows]
            # A batch is decoded whole even if one attempt is left, so that each row keeps its
            # random numbers.
            if any(draft.attempt.key not in done for draft in batch):
                report = terminal.batch_progress(on_progress, start, len(batch), len(drafts))
                attempts = self.decode_batch(
                    batch, min(self.batch_size, len(drafts)), batch_seed(self.seed, number), report
                )
                yield from execute_attempts(
                    self.executor, [attempt for attempt in attempts if attempt.key not in done]
                )
            start += len(batch)
            if on_progress:
                on_progress(start, len(drafts))

    def drafts(self, problems: Problems) -> Iterator[Draft]:
        """Yield a draft for each problem; repetitions of a problem are numbered as its samples."""
        seen = Counter()
        for problem in problems:
            # With several lengths to try, the longest decides whether the problem fits.
            templates = self.prompting.templates(self.engine, problem, self.options)
            width = max(self.engine.width(each, self.options) for each in templates)
            prompt = str(templates[0].parts[0])
            yield Draft(
                Attempt(problem, "", sample=seen[problem.name], prompt=prompt), templates, width
            )
            seen[problem.name] += 1

    def decode_batch(
        self, batch: Sequence[Draft], size: int, seed: int, on_progress: terminal.Report | None
    ) -> Iterator[Attempt]:
        """Decode a batch of drafts, filled up to `size` of them. The attempts are not executed."""
        rows = [
            (template, partial(self.prompting.is_over, draft.attempt.problem))
            for draft in batch
            for template in draft.templates
        ]
        # Pad the last batch by repeating its last row: another size would compile the loop again.
        rows += [rows[-1]] * (size * len(batch[0].templates) - len(rows))
        templates, ends = zip(*rows, strict=True)
        decoded = self.engine.decode(
            templates, self.options, seed=seed, ends=ends, on_progress=on_progress
        )
        # A draft has a row for each template, one for each length of the hole; all drafts have equally
        # many. The most confident answer is used. 2 drafts of 3 templates: rows 0 to 2, and 3 to 5.
        generations = iter(decoded.rows)
        for attempt, drafted, _ in batch:
            answer = max(
                (next(generations) for _ in drafted), key=lambda row: row.mean_log_confidence
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
    executor: Executor, attempts: Sequence[Attempt], *, on_progress: terminal.Report | None = None
) -> list[Attempt]:
    """Execute the programs of attempts, and return the attempts with outcomes in the same order."""
    results = executor.run_many([attempt.job for attempt in attempts], on_progress=on_progress)
    return [
        replace(
            attempt,
            outcome=result.outcome,
            detail=result.detail,
            # marked if a verdict has no border
            tier=result.tier + NO_BORDER * any(not test.border for test in result.tests),
        )
        for attempt, result in zip(attempts, results, strict=True)
    ]


def batch_seed(seed: int, number: int) -> int:
    """Derive the seed of a batch from the seed of the run.

    With one seed for all batches, samples of a problem in the same row of two batches would be
    equal.
    """
    # generate_state is uint32; >> 1 keeps it within int32
    return int(np.random.SeedSequence((seed, number)).generate_state(1)[0] >> 1)


def problem_executor(
    executor: str, *, allow_unsafe: bool = False, same_process: bool = False
) -> Local:
    """Return the sandbox of this machine for the programs of problems.

    Raises:
        SandboxUnavailableError: the machine has no sandbox that is allowed.
    """
    return Local(
        choose_tier(executor, allow_unsafe=allow_unsafe),
        allow_unsafe=allow_unsafe,
        same_process=same_process,
    )


class Journal(RunLog):
    """Log of the attempts of a run, by problem and sample."""

    name = "attempts.jsonl"
    kind = "an attempt"

    def __init__(self, folder: Path | None, settings: Record):
        self.records: dict[Key, Record] = {}
        super().__init__(folder, settings)

    @property
    def done(self) -> set[Key]:
        """Keys of attempts that are not repeated: all but those on which the sandbox failed."""
        return {key for key, record in self.records.items() if record["outcome"] != SANDBOX_ERROR}

    def take(self, record: Record):
        """Add a record. It replaces an earlier one of the same problem and sample."""
        self.records[record["name"], record["sample"]] = record


def journal_settings(
    evaluator: Evaluator, problems: Problems, *, data: Path | None, model: str | None, **others
) -> Record:
    """Return the settings that a resumed run must share, with digests of data and weights.

    Args:
        evaluator: the evaluator of the run.
        problems: the problems, each once; the number of samples is one of `others`.
        data: file of the problems, if any.
        model: name of the model; by default that of its checkpoint.
        **others: further settings, recorded unchanged.
    """
    source = evaluator.engine.source
    return {
        **others,
        "data": None if data is None else f"{data.name} sha256:{sha256(data)}",
        "problems": len(problems),
        "model": model or ("built-in model" if evaluator.engine.is_builtin else source.name.name),
        "weights": f"sampled sha256:{weights_digest(*source.folders)}",
        "dtype": evaluator.engine.dtype,
        "quantization": evaluator.engine.quantization,
        "prompts": evaluator.prompting.name,
        "batch_size": evaluator.batch_size,
        "seed": evaluator.seed,
        "generation": asdict(evaluator.options),
    }
