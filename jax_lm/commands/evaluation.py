"""`diffucoder eval`: how often a model solves problems, by executing what it writes."""

import time
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console
from rich.table import Table

from jax_lm import terminal
from jax_lm.arguments.evaluation import Evaluate
from jax_lm.checkpoints import huggingface
from jax_lm.evaluation.journal import Journal, file_digest, weights_digest, write_whole
from jax_lm.evaluation.pass_rate import Attempt, evaluate, judge
from jax_lm.evaluation.problems import Problem, file_problems, held_out_problems
from jax_lm.evaluation.prompting import Chatting, Completing, is_instruct
from jax_lm.evaluation.report import RATE_COLUMNS, facts, markdown, outcomes, page, rates
from jax_lm.inference import BUILTIN_MODEL, DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.sandbox import Local
from jax_lm.sandbox.runner import choose_tier

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


def run(arguments: Evaluate) -> int:
    require_consistent(arguments)
    problems, total = chosen_problems(arguments)
    # A host that cannot contain programs is better told before the model has written them.
    tier = choose_tier(arguments.executor, allow_unsafe=arguments.allow_unsafe_exec)
    executor = Local(tier, allow_unsafe=arguments.allow_unsafe_exec, packages=PACKAGES)
    if arguments.canonical or arguments.empty:
        return check_fillings(arguments, problems, executor)
    options = options_of(arguments)
    evaluate_model(arguments, problems, total, options, executor)
    return 0


def require_consistent(arguments: Evaluate) -> None:
    """ValueError names options that exclude each other, before anything is loaded."""
    if (arguments.suite == BUILTIN) != (arguments.data is None):
        where = f": {SOURCES[arguments.suite]}" if arguments.suite in SOURCES else ""
        raise ValueError(f"data={arguments.data}: {arguments.suite} {'needs a file' if where else 'takes none'}{where}")
    for one, other in (("chat", "base"), ("canonical", "empty"), ("canonical", "chat"), ("empty", "chat")):
        if getattr(arguments, one) and getattr(arguments, other):
            raise ValueError(f"{one} and {other}: give one of them")
    if arguments.chat and arguments.suite in (BUILTIN, "infilling"):
        raise ValueError(f"chat: problems of {arguments.suite} are no questions")
    if arguments.middle_length is not None and arguments.suite not in (BUILTIN, "infilling"):
        raise ValueError(f"middle_length={arguments.middle_length!r}: problems of {arguments.suite} have no gap")
    if arguments.n < 1:
        raise ValueError(f"n={arguments.n}: must be at least 1")
    if not arguments.k or not all(1 <= k <= arguments.n for k in arguments.k):
        raise ValueError(f"k={' '.join(map(str, arguments.k))}: each must be between 1 and n={arguments.n}")
    if arguments.timeout is not None and not 0 < arguments.timeout <= 3600:
        raise ValueError(f"timeout={arguments.timeout}: must be above 0 and at most 3600 seconds")
    draws = options_of(arguments).temperature > 0 or arguments.alg_temp > 0 or arguments.alg in ("random", "origin")
    if arguments.n > 1 and not draws and not (arguments.canonical or arguments.empty):
        raise ValueError(f"n={arguments.n}: at temperature 0 all samples of a problem are equal")


def chosen_problems(arguments: Evaluate) -> "tuple[list[Problem], int]":
    """The chosen problems, and how many the suite has."""
    if arguments.suite == BUILTIN or arguments.data is None:
        chosen = held_out_problems(HELD_OUT_LIMIT if arguments.limit is None else arguments.limit)
        total = HELD_OUT_LIMIT
    else:
        chosen = file_problems(arguments.suite, arguments.data, arguments.limit)
        total = len(file_problems(arguments.suite, arguments.data))
    if arguments.timeout is not None:
        chosen = [replace(problem, seconds=arguments.timeout) for problem in chosen]
    return chosen, max(total, len(chosen))


def options_of(arguments: Evaluate) -> GenerationOptions:
    is_short = arguments.model is None or arguments.suite in (BUILTIN, "infilling")
    is_published = arguments.suite not in (BUILTIN, "infilling")
    default = SHORT_CANVAS if is_short else PUBLISHED_CANVAS
    temperature = PUBLISHED_TEMPERATURE if is_published else 0.0
    return GenerationOptions(
        max_new_tokens=default if arguments.max_new_tokens is None else arguments.max_new_tokens,
        num_steps=arguments.steps,
        temperature=temperature if arguments.temperature is None else arguments.temperature,
        alg=arguments.alg,
        alg_temp=arguments.alg_temp,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        decoding=Decoding(preset=arguments.preset),
    )


def check_fillings(arguments: Evaluate, problems: list[Problem], executor: Local) -> int:
    """Score fillings whose outcome is known; 1 if any has another."""
    fillings = [problem.canonical if arguments.canonical else problem.empty for problem in problems]
    written = [
        Attempt(problem, problem.program(filling))
        for problem, filling in zip(problems, fillings, strict=True)
        if filling is not None
    ]
    if not written:
        raise ValueError(f"empty: problems of {arguments.suite} have no empty filling, parts of a program may be idle")
    start = time.monotonic()
    with terminal.progress("executing") as report:
        attempts = judge(executor, written, on_progress=report)
    seconds = time.monotonic() - start
    console = Console(highlight=False, markup=False, soft_wrap=True)
    wrong = [attempt for attempt in attempts if attempt.passed != arguments.canonical]
    for attempt in wrong:
        console.print(f"{attempt.problem.name}: {attempt.outcome}: {attempt.detail}")
    what = "canonical solutions" if arguments.canonical else "empty bodies"
    counts = outcomes([{"outcome": attempt.outcome} for attempt in attempts])
    rate = sum(attempt.passed for attempt in attempts) / len(attempts)
    console.print(
        f"{arguments.suite}: {len(attempts)} {what} in {executor.executor}: {counts}; pass@1 {rate:.1%}; "
        f"{len(attempts) / seconds:.1f} runs/s"
    )
    return 1 if wrong else 0


def evaluate_model(
    arguments: Evaluate, problems: list[Problem], total: int, options: GenerationOptions, executor: Local
) -> None:
    """Generate, execute, keep and report."""
    engine = DiffuCoderInference(arguments.model, dtype=arguments.dtype)
    has_questions = all(problem.question for problem in problems)
    asks = has_questions and not arguments.base and (arguments.chat or is_instruct(engine))
    asking = Chatting() if asks else Completing(arguments.middle_length)
    settings = settings_of(arguments, engine, len(problems), options, prompts="chat" if asks else "base")
    with Journal(arguments.out, settings) as journal:
        if journal.records:
            Console(stderr=True).print(f"going on after {len(journal.done)} attempts of an earlier run")
        with terminal.progress("evaluating") as report:
            for attempt in evaluate(
                engine,
                problems * arguments.n,
                options,
                batch_size=arguments.batch_size,
                executor=executor,
                asking=asking,
                seed=arguments.seed,
                done=journal.done,
                on_progress=report,
            ):
                journal.add(attempt)
        write_report(arguments, journal, settings, total)


def settings_of(
    arguments: Evaluate, engine: DiffuCoderInference, count: int, options: GenerationOptions, *, prompts: str
) -> dict[str, Any]:
    """All that the results depend on."""
    folder = huggingface.resolve(arguments.model or BUILTIN_MODEL)
    return {
        "suite": arguments.suite,
        "data": None if arguments.data is None else f"{arguments.data.name} sha256:{file_digest(arguments.data)}",
        "problems": count,
        "n": arguments.n,
        "model": arguments.model or "built-in model",
        "weights": f"sampled sha256:{weights_digest(folder)}",
        "dtype": engine.dtype,
        "prompts": prompts,
        "batch_size": arguments.batch_size,
        "middle_length": arguments.middle_length,
        "timeout": arguments.timeout,
        "seed": arguments.seed,
        "generation": asdict(options),
    }


def write_report(arguments: Evaluate, journal: Journal, settings: dict[str, Any], total: int) -> None:
    """Print the rates; write report.md and report.html beside the attempts."""
    records = list(journal.records.values())
    found, told = rates(records, sorted(set(arguments.k))), facts(settings, records, total)
    console = Console(highlight=False)
    table = Table(*RATE_COLUMNS, title=arguments.suite)
    for rate in found:
        table.add_row(*rate.cells())
    console.print(table)
    for name, text in told.items():
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    if arguments.out is not None:
        write_whole(arguments.out / "report.md", markdown(arguments.suite, told, found))
        write_whole(arguments.out / "report.html", page(arguments.suite, told, found, records))
        console.print(f"report: {arguments.out / 'report.html'}", markup=False, soft_wrap=True)
