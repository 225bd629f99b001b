"""Report of an evaluation: rates beside the published scores, and every attempt. Reads records of a journal."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from jax_lm.evaluation.attempts import SANDBOX_ERROR
from jax_lm.evaluation.pass_at_k import RATE_COLUMNS, Rate, rates, wilson
from jax_lm.reports.charts import bar_chart
from jax_lm.reports.document import Document, Section
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

NOTE = (
    "Published scores are one sample per problem at temperature 0.2 with 512 steps (arXiv 2506.20639); their intervals "
    "here are Wilson's for the size of the benchmark. Only a run over all problems with those settings is comparable."
)


def evaluation_report(
    settings: Mapping[str, Any], records: Collection[Record], ks: Sequence[int], *, total: int
) -> Document:
    """Lay out the records of a run with these settings, on a suite of `total` problems."""
    suite, found = settings["suite"], rates(records, ks)
    rows = [rate.cells() for rate in found]
    order = sorted(records, key=lambda each: (each["outcome"] == "passed", each["name"], each["sample"]))
    return Document(
        title=suite,
        metadata=evaluation_metadata(settings, records, total),
        sections=[
            Section(title=f"Rates of {suite}", columns=RATE_COLUMNS, rows=rows),
            *published_sections(suite, found),
        ],
        details=[attempt_section(record) for record in order],
    )


def published_sections(suite: str, found: Sequence[Rate]) -> list[Section]:
    """Lay this run's pass@1 beside the published ones; nothing where either is missing."""
    own, scores = [rate for rate in found if rate.k == 1], published(suite)
    if not own or not scores:
        return []
    # Of all groups together where there are several: that comes last.
    rows = [("this run", own[-1].value, own[-1].low, own[-1].high)]
    size = 378 if suite.startswith("mbpp") else 164
    rows += [(model, score / 100, *wilson(score / 100, size)) for model, score in scores.items()]
    bars = [(name, "this run" if name == "this run" else "published", 100 * value) for name, value, *_ in rows]
    return [
        Section(
            title="Beside the published scores",
            text=NOTE,
            columns=("model", "pass@1, %", "95 % interval"),
            rows=[
                [name, f"{100 * value:.1f}", f"{100 * low:.1f} to {100 * high:.1f}"] for name, value, low, high in rows
            ],
            picture=bar_chart("pass@1, %", bars),
        )
    ]


def attempt_section(record: Record) -> Section:
    """Show what was asked, written and executed."""
    ending = f": {record['detail']}" if record["detail"] else ""
    return Section(
        title=f"{record['outcome']}: {record['name']}, sample {record['sample']}{ending}",
        listing={
            "Prompt": record["prompt"],
            "What the model wrote": record["completion"],
            "What was executed": record["program"],
        },
    )


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
