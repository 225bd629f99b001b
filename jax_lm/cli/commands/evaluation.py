"""The commands that measure quality: `diffucoder eval`, `diffucoder analyze`."""

import json
from dataclasses import asdict, replace
from time import monotonic

from jax_lm.benchmark.machine import about
from jax_lm.cli.arguments.evaluation import Analyze, Evaluate
from jax_lm.config import counted
from jax_lm.evaluation.attempts import (
    Attempt,
    Evaluator,
    Journal,
    execute_attempts,
    journal_settings,
    problem_executor,
)
from jax_lm.evaluation.order_analysis import (
    analysis_options,
    analyze_order,
    measures_section,
    write_analysis,
)
from jax_lm.evaluation.problems import Problems, suite_problems
from jax_lm.evaluation.prompting import choose_prompting
from jax_lm.evaluation.report import count_outcomes, evaluation_report
from jax_lm.host import terminal
from jax_lm.host.files import require_new, require_writable
from jax_lm.inference import FIRST_NOTE, DiffuCoderInference
from jax_lm.reports.document import Document, print_report
from jax_lm.templates import Template
from untrusted import Local
from untrusted.results import UNJUDGED

# Solutions whose outcome is known: the attribute of a problem that holds one, and their name.
FILLINGS = {"canonical": "canonical solutions", "empty": "empty bodies"}


def run_eval(arguments: Evaluate) -> int:
    """Score a model on a suite, or check the suite with solutions whose outcome is known."""
    problems, total = suite_problems(arguments.suite, arguments.data, arguments.limit)
    problems = [
        replace(problem, canary=arguments.canary, seconds=arguments.timeout or problem.seconds)
        for problem in problems
    ]
    # A missing sandbox should be reported before the model has written programs.
    executor = problem_executor(
        arguments.executor,
        allow_unsafe=arguments.allow_unsafe_exec,
        same_process=arguments.same_process,
    )
    # known solutions need no model
    if arguments.canonical or arguments.empty:
        return check_fillings(arguments, problems, executor)
    if arguments.out:
        require_writable(arguments.out)
    # load
    engine = DiffuCoderInference(
        **arguments.engine.settings,
        # refuse options that do not fit the model before the weights are loaded
        before_weights=lambda engine: engine.is_growing(engine.fit(arguments.generation)),
    )
    evaluator = Evaluator(
        engine=engine,
        executor=executor,
        options=arguments.generation,
        prompting=choose_prompting(
            engine, problems, arguments.middle_length, chat=arguments.chat, base=arguments.base
        ),
        batch_size=arguments.batch_size,
        seed=arguments.seed,
    )
    # settings that a resumed run must share
    names = ("suite", "n", "middle_length", "timeout", "canary", "same_process")
    settings = journal_settings(
        evaluator,
        problems,
        data=arguments.data,
        model=arguments.engine.name,
        tokenizer=arguments.engine.tokenizer,
        **{name: getattr(arguments, name) for name in names},
    )
    # sample and execute; each attempt is appended to the journal, so that a run can be resumed
    with Journal(arguments.out, settings) as journal:
        if journal.records:
            terminal.say(
                f"resuming after {counted(len(journal.done), 'attempt')} of an earlier run"
            )
        with terminal.progress("evaluating", FIRST_NOTE) as progress:
            # n attempts at each problem, without those of the earlier run
            for attempt in evaluator.attempts(
                problems * arguments.n, done=journal.done, on_progress=progress
            ):
                journal.append(attempt.record())
        # report
        document = evaluation_report(
            settings, journal.records.values(), sorted(set(arguments.k)), total=total
        )
        if arguments.out:
            document.write(arguments.out, "report")
    print_report(document, with_sections=True)
    if arguments.out:
        print(f"report: {arguments.out / 'report.html'}")
    return 0


def check_fillings(arguments: Evaluate, problems: Problems, executor: Local) -> int:
    """Score canonical or empty solutions.

    Returns:
        Exit status 0 if all canonical solutions pass, or all empty ones fail; else 1.
    """
    kind = "canonical" if arguments.canonical else "empty"
    # problems without such a filling are left out
    written = [
        Attempt(problem, problem.program(filling))
        for problem in problems
        if (filling := getattr(problem, kind))
    ]
    if not written:
        raise ValueError(f"{kind}: problems of {problems[0].group} have no {kind} filling")
    start = monotonic()
    with terminal.progress("executing") as progress:
        attempts = execute_attempts(executor, written, on_progress=progress)
    speed = len(attempts) / (monotonic() - start)
    # canonical solutions must pass, empty ones must fail
    wrong = [
        attempt
        for attempt in attempts
        if attempt.outcome in UNJUDGED or attempt.passed != arguments.canonical
    ]
    for attempt in wrong:
        print(f"{attempt.problem.name}: {attempt.outcome}: {attempt.detail}")
    counts = count_outcomes(attempt.outcome for attempt in attempts)
    rate = sum(attempt.passed for attempt in attempts) / len(attempts)
    print(
        f"{arguments.suite}: {len(attempts)} {FILLINGS[kind]} in {executor.executor}: {counts}; pass@1 {rate:.1%}; "
        f"{speed:.1f} runs/s"
    )
    return 1 if wrong else 0


def run_analyze(arguments: Analyze) -> int:
    """Analyze a model; print a table, and write numbers, charts and a page."""
    require_new(arguments.out / "analysis.json")
    problems, _ = suite_problems(arguments.suite, arguments.data, arguments.limit)
    generation = arguments.generation
    length = generation.max_new_tokens
    executor = problem_executor(arguments.executor)
    # one analysis per temperature
    options = [replace(generation, temperature=each) for each in arguments.temperatures]
    templates = [Template.completion(problem.prefix, length) for problem in problems]
    engine = DiffuCoderInference(
        **arguments.engine.settings,
        # refuse a canvas that exceeds the context before the weights are loaded
        before_weights=lambda engine: engine.canvas(templates, generation),
    )
    analysis = analyze_order(
        engine, problems, executor, options, samples=arguments.n, seed=arguments.seed
    )
    alg = analysis_options(engine, generation).alg
    steps = f"{generation.steps} steps" if generation.steps else "as few steps as the rule takes"
    decoding = f"{length} positions in {steps}, {alg}, seed {arguments.seed}"
    if analysis["ordered_by_confidence"]:
        decoding += "; positions of one step are ordered by confidence, the paper does not define their order"
    metadata = {
        "model": f"{arguments.engine.name}, {engine.parameter_count:,} parameters, {engine.precision}",
        "prompts": f"{len(problems)} of {arguments.suite}, {arguments.n} samples each above temperature 0",
        "decoding": decoding,
    }
    # paths and other objects become text
    settings = json.loads(json.dumps(asdict(arguments), default=str))
    write_analysis(analysis, arguments.out, metadata, {"about": about(), "settings": settings})
    print_report(
        Document(title="Analysis", metadata=metadata, sections=[measures_section(analysis)]),
        with_sections=True,
    )
    print(f"page: {arguments.out / 'analysis.html'}")
    return 0
