"""Analyse decoding: AR-ness, order, confidence and pass@k at several temperatures, with charts.

The measures are those of the DiffuCoder paper (arXiv 2506.20639, appendix A.2). As there, decoding
does not end at stop tokens: all positions of the canvas are decided, and those after the text are
removed afterwards. An order lists the positions of a canvas as they were decided, the first one first.

A decoded canvas is a trace, a row with these values:

- `name`, `sample`: the problem, and the index among its samples;
- `temperature`, `prompt`: of decoding, and the text before the canvas;
- `text`: up to the first stop token; `end` is the number of positions before it;
- `pieces`, `commit_step`, `confidence`: of each position, the text of its token, the step at which
  it was decided, and the probability that the token had then;
- `tied`: the share of the text's tokens whose probability was exactly 1.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path

import numpy as np
from jaxtyping import Float

from jax_lm.config import Fields, Names
from jax_lm.evaluation.attempts import Attempt, execute_attempts
from jax_lm.evaluation.pass_at_k import ALL, rates
from jax_lm.evaluation.problems import Problems
from jax_lm.host import terminal
from jax_lm.host.files import write_json_whole, write_whole
from jax_lm.inference import DiffuCoderInference
from jax_lm.models.shapes import HostValues, SequenceTokens
from jax_lm.options import EXACT, P2, WHOLE_CANVAS, Decoding, GenerationOptions
from jax_lm.reports.charts import heat_chart, line_chart, write_picture
from jax_lm.reports.document import Section
from jax_lm.reports.rendering import render
from jax_lm.reports.tables import Measurements, Row, table_section
from jax_lm.results import tied_share
from jax_lm.templates import Template
from untrusted.results import Executor

# Decides exactly one position at each step, the first in the order (`analysis_options`).
ONE_POSITION = Decoding(commit="threshold", threshold=1.0, block_length=WHOLE_CANVAS)

# Traces of each temperature that analysis.html replays.
REPLAYED = 4


def analyze_order(
    engine: DiffuCoderInference,
    problems: Problems,
    executor: Executor,
    options: Sequence[GenerationOptions],
    *,
    samples: int,
    seed: int = 0,
) -> Row:
    """Decode problems at several temperatures, and execute the programs.

    Args:
        engine: the model.
        problems: the problems.
        executor: runs the programs.
        options: options of decoding, which differ only in temperature.
        samples: samples of each problem; greedy decoding takes a single one.
        seed: seed of sampling.

    Returns:
        The content of analysis.json:

        - `ordered_by_confidence`: whether a step decided several positions. Their order is open in
          the paper, and by confidence here.
        - `temperatures`: the measures of each temperature.
        - `first_step_confidence`: the largest probability at each position while the whole canvas
          is masked, averaged over problems. An autoregressive model has only that of the first.
        - `traces`: the decoded canvases of all temperatures.
    """
    traces = []
    rows = []
    for setting in options:
        # All greedy samples are equal.
        count = samples if setting.temperature > 0 else 1
        decoded = decode_traces(engine, problems, setting, samples=count, seed=seed)
        traces += decoded
        rows.append(measure_temperature(decoded, problems, executor))
    first = first_confidence(engine, problems, options[0].max_new_tokens).mean(axis=0)
    return {
        "ordered_by_confidence": any(
            len(set(trace["commit_step"])) < len(trace["commit_step"]) for trace in traces
        ),
        "temperatures": rows,
        "first_step_confidence": [round(float(value), 4) for value in first],
        "traces": traces,
    }


def measures_section(analysis: Row) -> Section:
    """Return the table of measures, a line for each temperature."""
    rows = []
    for row in analysis["temperatures"]:
        values = {
            "local@1": row["local"][0],
            "global@1": row["global"][0],
            "text: local@1": row["local_text"][0],
            "text: global@1": row["global_text"][0],
            "confidence": row["confidence_text"],
            "tied": row["tied_text"],
        }
        shown = {name: "-" if v is None else f"{v:.2f}" for name, v in values.items()}
        passes = ", ".join(f"{name} {value:.0%}" for name, (value, *_) in row["pass"].items())
        rows.append({"temperature": f"{row['temperature']:g}"} | shown | {"pass@k": passes})
    return table_section("Measures", rows)


def draw_pictures(analysis: Row) -> Names:
    """Return the charts as SVG, by name. analysis.html explains them."""
    rows = analysis["temperatures"]

    def curves(kind):
        # the values are those of k = 1, 2, ...
        return {f"temperature {row['temperature']:g}": [*enumerate(row[kind], 1)] for row in rows}

    # order and confidence of the first temperature
    temperature = rows[0]["temperature"]
    first = [trace for trace in analysis["traces"] if trace["temperature"] == temperature]
    orders = [trace_order(trace) for trace in first]
    decided_confidence = np.mean([trace["confidence"] for trace in first], axis=0)
    confidence = {
        "at the first step": [*enumerate(analysis["first_step_confidence"])],
        "when decided": [*enumerate(decided_confidence.tolist())],
    }
    # measures of the text by temperature
    effects = {}
    for row in rows:
        values = {
            "local@1": row["local_text"][0],
            "global@1": row["global_text"][0],
            "confidence": row["confidence_text"],
            "pass@1": row["pass"].get("pass@1", [None])[0],
            # of the single greedy sample, which all n would equal, pass@1
            "pass@n": row["pass"].get(f"pass@{row['samples']}", [None])[0],
        }
        for name, value in values.items():
            effects.setdefault(name, []).append((row["temperature"], value))
    title = f"Decoding order at temperature {temperature:g}"
    share = "share of steps"
    return {
        "order": heat_chart(title, heat_map(orders), len(orders[0])),
        "local": line_chart("Local AR-ness@k, text only", "k", share, curves("local_text")),
        "global": line_chart("Global AR-ness@k, text only", "k", share, curves("global_text")),
        "confidence": line_chart("Confidence by position", "position", "probability", confidence),
        "temperature": line_chart("Effect of temperature", "temperature", "share", effects),
    }


def write_analysis(analysis: Row, folder: Path, metadata: Names, facts: Fields):
    """Write analysis.json (which begins with `facts`), analysis.html and the charts."""
    write_json_whole(folder / "analysis.json", {**facts, **analysis})
    pictures = draw_pictures(analysis)
    for name, picture in pictures.items():
        write_picture(folder / f"{name}.svg", picture)
    by_temperature = groupby(analysis["traces"], key=itemgetter("temperature"))
    replayed = [trace for _, traces in by_temperature for trace in islice(traces, REPLAYED)]
    write_whole(
        folder / "analysis.html",
        render("analysis.html", metadata=metadata, pictures=pictures, traces=replayed),
    )


def decides_several(options: GenerationOptions) -> bool:
    """Return whether one position per step was not asked for, so that a step may decide several."""
    # p2 also reopens positions, so that its steps decide more than one on average.
    return options.decoding != EXACT or options.alg == P2 or options.steps != options.max_new_tokens


def analysis_options(engine: DiffuCoderInference, options: GenerationOptions) -> GenerationOptions:
    """Return the options with which the analysis decodes: whole canvases, one position per step.

    Options that ask for several positions per step are kept, see `decides_several`.
    """
    options = replace(options, early_stop=False)
    if engine.is_autoregressive:
        # Such a model refuses other orders. Only the next position can be decided, so it is also the
        # most confident one.
        return replace(options, alg="left_to_right") if options.alg == "maskgit_plus" else options
    if decides_several(options):
        return options
    # The published schedule rounds: with as many steps as positions, some steps decide no position
    # and others several.
    decoding = replace(ONE_POSITION, block_length=engine.config.decoding_block or WHOLE_CANVAS)
    return replace(options, num_steps=options.steps, tokens_per_step=1, decoding=decoding)


def decode_traces(
    engine: DiffuCoderInference,
    problems: Problems,
    options: GenerationOptions,
    *,
    samples: int,
    seed: int = 0,
) -> Measurements:
    """Decode each problem `samples` times, all in one batch; returns the traces."""
    # problems [p, q] with 2 samples -> rows p0, p1, q0, q1
    rows = [(problem, sample) for problem in problems for sample in range(samples)]
    canvas = engine.canvas(
        [Template.completion(problem.prefix, options.max_new_tokens) for problem, _ in rows]
    )
    holes = int(canvas.holes.sum())
    options = analysis_options(engine, options)
    state = None
    with terminal.progress(f"temperature {options.temperature:g}") as report:
        # Without progress nothing interrupts the compiled loop; with it, every eighth step does.
        for state in engine.states(canvas, options, seed=seed, every=8 if report else None):
            if report:
                report(holes - int(np.asarray(state.masked).sum()), holes)
    # At least the last state is yielded.
    assert state
    # Select the holes, the same number in each row: [b, width] -> [b * t] -> [b, t]
    decided = [
        np.asarray(array)[canvas.holes].reshape(len(rows), -1).tolist()
        for array in (state.tokens, state.commit_step, state.confidence)
    ]
    return [
        {
            "name": problem.name,
            "sample": sample,
            "temperature": options.temperature,
            "prompt": problem.prefix,
            "text": generation.text,
            "pieces": [engine.tokenizer.decode([token]) for token in ids],
            "commit_step": steps,
            "confidence": [round(value, 4) for value in confidence],
            "end": len(generation.token_ids),
            "tied": tied_share(generation.confidence),
        }
        for (problem, sample), generation, ids, steps, confidence in zip(
            rows, engine.generations(canvas, state), *decided, strict=True
        )
    ]


def first_confidence(
    engine: DiffuCoderInference, problems: Problems, new_tokens: int
) -> HostValues:
    """Compute the largest probability at each position while all positions are masked.

    The probabilities are those at temperature 1 without filters. The paper calls their shape an
    entropy sink: high right after the prompt, low farther away.
    """
    canvas = engine.canvas(
        [Template.completion(problem.prefix, new_tokens) for problem in problems]
    )
    options = GenerationOptions(
        max_new_tokens=new_tokens, alg="maskgit_plus", temperature=0.0, top_p=None, top_k=None
    )
    # With maskgit_plus and temperature 0, the scores of a step are the largest probabilities.
    tokens = np.where(canvas.holes, engine.sampler.mask_id, canvas.tokens)
    _, scores = engine.sampler.replay(tokens, canvas, options, 0)
    scores = scores[canvas.holes].reshape(len(problems), new_tokens)
    return scores[:, :1] if engine.is_autoregressive else scores


def measure_temperature(traces: Measurements, problems: Problems, executor: Executor) -> Row:
    """Measure AR-ness, confidence, pass@1 and, with n samples, pass@n at one temperature."""
    by_name = {problem.name: problem for problem in problems}
    attempts = []
    for trace in traces:
        problem = by_name[trace["name"]]
        program = problem.program(problem.filling(trace["text"]))
        attempts.append(Attempt(problem, program, sample=trace["sample"]))
    with terminal.progress("executing") as report:
        attempts = execute_attempts(executor, attempts, on_progress=report)
    samples = len(traces) // len(problems)
    estimates = rates([attempt.record() for attempt in attempts], sorted({1, samples}))
    # There is no group ALL if all problems are of one group.
    overall = [rate for rate in estimates if rate.group == ALL] or estimates
    return {
        "temperature": traces[0]["temperature"],
        "samples": samples,
        **order_measures(traces),
        "pass": {
            f"pass@{rate.k}": [round(v, 4) for v in (rate.value, rate.low, rate.high)]
            for rate in overall
        },
    }


def order_measures(traces: Measurements) -> Row:
    """Compute means over traces: AR-ness of canvas and text, and confidence and ties of the text."""
    orders = [trace_order(trace) for trace in traces]
    ends = [trace["end"] for trace in traces]
    # Order of the text alone: order [0, 3, 1, 2], end=3 -> [0, 1, 2]. A text of fewer than two
    # positions has no order.
    texts = [order[order < end] for order, end in zip(orders, ends, strict=True) if end > 1]
    decided = [value for trace in traces for value in trace["confidence"][: trace["end"]]]
    measures: Row = {
        "confidence_text": mean(decided),
        "tied_text": mean(trace["tied"] for trace in traces if trace["end"]),
    }
    for ending, part in (("", orders), ("_text", texts)):
        for name, measure, ks in AR_NESS:
            measures[name + ending] = [mean(measure(order, k) for order in part) for k in ks]
    return measures


def mean(values: Iterable[float]) -> float | None:
    """Compute the mean of all values but nan, to four decimal places; None if there are none."""
    counted = [value for value in values if not np.isnan(value)]
    return round(float(np.mean(counted)), 4) if counted else None


def trace_order(trace: Row) -> SequenceTokens:
    """Return the positions, sorted by the step at which each was decided.

    Positions of one step, whose order the paper leaves open, are sorted by confidence, highest
    first, then from left to right.
    """
    # commit_step [0, 2, 1, 1], confidence [.9, .8, .5, .7] -> order [0, 3, 2, 1]
    steps = np.array(trace["commit_step"])
    # lexsort: the last key is the primary one
    return np.lexsort((np.arange(len(steps)), -np.array(trace["confidence"]), steps))


def local_ar_ness(order: SequenceTokens, k: int) -> float:
    """Compute local AR-ness@k: how often the previous k steps decided the k positions to the left.

    They may have decided them in any order. The mean is over the steps that have k steps before
    them, so that decoding from left to right is exactly 1; nan if there is no such step.
    """
    if len(order) <= k:
        return math.nan
    # order [0, 2, 1, 3], k=2: windows [0 2 | 1], [2 1 | 3]. The left neighbours of 1 are -1 and 0,
    # those of 3 are 1 and 2: only the second window counts, 0.5.
    windows = np.lib.stride_tricks.sliding_window_view(order, k + 1)
    before = np.sort(windows[:, :k], axis=1)
    now = windows[:, k:]
    return float(np.mean(np.all(before == now - np.arange(k, 0, -1), axis=1)))


def global_ar_ness(order: SequenceTokens, k: int) -> float:
    """Compute global AR-ness@k: how often a step decided one of the k leftmost masked positions."""
    # The masked positions to the left of the decided one are smaller and come later in the order.
    # order [1, 0, 2] -> [1, 0, 0]: with k=1, two of three count
    later_and_smaller = np.triu(order[None, :] < order[:, None], 1).sum(axis=1)
    return float(np.mean(later_and_smaller < k))


# Name of each measure of AR-ness, and the k that the paper plots.
AR_NESS = (("local", local_ar_ness, range(1, 10)), ("global", global_ar_ness, range(1, 5)))


def heat_map(orders: list[SequenceTokens], cells: int = 64) -> Float[np.ndarray, "s p"]:
    """Compute a histogram of the decided positions (columns) by step (rows).

    Steps and positions are binned into at most `cells` rows and columns. Each row sums to 1. All
    orders have one length.
    """
    length = len(orders[0])
    size = min(cells, length)
    counts = np.zeros((size, size))
    for order in orders:
        # length=8, size=4: steps and positions 0 1 2 3 4 5 6 7 -> cells 0 0 1 1 2 2 3 3
        np.add.at(counts, (np.arange(length) * size // length, order * size // length), 1)
    return counts / counts.sum(axis=1, keepdims=True)
