"""`diffucoder analyze`: in which order a model decodes, how sure it is, and what temperature does to both."""

import json
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from jax_lm import terminal
from jax_lm.arguments.evaluation import Analyze
from jax_lm.benchmark.machine import about
from jax_lm.evaluation.decoding_order import heat_map
from jax_lm.evaluation.journal import record_of, write_whole
from jax_lm.evaluation.pass_rate import Attempt, judge
from jax_lm.evaluation.problems import Problem, file_problems, held_out_problems
from jax_lm.evaluation.prompting import Completing
from jax_lm.evaluation.report import ALL, rates
from jax_lm.evaluation.traces import Trace, as_data, first_confidence, measures, record
from jax_lm.inference import DiffuCoderInference
from jax_lm.options import Decoding, GenerationOptions
from jax_lm.reports.charts import heat_chart, line_chart
from jax_lm.reports.pages import render
from jax_lm.sandbox import Local
from jax_lm.sandbox.runner import choose_tier

REPLAYED = 4
"""Traces per temperature that the page replays."""


TEMPERATURE_CURVES = {
    "local@1": lambda row: row["local_text"][0],
    "global@1": lambda row: row["global_text"][0],
    "confidence": lambda row: row["confidence_text"],
    "pass@1": lambda row: row["pass"]["pass@1"][0],
    "pass@n": lambda row: row["pass"].get(f"pass@{row['samples']}", [None])[0],
}
"""What the picture over temperatures shows, from a row of results."""


def show(told: dict[str, str], rows: list[dict[str, Any]]) -> None:
    """Print what was measured."""
    console = Console(highlight=False)
    for name, text in told.items():
        console.print(f"{name}: {text}", markup=False, soft_wrap=True)
    table = Table("temperature", "local@1", "global@1", "text: local@1", "text: global@1", "confidence", "pass@k")
    for row in rows:
        passes = ", ".join(f"{name} {value:.0%}" for name, (value, *_) in row["pass"].items())
        values = [row["local"][0], row["global"][0], row["local_text"][0], row["global_text"][0]]
        cells = ["-" if value is None else f"{value:.2f}" for value in [*values, row["confidence_text"]]]
        table.add_row(f"{row['temperature']:g}", *cells, passes)
    console.print(table)


def run(arguments: Analyze) -> int:
    if arguments.n < 1 or not arguments.temperatures:
        raise ValueError(f"n={arguments.n}, temperatures={arguments.temperatures}: there must be at least one of each")
    if arguments.steps is not None and not 1 <= arguments.steps <= arguments.max_new_tokens:
        raise ValueError(f"steps={arguments.steps}: must be between 1 and max_new_tokens={arguments.max_new_tokens}")
    problems, options = (
        chosen_problems(arguments),
        [options_at(arguments, temperature) for temperature in arguments.temperatures],
    )
    tier = choose_tier(arguments.executor)
    engine = DiffuCoderInference(arguments.model, dtype=arguments.dtype)
    traces: list[list[Trace]] = []
    for each in options:
        with terminal.progress(f"temperature {each.temperature:g}") as report:
            # Greedy samples are all equal.
            samples = arguments.n if each.temperature > 0 else 1
            traces.append(record(engine, problems, each, samples=samples, seed=arguments.seed, on_progress=report))
    sink = first_confidence(engine, problems, arguments.max_new_tokens).mean(axis=0)
    rows = [measured(arguments, problems, part, tier) for part in traces]
    write_report(arguments, engine, traces, rows, [round(float(value), 4) for value in sink])
    return 0


def chosen_problems(arguments: Analyze) -> list[Problem]:
    if (arguments.suite == "builtin") != (arguments.data is None):
        raise ValueError(f"data={arguments.data}: builtin takes no file, {arguments.suite} needs one")
    if arguments.suite == "builtin" or arguments.data is None:
        return held_out_problems(arguments.limit)
    return file_problems(arguments.suite, arguments.data, arguments.limit)


def options_at(arguments: Analyze, temperature: float) -> GenerationOptions:
    # The published schedule rounds: with as many steps as positions, some steps decide none and some several. A
    # rule by probability with that many steps decides one position at each, the first in the order.
    one_each = Decoding() if by_confidence(arguments) else Decoding(commit="threshold", threshold=1.0, block_length=0)
    return GenerationOptions(
        max_new_tokens=arguments.max_new_tokens,
        num_steps=arguments.steps or arguments.max_new_tokens,
        temperature=temperature,
        alg=arguments.alg,
        top_p=arguments.top_p,
        top_k=arguments.top_k,
        early_stop=False,
        decoding=one_each,
    )


def by_confidence(arguments: Analyze) -> bool:
    """Whether steps decide several positions."""
    return arguments.steps is not None and arguments.steps != arguments.max_new_tokens


def measured(arguments: Analyze, problems: list[Problem], traces: list[Trace], tier: Any) -> dict[str, Any]:
    """What one temperature does: AR-ness, confidence, pass@1 and pass@n."""
    named = {problem.name: problem for problem in problems}
    written = [
        Attempt(problem := named[trace.name], Completing().program(problem, trace.text), sample=trace.sample)
        for trace in traces
    ]
    with terminal.progress("executing") as report:
        attempts = judge(Local(tier, packages=("numpy",)), written, on_progress=report)
    samples = len(traces) // len(problems)
    found = rates([record_of(attempt) for attempt in attempts], sorted({1, samples}))
    whole = [rate for rate in found if rate.group == ALL] or found
    return {
        "temperature": traces[0].temperature,
        "samples": samples,
        **measures(traces, by_confidence=by_confidence(arguments)),
        "pass": {f"pass@{rate.k}": [round(v, 4) for v in (rate.value, rate.low, rate.high)] for rate in whole},
    }


def write_report(
    arguments: Analyze,
    engine: DiffuCoderInference,
    traces: "list[list[Trace]]",
    rows: list[dict[str, Any]],
    sink: list[float],
) -> None:
    """Print the table; write JSON, pictures and page."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    steps = arguments.steps or arguments.max_new_tokens
    together = "; positions of one step are ordered by confidence, the paper leaves that open"
    told = {
        "model": f"{arguments.model or 'built-in model'}, {engine.parameter_count:,} parameters, {engine.dtype}",
        "prompts": f"{arguments.limit} of {arguments.suite}, {arguments.n} samples each above temperature 0",
        "decoding": f"{arguments.max_new_tokens} positions in {steps} steps, {arguments.alg}, seed {arguments.seed}"
        + (together if by_confidence(arguments) else ""),
    }
    result = {"about": about(), "settings": json.loads(json.dumps(asdict(arguments), default=str)),
              "ordered_by_confidence": by_confidence(arguments), "temperatures": rows,
              "first_step_confidence": sink,
              "traces": [as_data(trace) for part in traces for trace in part]}  # fmt: skip
    write_whole(arguments.out / "analysis.json", json.dumps(result, indent=1) + "\n")
    drawn = pictures(arguments, traces, rows, sink)
    for name, (picture, _) in drawn.items():
        write_whole(arguments.out / f"{name}.svg", picture.replace("currentColor", "#333"))
    shown = [as_data(trace) for part in traces for trace in part[:REPLAYED]]
    page = render("analysis.html", told=told, pictures=list(drawn.values()), traces=shown)
    write_whole(arguments.out / "analysis.html", page)
    show(told, rows)
    Console(highlight=False).print(f"page: {arguments.out / 'analysis.html'}", markup=False, soft_wrap=True)


def pictures(
    arguments: Analyze, traces: "list[list[Trace]]", rows: list[dict[str, Any]], sink: list[float]
) -> dict[str, tuple[str, str]]:
    """By name: an SVG, and what it shows."""

    def curves(kind: str) -> dict[str, list[tuple[float, float]]]:
        return {
            f"temperature {row['temperature']:g}": [(float(k), v) for k, v in enumerate(row[kind], 1) if v is not None]
            for row in rows
        }

    first = rows[0]["temperature"]
    orders = [trace.order(by_confidence=by_confidence(arguments)) for trace in traces[0]]
    over = {name: [(row["temperature"], value) for row in rows if (value := pick(row)) is not None]
            for name, pick in TEMPERATURE_CURVES.items()}  # fmt: skip
    decided = [sum(c) / len(c) for c in zip(*(trace.confidence for trace in traces[0]), strict=True)]
    confidence = {"at the first step": list(enumerate(sink)), "when decided": list(enumerate(decided))}
    heat = heat_map(orders)
    return {
        "order": (
            heat_chart(f"Decoding order at temperature {first:g}", "position", "step", heat, arguments.max_new_tokens),
            "Each row is a stretch of steps, dark where most of its decisions were. Left to right is a diagonal.",
        ),
        "local": (
            line_chart("Local AR-ness@k, text only", "k", "share of steps", curves("local_text")),
            "How often the k steps before were the k positions to the left.",
        ),
        "global": (
            line_chart("Global AR-ness@k, text only", "k", "share of steps", curves("global_text")),
            "How often the position was among the k leftmost masked ones.",
        ),
        "confidence": (
            line_chart("Confidence by position", "position", "probability", confidence),
            "At the first step: the largest probability while everything is masked, the paper's entropy sink. "
            "When decided: of the token that was taken, with everything decided before it in sight.",
        ),
        "temperature": (
            line_chart("What temperature does", "temperature", "share", over),
            "AR-ness of the text, mean probability of its tokens, and how many programs pass.",
        ),
    }
