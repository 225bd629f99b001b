"""The report of the accelerator experiment: criteria with advice, tables and charts.

Reads the rows that the steps returned, and runs no model.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import ge, itemgetter, le
from typing import Any, NamedTuple

from jax_lm.benchmark.comparison import differences_within, worst
from jax_lm.benchmark.machine import MACHINE_LINES, limits_text, machine_lines
from jax_lm.config import Names
from jax_lm.reports.charts import Number
from jax_lm.reports.document import Document, Section, Verdict
from jax_lm.reports.steps import DONE, Outcome, Rows, Step
from jax_lm.reports.tables import GIB, Measurements, Row, row_chart, table_section

# Number of programs of the quality check that the report quotes.
SHOWN_PROGRAMS = 4

# Values that the tables omit, as they show the time of the first call.
COMPILATIONS = ("compilations", "compile_seconds")

# A function that makes a section from the rows of its steps.
MakeSection = Callable[[Measurements], Section]
# Such functions by the first word of the names of their steps: "stress" for "stress 8".
Sections = Mapping[str, MakeSection]
# The outcome of each step by its name.
Outcomes = Mapping[str, Outcome]

# What was measured, in words, and whether the condition is met (None: the row does not say).
Judgement = tuple[str, bool | None]
# A function that judges the row of a step.
Judge = Callable[[Row], Judgement]

NOT_REACHED = Outcome("not reached")
DEFECT = "A defect: report it with steps.jsonl."


class Criterion(NamedTuple):
    """A condition for the success of the experiment, and advice if it is missed.

    Attributes:
        name: the condition.
        wanted: the bound of the condition, in words.
        step: the step whose row is judged. If it is not done, the criterion is not measured.
        judge: judges the row.
        advice: what to do if the condition is not met.
    """

    name: str
    wanted: str
    step: str
    judge: Judge
    advice: str

    def verdict(self, outcomes: Outcomes) -> Verdict:
        """Judge the outcome of the step."""
        outcome = outcomes.get(self.step, NOT_REACHED)
        if outcome.state == DONE:
            measured, is_met = self.judge(outcome.row)
            if is_met is False:
                measured = f"{measured}. {self.advice}"
            return Verdict(self.name, self.wanted, measured, is_met)
        state = f"{outcome.state}: {outcome.reason}" if outcome.reason else outcome.state
        # None: neither met nor missed.
        return Verdict(self.name, self.wanted, state, None)


def judge_value(
    key: str, is_met: Callable[[Any, Any], bool], bound: Number, template: str
) -> Judge:
    """Return a judge that compares a value of the row with a bound; `template` formats the row."""
    return lambda row: (template.format_map(row), is_met(row[key], bound))


def judge_share(passed: int, total: int, bound: float = 0.95, digits: str = ".1%") -> Judgement:
    """Judge whether the share of what passed is at least `bound`; `digits` formats the share."""
    return f"{passed} of {total}: {passed / total:{digits}}", passed >= bound * total


def judge_checks(row: Row) -> Judgement:
    """Judge whether every check of the checkpoint passed."""
    checks = row["checks"]
    return (
        f"{sum(check['passed'] for check in checks)} of {len(checks)} checks passed",
        row["passed"],
    )


def judge_batch_gain(row: Row) -> Judgement:
    """Compare the tokens per second of the largest batch with those of the smallest."""
    timed = [batch for batch in row["rows"] if "seconds" in batch]
    if len(timed) < 2:
        return f"batch sizes that fit: {len(timed)}", None
    first, *_, last = timed
    gain = last["tokens_per_second"] / first["tokens_per_second"]
    factor = last["batch"] / first["batch"]
    # Batch 8 over batch 1 must bring at least 0.25 * 8 = 2 times the tokens per second.
    return (
        f"{gain:.2f} times, batch {last['batch']} over batch {first['batch']}",
        gain >= 0.25 * factor,
    )


def judge_roofline(row: Row) -> Judgement:
    """Judge whether the batch nearest to the machine's limits reaches 40 % of them."""
    rated = [batch for batch in row["rows"] if batch.get("roofline")]
    if not rated:
        return "the machine's limits are not known", None
    # On a tie, the larger batch.
    best = max(rated, key=itemgetter("roofline", "batch"))
    measured = "{roofline:.0%} at batch {batch} ({limit})".format_map(best)
    # Above 100 %, the limit of the machine was measured too low.
    return measured, best["roofline"] >= 0.4 if best["roofline"] <= 1 else None


def judge_pytorch(row: Row) -> Judgement:
    """Judge whether 95 % of the outputs are within the tolerance."""
    within, largest = differences_within(row["differences"], row["tolerance"])
    measured, passed = judge_share(within, len(row["differences"]))
    return f"{measured}; largest relative difference {largest}", passed


def judge_memory(template: str, row: Row) -> Judgement:
    """Judge whether the step fits in memory; `template` formats the row if it does."""
    fits = row.get("seconds") is not None
    return template.format_map(row) if fits else row["out_of_memory"], fits


ON_ACCELERATOR = Criterion(
    "computed on an accelerator", "GPU or TPU", "environment",
    lambda row: (MACHINE_LINES["device"].format_map(row["about"]), row["about"]["platform"] != "cpu"),
    "This run shows the procedure on a CPU. Run the same command on a GPU or TPU (docs/guides/experiment.md).",
)  # fmt: skip

CRITERIA: tuple[Criterion, ...] = (
    ON_ACCELERATOR,
    Criterion("checkpoint present and verified", "every check", "checkpoint", judge_checks,
              "`diffucoder verify` names what is wrong; fetch the checkpoint again."),
    Criterion("loads", "within 300 s", "loading", judge_value("seconds", le, 300, "{seconds:.1f} s"),
              "Loading reads the files once: put them on a local disk."),
    Criterion("first call", "within 120 s, compilation included", "single",
              judge_value("first_seconds", le, 120, "{first_seconds:.1f} s"),
              "The next start reads the programs from the cache, which this step leaves out."),
    Criterion("later calls compile nothing", "0 compilations", "single",
              judge_value("recompilations", le, 0, "{recompilations}"), DEFECT),
    Criterion("same seed, same text", "every call", "single",
              lambda row: ("equal" if row["same_text"] else "different", row["same_text"]), DEFECT),
    Criterion("generation, one prompt", "at least 10 tokens/s", "single",
              judge_value("tokens_per_second", ge, 10, "{tokens_per_second:,.1f} tokens/s"),
              "Try --preset fast or turbo of `diffucoder generate`, or --dtype int8."),
    Criterion("forward passes gain from batches", "a quarter of the factor", "forward", judge_batch_gain,
              "One row already keeps the device busy; batches save little here."),
    Criterion("forward passes near the machine's limits", "40 % of the roofline", "forward", judge_roofline,
              "`diffucoder bench` shows the limit; report it with its JSON."),
    Criterion("four prompts together", "less time than one by one", "batch",
              lambda row: ("{seconds:.2f} s, one by one {alone_seconds:.2f} s".format_map(row),
                           row["seconds"] < row["alone_seconds"]),
              "Batches save nothing here: send prompts one by one."),
    Criterion("answers together as alone", "all, greedily", "batch",
              lambda row: (f"{row['equal']} of {len(row['texts'])}", row["equal"] == len(row["texts"])),
              "In bfloat16 nearly equal candidates may change places with the batch; in float32 it is a defect."),
    Criterion("memory for batch 8", "batch 8 runs", "stress 8", partial(judge_memory, "it runs"),
              "`diffucoder plan` says what fits; --dtype int8 takes half of the weights' memory."),
    Criterion("faster than the CPU", "5 times", "cpu", judge_value("ratio", ge, 5, "{ratio:.1f} times"),
              "Compare the platforms in steps.jsonl: is the accelerator in use?"),
    Criterion("parity with recorded outputs", "95 % of the comparisons", "recorded",
              lambda row: judge_share(sum(each["passed"] for each in row["findings"]), len(row["findings"])),
              "`diffucoder parity check` names each comparison that fails."),
    Criterion("parity with PyTorch", "95 % of the outputs", "pytorch", judge_pytorch,
              "`diffucoder compare` shows the differences layer by layer."),
    Criterion("quality", "half of the tasks pass", "quality",
              lambda row: judge_share(row["passed"], row["tasks"], 0.5, ".0%"),
              "`diffucoder eval` measures it on whole benchmarks."),
)  # fmt: skip


def forward_section(rows: Measurements) -> Section:
    """Return the section about the speed of forward passes by batch size."""
    [row] = rows
    return table_section(
        "Forward passes by batch",
        row["rows"],
        text=f"{row['width']} positions per row, logits of every position.",
        picture=row_chart("Positions per second", row["rows"], "batch", "tokens_per_second"),
        name="forward",
    )


def title_completions(completions: Names) -> Names:
    """Return completions by prompt as completions by title, for the listing of a section."""
    return {f"Completion of {prompt!r}": text for prompt, text in completions.items()}


def pytorch_section(rows: Measurements) -> Section:
    """Return the section about parity with PyTorch: the worst output of each kind."""
    [row] = rows
    kinds = dict.fromkeys(each["kind"] for each in row["differences"])
    shown = [worst([each for each in row["differences"] if each["kind"] == kind]) for kind in kinds]
    text = (
        f"PyTorch {row['torch']} on the CPU; relative difference at most {row['tolerance']:g}. "
        f"Equal greedy tokens: {row['greedy_agreement']:.1%}. {len(row['differences'])} outputs; "
        "the worst of each kind:"
    )
    return table_section("Parity with PyTorch", shown, text=text)


def quality_section(rows: Measurements) -> Section:
    """Return the section about quality: the outcome of every task, and the first programs."""
    [row] = rows
    texts = {
        "{name}: {outcome}".format_map(each): each["program"]
        for each in row["attempts"][:SHOWN_PROGRAMS]
    }
    return table_section(
        "Quality",
        row["attempts"],
        leave_out=("program",),
        text="{passed} of {tasks} programs pass their tests (sandbox: {tier}).".format_map(row),
        listing=texts,
    )


def chart_section(title: str, x: str, y_title: str, by: str, rows: Measurements) -> Section:
    """Return a section with a table, and a chart of its tokens per second over the column `x`.

    There is a line for each value of the column `by`. The title names the chart's file.
    """
    picture = row_chart(y_title, rows, x, "tokens_per_second", by)
    return table_section(title, rows, leave_out=COMPILATIONS, picture=picture, name=title.lower())


SECTIONS: Sections = {
    "single": lambda rows: table_section(
        "One prompt",
        rows,
        leave_out=("prompt", "text", *COMPILATIONS),
        listing=title_completions({rows[0]["prompt"]: rows[0]["text"]}),
    ),
    "forward": forward_section,
    "batch": lambda rows: table_section(
        "Four prompts together", rows, listing=title_completions(rows[0]["texts"])
    ),
    "cpu": lambda rows: table_section(
        "Comparison with the CPU",
        [rows[0]["here"], rows[0]["cpu"]],
        text="First here, then on the CPU.",
    ),
    "quality": quality_section,
    "recorded": lambda rows: table_section(
        "Parity with recorded outputs of PyTorch", rows[0]["findings"]
    ),
    "pytorch": pytorch_section,
    "stress": partial(chart_section, "Stress", "size", "Tokens per second under stress", ""),
}


def experiment_report(
    outcomes: Outcomes,
    steps: Sequence[Step],
    name: str,
    criteria: Sequence[Criterion] = CRITERIA,
    sections: Sections = SECTIONS,
) -> Document:
    """Return the report of the steps that have ended so far.

    Args:
        outcomes: how the steps ended.
        steps: all steps of the experiment, in their order.
        name: name of the model.
        criteria: conditions to judge.
        sections: functions that make the sections.

    Raises:
        ValueError: a row lacks a value, because another version of this program wrote it.
    """
    done = {step: outcome.row for step, outcome in outcomes.items() if outcome.state == DONE}
    made = []
    try:
        verdicts = [criterion.verdict(outcomes) for criterion in criteria]
        for kind, make_section in sections.items():
            # "stress 1" and "stress 8" share the section of "stress".
            if rows := [row for step, row in done.items() if step.split()[0] == kind]:
                made.append(make_section(rows))
        metadata = experiment_metadata(done, name)
    except KeyError as error:
        raise ValueError(f"a step of an earlier run lacks {error}: give another folder") from error
    table = []
    for step in steps:
        outcome = outcomes.get(step.name, NOT_REACHED)
        table.append([step.title, outcome.state, f"{outcome.seconds:.1f}", outcome.reason])
    made.append(Section(title="Steps", columns=("step", "", "s", ""), rows=table))
    return Document(
        title="Accelerator experiment", metadata=metadata, verdicts=verdicts, sections=made
    )


def experiment_metadata(rows: Rows, name: str) -> Names:
    """Describe the model and the environment."""
    metadata = {"model": name}
    if model := rows.get("loading", rows.get("weights")):
        metadata["model"] += ", {parameters:,} parameters, {dtype}, mesh {mesh}".format_map(model)
    if environment := rows.get("environment"):
        memory = environment.get("device_bytes")
        metadata |= machine_lines(environment["about"]) | {
            "limits measured": limits_text(environment["limits"], environment["limits_dtype"]),
            "peak memory": environment["peak_memory"],
        }
        metadata["device"] += f", {memory / GIB:.1f} GiB each" if memory else ""
    return metadata
