"""What came out of an evaluation: rates with intervals, beside the published scores, as Markdown and as a page.

Reads records of a journal; knows no model.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax_lm.evaluation.pass_at_k import mean_pass_at_k, wilson
from jax_lm.evaluation.pass_rate import SANDBOX_ERROR
from jax_lm.reports.document import table
from jax_lm.reports.pages import render
from jax_lm.reports.run_folder import Record

PUBLISHED_SUITES = ("humaneval", "humaneval+", "mbpp", "mbpp+")
PUBLISHED = {
    "DiffuCoder Base": (67.1, 60.4, 74.2, 60.9),
    "DiffuCoder Instruct": (72.0, 65.2, 75.1, 61.9),
    "DiffuCoder cpGRPO": (73.2, 68.3, 78.6, 67.5),
    "Dream 7B": (56.7, 50.0, 68.7, 57.4),
    "Dream-Instruct": (57.9, 53.7, 68.3, 56.1),
    "Qwen2.5-Coder 7B": (61.6, 51.8, 75.9, 61.4),
    "Qwen2.5-Coder 7B Instruct": (90.2, 85.4, 83.9, 72.0),
}
"""pass@1 in percent, as published (arXiv 2506.20639); MBPP is evalplus's selection of 378 tasks."""

ALL = "all"


@dataclass(frozen=True)
class Rate:
    """Estimated pass@k of a group of problems, with a 95 % interval."""

    group: str
    k: int
    value: float
    low: float
    high: float
    problems: int
    samples: int
    passed: int

    def cells(self) -> list[str]:
        """For a table with the columns RATE_COLUMNS."""
        interval = f"{self.low:.1%} to {self.high:.1%}"
        counts = [str(self.problems), str(self.samples), str(self.passed)]
        return [self.group, *counts, f"pass@{self.k}", f"{self.value:.1%}", interval]


RATE_COLUMNS = ("problems", "count", "samples", "passed", "measure", "estimate", "95 % interval")


def rates(records: Collection[Record], ks: Sequence[int]) -> list[Rate]:
    """pass@k per group, then of all where there are several groups.

    What the sandbox could not run does not count. A problem that is left with fewer than k samples is left out.
    """
    counted = [record for record in records if record["outcome"] != SANDBOX_ERROR]
    groups = sorted({record["group"] for record in counted}, reverse=True)
    found = []
    for group in [*groups, ALL] if len(groups) > 1 else groups:
        samples: Counter[str] = Counter()
        passed: Counter[str] = Counter()
        for record in counted:
            if group in (ALL, record["group"]):
                samples[record["name"]] += 1
                passed[record["name"]] += record["outcome"] == "passed"
        for k in ks:
            counts = [(samples[name], passed[name]) for name in samples if samples[name] >= k]
            if counts:
                value = mean_pass_at_k(counts, k)
                totals = (sum(n for n, _ in counts), sum(c for _, c in counts))
                found.append(Rate(group, k, value, *wilson(value, len(counts)), len(counts), *totals))
    return found


def outcomes(records: Collection[Record]) -> str:
    """How many attempts ended how, in one line."""
    counts = Counter(record["outcome"] for record in records)
    return ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in sorted(counts.items()))


def published(suite: str) -> dict[str, float]:
    """Published pass@1 of a suite in percent; empty where there is none."""
    if suite not in PUBLISHED_SUITES:
        return {}
    return {model: scores[PUBLISHED_SUITES.index(suite)] for model, scores in PUBLISHED.items()}


def facts(settings: Mapping[str, Any], records: Collection[Record], total: int) -> dict[str, str]:
    """What the numbers depend on, by name."""
    generation = settings.get("generation") or {}
    told = {
        "model": str(settings["model"]),
        "prompts": str(settings["prompts"]),
        "problems": f"{settings['problems']} of {total}, samples of each: {settings['n']}",
    }
    if generation:
        steps = generation["num_steps"] or "one per token, or as the preset decides"
        told["decoding"] = (
            f"{generation['max_new_tokens']} new tokens, steps: {steps}, {generation['alg']}, preset "
            f"{generation['decoding']['preset']}, temperature {generation['temperature']:g}, "
            f"top_p {generation['top_p']}, top_k {generation['top_k']}, seed {settings['seed']}, {settings['dtype']}"
        )
    told["outcomes"] = outcomes(records)
    told["sandbox"] = ", ".join(sorted({record["tier"] for record in records if record["tier"]})) or "not used"
    decoded = [record for record in records if record["forwards"]]
    if decoded:
        seconds = sum(record["seconds"] for record in decoded)
        forwards = sum(record["forwards"] for record in decoded) / len(decoded)
        told["time"] = f"{seconds:.1f} s of decoding, {forwards:.1f} model evaluations per answer on average"
    errors = sum(record["outcome"] == SANDBOX_ERROR for record in records)
    if errors:
        told["not counted"] = f"{errors} programs that the sandbox could not run; starting again tries them again"
    return told


def comparison(suite: str, found: Sequence[Rate]) -> list[tuple[str, float, float, float]]:
    """This run's pass@1 and the published ones in percent: name, value, low, high (the latter by Wilson too)."""
    first = next((rate for rate in reversed(found) if rate.k == 1), None)
    if first is None or not published(suite):
        return []
    size = 378 if suite.startswith("mbpp") else 164
    rows = [("this run", 100 * first.value, 100 * first.low, 100 * first.high)]
    for model, score in published(suite).items():
        low, high = wilson(score / 100, size)
        rows.append((model, score, 100 * low, 100 * high))
    return rows


def markdown(suite: str, told: Mapping[str, str], found: Sequence[Rate]) -> str:
    """The report as Markdown."""
    lines = [f"# {suite}", "", *(f"- {name}: {text}" for name, text in told.items()), ""]
    lines += table(RATE_COLUMNS, [rate.cells() for rate in found])
    rows = comparison(suite, found)
    if rows:
        lines += ["", "## Beside the published scores", "", NOTE, ""]
        cells = [[name, f"{value:.1f}", f"{low:.1f} to {high:.1f}"] for name, value, low, high in rows]
        lines += table(("model", "pass@1, %", "95 % interval"), cells)
    return "\n".join([*lines, ""])


NOTE = (
    "Published scores are one sample per problem at temperature 0.2 with 512 steps (arXiv 2506.20639); their intervals "
    "here are Wilson's for the size of the benchmark. Only a run over all problems with those settings is comparable."
)


def page(suite: str, told: Mapping[str, str], found: Sequence[Rate], records: Collection[Record]) -> str:
    """The report as one HTML page without scripts; what a model wrote is text in it."""
    return render(
        "evaluation.html",
        suite=suite,
        told=told,
        columns=RATE_COLUMNS,
        rows=[rate.cells() for rate in found],
        comparison=comparison(suite, found),
        note=NOTE,
        records=sorted(records, key=lambda record: (record["outcome"] == "passed", record["name"], record["sample"])),
    )
