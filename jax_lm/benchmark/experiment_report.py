"""The report of the accelerator experiment: criteria with what was measured, metrics, issues, next steps.

Reads what `evaluation.steps` kept; knows no model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax_lm.benchmark.comparison import worst
from jax_lm.reports.charts import line_chart, rounded_up
from jax_lm.reports.document import Document, Section, Verdict
from jax_lm.reports.run_folder import Record
from jax_lm.reports.steps import DONE, FAILED, LEFT_OUT, Outcome, Step

SHOWN = 4
"""Programs of the quality check that the report quotes."""

GIB = 2**30


@dataclass(frozen=True)
class Criterion:
    """What makes the experiment a success, one line of the list.

    Attributes:
        step: whose result it is about; without that result it is not measured.
        judge: from that result, what was measured in words, and whether it is as wanted.
        advice: what to do when it is missed.
    """

    name: str
    wanted: str
    step: str
    judge: Callable[[Record], tuple[str, bool]]
    advice: str

    def verdict(self, outcomes: Mapping[str, Outcome]) -> Verdict:
        outcome = outcomes.get(self.step)
        if outcome is None or outcome.state != DONE:
            why = "not reached" if outcome is None else f"{outcome.state}: {outcome.reason}"
            return Verdict(self.name, self.wanted, why, None)
        return Verdict(self.name, self.wanted, *self.judge(outcome.found))


def on_accelerator(found: Record) -> tuple[str, bool]:
    about = found["about"]
    return f"{about['devices']} x {about['device']} ({about['platform']})", about["platform"] != "cpu"


def verified(found: Record) -> tuple[str, bool]:
    passed = sum(check["passed"] for check in found["checks"])
    return f"{passed} of {len(found['checks'])} checks passed", found["passed"]


def batch_gain(found: Record) -> tuple[str, bool]:
    rows = [row for row in found["rows"] if "seconds" in row]
    if len(rows) < 2:
        return f"{len(rows)} batch size fits", False
    first, last = rows[0], rows[-1]
    gain = last["tokens_per_second"] / first["tokens_per_second"]
    wanted = 0.25 * last["batch"] / first["batch"]
    return f"{gain:.2f} times, batch {last['batch']} over batch {first['batch']}", gain >= wanted


def roofline(found: Record) -> tuple[str, bool]:
    rows = [row for row in found["rows"] if "roofline" in row]
    if not rows:
        return "the machine's limits are not known", False
    best = max(rows, key=lambda row: row["roofline"])
    return f"{best['roofline']:.0%} at batch {best['batch']} ({best['limit']})", best["roofline"] >= 0.4


def parity_recorded(found: Record) -> tuple[str, bool]:
    passed = sum(finding["passed"] for finding in found["findings"])
    total = len(found["findings"])
    return f"{passed} of {total}: {passed / total:.1%}", passed >= 0.95 * total


def parity_pytorch(found: Record) -> tuple[str, bool]:
    differences, tolerance = found["differences"], found["tolerance"]
    within = sum(each["relative"] <= tolerance for each in differences)
    most = worst(differences)
    told = f"{within} of {len(differences)}: {within / len(differences):.1%}; largest relative difference "
    return f"{told}{most['relative']:.1e} ({most['name']})", within >= 0.95 * len(differences)


def quality(found: Record) -> tuple[str, bool]:
    share = found["passed"] / found["tasks"]
    return f"{found['passed']} of {found['tasks']}: {share:.0%}", share >= 0.5


CRITERIA = (
    Criterion(
        "computed on an accelerator", "GPU or TPU", "environment", on_accelerator,
        "This run shows the procedure on a CPU. Run the same command on a GPU or TPU (docs/guides/experiment.md).",
    ),
    Criterion(
        "checkpoint present and verified", "every check", "checkpoint", verified,
        "`diffucoder verify` names what is wrong; fetch the checkpoint again.",
    ),
    Criterion(
        "loads", "within 300 s", "loading",
        lambda found: (f"{found['seconds']:.1f} s", found["seconds"] <= 300),
        "Loading reads the files once: put them on a local disk.",
    ),
    Criterion(
        "first call", "within 120 s, compilation included", "single",
        lambda found: (f"{found['first_seconds']:.1f} s", found["first_seconds"] <= 120),
        "Keep compilations between runs (JAX_COMPILATION_CACHE_DIR).",
    ),
    Criterion(
        "later calls compile nothing", "0 compilations", "single",
        lambda found: (str(found["recompilations"]), found["recompilations"] == 0),
        "A defect: report it with steps.jsonl.",
    ),
    Criterion(
        "same seed, same text", "every call", "single",
        lambda found: ("equal" if found["same_text"] else "different", found["same_text"]),
        "A defect: report it with steps.jsonl.",
    ),
    Criterion(
        "generation, one prompt", "at least 10 tokens/s", "single",
        lambda found: (f"{found['tokens_per_second']:,.1f} tokens/s", found["tokens_per_second"] >= 10),
        "Try --preset fast or turbo of `diffucoder generate`, or --dtype int8.",
    ),
    Criterion(
        "forward passes gain from batches", "a quarter of the factor", "forward", batch_gain,
        "The device is busy with one row already; batches save little here.",
    ),
    Criterion(
        "forward passes near the machine's limits", "40 % of the roofline", "forward", roofline,
        "`diffucoder bench` shows what limits; report it with its JSON.",
    ),
    Criterion(
        "four prompts together", "less time than one by one", "batch",
        lambda found: (f"{found['seconds']:.2f} s, one by one {found['alone_seconds']:.2f} s",
                       found["seconds"] < found["alone_seconds"]),
        "Batches save nothing here: send prompts one by one.",
    ),
    Criterion(
        "answers together as alone", "all, greedily", "batch",
        lambda found: (f"{found['equal']} of {len(found['texts'])}", found["equal"] == len(found["texts"])),
        "In bfloat16 nearly equal candidates may change places with the batch; in float32 it is a defect.",
    ),
    Criterion(
        "memory for batch 8", "batch 8 runs", "stress 8",
        lambda found: ("it runs" if found["fits"] else found["reason"], found["fits"]),
        "`diffucoder plan` says what fits; --dtype int8 takes half of the weights' memory.",
    ),
    Criterion(
        "faster than the CPU", "5 times", "cpu",
        lambda found: (f"{found['ratio']:.1f} times", found["ratio"] >= 5),
        "Compare the platforms in steps.jsonl: is the accelerator in use?",
    ),
    Criterion(
        "parity with recorded outputs", "95 % of the comparisons", "recorded", parity_recorded,
        "`diffucoder parity check` names each comparison that fails.",
    ),
    Criterion(
        "parity with PyTorch", "95 % of the outputs", "pytorch", parity_pytorch,
        "`diffucoder compare` shows the differences layer by layer.",
    ),
    Criterion(
        "quality", "half of the tasks pass", "quality", quality,
        "`diffucoder eval` measures it on whole benchmarks.",
    ),
)  # fmt: skip


def document(outcomes: Mapping[str, Outcome], steps: Sequence[Step], name: str) -> Document:
    """The report of what was found so far."""
    found = {step: outcome.found for step, outcome in outcomes.items() if outcome.state == DONE}
    verdicts = [criterion.verdict(outcomes) for criterion in CRITERIA]
    sections = [
        *(part(found) for name, part in PARTS if name in found),
        *stress(found),
        *parity(found),
        journal(outcomes, steps),
        issues(outcomes, verdicts),
        next_steps(verdicts),
    ]
    return Document(
        title="Accelerator experiment", metadata=facts(found, name), verdicts=verdicts, sections=sections,
    )  # fmt: skip


def facts(found: Mapping[str, Record], name: str) -> dict[str, str]:
    """The environment."""
    told = {"model": name}
    if loading := found.get("loading"):
        told["model"] = f"{name}, {loading['parameters']:,} parameters, {loading['dtype']}, mesh {loading['mesh']}"
    if environment := found.get("environment"):
        about, limits = environment["about"], environment["limits"]
        memory = environment["device_bytes"]
        told |= {
            "device": f"{about['devices']} x {about['device']} ({about['platform']})"
            + (f", {memory / GIB:.1f} GiB each" if memory else ""),
            "host": f"{about['machine']}, {about['cpu_count']} CPU cores, load {about['load_average']:g}",
            "software": ", ".join(f"{key} {about[key]}" for key in ("jax", "jaxlib", "flax", "python")),
            "limits measured": f"{limits['matmul_flops'] / 1e9:,.0f} GFLOP/s in {environment['limits_dtype']}, "
            f"{limits['copy_bytes'] / 1e9:,.1f} GB/s",
            "peak memory": environment["peak_memory"],
            "date": about["date"],
            "command": about["command"],
        }
    return told


def metrics(found: Mapping[str, Record]) -> Section:
    """Loading and one prompt."""
    rows = []
    if loading := found.get("loading"):
        rows += [["loading", f"{loading['seconds']:.2f} s"], ["weights", f"{loading['weights_bytes'] / GIB:.2f} GiB"]]
    single = found["single"]
    rows += [
        ["first call, with compilation", f"{single['first_seconds']:.2f} s"],
        ["later calls, median", f"{single['seconds']:.3f} s for {single['new_tokens']} tokens"],
        ["tokens per second", f"{single['tokens_per_second']:,.1f}"],
        ["model evaluations", str(single["forwards"])],
        ["peak memory", f"{single['peak_bytes'] / GIB:.2f} GiB"],
    ]
    listing = {f"Completion of {single['prompt']!r}": single["text"]}
    return Section(title="One prompt", columns=("", "measured"), rows=rows, listing=listing)


def forward(found: Mapping[str, Record]) -> Section:
    """Forward passes by batch."""
    rows, points = [], []
    for row in found["forward"]["rows"]:
        if "seconds" not in row:
            rows.append([str(row["batch"]), "out of memory", "", "", ""])
            continue
        points.append((row["batch"], row["tokens_per_second"]))
        reached = [f"{row['roofline']:.0%}", row["limit"]] if "roofline" in row else ["", ""]
        rows.append([str(row["batch"]), f"{row['seconds'] * 1e3:.2f}", f"{row['tokens_per_second']:,.0f}", *reached])
    return Section(
        title="Forward passes by batch",
        text=f"{found['forward']['width']} positions per row, logits of every position.",
        columns=("batch", "ms", "positions/s", "of the roofline", "limit"),
        rows=rows,
        picture=rising("Positions per second", "positions/s", {"forward pass": points}),
        name="forward",
    )


def batch(found: Mapping[str, Record]) -> Section:
    """Four prompts."""
    four = found["batch"]
    rows = [
        ["together", f"{four['seconds']:.3f} s", f"{four['tokens_per_second']:,.1f} tokens/s"],
        ["one by one", f"{four['alone_seconds']:.3f} s", ""],
        ["equal answers", f"{four['equal']} of {len(four['texts'])}", ""],
    ]
    listing = {f"Completion of {prompt!r}": text for prompt, text in four["texts"].items()}
    return Section(title="Four prompts together", columns=("", "measured", ""), rows=rows, listing=listing)


def cpu(found: Mapping[str, Record]) -> Section:
    """The same work here and there."""
    here, there = found["cpu"]["here"], found["cpu"]["cpu"]
    rows = [
        [name, *(f"{value:.3f}" for value in (here[key], there[key])), f"{there[key] / here[key]:.1f}"]
        for name, key in (("generation, s", "seconds"), ("forward pass, s", "forward_seconds"))
    ]
    text = f"{here['batch']} row, {here['prompt_tokens']} prompt tokens, {here['new_tokens']} new tokens."
    columns = ("", "here", "CPU", "times as fast")
    return Section(title="Comparison with the CPU", text=text, columns=columns, rows=rows)


def programs(found: Mapping[str, Record]) -> Section:
    """Quality, with the first programs and how they did."""
    result = found["quality"]
    rows = [[each["name"], each["outcome"], each["detail"]] for each in result["attempts"]]
    listing = {f"{each['name']}: {each['outcome']}": each["program"] for each in result["attempts"][:SHOWN]}
    text = f"{result['passed']} of {result['tasks']} programs pass their tests (sandbox: {result['tier']})."
    return Section(title="Quality", text=text, columns=("task", "outcome", ""), rows=rows, listing=listing)


PARTS = (("single", metrics), ("forward", forward), ("batch", batch), ("cpu", cpu), ("quality", programs))
"""Steps with a section of their own."""


def stress(found: Mapping[str, Record]) -> list[Section]:
    """Batches until memory ends; none if none ran."""
    sizes = sorted((each for name, each in found.items() if name.startswith("stress ")), key=lambda each: each["size"])
    if not sizes:
        return []
    rows, points = [], []
    for each in sizes:
        if not each["fits"]:
            rows.append([str(each["size"]), "out of memory", "", each["reason"]])
            continue
        points.append((each["size"], each["tokens_per_second"]))
        peak = f"{each['peak_bytes'] / GIB:.2f} GiB"
        rows.append([str(each["size"]), f"{each['tokens_per_second']:,.1f}", peak, ""])
    picture = rising("Tokens per second under stress", "tokens/s", {"generation": points})
    columns = ("batch", "tokens/s", "peak memory so far", "")
    return [Section(title="Stress", columns=columns, rows=rows, picture=picture, name="stress")]


def parity(found: Mapping[str, Record]) -> list[Section]:
    """What was compared with PyTorch, live and recorded."""
    sections = []
    if result := found.get("recorded"):
        rows = [[each["name"], each["measured"], each["allowed"], "ok" if each["passed"] else "FAILED"]
                for each in result["findings"]]  # fmt: skip
        columns = ("compared", "measured", "allowed", "")
        sections.append(Section(title="Parity with recorded outputs of PyTorch", columns=columns, rows=rows))
    if result := found.get("pytorch"):
        kinds: dict[str, list[Record]] = {}
        for each in result["differences"]:
            kinds.setdefault(each["kind"], []).append(each)
        rows = [[kind, str(len(each)), f"{worst(each)['relative']:.1e}", f"{max(e['largest'] for e in each):.1e}"]
                for kind, each in kinds.items()]  # fmt: skip
        text = (
            f"PyTorch {result['torch']} on the CPU; relative difference at most {result['tolerance']:g}. Greedy tokens "
            f"that are equal: {result['greedy_agreement']:.1%}."
        )
        columns = ("output", "compared", "largest relative", "largest absolute")
        sections.append(Section(title="Parity with PyTorch", text=text, columns=columns, rows=rows))
    return sections


def journal(outcomes: Mapping[str, Outcome], steps: Sequence[Step]) -> Section:
    """How each step ended."""
    rows = []
    for step in steps:
        outcome = outcomes.get(step.name, Outcome("not reached"))
        rows.append([step.title, outcome.state, f"{outcome.seconds:.1f}", outcome.reason])
    return Section(title="Steps", columns=("step", "", "s", ""), rows=rows)


def issues(outcomes: Mapping[str, Outcome], verdicts: Sequence[Verdict]) -> Section:
    """What failed, was left out or missed."""
    points = [f"{name} {each.state}: {each.reason}" for name, each in outcomes.items() if each.state == FAILED]
    points += [f"{name} left out: {each.reason}" for name, each in outcomes.items() if each.state == LEFT_OUT]
    points += [f"missed: {each.name} (wanted {each.wanted}; {each.measured})" for each in verdicts if each.met is False]
    return Section(title="Issues", points=points or ["none"])


def next_steps(verdicts: Sequence[Verdict]) -> Section:
    """The advice of each criterion that was missed, then of what was not measured."""
    advice = {criterion.name: criterion.advice for criterion in CRITERIA}
    points = [advice[each.name] for each in verdicts if each.met is False]
    points += [f"Measure what is not: {each.name}." for each in verdicts if each.met is None]
    return Section(title="Next steps", points=list(dict.fromkeys(points)) or ["none"])


def rising(title: str, label: str, series: Mapping[str, Any]) -> str:
    """A chart by batch whose axis ends above the largest value."""
    largest = max((value for line in series.values() for _, value in line), default=1.0)
    return line_chart(title, "batch", label, series, top=rounded_up(largest))
