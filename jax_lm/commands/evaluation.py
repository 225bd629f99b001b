"""`diffucoder eval`: how often a model solves problems, by executing what it writes."""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from jax_lm import terminal

if TYPE_CHECKING:
    from jax_lm.evaluation.journal import Journal
    from jax_lm.evaluation.problems import Problem
    from jax_lm.inference import DiffuCoderInference
    from jax_lm.options import GenerationOptions
    from jax_lm.sandbox import Local

HELD_OUT_LIMIT = 300
BUILTIN = "builtin"
SHORT_CANVAS, PUBLISHED_CANVAS = 144, 512
PUBLISHED_TEMPERATURE = 0.2
PACKAGES = ("numpy",)
"""What evalplus's tests import, and what the published harness lets a solution import."""

SOURCES = {
    "humaneval": "HumanEval.jsonl.gz of github.com/openai/human-eval",
    "humaneval+": "HumanEvalPlus-OriginFmt.jsonl.gz of github.com/evalplus/humanevalplus_release",
    "mbpp": "mbpp.jsonl of github.com/google-research/google-research, or MbppPlus-OriginFmt.jsonl.gz",
    "mbpp+": "MbppPlus-OriginFmt.jsonl.gz of github.com/evalplus/mbppplus_release",
    "infilling": "a file of github.com/openai/human-eval-infilling",
}


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure pass@k by executing unit tests.

    The programs run in the sandbox; where this host has none, the command refuses (see `diffucoder sandbox check`).

    Examples:
        diffucoder eval builtin
        diffucoder eval builtin --limit 64 --preset turbo --out results
        diffucoder eval humaneval --data HumanEval.jsonl.gz --model apple/DiffuCoder-7B-Instruct --out results
        diffucoder eval humaneval+ --data HumanEvalPlus-OriginFmt.jsonl.gz --n 10 --k 1 10 --temperature 0.4
        diffucoder eval infilling --data HumanEval-SingleLineInfilling.jsonl.gz --middle-length auto
        diffucoder eval mbpp+ --data MbppPlus-OriginFmt.jsonl.gz --canonical

    Attributes:
        suite: builtin is the held-out side of the built-in model's corpus, the others are published files.
        data: the file of the problems, .jsonl or .jsonl.gz; none for builtin.
        model: folder or hub id; the built-in model if not given.
        dtype: float32 or bfloat16; chosen by the device if not given.
        limit: number of problems, evenly spread over a file; 300 for builtin and all of a file if not given.
        n: samples per problem.
        k: the k of pass@k, at most n.
        batch_size: answers decoded together.
        max_new_tokens: length of the canvas, or the longest gap tried; if not given 512 as published, and 144 for the
            built-in model, the built-in tasks and infilling.
        middle_length: of infilling, tokens of a gap, "auto" (the likeliest of several) or "oracle" (as many as the
            canonical filling has); max_new_tokens if not given.
        chat: ask as chat models are asked; chosen by itself for the published instruct models.
        base: let the model complete the text even if it is an instruct model.
        canonical: score the canonical solutions instead of a model: all of them must pass.
        empty: score empty bodies instead of a model: none may pass.
        steps: denoising steps; one token per step if not given.
        temperature: 0 is greedy; if not given 0.2 as published, and 0 for builtin and infilling.
        alg: order of unmasking.
        alg_temp: above 0, positions are drawn instead of the most confident taken.
        top_p: mass of the nucleus.
        top_k: number of candidates per position.
        seed: of the random draws.
        preset: exact, fast or turbo.
        out: folder for attempts.jsonl, report.md and report.html. A run that was killed goes on there when it is
            started again with the same settings.
        timeout: seconds for the tests of a program; what the suite needs if not given (5 to 30).
        executor: how programs are contained; auto takes bubblewrap, then Landlock.
        allow_unsafe_exec: run what the model wrote without containment where there is none.
    """

    suite: tyro.conf.Positional[Literal["builtin", "humaneval", "humaneval+", "mbpp", "mbpp+", "infilling"]]
    data: Path | None = None
    model: str | None = None
    dtype: str | None = None
    limit: int | None = None
    n: int = 1
    k: tuple[int, ...] = (1,)
    batch_size: int = 25
    max_new_tokens: int | None = None
    middle_length: int | Literal["auto", "oracle"] | None = None
    chat: bool = False
    base: bool = False
    canonical: bool = False
    empty: bool = False
    steps: int | None = None
    temperature: float | None = None
    alg: str = "entropy"
    alg_temp: float = 0.0
    top_p: float | None = 0.95
    top_k: int | None = 50
    seed: int = 0
    preset: str = "exact"
    out: Path | None = None
    timeout: float | None = None
    executor: Literal["auto", "bubblewrap", "landlock", "unsafe"] = "auto"
    allow_unsafe_exec: bool = False

    def run(self) -> int:
        from jax_lm.sandbox import Local
        from jax_lm.sandbox.runner import choose

        self.require_consistent()
        problems, total = self.problems()
        # A host that cannot contain programs is better told before the model has written them.
        tier = choose(self.executor, allow_unsafe=self.allow_unsafe_exec)
        executor = Local(tier, allow_unsafe=self.allow_unsafe_exec, packages=PACKAGES)
        if self.canonical or self.empty:
            return self.check(problems, executor)
        options = self.options()
        options.sampling()
        self.evaluate(problems, total, options, executor)
        return 0

    def require_consistent(self) -> None:
        """ValueError names options that exclude each other, before anything is loaded."""
        if (self.suite == BUILTIN) != (self.data is None):
            where = f": {SOURCES[self.suite]}" if self.suite in SOURCES else ""
            raise ValueError(f"data={self.data}: {self.suite} {'needs a file' if where else 'takes none'}{where}")
        for one, other in (("chat", "base"), ("canonical", "empty"), ("canonical", "chat"), ("empty", "chat")):
            if getattr(self, one) and getattr(self, other):
                raise ValueError(f"{one} and {other}: give one of them")
        if self.chat and self.suite in (BUILTIN, "infilling"):
            raise ValueError(f"chat: problems of {self.suite} are no questions")
        if self.middle_length is not None and self.suite not in (BUILTIN, "infilling"):
            raise ValueError(f"middle_length={self.middle_length!r}: problems of {self.suite} have no gap")
        if self.n < 1:
            raise ValueError(f"n={self.n}: must be at least 1")
        if not self.k or not all(1 <= k <= self.n for k in self.k):
            raise ValueError(f"k={' '.join(map(str, self.k))}: each must be between 1 and n={self.n}")
        if self.timeout is not None and not 0 < self.timeout <= 3600:
            raise ValueError(f"timeout={self.timeout}: must be above 0 and at most 3600 seconds")
        draws = self.options().temperature > 0 or self.alg_temp > 0 or self.alg in ("random", "origin")
        if self.n > 1 and not draws and not (self.canonical or self.empty):
            raise ValueError(f"n={self.n}: at temperature 0 all samples of a problem are equal")

    def problems(self) -> "tuple[list[Problem], int]":
        """The chosen problems, and how many the suite has."""
        from jax_lm.evaluation.problems import file_problems, held_out_problems

        if self.suite == BUILTIN or self.data is None:
            chosen = held_out_problems(HELD_OUT_LIMIT if self.limit is None else self.limit)
            total = HELD_OUT_LIMIT
        else:
            chosen = file_problems(self.suite, self.data, self.limit)
            total = len(file_problems(self.suite, self.data))
        if self.timeout is not None:
            chosen = [replace(problem, seconds=self.timeout) for problem in chosen]
        return chosen, max(total, len(chosen))

    def options(self) -> "GenerationOptions":
        from jax_lm.options import GenerationOptions

        is_short = self.model is None or self.suite in (BUILTIN, "infilling")
        is_published = self.suite not in (BUILTIN, "infilling")
        default = SHORT_CANVAS if is_short else PUBLISHED_CANVAS
        temperature = PUBLISHED_TEMPERATURE if is_published else 0.0
        return GenerationOptions(
            max_new_tokens=default if self.max_new_tokens is None else self.max_new_tokens,
            num_steps=self.steps,
            temperature=temperature if self.temperature is None else self.temperature,
            alg=self.alg, alg_temp=self.alg_temp, top_p=self.top_p, top_k=self.top_k, seed=self.seed,
            preset=self.preset,
        )  # fmt: skip

    def check(self, problems: "list[Problem]", executor: "Local") -> int:
        """Score fillings whose outcome is known; 1 if any has another."""
        from jax_lm.evaluation.pass_rate import Attempt, judge
        from jax_lm.evaluation.report import outcomes

        fillings = [problem.canonical if self.canonical else problem.empty for problem in problems]
        written = [
            Attempt(problem, problem.program(filling))
            for problem, filling in zip(problems, fillings, strict=True)
            if filling is not None
        ]
        if not written:
            raise ValueError(f"empty: problems of {self.suite} have no empty filling, parts of a program may be idle")
        start = time.monotonic()
        with terminal.progress("executing") as report:
            attempts = judge(executor, written, on_progress=report)
        seconds = time.monotonic() - start
        console = Console(highlight=False, markup=False, soft_wrap=True)
        wrong = [attempt for attempt in attempts if attempt.passed != self.canonical]
        for attempt in wrong:
            console.print(f"{attempt.problem.name}: {attempt.outcome}: {attempt.detail}")
        what = "canonical solutions" if self.canonical else "empty bodies"
        counts = outcomes([{"outcome": attempt.outcome} for attempt in attempts])
        rate = sum(attempt.passed for attempt in attempts) / len(attempts)
        console.print(
            f"{self.suite}: {len(attempts)} {what} in {executor.executor}: {counts}; pass@1 {rate:.1%}; "
            f"{len(attempts) / seconds:.1f} runs/s"
        )
        return 1 if wrong else 0

    def evaluate(self, problems: "list[Problem]", total: int, options: "GenerationOptions", executor: "Local") -> None:
        """Generate, execute, keep and report."""
        from jax_lm.evaluation.asking import Chatting, Completing, is_instruct
        from jax_lm.evaluation.journal import Journal
        from jax_lm.evaluation.pass_rate import evaluate
        from jax_lm.inference import DiffuCoderInference

        engine = DiffuCoderInference(self.model, dtype=self.dtype)
        has_questions = all(problem.question for problem in problems)
        asks = has_questions and not self.base and (self.chat or is_instruct(engine))
        asking = Chatting() if asks else Completing(self.middle_length)
        settings = self.settings(engine, len(problems), options, prompts="chat" if asks else "base")
        with Journal(self.out, settings) as journal:
            if journal.records:
                Console(stderr=True).print(f"going on after {len(journal.done)} attempts of an earlier run")
            with terminal.progress("evaluating") as report:
                for attempt in evaluate(
                    engine,
                    problems * self.n,
                    options,
                    batch_size=self.batch_size,
                    executor=executor,
                    asking=asking,
                    done=journal.done,
                    on_progress=report,
                ):
                    journal.add(attempt)
            self.report(journal, settings, total)

    def settings(
        self, engine: "DiffuCoderInference", count: int, options: "GenerationOptions", *, prompts: str
    ) -> dict[str, Any]:
        """All that the results depend on."""
        from jax_lm.checkpoints import huggingface
        from jax_lm.evaluation.journal import file_digest, weights_digest
        from jax_lm.inference import BUILTIN_MODEL

        folder = huggingface.resolve(self.model or BUILTIN_MODEL)
        return {
            "suite": self.suite,
            "data": None if self.data is None else f"{self.data.name} sha256:{file_digest(self.data)}",
            "problems": count,
            "n": self.n,
            "model": self.model or "built-in model",
            "weights": f"sampled sha256:{weights_digest(folder)}",
            "dtype": engine.dtype,
            "prompts": prompts,
            "batch_size": self.batch_size,
            "middle_length": self.middle_length,
            "timeout": self.timeout,
            "generation": asdict(options),
        }

    def report(self, journal: "Journal", settings: dict[str, Any], total: int) -> None:
        """Print the rates; write report.md and report.html beside the attempts."""
        from jax_lm.evaluation.journal import write_whole
        from jax_lm.evaluation.report import RATE_COLUMNS, facts, markdown, page, rates

        records = list(journal.records.values())
        found, told = rates(records, sorted(set(self.k))), facts(settings, records, total)
        console = Console(highlight=False)
        table = Table(*RATE_COLUMNS, title=self.suite)
        for rate in found:
            table.add_row(*rate.cells())
        console.print(table)
        for name, text in told.items():
            console.print(f"{name}: {text}", markup=False, soft_wrap=True)
        if self.out is not None:
            write_whole(self.out / "report.md", markdown(self.suite, told, found))
            write_whole(self.out / "report.html", page(self.suite, told, found, records))
            console.print(f"report: {self.out / 'report.html'}", markup=False, soft_wrap=True)
