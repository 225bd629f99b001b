"""Table, curves and raw counts of experiments/demo_rl.sh, from the attempts and metrics that it
leaves.

    python experiments/demo_rl_table.py out/demo_rl
    python experiments/demo_rl_table.py docs/results/coupled_grpo/counts.json

The first writes counts.json, curves.json, table.md and a picture of each curve there, and prints
the table; the second computes the table again from the counts. Intervals hold 95 % of 10,000 draws
of tasks, the same for all runs; those of an arm draw its seeds as well, and say what other seeds
would give as far as three can.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_lm.evaluation.attempts import SANDBOX_ERROR
from jax_lm.reports.charts import line_chart

START = "start"
ARMS = ("coupled", "trace", "shuffled", "full_mask", "sft")
CONTROL = "shuffled"
COMPARED = (*((arm, CONTROL) for arm in ARMS if arm != "shuffled"), ("trace", "coupled"), ("coupled", "full_mask"),
            ("sft", "trace"))  # fmt: skip
"""Arms that a line of the table compares on the same seeds and tasks."""
MEASURES = ("sampled", "greedy")
CURVES = (
    "reward",
    "eval_reward",
    "rewarded_logprob",
    "entropy",
    "kl",
    "eval_kl_start",
    "completion_tokens",
    "unfinished_completions",
    "zero_variance_groups",
)
DRAWS = 10_000
SMOOTHED = 5
"""Points of a curve that are averaged."""

Counts = dict[str, dict[str, dict[str, list[int]]]]
"""Of each run, measure and task: how many samples passed, and how many there were."""


def counted(folder: Path) -> dict[str, list[int]]:
    """Count for each task the samples that passed, and all that were judged; of one tried again the
    last counts.
    """
    outcomes: dict[tuple[str, int], str] = {}
    for entry in map(
        json.loads, (folder / "attempts.jsonl").read_text(encoding="utf-8").splitlines()
    ):
        outcomes[entry["name"], entry["sample"]] = entry["outcome"]
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for (name, _), outcome in outcomes.items():
        counts[name][0] += outcome == "passed"
        counts[name][1] += outcome != SANDBOX_ERROR
    return dict(sorted(counts.items()))


def runs_of(names: Sequence[str], arm: str) -> list[str]:
    """The runs of an arm, by seed."""
    return sorted(name for name in names if name.rpartition("-")[0] == arm)


def rates(counts: Counts, run: str, measure: str) -> np.ndarray:
    """Pass rate of each task; NaN of one that the sandbox never judged.

    Raises:
        ValueError: the run was measured on other tasks than the start.
    """
    found = counts[run][measure]
    if found.keys() != counts[START][measure].keys():
        raise ValueError(f"{run} was measured on other tasks than the start")
    return np.array([passed / total if total else np.nan for passed, total in found.values()])


def interval(of_runs: np.ndarray) -> str:
    """A mean over runs and tasks [runs, tasks], with what 95 % of draws of both give."""
    rng = np.random.default_rng(0)
    tasks = rng.integers(0, of_runs.shape[1], (DRAWS, of_runs.shape[1]))
    runs = rng.integers(0, len(of_runs), (DRAWS, len(of_runs)))
    means = [
        np.nanmean(of_runs[chosen][:, drawn]) for chosen, drawn in zip(runs, tasks, strict=True)
    ]
    low, high = np.quantile(means, [0.025, 0.975])
    return f"{np.nanmean(of_runs):+.1%} ({low:+.1%} to {high:+.1%})"


def table(counts: Counts) -> str:
    """Pass rates of each run and measure, the changes against the start and the control on the same
    tasks.
    """
    lines = ["| run | sampled | change | greedy | change |", "|---|---|---|---|---|"]
    start = {measure: rates(counts, START, measure) for measure in MEASURES}
    lines.append(
        f"| start | {np.nanmean(start['sampled']):.1%} | | {np.nanmean(start['greedy']):.1%} | |"
    )
    found = {
        arm: {
            measure: np.array([rates(counts, name, measure) for name in names])
            for measure in MEASURES
        }
        for arm in ARMS
        if (names := runs_of(list(counts), arm))
    }
    for arm, of_measures in found.items():
        for number, name in enumerate(runs_of(list(counts), arm)):
            changes = {
                measure: interval(of_measures[measure][[number]] - start[measure])
                for measure in MEASURES
            }
            lines.append(
                line(name, {measure: of_measures[measure][number] for measure in MEASURES}, changes)
            )
        changes = {
            measure: f"**{interval(of_measures[measure] - start[measure])}**"
            for measure in MEASURES
        }
        size = len(of_measures[MEASURES[0]])
        lines.append(line(f"**{arm}, mean of {size}**", of_measures, changes))
    for arm, other in COMPARED:
        # Of the same seed, as that orders the prompts.
        pairs = [
            (f"{arm}-{seed}", f"{other}-{seed}")
            for seed in sorted(seeds_of(counts, arm) & seeds_of(counts, other))
        ]
        if pairs:
            cells = [
                interval(
                    np.array(
                        [
                            rates(counts, run, measure) - rates(counts, its, measure)
                            for run, its in pairs
                        ]
                    )
                )
                for measure in MEASURES
            ]
            lines.append(f"| {arm} over {other}, {len(pairs)} | | {cells[0]} | | {cells[1]} |")
    return "\n".join(lines) + "\n"


def seeds_of(counts: Counts, arm: str) -> set[str]:
    """The seeds with which an arm was run."""
    return {name.rpartition("-")[2] for name in runs_of(list(counts), arm)}


def line(name: str, found: Mapping[str, np.ndarray], changes: Mapping[str, str]) -> str:
    """A line of the table: pass rates and their changes."""
    cells = [
        cell
        for measure in MEASURES
        for cell in (f"{np.nanmean(found[measure]):.1%}", changes[measure])
    ]
    return f"| {name} | " + " | ".join(cells) + " |"


def curves_of(run: Path) -> dict[str, list[tuple[int, float]]]:
    """What a run logged, by name: steps and values."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, list[tuple[int, float]]] = {}
    for entry in map(json.loads, lines):
        for name in CURVES:
            if entry.get(name) is not None:
                found.setdefault(name, []).append((entry["step"], entry[name]))
    return found


def pictures(curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> dict[str, str]:
    """Draw each curve: the mean of an arm's seeds, smoothed where it has many points."""
    drawn = {}
    for name in CURVES:
        series: dict[str, Any] = {}
        for arm in ARMS:
            values = [
                np.array(curves[run][name])
                for run in runs_of(list(curves), arm)
                if curves[run].get(name)
            ]
            if values:
                means = np.mean([each[: min(map(len, values))] for each in values], axis=0)
                width = SMOOTHED if len(means) > 3 * SMOOTHED else 1
                points = range(width, len(means) + 1)
                series[arm] = [
                    (int(means[end - 1, 0]), float(means[end - width : end, 1].mean()))
                    for end in points
                ]
        if series:
            top = max(1.0, *(value for points in series.values() for _, value in points))
            drawn[name] = line_chart(f"{name}, mean of the seeds", "update", name, series, top=top)
    return drawn


def main(place: Path) -> None:
    """Make them from the folder of the runs, or the table from counts."""
    if not place.exists():
        sys.exit(f"error: {place}: must be the folder of the runs, or their counts.json")
    if place.is_file():
        print(table(json.loads(place.read_text(encoding="utf-8"))), end="")
        return
    runs = [
        run
        for run in sorted(place.iterdir())
        if all((run / name / "report.md").is_file() for name in MEASURES)
    ]
    names = [run.name for run in runs]
    counts = {
        name: {measure: counted(place / name / measure) for measure in MEASURES} for name in names
    }
    curves = {
        name: curves_of(place / name)
        for name in names
        if (place / name / "metrics.jsonl").is_file()
    }
    (place / "counts.json").write_text(json.dumps(counts) + "\n", encoding="utf-8")
    (place / "curves.json").write_text(json.dumps(curves) + "\n", encoding="utf-8")
    for name, picture in pictures(curves).items():
        (place / f"{name}.svg").write_text(picture, encoding="utf-8")
    (place / "table.md").write_text(table(counts), encoding="utf-8")
    print((place / "table.md").read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
