"""`diffucoder analyze`: in which order a model decodes, how sure it is, and what temperature does to both."""

import json
from dataclasses import asdict, replace

from rich.console import Console

from jax_lm.arguments.evaluation import Analyze
from jax_lm.benchmark.machine import about
from jax_lm.commands.compare import print_report
from jax_lm.evaluation.attempts import problem_executor
from jax_lm.evaluation.order_analysis import ORDER_COLUMNS, analyze_order
from jax_lm.evaluation.problems import suite_problems
from jax_lm.inference import DiffuCoderInference
from jax_lm.reports.document import Document, Section


def run(arguments: Analyze) -> int:
    """Analyze a model; print a table, and write numbers, pictures and a page."""
    problems, _ = suite_problems(arguments.suite, arguments.data, arguments.limit)
    generation, executor = arguments.generation, problem_executor(arguments.executor)
    options = [replace(generation, temperature=temperature) for temperature in arguments.temperatures]
    engine = DiffuCoderInference(arguments.model, dtype=arguments.dtype)
    analysis = analyze_order(engine, problems, executor, options, samples=arguments.n, seed=arguments.seed)
    steps = f"{generation.steps} steps" if generation.steps else "as few steps as the commit rule takes"
    together = "; positions of one step are ordered by confidence, the paper leaves that open"
    metadata = {
        "model": f"{arguments.model or 'built-in model'}, {engine.parameter_count:,} parameters, {engine.dtype}",
        "prompts": f"{arguments.limit} of {arguments.suite}, {arguments.n} samples each above temperature 0",
        "decoding": f"{generation.max_new_tokens} positions in {steps}, {generation.alg}, seed {arguments.seed}"
        + (together if analysis.by_confidence else ""),
    }
    settings = json.loads(json.dumps(asdict(arguments), default=str))
    analysis.write(arguments.out, metadata, {"about": about(), "settings": settings})
    measures = Section(title="Measures", columns=ORDER_COLUMNS, rows=analysis.cells())
    print_report(Document(title="Analysis", metadata=metadata, sections=[measures]), with_sections=True)
    Console(highlight=False).print(f"page: {arguments.out / 'analysis.html'}", markup=False, soft_wrap=True)
    return 0
