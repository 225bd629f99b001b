"""Report of an evaluation: rates, compared with the published scores, and every attempt.

Reads the records of a journal.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from jax_lm.config import Names, read_table
from jax_lm.evaluation.attempts import CANNOT_JUDGE, NO_BORDER, SANDBOX_ERROR
from jax_lm.evaluation.pass_at_k import Rate, rates, wilson
from jax_lm.reports.charts import bar_chart
from jax_lm.reports.document import Document, Section
from jax_lm.reports.run_folder import Record
from jax_lm.reports.tables import table_section

# pass@1 in percent by model and suite, and the number of problems behind it by suite.
PUBLISHED = read_table(__file__, "published.toml")
NOTE = (
    "Published scores are one sample per problem at temperature 0.2 with 512 steps (arXiv "
    "2506.20639). Their intervals are Wilson's for the size of the benchmark. Only a run with those "
    "settings is comparable."
)
# Columns of the report's tables, and the format of their cells.
RATES = {
    "problems": "{group}",
    "count": "{problems}",
    "samples": "{samples}",
    "passed": "{passed}",
    "measure": "pass@{k}",
    "estimate": "{value:.1%}",
    "95 % interval": "{low:.1%} to {high:.1%}",
}
SCORES = {
    "model": "{model}",
    "pass@1, %": "{value:.1f}",
    "95 % interval": "{low:.1f} to {high:.1f}",
}
DECODING = (
    "{max_new_tokens} new tokens, steps: {steps}, {alg}, {decoding}, "
    "temperature {temperature:g}, top_p {top_p}, top_k {top_k}, seed {seed}, {dtype}"
)


def evaluation_report(
    settings: Record, records: Collection[Record], ks: Sequence[int], *, total: int
) -> Document:
    """Return the report of a run with these settings on a suite of `total` problems."""
    suite = settings["suite"]
    measured = rates(records, ks)
    # Failures first: they are what a reader looks for.
    order = sorted(
        records,
        key=lambda record: (record["outcome"] == "passed", record["name"], record["sample"]),
    )
    return Document(
        title=suite,
        metadata=evaluation_metadata(settings, records, total),
        sections=[
            table_section(f"Rates of {suite}", [vars(rate) for rate in measured], RATES),
            *paper_sections(settings, measured),
        ],
        details=[attempt_section(record) for record in order],
    )


def paper_sections(settings: Record, measured: Sequence[Rate]) -> list[Section]:
    """Return a table of this run's pass@1 and the published ones.

    It is empty if either is missing, and for a part of the benchmark or another file.
    """
    suite = settings["suite"]
    pass_at_1 = [rate for rate in measured if rate.k == 1]
    size = PUBLISHED["problems"].get(suite)
    if not pass_at_1 or size != settings["problems"]:
        return []
    scores = {model: score[suite] for model, score in PUBLISHED["scores"].items()}
    # The last rate is that of all groups together if there are several.
    own = pass_at_1[-1]
    rates_of = {"this run": (own.value, own.low, own.high)}
    for model, score in scores.items():
        rates_of[model] = (score / 100, *wilson(score / 100, size))
    rows = []
    bars = []
    for model, (value, low, high) in rates_of.items():
        rows.append({"model": model, "value": 100 * value, "low": 100 * low, "high": 100 * high})
        bars.append((model, "published" if model in scores else model, 100 * value))
    return [
        table_section(
            "Next to the published scores",
            rows,
            SCORES,
            text=NOTE,
            picture=bar_chart("pass@1, %", bars),
        )
    ]


def attempt_section(record: Record) -> Section:
    """Return the prompt, the completion and the executed program of an attempt."""
    ending = f": {record['detail']}" if record["detail"] else ""
    return Section(
        title=f"{record['outcome']}: {record['name']}, sample {record['sample']}{ending}",
        listing={
            "Prompt": record["prompt"],
            "What the model wrote": record["completion"],
            "What was executed": record["program"],
        },
    )


def evaluation_metadata(settings: Record, records: Collection[Record], total: int) -> Names:
    """Return the settings that the rates of a run depend on, and how its attempts ended."""
    metadata = {
        "model": str(settings["model"]),
        "prompts": str(settings["prompts"]),
        "problems": f"{settings['problems']} of {total}, samples of each: {settings['n']}",
    }
    if generation := settings.get("generation"):
        each = f"{generation['tokens_per_step']} tokens each, or as the preset decides"
        # "preset fast, threshold 0.8"
        others = {name: generation[name] or None for name in ("draft", "lookahead", "grammar")}
        given = (generation["decoding"] | others).items()
        texts = {
            "steps": generation["num_steps"] or each,
            "decoding": ", ".join(f"{name} {value}" for name, value in given if value is not None),
            "dtype": settings["quantization"] or settings["dtype"],
        }
        metadata["decoding"] = DECODING.format_map({**generation, **settings, **texts})
    metadata["outcomes"] = count_outcomes(record["outcome"] for record in records)
    metadata["sandbox"] = (
        ", ".join(sorted({record["tier"] for record in records if record["tier"]})) or "not used"
    )
    # Attempts that were too long have no forward passes.
    if decoded := [record for record in records if record["forwards"]]:
        seconds, forwards = (
            sum(record[name] for record in decoded) for name in ("seconds", "forwards")
        )
        metadata["time"] = (
            f"{seconds:.1f} s of decoding, "
            f"{forwards / len(decoded):.1f} forward passes per answer on average"
        )
    # what a reader must know before trusting the rates
    if errors := sum(record["outcome"] == SANDBOX_ERROR for record in records):
        metadata["not counted"] = (
            f"{errors} programs that the sandbox could not run; starting again retries them"
        )
    if unjudged := sum(record["outcome"] == CANNOT_JUDGE for record in records):
        metadata["not judged"] = (
            f"{unjudged} programs whose tests need one process with them (--same-process)"
        )
    if without := sum(record["tier"].endswith(NO_BORDER) for record in records):
        metadata["without a border"] = (
            f"{without} verdicts are the program's own word (--same-process)"
        )
    return metadata


def count_outcomes(outcomes: Iterable[str]) -> str:
    """Return the number of attempts by outcome, in one line."""
    # ["passed", "failed", "passed"] -> "1 failed, 2 passed"
    counts = Counter(outcomes)
    return ", ".join(
        f"{count} {outcome.replace('_', ' ')}" for outcome, count in sorted(counts.items())
    )
