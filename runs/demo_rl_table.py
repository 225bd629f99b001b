"""Table, curves and raw counts of runs/demo_rl.sh, from the attempts and metrics that it leaves.

    python runs/demo_rl_table.py out/demo_rl
    python runs/demo_rl_table.py docs/results/coupled_grpo/counts.json

The first writes counts.json, curves.json, table.md and a picture of each curve there, and prints the table; the second
computes the table again from the counts. Intervals hold 95 % of 10,000 draws of tasks, the same for all runs.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jax_lm.reports.charts import line_chart

START = "start"
ARMS = ("coupled", "trace", "shuffled", "full_mask", "sft")
MEASURES = ("sampled", "greedy")
CURVES = ("reward", "eval_reward", "kl", "completion_tokens", "zero_variance_groups")
DRAWS = 10_000
SMOOTHED = 5
"""Points of a curve that are averaged."""

Counts = dict[str, dict[str, dict[str, list[int]]]]
"""Of each run, measure and task: how many samples passed, and how many there were."""


def counted(folder: Path) -> dict[str, list[int]]:
    """Count for each task the samples that passed, and all."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for line in (folder / "attempts.jsonl").read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        counts[entry["name"]][0] += entry["outcome"] == "passed"
        counts[entry["name"]][1] += 1
    return dict(sorted(counts.items()))


def runs_of(names: Sequence[str], arm: str) -> list[str]:
    """The runs of an arm, by seed."""
    return sorted(name for name in names if name.rpartition("-")[0] == arm)


def rates(counts: Counts, run: str, measure: str) -> np.ndarray:
    """Pass rate of each task.

    Raises:
        ValueError: the run was measured on other tasks than the start.
    """
    found = counts[run][measure]
    if found.keys() != counts[START][measure].keys():
        raise ValueError(f"{run} was measured on other tasks than the start")
    return np.array([passed / total for passed, total in found.values()])


def interval(of_tasks: np.ndarray) -> str:
    """A mean over tasks, with what 95 % of draws of tasks give."""
    chosen = np.random.default_rng(0).integers(0, len(of_tasks), (DRAWS, len(of_tasks)))
    low, high = np.quantile(of_tasks[chosen].mean(axis=1), [0.025, 0.975])
    return f"{of_tasks.mean():+.1%} ({low:+.1%} to {high:+.1%})"


def table(counts: Counts) -> str:
    """Pass rates of each run and measure, and the changes against the start on the same tasks."""
    lines = ["| run | sampled | change | greedy | change |", "|---|---|---|---|---|"]
    start = {measure: rates(counts, START, measure) for measure in MEASURES}
    lines.append(f"| start | {start['sampled'].mean():.1%} | | {start['greedy'].mean():.1%} | |")
    for arm in ARMS:
        names = runs_of(list(counts), arm)
        found = {measure: [rates(counts, name, measure) for name in names] for measure in MEASURES}
        for number, name in enumerate(names):
            cells = []
            for measure in MEASURES:
                now = found[measure][number]
                cells += [f"{now.mean():.1%}", interval(now - start[measure])]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        if names:
            cells = []
            for measure in MEASURES:
                together = np.mean(found[measure], axis=0)
                cells += [f"{together.mean():.1%}", f"**{interval(together - start[measure])}**"]
            lines.append(f"| **{arm}, mean of {len(names)}** | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def curves_of(run: Path) -> dict[str, list[float]]:
    """What a run logged, by name."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found: dict[str, list[float]] = {}
    for entry in map(json.loads, lines):
        for name in CURVES:
            if name in entry:
                found.setdefault(name, []).append(entry[name])
    return found


def pictures(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, str]:
    """Draw each curve: the mean of an arm's seeds, smoothed."""
    drawn = {}
    for name in CURVES:
        series: dict[str, Any] = {}
        for arm in ARMS:
            values = [curves[run][name] for run in runs_of(list(curves), arm) if curves[run].get(name)]
            if values:
                means = np.mean([each[: min(map(len, values))] for each in values], axis=0)
                width = min(SMOOTHED, len(means))
                points = range(width, len(means) + 1)
                series[arm] = [(point, float(means[point - width : point].mean())) for point in points]
        if series:
            drawn[name] = line_chart(f"{name}, mean of the seeds", "measured", name, series)
    return drawn


def main(place: Path) -> None:
    """Make them from the folder of the runs, or the table from counts."""
    if place.is_file():
        print(table(json.loads(place.read_text(encoding="utf-8"))), end="")
        return
    names = [run.name for run in sorted(place.iterdir()) if (run / "sampled" / "attempts.jsonl").is_file()]
    counts = {name: {measure: counted(place / name / measure) for measure in MEASURES} for name in names}
    curves = {name: curves_of(place / name) for name in names if (place / name / "metrics.jsonl").is_file()}
    (place / "counts.json").write_text(json.dumps(counts) + "\n", encoding="utf-8")
    (place / "curves.json").write_text(json.dumps(curves) + "\n", encoding="utf-8")
    for name, picture in pictures(curves).items():
        (place / f"{name}.svg").write_text(picture, encoding="utf-8")
    (place / "table.md").write_text(table(counts), encoding="utf-8")
    print((place / "table.md").read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
