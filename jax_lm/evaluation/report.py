"""Report of an evaluation: rates beside the published scores, as Markdown and as a page. Reads records of a journal."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax_lm.evaluation.attempts import SANDBOX_ERROR
from jax_lm.evaluation.pass_at_k import RATE_COLUMNS, Rate, rates, wilson
from jax_lm.reports.document import table
from jax_lm.reports.pages import render
from jax_lm.reports.run_folder import Record, write_whole

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

NOTE = (
    "Published scores are one sample per problem at temperature 0.2 with 512 steps (arXiv 2506.20639); their intervals "
    "here are Wilson's for the size of the benchmark. Only a run over all problems with those settings is comparable."
)


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """Rates of an evaluation, and what they depend on.

    Attributes:
        suite: its name.
        metadata: what the rates depend on, by name.
        rates: with intervals, per group and k.
        records: every attempt.
    """

    suite: str
    metadata: Mapping[str, str]
    rates: Sequence[Rate]
    records: Collection[Record]

    @classmethod
    def of(
        cls, settings: Mapping[str, Any], records: Collection[Record], ks: Sequence[int], *, total: int
    ) -> "EvaluationReport":
        """Summarise the records of a run with these settings, on a suite of `total` problems."""
        metadata = evaluation_metadata(settings, records, total)
        return cls(suite=settings["suite"], metadata=metadata, rates=rates(records, ks), records=records)

    @property
    def comparison(self) -> list[tuple[str, float, float, float]]:
        """This run's pass@1 and the published ones in percent: name, value, low, high (the latter by Wilson too)."""
        first = next((rate for rate in reversed(self.rates) if rate.k == 1), None)
        if first is None or not published(self.suite):
            return []
        size = 378 if self.suite.startswith("mbpp") else 164
        rows = [("this run", 100 * first.value, 100 * first.low, 100 * first.high)]
        for model, score in published(self.suite).items():
            low, high = wilson(score / 100, size)
            rows.append((model, score, 100 * low, 100 * high))
        return rows

    def markdown(self) -> str:
        lines = [f"# {self.suite}", "", *(f"- {name}: {text}" for name, text in self.metadata.items()), ""]
        lines += table(RATE_COLUMNS, [rate.cells() for rate in self.rates])
        if self.comparison:
            lines += ["", "## Beside the published scores", "", NOTE, ""]
            cells = [[name, f"{value:.1f}", f"{low:.1f} to {high:.1f}"] for name, value, low, high in self.comparison]
            lines += table(("model", "pass@1, %", "95 % interval"), cells)
        return "\n".join([*lines, ""])

    def page(self) -> str:
        """Render one HTML page without scripts; what a model wrote is text in it."""
        order = sorted(self.records, key=lambda each: (each["outcome"] == "passed", each["name"], each["sample"]))
        return render("evaluation.html", report=self, columns=RATE_COLUMNS, note=NOTE, records=order)

    def write(self, folder: Path) -> None:
        """Write report.md and report.html, each whole or not at all."""
        write_whole(folder / "report.md", self.markdown())
        write_whole(folder / "report.html", self.page())


def evaluation_metadata(settings: Mapping[str, Any], records: Collection[Record], total: int) -> dict[str, str]:
    """Say what the rates of a run depend on, by name."""
    metadata = {
        "model": str(settings["model"]),
        "prompts": str(settings["prompts"]),
        "problems": f"{settings['problems']} of {total}, samples of each: {settings['n']}",
    }
    if generation := settings.get("generation"):
        steps = generation["num_steps"] or "one per token, or as the preset decides"
        metadata["decoding"] = (
            f"{generation['max_new_tokens']} new tokens, steps: {steps}, {generation['alg']}, preset "
            f"{generation['decoding']['preset']}, temperature {generation['temperature']:g}, "
            f"top_p {generation['top_p']}, top_k {generation['top_k']}, seed {settings['seed']}, {settings['dtype']}"
        )
    metadata["outcomes"] = count_outcomes(record["outcome"] for record in records)
    metadata["sandbox"] = ", ".join(sorted({record["tier"] for record in records if record["tier"]})) or "not used"
    decoded = [record for record in records if record["forwards"]]
    if decoded:
        seconds = sum(record["seconds"] for record in decoded)
        forwards = sum(record["forwards"] for record in decoded) / len(decoded)
        metadata["time"] = f"{seconds:.1f} s of decoding, {forwards:.1f} model evaluations per answer on average"
    errors = sum(record["outcome"] == SANDBOX_ERROR for record in records)
    if errors:
        metadata["not counted"] = f"{errors} programs that the sandbox could not run; starting again tries them again"
    return metadata


def count_outcomes(outcomes: Iterable[str]) -> str:
    """Say in one line how many attempts ended how."""
    counts = Counter(outcomes)
    return ", ".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in sorted(counts.items()))


def published(suite: str) -> dict[str, float]:
    """Look up the published pass@1 of a suite in percent, by model; empty where there is none."""
    if suite not in PUBLISHED_SUITES:
        return {}
    return {model: scores[PUBLISHED_SUITES.index(suite)] for model, scores in PUBLISHED.items()}
