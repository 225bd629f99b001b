"""`diffucoder analyze`: in which order a model decodes, how sure it is, and what temperature does to both."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from jax_lm import terminal

if TYPE_CHECKING:
    from jax_lm.evaluation.problems import Problem
    from jax_lm.evaluation.traces import Trace
    from jax_lm.inference import DiffuCoderInference
    from jax_lm.options import GenerationOptions

REPLAYED = 4
"""Traces per temperature that the page replays."""


@dataclass(frozen=True, kw_only=True)
class Analyze:
    """Measure how a model decodes: AR-ness, order, confidence, and the effect of temperature on them.

    The definitions are those of the DiffuCoder paper (arXiv 2506.20639). Programs are executed in the sandbox for
    pass@k.

    Examples:
        diffucoder analyze --out analysis
        diffucoder analyze humaneval --data HumanEval.jsonl.gz --model apple/DiffuCoder-7B-Base
            --max-new-tokens 512 --limit 20 --n 4 --out analysis

    Attributes:
        suite: whose prompts are completed; builtin is the held-out side of the built-in model's corpus.
        data: the file of the problems; none for builtin.
        model: folder or hub id; the built-in model if not given.
        dtype: float32 or bfloat16; chosen by the device if not given.
        limit: number of problems.
        n: samples per problem and temperature.
        temperatures: each is decoded anew.
        max_new_tokens: length of the canvas; as many steps, unless steps says otherwise.
        steps: fewer than positions follow the published schedule, which then decides several positions at once: these
            are ordered by their confidence, which the paper leaves open; the output says so.
        alg: order of unmasking; maskgit_plus is the low-confidence remasking of the paper.
        top_p: mass of the nucleus.
        top_k: number of candidates per position.
        seed: of the random draws.
        executor: how programs are contained; auto takes bubblewrap, then Landlock.
        out: folder for analysis.json, analysis.html and the pictures.
    """

    suite: tyro.conf.Positional[Literal["builtin", "humaneval", "mbpp"]] = "builtin"
    data: Path | None = None
    model: str | None = None
    dtype: str | None = None
    limit: int = 8
    n: int = 2
    temperatures: tuple[float, ...] = (0.0, 0.5, 1.0)
    max_new_tokens: int = 64
    steps: int | None = None
    alg: str = "maskgit_plus"
    top_p: float | None = None
    top_k: int | None = None
    seed: int = 0
    executor: Literal["auto", "bubblewrap", "landlock"] = "auto"
    out: Path = Path("analysis")

    def run(self) -> int:
        from jax_lm.evaluation.traces import first_confidence, record
        from jax_lm.inference import DiffuCoderInference
        from jax_lm.sandbox.runner import choose

        if self.n < 1 or not self.temperatures:
            raise ValueError(f"n={self.n}, temperatures={self.temperatures}: there must be at least one of each")
        if self.steps is not None and not 1 <= self.steps <= self.max_new_tokens:
            raise ValueError(f"steps={self.steps}: must be between 1 and max_new_tokens={self.max_new_tokens}")
        problems, options = self.problems(), [self.options(temperature) for temperature in self.temperatures]
        for each in options:
            each.sampling()
        tier = choose(self.executor)
        engine = DiffuCoderInference(self.model, dtype=self.dtype)
        traces: list[list[Trace]] = []
        for each in options:
            with terminal.progress(f"temperature {each.temperature:g}") as report:
                # Greedy samples are all equal.
                samples = self.n if each.temperature > 0 else 1
                traces.append(record(engine, problems, each, samples=samples, on_progress=report))
        sink = first_confidence(engine, problems, self.max_new_tokens).mean(axis=0)
        rows = [self.row(problems, part, tier) for part in traces]
        self.report(engine, traces, rows, [round(float(value), 4) for value in sink])
        return 0

    def problems(self) -> "list[Problem]":
        from jax_lm.evaluation.problems import file_problems, held_out_problems

        if (self.suite == "builtin") != (self.data is None):
            raise ValueError(f"data={self.data}: builtin takes no file, {self.suite} needs one")
        if self.suite == "builtin" or self.data is None:
            return held_out_problems(self.limit)
        return file_problems(self.suite, self.data, self.limit)

    def options(self, temperature: float) -> "GenerationOptions":
        from jax_lm.options import GenerationOptions

        # The published schedule rounds: with as many steps as positions, some steps decide none and some several. A
        # rule by probability with that many steps decides one position at each, the first in the order.
        one_each = {} if self.by_confidence else {"commit": "threshold", "threshold": 1.0, "block_length": 0}
        return GenerationOptions(
            max_new_tokens=self.max_new_tokens, num_steps=self.steps or self.max_new_tokens, temperature=temperature,
            alg=self.alg, top_p=self.top_p, top_k=self.top_k, seed=self.seed, early_stop=False, **one_each,
        )  # fmt: skip

    @property
    def by_confidence(self) -> bool:
        """Whether steps decide several positions."""
        return self.steps is not None and self.steps != self.max_new_tokens

    def row(self, problems: "list[Problem]", traces: "list[Trace]", tier: Any) -> dict[str, Any]:
        """What one temperature does: AR-ness, confidence, pass@1 and pass@n."""
        from jax_lm.evaluation.asking import Completing
        from jax_lm.evaluation.journal import record_of
        from jax_lm.evaluation.pass_rate import Attempt, judge
        from jax_lm.evaluation.report import ALL, rates
        from jax_lm.evaluation.traces import measures
        from jax_lm.sandbox import Local

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
            **measures(traces, by_confidence=self.by_confidence),
            "pass": {f"pass@{rate.k}": [round(v, 4) for v in (rate.value, rate.low, rate.high)] for rate in whole},
        }

    def report(
        self, engine: "DiffuCoderInference", traces: "list[list[Trace]]", rows: list[dict[str, Any]], sink: list[float]
    ) -> None:
        """Print the table; write JSON, pictures and page."""
        from jax_lm.evaluation.journal import write_whole
        from jax_lm.evaluation.machine import about
        from jax_lm.evaluation.pages import render
        from jax_lm.evaluation.traces import as_data

        self.out.mkdir(parents=True, exist_ok=True)
        steps = self.steps or self.max_new_tokens
        together = "; positions of one step are ordered by confidence, the paper leaves that open"
        told = {
            "model": f"{self.model or 'built-in model'}, {engine.parameter_count:,} parameters, {engine.dtype}",
            "prompts": f"{self.limit} of {self.suite}, {self.n} samples each above temperature 0",
            "decoding": f"{self.max_new_tokens} positions in {steps} steps, {self.alg}, seed {self.seed}"
            + (together if self.by_confidence else ""),
        }
        result = {"about": about(), "settings": json.loads(json.dumps(asdict(self), default=str)),
                  "ordered_by_confidence": self.by_confidence, "temperatures": rows,
                  "first_step_confidence": sink,
                  "traces": [as_data(trace) for part in traces for trace in part]}  # fmt: skip
        write_whole(self.out / "analysis.json", json.dumps(result, indent=1) + "\n")
        drawn = self.pictures(traces, rows, sink)
        for name, (picture, _) in drawn.items():
            write_whole(self.out / f"{name}.svg", picture.replace("currentColor", "#333"))
        shown = [as_data(trace) for part in traces for trace in part[:REPLAYED]]
        page = render("analysis.html", told=told, pictures=list(drawn.values()), traces=shown)
        write_whole(self.out / "analysis.html", page)
        show(told, rows)
        Console(highlight=False).print(f"page: {self.out / 'analysis.html'}", markup=False, soft_wrap=True)

    def pictures(
        self, traces: "list[list[Trace]]", rows: list[dict[str, Any]], sink: list[float]
    ) -> dict[str, tuple[str, str]]:
        """By name: an SVG, and what it shows."""
        from jax_lm.evaluation.decoding_order import heat_map
        from jax_lm.evaluation.pictures import heat_chart, line_chart

        def curves(kind: str) -> dict[str, list[tuple[float, float]]]:
            return {
                f"temperature {row['temperature']:g}": [
                    (float(k), v) for k, v in enumerate(row[kind], 1) if v is not None
                ]
                for row in rows
            }

        first = rows[0]["temperature"]
        orders = [trace.order(by_confidence=self.by_confidence) for trace in traces[0]]
        over = {name: [(row["temperature"], value) for row in rows if (value := pick(row)) is not None]
                for name, pick in TEMPERATURE_CURVES.items()}  # fmt: skip
        decided = [sum(c) / len(c) for c in zip(*(trace.confidence for trace in traces[0]), strict=True)]
        confidence = {"at the first step": list(enumerate(sink)), "when decided": list(enumerate(decided))}
        heat = heat_map(orders)
        return {
            "order": (
                heat_chart(f"Decoding order at temperature {first:g}", "position", "step", heat, self.max_new_tokens),
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
